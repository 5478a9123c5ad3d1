"""How an agent takes inputs that wait: one at a time, or all that are due together."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import Agent, Limits, Runtime, Session, UsageError
from perdure.context import Inputs
from perdure.core.codec import decode_json, encode_json
from perdure.events import ModelCalled, RunEnded, RunStarted
from perdure.plugins import Block, Guardrail
from perdure.ports import ModelRequest, Store
from perdure.runtime.agent import bind
from perdure.testing import ScriptedModel
from tests.runtime.scenes import crashing, events, said, soon

ALL = Inputs(queued="all")


class Busy:
    """Holds its first answer until it is let, and says then how much it has heard."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.let = asyncio.Event()
        self.model = ScriptedModel(self._answer)

    async def _answer(self, request: ModelRequest) -> str:
        self.asked.set()
        await self.let.wait()
        return f"Heard {sum(type(message).__name__ == 'UserMessage' for message in request.messages)}."


async def results(*runs: Any) -> list[tuple[int, str]]:
    async def settled(run: Any) -> Any:
        return await run

    ended = await soon(asyncio.gather(*map(settled, runs)))
    return [(result.run, result.output if result.reason == "completed" else result.reason) for result in ended]


async def starts(session: Session[Any]) -> list[tuple[int, ...]]:
    return [event.inputs for event in await events(session, RunStarted)]


async def test_all_that_waits_starts_one_run_and_every_handle_has_its_result(store: str | Store) -> None:
    busy = Busy()
    agent = Agent(name="clerk", model=busy.model, inputs=ALL)
    async with Runtime(store, agents=[agent]) as runtime, Runtime(store, agents=[agent], engine=None) as beside:
        session = await runtime.open(agent, id="x")
        first = await session.start("one")
        await soon(busy.asked.wait())
        runs = [await session.start(text) for text in ("two", "three")]
        runs.append(await (await beside.session("x")).start("four", key="four"))
        busy.let.set()
        assert await results(first, *runs) == [(1, "Heard 1."), *[(2, "Heard 4.")] * 3]
        assert await starts(session) == [(1,), (2, 3, 4)]
        assert await said(session) == ["one", "two", "three", "four"]
        assert (await soon(session.run("four", key="four"))).run == 2


async def test_the_agent_as_it_is_now_says_how_its_first_run_starts(store: str | Store) -> None:
    """Before the first run no definition of the agent is in the log, and later an older one."""
    one_by_one = Agent(name="clerk", model=ScriptedModel([]))
    async with Runtime(store, agents=[one_by_one], engine=None) as runtime:
        session = await runtime.open(one_by_one, id="x")
        for text in ("one", "two"):
            await session.start(text)
    agent = Agent(name="clerk", model=ScriptedModel(["Both."]), inputs=ALL)
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        assert await soon(session.wait_idle())
        assert await starts(session) == [(1, 2)]


async def test_other_overrides_make_another_run_and_the_order_stays(memory: Store) -> None:
    busy = Busy()
    agent = Agent(name="clerk", model=busy.model, inputs=ALL)
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        await session.start("one")
        await soon(busy.asked.wait())
        small = Limits(turns=1)
        for text, limits in (("two", None), ("three", small), ("four", small), ("five", None)):
            await session.start(text, limits=limits)
        busy.let.set()
        assert await soon(session.wait_idle())
        assert await starts(session) == [(1,), (2,), (3, 4), (5,)]
        assert [event.limits.turns for event in await events(session, RunStarted)] == [50, 50, 1, 50]


async def test_an_interrupt_is_first_of_all_that_waits(store: str | Store) -> None:
    busy = Busy()
    agent = Agent(name="clerk", model=busy.model, inputs=ALL)
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        first = await session.start("one")
        await soon(busy.asked.wait())
        runs = [await session.start("two"), await session.send("three", busy="interrupt")]
        busy.let.set()
        assert await results(first, *runs) == [(1, "cancelled"), (2, "Heard 3."), (2, "Heard 3.")]
        assert await said(session) == ["one", "three", "two"]


async def test_guardrails_see_each_input_and_one_that_they_block_takes_no_other_with_it(store: str | Store) -> None:
    shown: list[str] = []

    async def guard(moment: Any) -> Block | None:
        shown.append(moment.text)
        await asyncio.sleep(0)
        return Block("no") if "locks" in moment.text else None

    busy = Busy()
    agent = Agent(name="clerk", model=busy.model, inputs=ALL, guardrails=[Guardrail(input=guard)])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        await session.start("one")
        await soon(busy.asked.wait())
        runs = [await session.start(text) for text in ("two", "three", "about locks", "four")]
        busy.let.set()
        assert await results(*runs) == [(2, "Heard 3."), (2, "Heard 3."), (3, "refusal"), (4, "Heard 4.")]
        assert shown == ["one", "two", "three", "about locks", "four"]
        assert await said(session) == ["one", "two", "three", "four"]
        assert [end.detail for end in await events(session, RunEnded, reason="refusal")] == ["input: no"]


async def test_joins_are_heard_one_at_a_time_if_the_agent_wants_it(store: str | Store) -> None:
    busy = Busy()
    agent = Agent(name="clerk", model=busy.model, inputs=Inputs(joined="one"))
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        first = await session.start("one")
        await soon(busy.asked.wait())
        runs = [await session.send(text) for text in ("two", "three", "four")]
        busy.let.set()
        assert await results(first, *runs) == [(1, "Heard 4.")] * 4
        assert [event.inputs for event in await events(session, ModelCalled)] == [(), (2,), (3,), (4,)]
        assert session.turns == 4


async def test_a_batch_that_was_under_way_goes_on_after_a_crash(store: str | Store) -> None:
    busy = Busy()
    stuck = Agent(name="clerk", model=busy.model, inputs=ALL)
    async with Runtime(store, agents=[stuck], engine=None) as runtime:
        session = await runtime.open(stuck, id="x")
        for text in ("one", "two"):
            await session.start(text, key=text)
    async with crashing(store, agents=[stuck]):
        await soon(busy.asked.wait())
    agent = Agent(name="clerk", model=ScriptedModel(lambda _: "Both."), inputs=ALL)
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        results = [await soon(session.run(text, key=text)) for text in ("one", "two")]
        assert [(result.run, result.output) for result in results] == [(1, "Both.")] * 2
        assert await said(session) == ["one", "two"]


def test_an_agent_that_takes_inputs_as_usual_is_written_as_it_always_was() -> None:
    usual = Agent(name="clerk", model=ScriptedModel([]))
    other = Agent(name="clerk", model=ScriptedModel([]), inputs=Inputs(queued="all", joined="one"))

    def written(agent: Agent[Any]) -> Any:
        return decode_json(encode_json(bind(agent, lambda _: ScriptedModel([]), None).spec))

    assert "inputs" not in written(usual), "or its digest would be another, and every session would pin it anew"
    assert written(other)["inputs"] == {"queued": "all", "joined": "one"}


@pytest.mark.parametrize("inputs", [Inputs(queued="some"), Inputs(joined=""), "all", None])  # type: ignore[arg-type]
def test_ways_to_take_inputs_that_make_no_sense(inputs: Any) -> None:
    with pytest.raises(UsageError, match="'one' or 'all'" if isinstance(inputs, Inputs) else "inputs takes Inputs"):
        Agent(name="clerk", model=ScriptedModel([]), inputs=inputs)
