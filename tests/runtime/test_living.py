"""Agents that live: sessions rest and wake without anybody holding them; who cares looks, waits, and goes again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import Agent, Limits, ModelError, RunIncomplete, Runtime, Session, UsageError, tool
from perdure.core.commands import SendInput
from perdure.core.messages import Text, Usage
from perdure.events import RunStarted
from perdure.ports import ModelRequest, Store
from perdure.testing import ManualClock, Reply, ScriptedModel, call
from tests.runtime.scenes import events, said, seen, soon, turned, until


@tool(ask=True)
async def act() -> str:
    """Acts."""
    return "done"


class Busy:
    """Holds each answer until it is let."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.let = asyncio.Event()
        self.model = ScriptedModel(self._answer)

    async def _answer(self, _: ModelRequest) -> str:
        self.asked.set()
        await self.let.wait()
        return "Done."


async def later(session: Session[Any], text: str, at: float) -> None:
    await session._host.request(session._log, SendInput((Text(text),), at=at, by="test"))


async def parked(runtime: Runtime, session: Session[Any]) -> Any:
    """The session's row, as soon as nobody drives it."""
    while await runtime.driver_of(session):
        await asyncio.sleep(0.002)
    (row,) = [row async for row in runtime.sessions()]
    return row


# What there is to look at


async def test_the_last_run_with_its_answer_usage_and_turns(store: str | Store) -> None:
    usage = [Usage(10, 1), Usage(20, 2), Usage(40, 4)]
    model = ScriptedModel(
        [Reply(call("look"), usage=usage[0]), Reply("One.", usage=usage[1]), Reply("Two.", usage=usage[2])]
    )

    @tool(effect="read")
    def look() -> str:
        return "fine"

    agent = Agent(name="clerk", model=model, tools=[look])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        assert (session.last, session.turns, session.is_idle) == (None, 0, True)
        await soon(session.run("one"))
        assert session.last is not None
        assert (session.last.run, session.last.output, session.last.turns) == (1, "One.", 2)
        assert (session.last.usage, session.turns) == (usage[0] + usage[1], 2)
        await soon(session.run("two"))
        assert (session.last.output, session.last.usage, session.last.turns) == ("Two.", usage[2], 1)
        assert (await session.usage(), session.turns) == (usage[0] + usage[1] + usage[2], 3)
    async with Runtime(store, agents=[agent], engine=None) as runtime:
        session = await runtime.session("x")
        assert session.last is not None
        assert (session.last.reason, session.last.output, session.turns) == ("completed", "Two.", 3)


async def test_the_last_run_may_have_failed(memory: Store) -> None:
    agent = Agent(name="clerk", model=ScriptedModel(["One.", ModelError("no key", kind="auth")]))
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        await soon(session.run("one"))
        await soon(session.run("two"))
        assert session.last is not None
        assert session.last.reason == "failed"
        with pytest.raises(RunIncomplete, match="no key"):
            _ = session.last.output


async def test_the_last_answer_has_its_type(memory: Store) -> None:
    agent = Agent(name="clerk", model=ScriptedModel(["[1, 2]"]), output=list[int])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        await soon(session.run("one"))
        assert session.last is not None
        assert session.last.output == [1, 2]


async def test_turns_count_those_of_the_open_run(memory: Store) -> None:
    agent = Agent(name="clerk", model=ScriptedModel(["One.", [call("act")]]), tools=[act])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        await soon(session.run("one"))
        await soon(session.run("two"))
        assert (session.turns, session.last and session.last.turns) == (2, 1)


# Waiting until it rests


@pytest.mark.parametrize("driven", ["here", "elsewhere"])
async def test_wait_idle_waits_until_all_work_is_done(store: str | Store, driven: str) -> None:
    busy = Busy()
    agent = Agent(name="clerk", model=busy.model)
    async with Runtime(store, agents=[agent]) as runtime, Runtime(store, agents=[agent], engine=None) as beside:
        driving = await runtime.open(agent, id="x")
        session = driving if driven == "here" else await beside.open(agent, id="x")
        assert await session.wait_idle()
        assert await session.wait_idle(0)
        for text in ("one", "two"):
            await session.start(text)
        assert not session.is_idle
        assert not await session.wait_idle(0)
        waiting = asyncio.ensure_future(session.wait_idle())
        await soon(busy.asked.wait())
        assert not waiting.done()
        busy.let.set()
        assert await soon(waiting)
        assert session.is_idle
        assert len(session.state.ended) == 2


