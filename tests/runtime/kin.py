"""What the tests of sub-agents share: agents in a row, tools to hold them up, and looks into the sessions below."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from perdure import Agent, Runtime, Session, ToolContext, tool
from perdure.core.events import SessionOpened
from perdure.events import CallEnded, RunEnded
from perdure.testing import ScriptedModel, call
from tests.runtime.scenes import PATIENCE, events


class Gate:
    """A tool that goes on when it is told to, and says what became of it."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.entered: list[str] = []
        self.passed: list[str] = []
        self.cancelled: list[str] = []
        self.most = 0

    @property
    def inside(self) -> int:
        return len(self.entered) - len(self.passed) - len(self.cancelled)

    def tool(self, **options: Any) -> Any:
        @tool(**{"effect": "read", **options})
        async def wait(what: str, ctx: ToolContext[Any, Any]) -> str:
            """Wait at the gate."""
            self.entered.append(what)
            self.most = max(self.most, self.inside)
            try:
                await self.open.wait()
            except asyncio.CancelledError:
                self.cancelled.append(what)
                raise
            self.passed.append(what)
            return f"{what} is through"

        return wait


def agent(name: str, *answers: Any, tools: Sequence[Any] = (), **options: Any) -> Agent[Any]:
    """An agent that says these things, in order, in every conversation; `usage` and `cost` are its model's."""
    script = {key: options.pop(key) for key in ("usage", "cost", "clock") if key in options}
    return Agent(name=name, model=ScriptedModel(list(answers), **script), tools=list(tools), **options)


def row(*names: str, last: Agent[Any], **options: Any) -> Agent[Any]:
    """Agents of which each hands its task to the next one, down to the last; the first of them."""
    below = last
    for name in reversed(names):
        below = agent(name, call(below.name, input=f"from {name}"), f"{name} is done", tools=[below], **options)
    return below


async def children(runtime: Runtime, session: Session[Any]) -> list[Session[Any]]:
    """The sessions right below one, oldest first."""
    rows = await session.children()
    found = [await runtime.session(row.id, tenant=row.tenant) for row in rows]
    begun = [(record.at, found[at].uid, found[at]) for at in range(len(found)) for record in await _first(found[at])]
    return [child for _, _, child in sorted(begun, key=lambda item: item[:2])]


async def _first(session: Session[Any]) -> list[Any]:
    return await session.records(limit=1)


async def child(runtime: Runtime, session: Session[Any]) -> Session[Any]:
    """The only session right below one."""
    (found,) = await children(runtime, session)
    return found


async def born(runtime: Runtime, session: Session[Any], count: int = 1) -> list[Session[Any]]:
    """The sessions below one, as soon as there are so many."""
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while len(found := await children(runtime, session)) < count:
        assert asyncio.get_running_loop().time() < deadline, "no child came"
        await asyncio.sleep(0.002)
    return found


async def opened(session: Session[Any]) -> SessionOpened:
    (first,) = await events(session, SessionOpened)
    return first


async def outcome(session: Session[Any], number: int = 0) -> tuple[str, str]:
    """How a call of the session ended, and the words."""
    ended = (await events(session, CallEnded))[number]
    return ended.outcome, " ".join(getattr(part, "text", "") for part in ended.parts)


async def end(session: Session[Any]) -> tuple[str, str]:
    """How the session's last run ended."""
    ended = (await events(session, RunEnded))[-1]
    return ended.reason, ended.detail
