"""What the shell offers after Tab: sessions, tags, inputs, pending decisions, models and the words of a decision."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.core.errors import PerdureError

if TYPE_CHECKING:
    from perdure.runtime.session import Session
    from perdure.wiring import Runtime

OFFERED = 100


def session_ids(ctx: typer.Context, incomplete: str) -> list[str]:
    async def read(runtime: Runtime) -> list[str]:
        found: list[str] = []
        # A sub-agent's session is its parent's id and more.
        async for row in runtime.sessions(children="." in incomplete):
            if row.id.startswith(incomplete):
                found.append(row.id)
            if len(found) == OFFERED:
                break
        return found

    return _look(ctx, read)


def pending_ids(ctx: typer.Context, incomplete: str) -> list[str]:
    async def read(runtime: Runtime) -> list[str]:
        return [item.id for item in await runtime.pending() if item.id.startswith(incomplete)]

    return _look(ctx, read)


def tag_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """The tags of the session that was named before."""

    async def names(session: Session[Any]) -> list[str]:
        return list(await session.tags())

    return _look_in_session(ctx, incomplete, names)


def input_numbers(ctx: typer.Context, incomplete: str) -> list[str]:
    """The inputs that wait for the session that was named before."""

    async def names(session: Session[Any]) -> list[str]:
        return [str(item.number) for item in await session.inputs()]

    return _look_in_session(ctx, incomplete, names)


def trigger_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """The triggers of the session that was named before."""

    async def names(session: Session[Any]) -> list[str]:
        return list(await session.triggers())

    return _look_in_session(ctx, incomplete, names)


def dead_numbers(ctx: typer.Context, incomplete: str) -> list[str]:
    """The numbers of the dead letters of the session that was named before."""

    async def names(session: Session[Any]) -> list[str]:
        return [str(letter.sent.message) for letter in await session.dead_letters()]

    return _look_in_session(ctx, incomplete, names)


def _look_in_session(
    ctx: typer.Context, incomplete: str, names: Callable[[Session[Any]], Awaitable[list[str]]]
) -> list[str]:
    """What fits among the names that the session which was named before has."""
    # While an option has no value yet, what stands before it has not been read.
    named = ctx.params.get("id") or ctx.params.get("session") or next(iter(ctx.args), "")

    async def read(runtime: Runtime) -> list[str]:
        session = await runtime.session(named, tenant=ctx.params.get("tenant") or "")
        return [name for name in await names(session) if name.startswith(incomplete)]

    return _look(ctx, read)


def model_names(incomplete: str) -> list[str]:
    from perdure.models.weights import CATALOGUE

    return [name for name in CATALOGUE if name.startswith(incomplete)]


def decisions(incomplete: str) -> list[str]:
    from typing import get_args

    from perdure.core.events import DecisionKind

    return [word for word in get_args(DecisionKind) if word.startswith(incomplete)]


def _look(ctx: typer.Context, read: Callable[[Runtime], Awaitable[list[str]]]) -> list[str]:
    """Nothing where there is nothing to read: a Tab must not make a store, nor show an error."""
    import asyncio

    from perdure.cli.remote import beside

    async def look() -> list[str]:
        async with beside(ctx.params.get("store") or os.environ.get("PERDURE_STORE")) as runtime:
            return await read(runtime)

    try:
        return asyncio.run(look())
    except PerdureError:
        return []


SessionArgument = Annotated[
    str, typer.Argument(metavar="SESSION", help="The session's id.", show_default=False, autocompletion=session_ids)
]