async def test_wait_idle_gives_up_on_the_clock_of_the_runtime(store: str | Store) -> None:
    busy, clock = Busy(), ManualClock()
    agent = Agent(name="clerk", model=busy.model)
    async with Runtime(store, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent, id="x")
        await session.start("one")
        await soon(busy.asked.wait())
        waiting = asyncio.ensure_future(session.wait_idle(30))
        await turned(clock, waiting.done, step=10)
        assert not await waiting
        again = asyncio.ensure_future(session.wait_idle(30))
        await clock.advance(10)
        busy.let.set()
        assert await soon(again)


async def test_wait_idle_does_not_wait_for_a_decision(store: str | Store) -> None:
    agent = Agent(name="clerk", model=ScriptedModel([[call("act")], "Done."]), tools=[act])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        await session.start("one")
        assert not await soon(session.wait_idle()), "no waiting brings a decision about"
        assert not session.is_idle
        (pending,) = await session.pending()
        await session.decide(pending.id, "approve")
        assert await soon(session.wait_idle())


# Waiting until it wakes


@pytest.mark.parametrize("driven", ["here", "elsewhere"])
async def test_wait_wakeup_wakes_when_there_is_work(store: str | Store, driven: str) -> None:
    busy = Busy()
    agent = Agent(name="clerk", model=busy.model)
    async with Runtime(store, agents=[agent]) as runtime, Runtime(store, agents=[agent], engine=None) as beside:
        here, there = await runtime.open(agent, id="x"), await beside.open(agent, id="x")
        watching, sending = (here, there) if driven == "here" else (there, here)
        assert not await watching.wait_wakeup(0)
        waiting = asyncio.ensure_future(watching.wait_wakeup())
        await until(lambda: watching._log._waiters)
        await sending.start("one")
        assert await soon(waiting)
        assert await watching.wait_wakeup(0), "it is awake"
        busy.let.set()
        assert await soon(watching.wait_idle())


async def test_wait_wakeup_does_not_miss_a_run_that_comes_and_goes_between_two_looks(store: str | Store) -> None:
    agent = Agent(name="clerk", model=ScriptedModel(lambda _: "Done."))
    async with Runtime(store, agents=[agent]) as runtime, Runtime(store, agents=[agent], engine=None) as beside:
        session, other = await runtime.open(agent, id="x"), await beside.open(agent, id="x")
        for number in range(1, 11):
            waiting = asyncio.ensure_future(other.wait_wakeup())
            await until(lambda: other._log._waiters)
            await soon(session.run(str(number)))
            assert await soon(waiting)
            assert await soon(other.wait_idle())


async def test_wait_wakeup_gives_up_on_the_clock_of_the_runtime(store: str | Store) -> None:
    clock = ManualClock()
    agent = Agent(name="clerk", model=ScriptedModel(["Done."]))
    async with Runtime(store, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent, id="x")
        await later(session, "one", clock.now() + 3600)
        assert session.is_idle, "what is for later is no work"
        waiting = asyncio.ensure_future(session.wait_wakeup(60))
        await turned(clock, waiting.done, step=20)
        assert not await waiting
        # Far away, because the clock may run ahead of a store's threads.
        again = asyncio.ensure_future(session.wait_wakeup(1e9))
        await turned(clock, again.done, step=600)
        assert await again
        assert await soon(session.wait_idle())
        assert session.last is not None
        assert session.last.output == "Done."


async def test_a_decision_wakes_a_session(store: str | Store) -> None:
    agent = Agent(name="clerk", model=ScriptedModel([[call("act")], "Done."]), tools=[act])
    async with Runtime(store, agents=[agent]) as runtime, Runtime(store, agents=[agent], engine=None) as beside:
        session, other = await runtime.open(agent, id="x"), await beside.open(agent, id="x")
        (pending,) = (await soon(session.run("one"))).pending
        await other.history()
        waiting = asyncio.ensure_future(other.wait_wakeup())
        await until(lambda: other._log._waiters)
        await session.decide(pending.id, "approve")
        assert await soon(waiting)
        assert await soon(other.wait_idle())


