"""Gates: one probe when the time has come, the rest when it got through, in the order of their coming."""

from __future__ import annotations

import asyncio

import pytest

from perdure import Agent, ModelError, Runtime
from perdure.events import Noted
from perdure.ports import ModelTraits, Store
from perdure.runtime.clock import within
from perdure.runtime.gates import TRIPPED_FOR, TRIPS_AFTER, Gate, Gates
from perdure.testing import ManualClock, ScriptedModel
from tests.runtime.scenes import events, soon, turned, until


async def entering(gate: Gate, passed: list[int], number: int) -> None:
    await gate.enter()
    passed.append(number)


async def test_an_open_gate_lets_everybody_through() -> None:
    gate = Gate(ManualClock())
    assert not await soon(gate.enter())
    assert gate.opens_in == 0


async def test_a_shut_gate_lets_one_probe_through_and_the_rest_behind_its_success() -> None:
    clock, passed = ManualClock(), list[int]()
    gate = Gate(clock)
    gate.shut(10, by_probe=False)
    tasks = [asyncio.ensure_future(entering(gate, passed, number)) for number in range(5)]
    await clock.advance(9.9)
    assert passed == []
    await clock.advance(0.2)
    assert passed == [0], "one tries, the others wait for what it finds"
    gate.succeed()
    await clock.advance(0)
    assert passed == [0, 1, 2], "two for each that got through"
    gate.succeed()
    await soon(asyncio.gather(*tasks))
    assert passed == [0, 1, 2, 3, 4]
    assert gate.is_open, "nobody is left in line"


async def test_a_gate_is_only_ever_shut_for_longer() -> None:
    clock = ManualClock()
    gate = Gate(clock)
    gate.shut(30, by_probe=False)
    gate.shut(5, by_probe=False)
    assert gate.opens_in == 30
    await clock.advance(30)
    assert await soon(gate.enter()), "as the probe"
    gate.succeed()
    gate.shut(5, by_probe=False)
    assert gate.opens_in == 5, "a success begins anew"


async def test_a_probe_that_fails_makes_the_others_wait_on() -> None:
    clock, passed = ManualClock(), list[int]()
    gate = Gate(clock)
    gate.shut(10, by_probe=False)
    tasks = [asyncio.ensure_future(entering(gate, passed, number)) for number in range(3)]
    await clock.advance(10)
    gate.shut(20, by_probe=True)
    await clock.advance(19)
    assert passed == [0]
    await clock.advance(1)
    assert passed == [0, 1]
    gate.succeed()
    await soon(asyncio.gather(*tasks))


async def test_a_probe_that_is_cancelled_gives_its_place_to_the_next() -> None:
    clock, passed = ManualClock(), list[int]()
    gate = Gate(clock)
    gate.shut(10, by_probe=False)
    first, second, third = (asyncio.ensure_future(entering(gate, passed, number)) for number in range(3))
    await asyncio.sleep(0)
    second.cancel()
    await clock.advance(10)
    assert passed == [0]
    gate.step_back()
    await clock.advance(0)
    assert passed == [0, 2], "who left the line is passed over"
    await asyncio.gather(first, second, third, return_exceptions=True)


async def test_five_failures_in_a_row_trip_the_circuit_and_a_success_closes_it() -> None:
    clock = ManualClock()
    gates, model = Gates(clock), ScriptedModel([])
    error = ModelError("down", kind="server")
    for _ in range(TRIPS_AFTER - 1):
        gates.fail(await gates.enter(gates.approach(model)), error, 0)
    gates.succeed(await gates.enter(gates.approach(model)))
    for _ in range(TRIPS_AFTER - 1):
        gates.fail(await gates.enter(gates.approach(model)), error, 0)
    assert gates.circuit(model).is_open, "in a row"
    gates.fail(await gates.enter(gates.approach(model)), error, 0)
    assert gates.circuit(model).opens_in == TRIPPED_FOR
    await clock.advance(TRIPPED_FOR)
    probe = await soon(gates.enter(gates.approach(model)))
    assert probe.probes_circuit
    waiting = asyncio.ensure_future(gates.enter(gates.approach(model)))
    await clock.advance(1)
    assert not waiting.done(), "one probe at a time"
    gates.fail(probe, error, 0)
    assert gates.circuit(model).opens_in == TRIPPED_FOR
    await clock.advance(TRIPPED_FOR)
    gates.succeed(await soon(waiting))
    assert gates.circuit(model).is_open


