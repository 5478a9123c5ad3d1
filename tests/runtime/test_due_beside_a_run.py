"""Inputs whose time comes while the session is driven: nobody else would wake its driver for them."""

from __future__ import annotations

import asyncio

from perdure import Agent, Runtime, tool
from perdure.core.commands import SendInput
from perdure.core.messages import Text
from perdure.events import CallStarted, RunEnded
from perdure.ports import Store
from perdure.testing import ManualClock, ScriptedModel, call
from tests.runtime.scenes import events, said, seen, soon, turned


@tool(effect="read")
async def wait() -> str:
    """Waits for ever."""
    await asyncio.Event().wait()
    return "never"


async def test_an_interrupt_interrupts_in_its_time(store: str | Store) -> None:
    clock = ManualClock()
    agent = Agent(name="clerk", model=ScriptedModel([[call("wait")], "Looked."]), tools=[wait])
    async with Runtime(store, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("wait")
        await seen(session, CallStarted)
        command = SendInput((Text("look at the oven"),), busy="interrupt", at=clock.now() + 60)
        await session._host.request(session._log, command)
        await turned(clock, lambda: len(session.state.ended) == 2, step=20)
        assert (await soon(run)).reason == "cancelled"
        assert [end.reason for end in await events(session, RunEnded)] == ["cancelled", "completed"]
        assert await said(session) == ["wait", "look at the oven"]
