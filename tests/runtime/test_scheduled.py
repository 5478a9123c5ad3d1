"""Scheduled inputs: they wait in the log, nobody holds them, and they are due at their time, also after a restart."""

from __future__ import annotations

import asyncio

import pytest

from perdure import Agent, Refused, Runtime
from perdure.core.commands import SendInput
from perdure.core.messages import Text
from perdure.events import InputAccepted, InputChanged, RunStarted
from perdure.ports import Store
from perdure.testing import ManualClock, ScriptedModel
from tests.runtime.scenes import events, soon, turned


def later(text: str, at: float) -> SendInput:
    return SendInput((Text(text),), at=at, by="test")


async def test_an_input_of_later_waits_without_a_driver_and_wakes_its_session(store: str | Store) -> None:
    clock = ManualClock()
    agent = Agent(name="clerk", model=ScriptedModel(["Now.", "Then."]))
    async with Runtime(store, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent, id="x")
        await session._host.request(session._log, later("then", clock.now() + 3600))
        assert (await soon(session.run("now"))).output == "Now."
        while await runtime.driver_of(session):
            await asyncio.sleep(0.002)
        (row,) = [row async for row in runtime.sessions()]
        assert (row.status, row.owner, row.summary.wake_at) == ("idle", None, clock.now() + 3600)
        with pytest.raises(Refused, match="no open run"):
            await session.stop()
    async with Runtime(store, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent, id="x")
        assert len(session.state.ended) == 1
        await turned(clock, lambda: len(session.state.ended) == 2, step=600)
        assert session.state.ended[1].output == "Then."
        assert [event.due for event in await events(session, InputChanged)] == [True]
        started = await events(session, RunStarted)
        accepted = await events(session, InputAccepted)
        assert [(event.run, event.inputs) for event in started] == [(1, (2,)), (2, (1,))]
        assert accepted[0].by == "test"


async def test_an_input_whose_time_has_passed_unseen_is_resumed(store: str | Store) -> None:
    clock = ManualClock()
    agent = Agent(name="clerk", model=ScriptedModel(["Now.", "Then."]))
    async with Runtime(store, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent, id="x")
        await session._host.request(session._log, later("then", clock.now() + 3600))
        await soon(session.run("now"))
    await clock.advance(7200)
    async with Runtime(store, agents=[agent], clock=clock) as runtime:
        assert (await soon((await runtime.open(agent, id="x")).resume())).output == "Then."