async def test_a_request_that_is_wrong_says_nothing_about_the_circuit() -> None:
    gates, model = Gates(ManualClock()), ScriptedModel([])
    for _ in range(2 * TRIPS_AFTER):
        gates.fail(await gates.enter(gates.approach(model)), ModelError("no", kind="invalid_request"), 0)
    assert gates.circuit(model).is_open


async def test_a_rate_limit_holds_for_all_agents_that_share_the_quota(memory: Store) -> None:
    """The second session waits before its first attempt, and starts as soon as the first one got through."""
    clock = ManualClock()
    shared = ModelTraits(quota="key-1")
    one = ScriptedModel([ModelError.rate_limited(retry_after=30), "One."], name="one", traits=shared)
    two = ScriptedModel(["Two."], name="two", traits=shared)
    other = ScriptedModel(["Other."], name="other", traits=ModelTraits(quota="key-2"))
    agents = [Agent(name=model.name, model=model) for model in (one, two, other)]
    async with Runtime(memory, agents=agents, clock=clock) as runtime:
        sessions = [await runtime.open(agent) for agent in agents]
        first = await sessions[0].start("go")
        await until(lambda: len(one.requests) == 1)
        await clock.advance(0)
        second = await sessions[1].start("go")
        assert (await soon(sessions[2].run("go"))).output == "Other.", "another key has its own quota"
        await clock.advance(29)
        assert two.requests == [], "it waits before its first attempt too"
        await turned(clock, lambda: len(sessions[1].state.ended) == 1)
        assert ((await first).output, (await second).output) == ("One.", "Two.")
        (note,) = await events(sessions[1], Noted, kind="model_wait")
        assert note.data["model"] == "two"
        assert 0 < note.data["wait"] <= 31


async def test_with_a_fallback_nobody_waits_for_a_tripped_circuit(memory: Store) -> None:
    clock = ManualClock()
    down = ScriptedModel(lambda _: ModelError("down", kind="server"), name="down")
    spare = ScriptedModel(lambda _: "Spare.", name="spare")
    agent = Agent(name="clerk", model=[down, spare])
    async with Runtime(memory, agents=[agent], clock=clock) as runtime:
        for number in range(2):
            session = await runtime.open(agent)
            run = await session.start("go")
            await turned(clock, lambda: len(session.state.ended) == 1, 0.5)  # noqa: B023 - awaited in this round
            assert (await run).output == "Spare.", number
        assert len(down.requests) == TRIPS_AFTER, "four of the first, one of the second, then the circuit is open"
        session = await runtime.open(agent)
        result = await soon(session.run("go"))
        assert result.output == "Spare."
        assert len(down.requests) == TRIPS_AFTER
        (note,) = await events(session, Noted, kind="model_attempt")
        assert (note.data["kind"], note.data["wait"]) == ("overloaded", None)
        await clock.advance(TRIPPED_FOR)
        session = await runtime.open(agent)
        await session.start("go")
        await turned(clock, lambda: len(session.state.ended) == 1, 0.5)
        assert len(down.requests) == TRIPS_AFTER + 1, "one probe"


