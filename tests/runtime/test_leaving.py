"""Leaving a Runtime: no new turn, grace for what is in flight, the rest for the next one."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from perdure import Agent, Refused, Runtime, tool
from perdure.events import CallEnded, CallStarted, ModelCalled, RunResumed
from perdure.ports import Store
from perdure.testing import ManualClock, ScriptedModel, call
from tests.runtime.scenes import collect, crashing, events, kinds, said, seen, soon, told, until


async def test_calls_in_flight_get_grace_and_no_new_turn_is_taken(store: str | Store) -> None:
    started, release = asyncio.Event(), asyncio.Event()
    ledger: list[int] = []

    @tool
    async def work() -> str:
        started.set()
        await release.wait()
        ledger.append(1)
        return "done"

    model = ScriptedModel([[call("work")], "Done."])
    agent = Agent(name="clerk", model=model, tools=[work])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        await session.start("go", key="k")
        await soon(started.wait())
        asyncio.get_running_loop().call_later(0.02, release.set)
    assert ledger == [1]
    assert len(model.requests) == 1, "no new turn"
    async with Runtime(store, engine=None) as runtime:
        session = await runtime.session("x")
        assert (await kinds(session))[-1] == "CallEnded", "its outcome is in the log"
        assert [row.status async for row in runtime.sessions()] == ["running"]
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        assert (await soon(session.run("go", key="k"))).output == "Done."
        assert ledger == [1]
        assert await events(session, RunResumed) == [], "nothing was interrupted"


async def test_a_sync_tool_gets_grace_too(memory: Store) -> None:
    started = threading.Event()
    release = threading.Event()

    @tool
    def work() -> str:
        started.set()
        release.wait(20)
        return "done"

    agent = Agent(name="clerk", model=ScriptedModel([[call("work")], "Done."]), tools=[work])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        await session.start("go", key="k")
        await until(started.is_set)
        asyncio.get_running_loop().call_later(0.02, release.set)
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        assert (await soon(session.run("go", key="k"))).output == "Done."
        assert await told(session) == [("work", "ok", "done")]


async def test_what_outlasts_the_grace_is_left_to_the_next_runtime(store: str | Store) -> None:
    cancelled: list[int] = []

    @tool(effect="idempotent")
    async def work() -> str:
        if not cancelled:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.append(1)
        return "done"

    agent = Agent(name="clerk", model=ScriptedModel([[call("work")], "Done."]), tools=[work])
    async with Runtime(store, agents=[agent], grace=0.05) as runtime:
        session = await runtime.open(agent, id="x")
        await session.start("go", key="k")
        await seen(session, CallStarted)
    assert cancelled == [1], "nothing of it is left running"
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        assert (await soon(session.run("go", key="k"))).output == "Done."
        assert len(await events(session, RunResumed)) == 1
        assert [start.attempt for start in await events(session, CallStarted)] == [1, 2]
        assert len(await events(session, CallEnded)) == 1


async def test_a_model_call_under_way_is_made_again_by_the_next_runtime(store: str | Store) -> None:
    hang = True

    async def answer(_: object) -> str:
        if hang:
            await asyncio.Event().wait()
        return "Done."

    agent = Agent(name="clerk", model=ScriptedModel(answer))
    async with crashing(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        await session.start("go", key="k")
        await seen(session, ModelCalled)
    hang = False
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        result = await soon(session.run("go", key="k"))
        assert (result.output, result.turns) == ("Done.", 1)
        assert [(called.turn, called.attempt) for called in await events(session, ModelCalled)] == [(1, 1), (1, 2)]


async def test_inputs_that_were_only_accepted_are_worked_off_later(store: str | Store) -> None:
    agent = Agent(name="clerk", model=ScriptedModel(lambda _: "Done."))
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        for number in range(5):
            await session.start(str(number), key=str(number))
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        results = [await soon(session.run(str(number), key=str(number))) for number in range(5)]
        assert [result.run for result in results] == [1, 2, 3, 4, 5]
        assert await said(session) == ["0", "1", "2", "3", "4"]


async def test_leaving_an_idle_or_waiting_session_writes_nothing(store: str | Store) -> None:
    @tool(ask=True)
    async def act() -> str:
        return "done"

    agent = Agent(name="clerk", model=ScriptedModel([[call("act")], "Done."]), tools=[act])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        await session.run("go")
        before = await session.records()
    for _ in range(3):
        async with Runtime(store, agents=[agent]) as runtime:
            assert await (await runtime.session("x")).records() == before


async def test_who_awaits_is_told(store: str | Store) -> None:
    async def hang(_: object) -> str:
        await asyncio.Event().wait()
        return "never"

    agent = Agent(name="clerk", model=ScriptedModel(hang))
    async with crashing(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        waiting = asyncio.ensure_future(session.run("go"))
        await seen(session, ModelCalled)
    with pytest.raises(Refused, match="closed while this was awaited"):
        await soon(waiting)


async def test_streams_end_when_the_runtime_closes(store: str | Store) -> None:
    agent = Agent(name="clerk", model=ScriptedModel(lambda _: "Done."))
    items: list[Any] = []
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        reading = collect(session.stream(), items)
        await session.run("go")
        await until(lambda: items)
    await soon(reading)


async def test_sessions_of_a_runtime_that_left_are_picked_up_without_being_asked(store: str | Store) -> None:
    """Recovery at start-up: nobody opens the session, nobody sends anything."""
    hang = True

    async def answer(_: object) -> str:
        if hang:
            await asyncio.Event().wait()
        return "Done."

    agent = Agent(name="clerk", model=ScriptedModel(answer))
    async with crashing(store, agents=[agent]) as runtime:
        for number in range(3):
            session = await runtime.open(agent, id=str(number))
            await session.start("go")
            await seen(session, ModelCalled)
    hang = False
    async with Runtime(store, agents=[agent]) as runtime:
        for number in range(3):
            session = await runtime.session(str(number))
            await until(lambda session=session: len(session.state.ended) == 1)
            assert session.state.ended[0].reason == "completed"


async def test_the_sweep_finds_what_was_submitted_elsewhere(store: str | Store) -> None:
    """Without a fast path: another Runtime only accepts, this one finds it by looking."""
    clock = ManualClock()
    agent = Agent(name="clerk", model=ScriptedModel(lambda _: "Done."))
    async with Runtime(store, agents=[agent], clock=clock), Runtime(store, agents=[agent], engine=None) as other:
        session = await other.open(agent, id="x")
        run = await session.start("go")
        for _ in range(200):
            if len(session.state.ended):
                break
            await clock.advance(0.5)
            await asyncio.sleep(0.005)
            await session.history()
        assert (await soon(_result(run))).output == "Done."


async def _result(run: Any) -> Any:
    return await run


async def test_leaving_at_any_moment_loses_and_repeats_nothing(memory: Store) -> None:
    """Every number of loop ticks after the start is a moment to leave; the next Runtime always comes to the end."""

    @tool(effect="idempotent")
    async def work(name: str) -> str:
        await asyncio.sleep(0)
        return name

    for ticks in range(0, 60, 3):
        agent = Agent(
            name="clerk",
            model=ScriptedModel([[call("work", name="a"), call("work", name="b")], [call("work", name="c")], "Done."]),
            tools=[work],
        )
        async with Runtime(memory, agents=[agent], grace=0 if ticks % 2 else 10) as runtime:
            session = await runtime.open(agent, id=str(ticks))
            await session.start("go", key="k")
            for _ in range(ticks):
                await asyncio.sleep(0)
        async with Runtime(memory, agents=[agent]) as runtime:
            session = await runtime.open(agent, id=str(ticks))
            assert (await soon(session.run("go", key="k"))).output == "Done."
            assert [text for _, _, text in await told(session)] == ["a", "b", "c"]
