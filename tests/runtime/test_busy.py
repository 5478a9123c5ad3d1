"""Inputs for a session that is busy: join, queue, interrupt, refuse; none is ever lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import Agent, Limits, Refused, Runtime, tool
from perdure.core.messages import AssistantMessage, ToolMessage, UserMessage
from perdure.events import CallStarted, InputAccepted, ModelCalled, RunEnded, RunStarted
from perdure.ports import ModelRequest, Store
from perdure.testing import ScriptedModel, call
from tests.runtime.scenes import crashing, events, said, seen, soon, told


class Gate:
    """A model that answers the n-th request with the n-th answer, when it is let."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked = [asyncio.Event() for _ in answers]
        self.let = [asyncio.Event() for _ in answers]
        self.model = ScriptedModel(self._answer)

    async def _answer(self, _: ModelRequest) -> Any:
        number = next(i for i, event in enumerate(self.asked) if not event.is_set())
        self.asked[number].set()
        await self.let[number].wait()
        return self.answers[number]


@tool(ask=True)
async def act(what: str) -> str:
    return f"{what} is done"


async def test_inputs_queue_and_each_gets_its_own_run_in_order(store: str | Store) -> None:
    gate = Gate("One.", "Two.", "Three.")
    agent = Agent(name="clerk", model=gate.model)
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        runs = [await session.start(text) for text in ("one", "two", "three")]
        for event in gate.let:
            event.set()
        results = await soon(asyncio.gather(*runs))
        assert [(result.run, result.output) for result in results] == [(1, "One."), (2, "Two."), (3, "Three.")]
        assert await said(session) == ["one", "two", "three"]


async def test_an_input_that_joins_is_heard_at_the_next_turn(store: str | Store) -> None:
    release = asyncio.Event()

    @tool(effect="read")
    async def look() -> str:
        await release.wait()
        return "fine"

    model = ScriptedModel([[call("look")], "Both done."])
    agent = Agent(name="clerk", model=model, tools=[look])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("bill order 7")
        await seen(session, CallStarted)
        joined = await session.send("add shipping too")
        assert joined.run is None, "not heard yet"
        release.set()
        first, second = await soon(asyncio.gather(run, joined))
        assert (first.run, second.run, second.output) == (1, 1, "Both done.")
        assert [type(message) for message in await session.history()] == [
            UserMessage,
            AssistantMessage,
            ToolMessage,
            UserMessage,
            AssistantMessage,
        ]
        assert [called.inputs for called in await events(session, ModelCalled)] == [(), (2,)]


async def test_an_input_that_joins_while_the_model_answers_is_heard_before_the_run_ends(store: str | Store) -> None:
    gate = Gate("Done.", "Shipping added.")
    agent = Agent(name="clerk", model=gate.model)
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("bill order 7")
        await soon(gate.asked[0].wait())
        joined = await session.send("add shipping too")
        for event in gate.let:
            event.set()
        first, second = await soon(asyncio.gather(run, joined))
        assert (first.run, second.run) == (1, 1)
        assert first.output == second.output == "Shipping added."
        assert first.turns == 2
        assert len(await events(session, RunEnded)) == 1


async def test_several_inputs_join_in_order(memory: Store) -> None:
    gate = Gate("One.", "All.")
    agent = Agent(name="clerk", model=gate.model)
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        run = await session.start("one")
        await soon(gate.asked[0].wait())
        joined = [await session.send(text) for text in ("two", "three", "four")]
        for event in gate.let:
            event.set()
        results = await soon(asyncio.gather(run, *joined))
        assert {result.run for result in results} == {1}
        assert await said(session) == ["one", "two", "three", "four"]


async def test_an_input_that_joins_nothing_starts_a_run(store: str | Store) -> None:
    agent = Agent(name="clerk", model=ScriptedModel(["One."]))
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        assert (await (await session.send("one"))).output == "One."


async def test_an_input_that_could_not_join_any_more_gets_its_own_run(store: str | Store) -> None:
    gate = Gate("Done.", "Later.")
    agent = Agent(name="clerk", model=gate.model, limits=Limits(turns=1))
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("one")
        await soon(gate.asked[0].wait())
        joined = await session.send("two")
        for event in gate.let:
            event.set()
        first, second = await soon(asyncio.gather(run, joined))
        assert (first.run, first.output) == (1, "Done.")
        assert (second.run, second.output) == (2, "Later.")