async def test_without_a_fallback_a_tripped_circuit_is_waited_for(
    memory: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    # By chance one of them could have all its four attempts before the other has its second.
    monkeypatch.setattr("perdure.runtime.ladder.random", lambda: 0.5)
    clock = ManualClock()
    answers: list[object] = [ModelError("down", kind="server") for _ in range(TRIPS_AFTER)]

    def flaky(_: object) -> object:
        return answers.pop() if answers else "Back."

    agent = Agent(name="clerk", model=ScriptedModel(flaky))  # type: ignore[arg-type]
    async with Runtime(memory, agents=[agent], clock=clock) as runtime:
        sessions = [await runtime.open(agent) for _ in range(2)]
        runs = [await session.start("go") for session in sessions]
        await turned(clock, lambda: all(len(session.state.ended) for session in sessions))
        assert [(await run).output for run in runs] == ["Back.", "Back."]


async def test_only_who_was_let_in_after_the_shutting_may_open(memory: Store) -> None:
    clock = ManualClock()
    gates, model = Gates(clock), ScriptedModel([])
    early = await gates.enter(gates.approach(model))
    late = await gates.enter(gates.approach(model))
    gates.fail(late, ModelError.rate_limited(), 5)
    gates.succeed(early)
    assert gates.quota(model).opens_in == 5, "an answer that began before the limit says nothing about it"


async def test_a_probe_is_given_back_whatever_moment_its_session_is_cancelled_in() -> None:
    clock = ManualClock()
    gates, model = Gates(clock), ScriptedModel([])
    for turns in range(8):
        gates.fail(await gates.enter(gates.approach(model)), ModelError.rate_limited(), 5)
        entering = gates.enter(gates.approach(model))
        task = asyncio.ensure_future(within(clock, 100, entering, gates.step_back))
        await asyncio.sleep(0)
        clock_task = asyncio.ensure_future(clock.advance(5))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, clock_task, return_exceptions=True)
        if task.cancelled():
            assert not gates.quota(model).is_probed, f"lost in turn {turns}"
            entry = await soon(gates.enter(gates.approach(model)))
        else:
            entry = task.result()
        gates.succeed(entry)
        assert gates.quota(model).is_open


async def test_with_a_fallback_nobody_waits_behind_a_probe(memory: Store) -> None:
    clock = ManualClock()
    stalled = asyncio.Event()

    async def slow(_: object) -> str:
        await stalled.wait()
        return "Back."

    down = ScriptedModel(slow, name="down")
    agent = Agent(name="clerk", model=[down, ScriptedModel(lambda _: "Spare.", name="spare")])
    async with Runtime(memory, agents=[agent], clock=clock) as runtime:
        gates = runtime._host.world.gates  # pyright: ignore[reportPrivateUsage]
        for _ in range(TRIPS_AFTER):
            gates.fail(gates.approach(down), ModelError("down", kind="server"), 0)
        await clock.advance(TRIPPED_FOR)
        probing = await (await runtime.open(agent)).start("go")
        await until(lambda: down.requests)
        assert (await soon((await runtime.open(agent)).run("go"))).output == "Spare."
        stalled.set()
        assert (await soon(probing)).output == "Back."


async def test_a_crowd_on_one_limited_key_gets_through(memory: Store) -> None:
    """Twenty a window: nobody fails, since a crowd comes back only as fast as it is taken in."""
    clock = ManualClock()
    windows: dict[int, int] = {}

    def limited(_: object) -> object:
        window = int(clock.monotonic() / 0.5)
        windows[window] = windows.get(window, 0) + 1
        return "Yes." if windows[window] <= 20 else ModelError.rate_limited(retry_after=0.5)

    agent = Agent(name="clerk", model=ScriptedModel(limited))  # type: ignore[arg-type]
    async with Runtime(memory, agents=[agent], clock=clock) as runtime:
        runs = [await (await runtime.open(agent)).start("go") for _ in range(200)]
        done = asyncio.gather(*runs)
        await turned(clock, done.done, 0.25)
        assert [result.reason for result in await done] == ["completed"] * 200
