"""perdure decide: answer a suspended call, from any terminal, any day."""

from __future__ import annotations

from typing import Annotated

import typer

from perdure.cli.terminal import JsonOption, StoreOption, run_async


def decide(
    pending: Annotated[str, typer.Argument(help="The id that `perdure pending` shows.", show_default=False)],
    decision: Annotated[str, typer.Argument(help="approve, deny, edit, answer or retry.", show_default=False)],
    reason: Annotated[str, typer.Option(help="Why; the model reads it.", show_default=False)] = "",
    value: Annotated[str | None, typer.Option(help="With answer: the result, JSON or text.", show_default=False)] = None,
    arguments: Annotated[str | None, typer.Option(help="With edit: JSON arguments.", show_default=False)] = None,
    by: Annotated[str | None, typer.Option(help="Who decides; you by default.", show_default=False)] = None,
    remember: Annotated[bool, typer.Option("--remember", help="Approve the same call again without asking.")] = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Record a decision, and say who will act on it.

    Example: `perdure decide 3f2a…-2-1 deny --reason "too much"`
    """
    run_async(_decide(pending, decision, reason, value, arguments, by, remember, store, json))


async def _decide(
    pending: str,
    decision: str,
    reason: str,
    value: str | None,
    arguments: str | None,
    by: str | None,
    remember: bool,
    store: str | None,
    json: bool,
) -> None:
    from typing import cast, get_args

    from perdure.cli.answers import read_arguments, read_value, who
    from perdure.cli.remote import beside, tell
    from perdure.core.errors import UsageError
    from perdure.core.events import DecisionKind

    if decision not in get_args(DecisionKind):
        raise UsageError(f"{decision!r} is no decision; take one of {', '.join(get_args(DecisionKind))}.")
    async with beside(store) as runtime:
        session = await runtime.decide(
            pending,
            cast(DecisionKind, decision),
            by=by or who(),
            reason=reason,
            value=read_value(value),
            arguments=read_arguments(arguments),
            remember=remember,
        )
        await tell(runtime, session, f"{decision} is recorded", json=json)