@pytest.mark.parametrize("timeout", [-1, float("nan"), True])
async def test_time_outs_that_make_no_sense(memory: Store, timeout: Any) -> None:
    agent = Agent(name="clerk", model=ScriptedModel([]))
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        for wait in (session.wait_idle, session.wait_wakeup):
            with pytest.raises(UsageError, match="makes no sense"):
                await wait(timeout)


# Nobody holds it


async def test_who_stops_waiting_only_detaches(store: str | Store) -> None:
    busy = Busy()
    agent = Agent(name="clerk", model=busy.model)
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        run = asyncio.ensure_future(session.run("one"))
        waiting = [asyncio.ensure_future(session.wait_idle()), run]
        await soon(busy.asked.wait())
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        del session
        busy.let.set()
        again = await runtime.session("x")
        assert await soon(again.wait_idle())
        assert again.last is not None
        assert again.last.output == "Done."


async def test_a_session_wakes_at_its_time_in_whichever_process_lives_then(store: str | Store) -> None:
    clock = ManualClock()
    agent = Agent(name="clerk", model=ScriptedModel(["One.", "Two.", "Three."]))
    async with Runtime(store, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent, id="x")
        await later(session, "two", clock.now() + 3600)
        await later(session, "three", clock.now() + 7200)
        await soon(session.run("one"))
        row = await parked(runtime, session)
        assert (row.owner, row.status, row.summary.wake_at) == (None, "idle", clock.now() + 3600)
    await clock.advance(3601)
    async with Runtime(store, agents=[agent], clock=clock) as runtime:
        session = await runtime.session("x")
        await until(lambda: len(session.state.ended) == 2)
        row = await parked(runtime, session)
        assert (row.owner, row.summary.wake_at is not None) == (None, True)
    async with Runtime(store, agents=[agent], clock=clock) as runtime:
        session = await runtime.session("x")
        woken = asyncio.ensure_future(session.wait_wakeup())
        await turned(clock, woken.done, step=600)
        assert await soon(session.wait_idle())
        assert await said(session) == ["one", "two", "three"]
        assert (await parked(runtime, session)).summary.wake_at is None


async def test_a_session_that_waits_for_a_decision_wakes_when_somebody_decides(store: str | Store) -> None:
    agent = Agent(name="clerk", model=ScriptedModel([[call("act")], "Done."]), tools=[act])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        await soon(session.run("one"))
        row = await parked(runtime, session)
        assert (row.owner, row.status, row.summary.runnable) == (None, "waiting", False)
    async with Runtime(store, agents=[agent], engine=None) as runtime:
        session = await runtime.session("x")
        assert not session.is_idle
        (pending,) = await session.pending()
        await session.decide(pending.id, "approve")
        assert await session.wait_wakeup(0), "it has work, although nobody is there to do it"
        assert not await session.wait_idle(0)
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.session("x")
        assert await soon(session.wait_idle())
        assert session.last is not None
        assert session.last.output == "Done."
        assert (await parked(runtime, session)).owner is None


async def test_an_input_of_a_process_that_never_drives_waits_for_one_that_does(store: str | Store) -> None:
    agent = Agent(name="clerk", model=ScriptedModel(["One.", "Two."]), limits=Limits(turns=3))
    async with Runtime(store, agents=[agent], engine=None) as runtime:
        session = await runtime.open(agent, id="x")
        await session.send("one")
        (row,) = [row async for row in runtime.sessions()]
        assert (row.owner, row.status, row.summary.runnable) == (None, "running", True)
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.session("x")
        assert await soon(session.wait_idle())
        async with Runtime(store, agents=[agent], engine=None) as beside:
            await (await beside.session("x")).send("two")
            await seen(session, RunStarted, 2)
        assert await soon(session.wait_idle())
        assert [started.inputs for started in await events(session, RunStarted)] == [(1,), (2,)]


async def test_a_session_can_be_cleared_and_deleted_when_it_rests(store: str | Store) -> None:
    agent = Agent(name="clerk", model=ScriptedModel(["One.", "Two."]))
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        await session.send("one")
        assert await soon(session.wait_idle())
        await session.clear()
        assert (await session.history(), session.turns) == ([], 1)
        await soon(session.run("two"))
        assert (await said(session), session.turns) == (["two"], 2)
        await session.delete()
        assert [row async for row in runtime.sessions()] == []
