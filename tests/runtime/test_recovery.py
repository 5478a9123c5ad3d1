"""Broken streams: closed calls are kept, text is continued, half calls never run; a dead process is the same case."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure import Agent, Limits, ModelError, Record, Runtime, StoreError, TextDelta, tool
from perdure.core.deltas import AttemptDiscarded, CallDelta, ModelDelta, PartClosed, ThinkingDelta
from perdure.core.messages import Text, Thinking, ToolCall
from perdure.events import CallEnded, ModelCalled, ModelFailed, ModelResponded, Noted, RunResumed
from perdure.ports import ModelRequest, ModelTraits, Store
from perdure.runtime.drafts import DraftTimer, DraftWriter, read_draft
from perdure.runtime.recovery import Continue, Keep, Restart, as_items, join_answer, plan_after, receive
from perdure.testing import ManualClock, Reply, ScriptedModel, call
from tests.runtime.scenes import collect, crashing, events, soon, turned, until

GOES_ON = ModelTraits(provider="own", continues=True)

PARTS = st.lists(
    st.one_of(
        st.builds(Text, st.text(max_size=6)),
        st.builds(Thinking, st.text(max_size=6), st.sampled_from(["", "sig"])),
        st.builds(ToolCall, st.just(0), st.sampled_from(["pay", "look"]), st.just("{}")),
    ),
    max_size=6,
)


def streamed(parts: list[Any]) -> list[ModelDelta]:
    """A stream that says these parts, in small pieces."""
    items: list[ModelDelta] = []
    calls = 0
    for part in parts:
        match part:
            case Text(text=text):
                items += [TextDelta(char) for char in text]
            case Thinking(text=text):
                items += [*(ThinkingDelta(char) for char in text), PartClosed(part)]
            case _:
                items += [CallDelta(calls, part.name), CallDelta(calls, "", "{"), CallDelta(calls, "", "}")]
                items.append(PartClosed(part))
                calls += 1
    return items


@given(PARTS, st.booleans(), st.data())
@settings(max_examples=200)
def test_a_stream_cut_anywhere_comes_to_one_of_the_defined_ends(parts: Any, continues: bool, data: Any) -> None:
    items = streamed(parts)
    cut = data.draw(st.integers(0, len(items)))
    received = receive(items[:cut])
    closed = [item.part for item in items[:cut] if isinstance(item, PartClosed)]
    text = "".join(item.text for item in items[:cut] if isinstance(item, TextDelta))
    assert received.text == text, "not a word more or less"
    match plan_after(received, continues=continues):
        case Keep(parts=kept):
            assert isinstance(kept[-1], ToolCall)
            assert [p for p in kept if isinstance(p, ToolCall)] == [p for p in closed if isinstance(p, ToolCall)]
        case Continue(prefix=prefix):
            assert continues
            assert not received.open_thought
            assert not any(isinstance(part, ToolCall) for part in prefix)
            assert "".join(part.text for part in prefix if isinstance(part, Text)) == text
            assert receive(as_items(prefix)).parts == prefix
        case Restart():
            assert not any(isinstance(part, ToolCall) for part in closed), "whole calls are never thrown away"
            assert received.open_thought or not continues or not text.strip()


def test_prefix_and_continuation_are_one_text() -> None:
    assert join_answer((Text("Hel"),), (Text("lo"),)) == (Text("Hello"),)
    thought = Thinking("hm")
    assert join_answer((thought, Text("Hel")), (Text("lo"), ToolCall(0, "a", "{}"))) == (
        thought,
        Text("Hello"),
        ToolCall(0, "a", "{}"),
    )
    assert join_answer((Text("a"),), (ToolCall(0, "a", "{}"),)) == (Text("a"), ToolCall(0, "a", "{}"))
    assert join_answer((), (Text("a"),)) == (Text("a"),)


@tool(effect="read")
async def look(what: str) -> str:
    """Look."""
    return f"saw {what}"


async def test_a_call_that_was_closed_is_kept_and_the_half_one_never_runs(store: str | Store) -> None:
    script = [
        Reply("I look.", call("look", what="a"), call("look", what="b"), cut_after=4),
        "Done.",
    ]
    model = ScriptedModel(script)
    agent = Agent(name="clerk", model=model, tools=[look])
    async with Runtime(store, agents=[agent], clock=ManualClock()) as runtime:
        session = await runtime.open(agent, id="x")
        result = await soon(session.run("go"))
        assert result.output == "Done."
        first, _ = await events(session, ModelResponded)
        assert (first.message.text, [c.arguments for c in first.message.calls]) == ("I look.", ['{"what":"a"}'])
        assert first.usage.estimated
        assert [end.call for end in await events(session, CallEnded)] == [1]
        (note,) = await events(session, Noted)
        assert (note.kind, note.data["plan"], note.data["kind"]) == ("model_recovery", "kept", "cut")
    assert len(model.requests) == 2, "the turn ended with what was whole; nobody asked twice"


async def test_text_is_continued_from_its_prefix(store: str | Store) -> None:
    clock = ManualClock()
    model = ScriptedModel(
        [Reply("It was a dark night.", chunk=4, cut_after=3), Reply("k night.", chunk=4)], traits=GOES_ON
    )
    agent = Agent(name="clerk", model=model)
    async with Runtime(store, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("go")
        items: list[Any] = []
        reading = collect(run.stream(), items)
        await turned(clock, lambda: reading.done())
        assert (await run).output == "It was a dark night."
        shown = [item for item in items if not isinstance(item, Record)]
        assert "".join(item.text for item in shown) == "It was a dark night.", "watchers see one text"
        assert model.requests[1].prefix == (Text("It was a dar"),)
        (responded,) = await events(session, ModelResponded)
        assert responded.wasted.total > 0, "the attempt that was cut is paid for"
        notes = [note.data.get("plan", note.kind) for note in await events(session, Noted)]
        assert notes == ["model_attempt", "continued"]


async def test_who_refuses_a_prefix_is_asked_from_the_start(memory: Store) -> None:
    refusal = ModelError("This model does not go on from an answer.", kind="invalid_request")
    script = [Reply("It was a dark night.", chunk=4, cut_after=3), refusal, "It was bright."]
    clock, model = ManualClock(), ScriptedModel(script, traits=GOES_ON)
    agent = Agent(name="clerk", model=model)
    async with Runtime(memory, agents=[agent], clock=clock) as runtime:
        run = await (await runtime.open(agent)).start("go")
        items: list[Any] = []
        reading = collect(run.stream(), items)
        await turned(clock, lambda: reading.done())
        assert (await run).output == "It was bright."
    assert [request.prefix for request in model.requests] == [(), (Text("It was a dar"),), ()]
    discarded = next(at for at, item in enumerate(items) if isinstance(item, AttemptDiscarded))
    assert "".join(item.text for item in items[discarded:] if isinstance(item, TextDelta)) == "It was bright."


async def test_a_half_call_behind_text_is_dropped_and_said_to_be(memory: Store) -> None:
    clock = ManualClock()
    model = ScriptedModel(
        [Reply("Let me ", call("look", what="a"), cut_after=2), Reply("look.", call("look", what="b")), "Done."],
        traits=GOES_ON,
    )
    agent = Agent(name="clerk", model=model, tools=[look])
    async with Runtime(memory, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent)
        run = await session.start("go")
        items: list[Any] = []
        reading = collect(run.stream(), items)
        await turned(clock, lambda: reading.done())
        assert (await run).output == "Done."
        shown = [item for item in items if not isinstance(item, Record)]
        kinds = [type(item).__name__ for item in shown]
        assert kinds[:5] == ["TextDelta", "CallDelta", "AttemptDiscarded", "TextDelta", "TextDelta"]
        assert shown[3].text == "Let me "
        first, _ = await events(session, ModelResponded)
        assert (first.message.text, [c.arguments for c in first.message.calls]) == ("Let me look.", ['{"what":"b"}'])


@pytest.mark.parametrize(
    ("reply", "traits"),
    [
        (Reply("Half an ans", chunk=4, cut_after=2), ModelTraits(provider="own")),
        (Reply(Thinking("long thoughts", "sig"), "Half", cut_after=1), GOES_ON),
        (Reply("Never shown.", cut_after=0), GOES_ON),
        (Reply("   ", "x", cut_after=1), GOES_ON),
    ],
    ids=["no prefix allowed", "unfinished thought", "nothing received", "nothing but space"],
)
async def test_what_cannot_be_used_is_discarded(memory: Store, reply: Reply, traits: ModelTraits) -> None:
    clock = ManualClock()
    model = ScriptedModel([reply, "Whole."], traits=traits)
    agent = Agent(name="clerk", model=model)
    async with Runtime(memory, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent)
        run = await session.start("go")
        items: list[Any] = []
        reading = collect(run.stream(), items)
        await turned(clock, lambda: reading.done())
        assert (await run).output == "Whole."
        assert model.requests[1].prefix == ()
        discarded = sum(isinstance(item, AttemptDiscarded) for item in items)
        assert discarded == (0 if reply.cut_after == 0 else 1), "what nobody saw need not be taken back"
        (responded,) = await events(session, ModelResponded)
        assert responded.message.parts == (Text("Whole."),)


async def test_a_fallback_of_another_provider_gets_the_text_without_the_thoughts(memory: Store) -> None:
    clock = ManualClock()

    def cut(_: object) -> Reply:
        return Reply(Thinking("hm", "sig"), "Half ", cut_after=3)

    first = ScriptedModel(cut, name="first", traits=ModelTraits(provider="first", continues=True))
    second = ScriptedModel(["and half."], name="second", traits=ModelTraits(provider="second", continues=True))
    agent = Agent(name="clerk", model=[first, second])
    async with Runtime(memory, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent)
        run = await session.start("go")
        await turned(clock, lambda: len(session.state.ended) == 1)
        assert (await run).output == "Half Half Half Half and half."
        assert second.requests[0].prefix == (Text("Half Half Half Half "),)
        (responded,) = await events(session, ModelResponded)
        assert (responded.model, responded.message.provider) == ("second", "second")
        assert [note.data["model"] for note in await events(session, Noted, kind="model_switch")] == ["second"]


def hanging(*pieces: Reply) -> Any:
    """A model that says something and then nothing more; `pieces` are what it says at its first request."""

    class Hanging(ScriptedModel):
        async def stream(self, request: ModelRequest) -> Any:
            async for item in super().stream(request):
                if not isinstance(item, TextDelta | ThinkingDelta | CallDelta | PartClosed):
                    break
                yield item
            await asyncio.Event().wait()

    return Hanging(list(pieces), traits=GOES_ON)


async def saved(runtime: Runtime, session: Any, clock: ManualClock, count: int) -> list[ModelDelta]:
    items: list[ModelDelta] = []

    async def look() -> None:
        store = runtime._host.world.store  # pyright: ignore[reportPrivateUsage]
        items[:] = (await read_draft(store, session.uid, (1, 1))).items

    for _ in range(200):
        await clock.advance(0.5)
        await look()
        if len(items) >= count:
            return items
        await asyncio.sleep(0.005)
    raise AssertionError("no draft was saved")


async def test_after_a_death_text_goes_on_from_the_draft(store: str | Store) -> None:
    clock = ManualClock()
    stuck = Agent(name="clerk", model=hanging(Reply("It was a dark", chunk=4)))
    async with crashing(store, agents=[stuck], clock=clock) as runtime:
        session = await runtime.open(stuck, id="x")
        await session.start("go", key="k")
        await saved(runtime, session, clock, 4)
    model = ScriptedModel([" night."], traits=GOES_ON)
    agent = Agent(name="clerk", model=model)
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        result = await soon(session.run("go", key="k"))
        assert result.output == "It was a dark night."
        assert model.requests[0].prefix == (Text("It was a dark"),)
        assert len(await events(session, RunResumed)) == 1
        (note,) = await events(session, Noted, kind="model_recovery")
        assert (note.data["plan"], note.data["kind"]) == ("continued", "crash")
        store_now = runtime._host.world.store  # pyright: ignore[reportPrivateUsage]
        assert await store_now.read_draft(session.uid) == (), "gone with the answer's commit"


async def test_after_a_death_closed_calls_are_kept_without_asking_again(store: str | Store) -> None:
    clock = ManualClock()
    stuck = Agent(name="clerk", model=hanging(Reply("Look.", call("look", what="a"))), tools=[look])
    async with crashing(store, agents=[stuck], clock=clock) as runtime:
        session = await runtime.open(stuck, id="x")
        await session.start("go", key="k")
        await saved(runtime, session, clock, 3)
    model = ScriptedModel([call("look", what="never"), "Done."])
    agent = Agent(name="clerk", model=model, tools=[look])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        assert (await soon(session.run("go", key="k"))).output == "Done."
        assert [len(request.messages) for request in model.requests] == [3], "only the second turn was asked for"
        first, _ = await events(session, ModelResponded)
        assert [c.arguments for c in first.message.calls] == ['{"what":"a"}']
        assert [called.attempt for called in await events(session, ModelCalled)] == [1, 2, 1]


async def test_nothing_is_saved_of_a_short_stream(memory: Store) -> None:
    """The first second costs nothing; then at most one write a second, of what is new."""
    writes: list[bytes] = []
    append = memory.append_draft

    async def counted(session: str, chunk: bytes, *, epoch: int) -> None:
        writes.append(chunk)
        await append(session, chunk, epoch=epoch)

    memory.append_draft = counted  # type: ignore[method-assign]
    clock = ManualClock()
    agent = Agent(name="clerk", model=ScriptedModel(lambda _: Reply("word " * 400, chunk=5)))
    slow = Agent(name="slow", model=hanging(Reply("abcdef", chunk=2)))
    async with crashing(memory, agents=[agent, slow], clock=clock) as runtime:
        await soon((await runtime.open(agent)).run("go"))
        assert writes == []
        session = await runtime.open(slow)
        await session.start("go")
        await until(lambda: session.state.run is not None)
        await clock.advance(0.9)
        assert writes == []
        await clock.advance(10)
        await until(lambda: writes)
        assert len(writes) == 1, "nothing new, nothing written"


async def test_a_store_that_takes_no_drafts_costs_no_answer(memory: Store) -> None:
    async def refuse(session: str, chunk: bytes, *, epoch: int) -> None:
        raise ModelError("full", kind="server")

    memory.append_draft = refuse  # type: ignore[method-assign]
    clock = ManualClock()
    agent = Agent(name="clerk", model=ScriptedModel([Reply("abc", chunk=1, stall=5)], clock=clock))
    async with Runtime(memory, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent)
        run = await session.start("go")
        await turned(clock, lambda: len(session.state.ended) == 1)
        assert (await run).output == "abc"


@pytest.mark.parametrize("lost", [1, 2, 3])
async def test_a_draft_has_no_gap_where_a_write_was_lost(memory: Store, lost: int) -> None:
    kept: list[bytes] = []
    writes = 0

    async def shaky(session: str, chunk: bytes, *, epoch: int) -> None:
        nonlocal writes
        writes += 1
        if writes == lost:
            raise StoreError("busy")
        kept.append(chunk)

    async def read(session: str) -> tuple[bytes, ...]:
        return tuple(kept)

    memory.append_draft, memory.read_draft = shaky, read  # type: ignore[method-assign]
    items: list[ModelDelta] = []
    writer = DraftWriter(memory, DraftTimer(ManualClock()), "s", 1, (1, 1))
    writer.begin(items, "m", "own", 0.0)
    for second, letter in enumerate("abcde", 1):
        items.append(TextDelta(letter))
        writer.save(float(second))
        await writer.settle()
    assert receive((await read_draft(memory, "s", (1, 1))).items).text == "abcde"


async def test_the_draft_of_a_run_that_ended_is_nobodys(store: str | Store) -> None:
    """A cancelled run's half answer must not come to life in the first turn of a later one."""
    clock = ManualClock()
    stuck = Agent(name="clerk", model=hanging(Reply(call("look", what="secret"))), tools=[look])
    async with crashing(store, agents=[stuck], clock=clock) as runtime:
        session = await runtime.open(stuck, id="x")
        await session.start("go")
        await saved(runtime, session, clock, 2)
    async with Runtime(store, engine=None) as runtime:
        await (await runtime.session("x")).cancel()
    hung = Agent(name="clerk", model=hanging(Reply("quiet")), tools=[look])
    async with crashing(store, agents=[hung], clock=ManualClock()) as runtime:
        session = await runtime.open(hung, id="x")
        await until(lambda: len(session.state.ended) == 1)
        await session.start("say hello", key="k")
        await until(lambda: session.state.run is not None and session.state.run.awaiting == "model")
    agent = Agent(name="clerk", model=ScriptedModel(lambda _: "Hello."), tools=[look])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        assert (await soon(session.run("say hello", key="k"))).output == "Hello."
        assert await events(session, CallEnded) == []


