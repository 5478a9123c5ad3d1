"""Streams: every record, deltas in order, and consumers that cannot hurt a run."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from perdure import (
    Agent,
    DeltasDropped,
    Limits,
    ModelError,
    Record,
    Runtime,
    TextDelta,
    ThinkingDelta,
    ToolContext,
    ToolEmitted,
    ToolProgressed,
    tool,
)
from perdure.core.deltas import CallDelta
from perdure.core.messages import Thinking
from perdure.events import InputAccepted, RunEnded
from perdure.ports import Store
from perdure.testing import ManualClock, Reply, ScriptedModel, call
from tests.runtime.scenes import check_log, collect, seen, soon, until

QUEUE = 1000
"""The most that a consumer's queue holds."""


@tool(effect="read")
async def look(what: str) -> str:
    return f"{what} is fine"


def writer(*answers: Any, **options: Any) -> Agent[str]:
    return Agent(name="writer", model=ScriptedModel(list(answers)), tools=[look], **options)


def shown(items: list[Any]) -> list[str]:
    """A stream in short: the kind of each record, the text of each delta."""
    return [
        type(item.event).__name__ if isinstance(item, Record) else getattr(item, "text", type(item).__name__)
        for item in items
    ]


async def test_a_run_streams_its_records_and_deltas_in_order(store: str | Store) -> None:
    agent = writer(
        Reply("Let me look.", Thinking("hmm"), call("look", what="it"), deltas=["Let me", " look."]),
        Reply(deltas=["It ", "is ", "fine."]),
    )
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("go")
        items = [item async for item in run.stream()]
        assert shown(items) == [
            "InputAccepted",
            "RunStarted",
            "ModelCalled",
            "Let me",
            " look.",
            "hmm",
            "PartClosed",
            "CallDelta",
            "PartClosed",
            "ModelResponded",
            "CallChecked",
            "CallStarted",
            "CallEnded",
            "ModelCalled",
            "It ",
            "is ",
            "fine.",
            "ModelResponded",
            "RunEnded",
        ]
        assert isinstance(items[5], ThinkingDelta)
        assert items[7] == CallDelta(0, "look", '{"what":"it"}')
        records = [item for item in items if isinstance(item, Record)]
        assert records == [
            record for record in await session.records() if record.run == 1 or isinstance(record.event, InputAccepted)
        ]


async def test_a_session_streams_its_past_then_what_comes(store: str | Store) -> None:
    agent = writer("One.", "Two.", "Three.")
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        await session.run("one")
        items: list[Any] = []
        late: list[Any] = []
        consumers = [
            collect(session.stream(), items),
            collect(session.stream(after=5), late),
        ]
        await until(lambda: items and late)
        await session.run("two")
        await session.run("three")
    await soon(asyncio.gather(*consumers))
    records = [item for item in items if isinstance(item, Record)]
    check_log(records)
    assert len([record for record in records if isinstance(record.event, RunEnded)]) == 3
    assert [item.text for item in items if isinstance(item, TextDelta)] == ["Two.", "Three."]
    assert [item for item in late if isinstance(item, Record)] == records[5:]


