"""Commands to a session that another process may be driving: they are recorded, and somebody acts on them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Literal

from perdure.cli.agents import ASSISTANT
from perdure.cli.answers import who
from perdure.cli.family import root_of
from perdure.cli.questions import questions_of
from perdure.cli.terminal import patience, print_json, store_url
from perdure.cli.words import shell
from perdure.core.accept import DECISIONS
from perdure.core.errors import NotFound, Refused
from perdure.core.views import Pending
from perdure.runtime.session import Session
from perdure.wiring import Runtime

NOTICED_WITHIN = 0.9
"""A process that attends a waiting session looks at it this often; until then nobody drives it."""


@asynccontextmanager
async def beside(store: str | None) -> AsyncGenerator[Runtime]:
    """A runtime that sends, decides and looks, and never drives."""
    async with AsyncExitStack() as stack:
        async with patience("opening the store …"):
            runtime = await stack.enter_async_context(Runtime(store_url(store, must_exist=True), engine=None))
        yield runtime


async def find(runtime: Runtime, id: str, store: str | None, tenant: str) -> Session[Any]:
    try:
        return await runtime.session(id, tenant=tenant)
    except NotFound:
        whose = f" of tenant {tenant!r}" if tenant else ""
        there = shell("sessions", "list", store=store)
        raise NotFound(f"There is no session {id!r}{whose}; {there} shows which there are.") from None


async def end_run(verb: Literal["stop", "cancel"], id: str, store: str | None, tenant: str, *, json: bool) -> None:
    async with beside(store) as runtime:
        session = await find(runtime, id, store, tenant)
        try:
            await (session.stop(by=who()) if verb == "stop" else session.cancel(by=who()))
        except Refused:
            raise Refused(f"Session {id!r} has no open run, so there is nothing to {verb}.") from None
        await tell(runtime, session, verb, store, json=json)


async def tell(runtime: Runtime, session: Session[Any], what: str, store: str | None, *, json: bool) -> None:
    """Says what was recorded, and who will act on it."""
    driver = await _driver(runtime, session)
    if json:
        print_json({"session": session.id, "recorded": what, "driver": driver})
    elif driver:
        print(f"{session.id}: {what} is recorded; the process that drives the session acts on it now.")
    else:
        command = await how_to_resume(runtime, session, store)
        print(f"{session.id}: {what} is recorded; nobody drives the session now: {command} goes on with it.")


async def _driver(runtime: Runtime, session: Session[Any]) -> str | None:
    """Whoever drives it, or takes it up as soon as they notice."""
    head = session.state.seq
    for _ in range(round(NOTICED_WITHIN / 0.1)):
        driver = await runtime.driver_of(session)
        if driver is not None:
            return driver
        await asyncio.sleep(0.1)
        if await session.records(after=head, limit=1):
            return "another process"
    return None


async def how_to_resume(runtime: Runtime, session: Session[Any], store: str | None) -> str:
    """The command that goes on with a session; a sub-agent's goes on with the one that it works for."""
    session = await root_of(runtime, session) or session
    agent = "FILE.py:NAME" if session.agent != ASSISTANT else None
    return shell("resume", session.id, agent=agent, store=store, tenant=session.tenant)


def how_to_decide(pending: Pending, store: str | None) -> str:
    """The commands that answer a suspended call."""
    if not DECISIONS[pending.kind]:
        return "it waits for a session of its own; decide what that one waits for"
    first, *others = DECISIONS[pending.kind]
    answers = len(questions_of(pending))
    value = [f"[{', '.join(['…'] * answers)}]" if answers > 1 else "…"] if first == "answer" else []
    return f"{shell('decide', pending.id, first, *value, store=store)}   (or {', '.join(others)})"