async def test_an_input_joins_a_run_that_waits_once_it_goes_on(store: str | Store) -> None:
    agent = Agent(name="clerk", model=ScriptedModel([[call("act", what="it")], "Done."]), tools=[act])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        result = await session.run("one")
        assert result.reason == "waiting"
        joined = await session.send("two")
        waiting = await joined
        assert (waiting.reason, waiting.pending) == ("waiting", result.pending)
        await session.decide(result.pending[0].id, "approve")
        assert (await soon(_result(joined))).run == 1
        assert await said(session) == ["one", "two"]


async def _result(run: Any) -> Any:
    return await run


async def test_interrupt_ends_the_run_and_goes_first(store: str | Store) -> None:
    gate = Gate("Never.", "Urgent.", "Queued.")
    agent = Agent(name="clerk", model=gate.model)
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        first = await session.start("one")
        await soon(gate.asked[0].wait())
        queued = await session.start("queued")
        urgent = await session.send("urgent", busy="interrupt")
        for event in gate.let[1:]:
            event.set()
        results = await soon(asyncio.gather(first, queued, urgent))
        assert [(result.run, result.reason) for result in results] == [
            (1, "cancelled"),
            (3, "completed"),
            (2, "completed"),
        ]
        assert results[0].detail == "interrupted by a new input"
        assert await said(session) == ["one", "urgent", "queued"]


async def test_interrupt_supersedes_what_waits_for_a_decision(store: str | Store) -> None:
    agent = Agent(name="clerk", model=ScriptedModel([[call("act", what="it")], "New work."]), tools=[act])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        (pending,) = (await session.run("one")).pending
        result = await soon(session.run("two", busy="interrupt"))
        assert (result.run, result.output) == (2, "New work.")
        ((name, outcome, text),) = await told(session)
        assert (name, outcome) == ("act", "superseded")
        assert "not started" in text
        assert await session.pending() == ()
        with pytest.raises(Exception, match="no longer waits"):
            await session.decide(pending.id, "approve")


async def test_interrupt_cancels_tools_under_way(store: str | Store) -> None:
    cancelled = asyncio.Event()

    @tool(effect="read")
    async def look() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return "never"

    agent = Agent(name="clerk", model=ScriptedModel([[call("look")], "New work."]), tools=[look])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        await session.start("one")
        await seen(session, CallStarted)
        assert (await soon(session.run("two", busy="interrupt"))).output == "New work."
        assert cancelled.is_set()
        assert [outcome for _, outcome, _ in await told(session)] == ["cancelled"]


async def test_interrupting_an_idle_session_is_an_ordinary_run(memory: Store) -> None:
    agent = Agent(name="clerk", model=ScriptedModel(["One."]))
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        assert (await session.run("one", busy="interrupt")).output == "One."


async def test_refuse_takes_no_input_while_the_session_is_busy(store: str | Store) -> None:
    gate = Gate("One.", "Two.")
    agent = Agent(name="clerk", model=gate.model)
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("one", busy="refuse")
        await soon(gate.asked[0].wait())
        with pytest.raises(Refused, match="busy"):
            await session.run("two", busy="refuse")
        assert len(await events(session, InputAccepted)) == 1
        for event in gate.let:
            event.set()
        await soon(run)
        assert (await soon(session.run("two", busy="refuse"))).output == "Two."


async def test_refuse_counts_a_waiting_run_as_busy(memory: Store) -> None:
    agent = Agent(name="clerk", model=ScriptedModel([[call("act", what="it")]]), tools=[act])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        await session.run("one")
        with pytest.raises(Refused, match="busy"):
            await session.send("two", busy="refuse")


async def test_accepted_inputs_survive_the_process(store: str | Store) -> None:
    """Whatever `start` and `send` returned from is worked off later, in order, whoever does it."""
    hang = asyncio.Event()

    async def never(_: object) -> str:
        await hang.wait()
        return "never"

    stuck = Agent(name="clerk", model=ScriptedModel(never))
    async with crashing(store, agents=[stuck]) as runtime:
        session = await runtime.open(stuck, id="x")
        await session.start("one")
        await seen(session, ModelCalled)
        await session.start("two", key="two")
        await session.send("three")
        await session.start("four", key="four")
    agent = Agent(name="clerk", model=ScriptedModel(lambda request: f"Answer to {len(request.messages)}."))
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        await soon(session.run("four", key="four"))
        assert await said(session) == ["one", "three", "two", "four"]
        assert [started.inputs for started in await events(session, RunStarted)] == [(1,), (2,), (4,)]