async def test_a_stream_ends_with_its_runtime_wherever_it_was(
    store: str | Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.runtime.follow.PAGE", 1)
    agent = writer("One.")
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        await session.run("one")
        past = session.stream()
        assert isinstance(await anext(past), Record)
        not_begun = session.stream()
        begun = collect(session.stream(), [])
        await asyncio.sleep(0)
    assert [item async for item in past] == []
    assert [item async for item in not_begun] == []
    await soon(begun)


async def test_a_slow_consumer_neither_slows_a_run_nor_misses_a_record(store: str | Store) -> None:
    agent = writer(Reply("x" * 5000, chunk=1))
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("go")
        stream = run.stream()
        first = await anext(stream)
        assert (await soon(run)).output == "x" * 5000, "the run ends while nobody reads"
        items = [first] + [item async for item in stream]
        dropped = [item for item in items if isinstance(item, DeltasDropped)]
        texts = [item for item in items if isinstance(item, TextDelta)]
        assert len(dropped) == 1
        assert dropped[0].count + len(texts) == 5000
        assert len(texts) <= QUEUE, "what a consumer holds is bounded"
        records = [item for item in items if isinstance(item, Record)]
        assert [type(record.event).__name__ for record in records] == [
            "InputAccepted",
            "RunStarted",
            "ModelCalled",
            "ModelResponded",
            "RunEnded",
        ]


async def test_a_consumer_that_lags_by_thousands_of_records_gets_them_all(memory: Store) -> None:
    turns = 400
    agent = writer(*[[call("look", what=str(turn))] for turn in range(turns)], "Done.")
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        stream = session.stream()
        items: list[Any] = [await anext(stream)]
        assert (await soon(session.run("go", limits=Limits(turns=None)))).reason == "completed"
        async for item in stream:
            items.append(item)
            if isinstance(item, Record) and isinstance(item.event, RunEnded):
                break
        records = [item for item in items if isinstance(item, Record)]
        assert len(records) > 2 * QUEUE
        check_log(records)


async def test_a_vanished_consumer_leaves_nothing_behind(store: str | Store) -> None:
    step = asyncio.Event()

    async def answer(_: object) -> Reply:
        await step.wait()
        return Reply("abc", chunk=1)

    agent = Agent(name="writer", model=ScriptedModel(answer))
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("go")
        async for _ in run.stream():
            break
        broken = collect(session.stream(), [])
        await asyncio.sleep(0)
        broken.cancel()
        await asyncio.wait([broken])
        del broken
        gc.collect()
        step.set()
        assert (await soon(run)).output == "abc"
        everything = [item async for item in run.stream()]
        assert shown(everything)[-1] == "RunEnded"


async def test_the_stream_of_a_run_that_ended_is_its_past(store: str | Store) -> None:
    agent = writer("One.", "Two.")
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        await session.run("one", key="one")
        await session.run("two")
        again = await session.start("one", key="one")
        items = [item async for item in again.stream()]
        assert shown(items) == ["InputAccepted", "RunStarted", "ModelCalled", "ModelResponded", "RunEnded"]
        assert {item.run for item in items[1:] if isinstance(item, Record)} == {1}


async def test_the_stream_of_a_queued_run_shows_nothing_of_the_one_before(store: str | Store) -> None:
    first, second = asyncio.Event(), asyncio.Event()

    async def answer(request: Any) -> str:
        if len(request.messages) == 1:
            await first.wait()
            return "One."
        await second.wait()
        return "Two."

    agent = Agent(name="writer", model=ScriptedModel(answer))
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        await session.start("one")
        queued = await session.start("two")
        items: list[Any] = []
        reading = collect(queued.stream(), items)
        await until(lambda: items)
        first.set()
        await seen(session, RunEnded)
        second.set()
        await soon(reading)
        assert shown(items) == [
            "InputAccepted",
            "RunStarted",
            "ModelCalled",
            "Two.",
            "ModelResponded",
            "RunEnded",
        ]


async def test_tools_show_progress_and_whatever_they_emit(store: str | Store) -> None:
    @tool(effect="read")
    async def walk(ctx: ToolContext[Any, Any]) -> str:
        ctx.progress("half way", 0.5)
        ctx.emit({"at": [1, 2]})
        return "there"

    @tool(effect="read")
    def swim(ctx: ToolContext[Any, Any]) -> str:
        ctx.progress("wet")
        ctx.emit("splash")
        return "across"

    model = ScriptedModel([[call("walk")], [call("swim")], "Done."])
    agent = Agent(name="writer", model=model, tools=[walk, swim])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("go")
        items = [item async for item in run.stream()]
        deltas = [item for item in items if isinstance(item, ToolProgressed | ToolEmitted)]
        assert deltas == [
            ToolProgressed(1, "half way", 0.5),
            ToolEmitted(1, {"at": [1, 2]}),
            ToolProgressed(2, "wet"),
            ToolEmitted(2, "splash"),
        ]
        names = shown(items)
        assert names.index("ToolProgressed") < names.index("CallEnded"), "shown while the call runs"


# The text alone


async def test_text_comes_in_pieces(store: str | Store) -> None:
    agent = writer(Reply(call("look", what="it"), deltas=["Hm. "]), Reply(deltas=["It ", "is ", "fine."]))
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("go")
        assert [piece async for piece in run.text()] == ["Hm. ", "It ", "is ", "fine."]


async def test_text_of_an_ended_run_is_whole(store: str | Store) -> None:
    agent = writer(Reply("It is fine.", chunk=1))
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("go")
        await run
        assert [piece async for piece in run.text()] == ["It is fine."]


async def test_text_is_complete_for_a_slow_reader(memory: Store) -> None:
    whole = "".join(f"{number}," for number in range(4000))
    agent = writer(Reply(whole, chunk=4))
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        run = await session.start("go")
        stream = run.text()
        pieces = [await anext(stream)]
        await run
        pieces += [piece async for piece in stream]
        assert "".join(pieces) == whole


async def test_text_of_a_discarded_attempt_is_not_said_twice(memory: Store) -> None:
    clock = ManualClock()
    agent = writer(
        Reply("It is fine.", chunk=3, cut_after=2),
        ModelError.rate_limited(retry_after=1),
        Reply("It is fine.", chunk=3),
    )
    async with Runtime(memory, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent)
        run = await session.start("go")
        pieces: list[str] = []
        reading = collect(run.text(), pieces)
        while not reading.done():
            await clock.advance(1)
        assert "".join(pieces) == "It is fine."
        assert pieces[:2] == ["It ", "is "]


async def test_many_deltas_at_once_leave_their_consumer_a_turn(memory: Store) -> None:
    """A model may have thousands of pieces ready without a pause; a consumer that keeps up loses none of them."""
    agent = writer(Reply("x" * 5000, chunk=1))
    async with Runtime(memory, agents=[agent]) as runtime:
        run = await (await runtime.open(agent)).start("go")
        items = [item async for item in run.stream()]
    assert sum(isinstance(item, TextDelta) for item in items) == 5000
