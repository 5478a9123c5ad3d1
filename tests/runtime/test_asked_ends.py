"""An end that somebody is asked about is only an end if the run still wants it when the answer comes."""

from __future__ import annotations

import asyncio
from typing import Any

from perdure import Agent, Runtime
from perdure.core.actions import EndRun
from perdure.core.commands import ChangeState
from perdure.events import ModelCalled, RunEnded, StateChanged
from perdure.ports import Store
from perdure.testing import ScriptedModel
from tests.runtime.scenes import events, said, seen, soon


class Doorman:
    """Middleware that holds ends until it is told to let them pass."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.free = asyncio.Event()
        self.ends: list[RunEnded] = []

    async def __call__(self, action: Any, perform: Any) -> Any:
        if isinstance(action, EndRun):
            self.ends.append(action.end)
            self.asked.set()
            await self.free.wait()
        return await perform(action)


async def test_an_input_that_joins_meanwhile_is_answered(store: str | Store) -> None:
    doorman = Doorman()
    agent = Agent(name="clerk", model=ScriptedModel(["One.", "Two."]), middleware=[doorman])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("first")
        await soon(doorman.asked.wait())
        await session.send("second", busy="join")
        await seen(session, ModelCalled, 2)
        doorman.free.set()
        assert (await soon(run)).output == "Two."
        assert await said(session) == ["first", "second"]
        assert len(await events(session, RunEnded)) == 1
        assert [end.output for end in doorman.ends] == ["One.", "Two."]


async def test_a_stop_meanwhile_is_the_one_end(store: str | Store) -> None:
    doorman = Doorman()
    agent = Agent(name="clerk", model=ScriptedModel(["One."]), middleware=[doorman])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("first")
        await soon(doorman.asked.wait())
        await session.stop()
        await seen(session, RunEnded)
        doorman.free.set()
        await soon(run)
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        assert [end.reason for end in await events(session, RunEnded)] == ["stopped"]


async def test_a_request_that_says_nothing_new_holds_nobody_up(memory: Store) -> None:
    """What a request comes to may be nothing at all; a driver that kept it would ask for ever."""

    async def change_twice(action: Any, perform: Any) -> Any:
        if isinstance(action, EndRun):
            log = session._log
            driver = runtime._host.duty.drivers[log.uid]
            driver._request(ChangeState({"session/a": 1}, origin="once"))
            await seen(session, StateChanged)
            driver._request(ChangeState({"session/a": 2}, origin="once"))
            await asyncio.sleep(0)
        return await perform(action)

    agent = Agent(name="clerk", model=ScriptedModel(["One."]), middleware=[change_twice])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        assert (await soon(session.run("go"))).output == "One."
        assert session.state.values == {"a": 1}