async def test_a_draft_belongs_to_the_model_that_gave_it(store: str | Store) -> None:
    clock = ManualClock()
    first = ScriptedModel(lambda _: ModelError("no", kind="auth"), name="first", traits=ModelTraits(provider="a"))
    second = hanging(Reply(Thinking("hm", "sig of b"), call("look", what="it")))
    second.name, second.traits = "second", ModelTraits(provider="b")
    stuck = Agent(name="clerk", model=[first, second], tools=[look])
    async with crashing(store, agents=[stuck], clock=clock) as runtime:
        session = await runtime.open(stuck, id="x")
        await session.start("go", key="k")
        await saved(runtime, session, clock, 4)
    done = ScriptedModel(lambda _: "Done.", name="second", traits=ModelTraits(provider="b"), cost=lambda _: 2.0)
    agent = Agent(name="clerk", model=[first, done], tools=[look])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        assert (await soon(session.run("go", key="k"))).output == "Done."
        kept, _ = await events(session, ModelResponded)
        assert (kept.model, kept.message.provider) == ("second", "b")
        assert kept.cost_usd == 4.0, "by its own price: what was lost, and what was kept of it"


# Money


async def test_what_is_kept_is_counted_once(memory: Store) -> None:
    agent = Agent(
        name="clerk",
        model=ScriptedModel([Reply("I look.", call("look", what="a"), cut_after=3), "Done."], cost=lambda u: u.total),
        tools=[look],
        limits=Limits(tokens=100_000),
    )
    async with Runtime(memory, agents=[agent], clock=ManualClock()) as runtime:
        session = await runtime.open(agent)
        await soon(session.run("go"))
        first, _ = await events(session, ModelResponded)
        assert first.wasted.total == 0
        assert first.usage.total < 100, "what had come, not the whole reservation"


async def test_a_stream_that_is_broken_off_is_paid_for(memory: Store) -> None:
    agent = Agent(name="clerk", model=hanging(Reply("word " * 40, chunk=5)))
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        run = await session.start("go")
        shown: list[Any] = []
        reading = collect(run.stream(), shown)
        await until(lambda: sum(isinstance(item, TextDelta) for item in shown) == 40)
        await session.stop()
        result = await soon(run)
        await reading
        assert result.reason == "stopped"
        assert result.usage.output >= 40
        (failed,) = await events(session, ModelFailed)
        assert failed.wasted.estimated
