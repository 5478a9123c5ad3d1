"""Inputs that wait: listed in the order of their turn, edited and retracted until a run takes them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import Agent, Conflict, Image, NotFound, Refused, Runtime, Session, UsageError, tool
from perdure.context import Inputs
from perdure.core.commands import SendInput
from perdure.core.messages import Media, Text
from perdure.events import InputChanged, RunStarted
from perdure.plugins import Block, Guardrail
from perdure.ports import ModelRequest, Store
from perdure.runtime.steps import show_step, steps_of
from perdure.testing import ManualClock, ScriptedModel, call, replay
from perdure.testing.replay import show_differences
from tests.runtime.scenes import crashing, events, said, seen, soon, until

PIXEL = b"\x89PNG\r\n\x1a\n" + b"\x00" * 24


class Busy:
    """A model that does not answer before it is let, so that its session stays busy."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.let = asyncio.Event()
        self.model = ScriptedModel(self._answer)

    async def _answer(self, request: ModelRequest) -> str:
        self.asked.set()
        await self.let.wait()
        return f"Answer {len(request.messages)}."


async def later(session: Session[Any], text: str, at: float) -> None:
    await session._host.request(session._log, SendInput((Text(text),), at=at, by="test"))


async def result_of(run: Any) -> Any:
    return await soon(_awaited(run))


async def _awaited(run: Any) -> Any:
    return await run


async def test_what_waits_is_listed_in_the_order_of_its_turn(store: str | Store) -> None:
    busy, clock = Busy(), ManualClock()
    agent = Agent(name="clerk", model=busy.model)
    async with Runtime(store, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent, id="x")
        assert await session.inputs() == ()
        await session.start("one")
        await soon(busy.asked.wait())
        await later(session, "much later", clock.now() + 7200)
        await later(session, "later", clock.now() + 3600)
        await session.start("two", key="k2")
        await session.send("three")
        await session.start(["four", Image(PIXEL)])
        waiting = await session.inputs()
        assert [(item.number, item.text, item.busy) for item in waiting] == [
            (5, "three", "join"),
            (4, "two", "queue"),
            (6, "four", "queue"),
            (3, "later", "queue"),
            (2, "much later", "queue"),
        ]
        assert [item.key for item in waiting] == [None, "k2", None, None, None]
        assert [(item.at, item.by) for item in waiting[-2:]] == [
            (clock.now() + 3600, "test"),
            (clock.now() + 7200, "test"),
        ]
        assert isinstance(waiting[2].parts[1], Media)
        busy.let.set()
        await until(lambda: len(session.state.ended) == 3)
        assert (await said(session))[:3] == ["one", "three", "two"]
        assert [item.number for item in await session.inputs()] == [3, 2]


async def test_what_starts_the_next_run_is_listed_before_what_joins_it(store: str | Store) -> None:
    agent = Agent(name="clerk", model=ScriptedModel(lambda _: "Done."))
    async with Runtime(store, agents=[agent], engine=None) as runtime:
        session = await runtime.open(agent, id="x")
        for text, how in (("a", "queue"), ("b", "queue"), ("c", "join"), ("d", "interrupt")):
            await session.start(text, busy=how)  # pyright: ignore[reportArgumentType]
        listed = [item.text for item in await session.inputs()]
        assert listed == ["d", "c", "a", "b"]
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        assert await soon(session.wait_idle())
        assert await said(session) == listed


async def test_an_edited_input_is_heard_with_its_last_words(store: str | Store) -> None:
    busy = Busy()
    agent = Agent(name="clerk", model=busy.model)
    async with Runtime(store, agents=[agent]) as runtime, Runtime(store, agents=[agent], engine=None) as beside:
        session = await runtime.open(agent, id="x")
        await session.start("one")
        await soon(busy.asked.wait())
        run = await session.start("two")
        other = await beside.session("x")
        await other.edit_input(2, "zwei", by="ops")
        await session.edit_input(2, ["deux", Image(PIXEL)])
        await session.edit_input(2, ["deux", Image(PIXEL)])
        busy.let.set()
        assert (await result_of(run)).output == "Answer 3."
        assert await said(session) == ["one", "deux Media"]
        changed = await events(session, InputChanged)
        assert [(event.input, event.by) for event in changed] == [(2, "ops"), (2, "")], "the same words change nothing"
        assert changed[1].parts is not None
        media = changed[1].parts[1]
        assert isinstance(media, Media)
        assert await session._host.world.store.load_artifact(session.uid, media.artifact) == PIXEL


async def test_the_key_of_an_edited_input_still_means_the_words_that_it_came_with(store: str | Store) -> None:
    agent = Agent(name="clerk", model=ScriptedModel(["Done."]))
    async with Runtime(store, agents=[agent], engine=None) as runtime:
        session = await runtime.open(agent, id="x")
        await session.start("bill order 7", key="bill")
        await session.edit_input(1, "bill order 8")
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        result = await soon(session.run("bill order 7", key="bill"))
        assert (result.run, result.output) == (1, "Done.")
        assert await said(session) == ["bill order 8"]
        with pytest.raises(Conflict, match="'bill'"):
            await session.run("bill order 8", key="bill")


async def test_a_retracted_input_is_never_heard_and_whoever_awaits_it_is_told(store: str | Store) -> None:
    busy = Busy()
    agent = Agent(name="clerk", model=busy.model)
    async with Runtime(store, agents=[agent]) as runtime, Runtime(store, agents=[agent], engine=None) as beside:
        session, other = await runtime.open(agent, id="x"), await beside.open(agent, id="x")
        first = await session.start("one")
        await soon(busy.asked.wait())
        run = await session.start("two", key="two")
        waits = [
            asyncio.ensure_future(_awaited(run)),
            asyncio.ensure_future(session.run("two", key="two")),
            asyncio.ensure_future(other.run("two", key="two")),
        ]
        await until(lambda: len(session._log._waiters) == 2 and other._log._waiters)
        items = asyncio.ensure_future(_read(run.stream()))
        await other.retract(2, by="ops")
        for told in await soon(asyncio.gather(*waits, return_exceptions=True)):
            assert isinstance(told, Refused)
            assert str(told) == "Input 2 was retracted before a run took it; send it again if it is wanted."
        assert [type(item.event).__name__ for item in await soon(items)] == ["InputAccepted", "InputChanged"]
        assert run.run is None
        with pytest.raises(Refused, match="retracted"):
            await run
        third = await session.start("three", key="two")
        busy.let.set()
        assert (await result_of(first)).run == 1
        assert (await result_of(third)).run == 2, "the key is free again"
        assert await said(session) == ["one", "three"]
        (changed,) = await events(session, InputChanged)
        assert (changed.input, changed.by, changed.retracted) == (2, "ops", True)


async def _read(stream: Any) -> list[Any]:
    return [item async for item in stream]


async def test_a_retracted_input_behind_a_run_that_waits_is_told_too(store: str | Store) -> None:
    @tool(ask=True)
    async def act() -> str:
        return "done"

    agent = Agent(name="clerk", model=ScriptedModel([[call("act")], "Done."]), tools=[act])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        await soon(session.run("one"))
        run = await session.start("two")
        assert (await result_of(run)).reason == "waiting"
        await session.retract(2)
        with pytest.raises(Refused, match="retracted"):
            await run


async def test_a_session_whose_only_input_is_retracted_settles(store: str | Store) -> None:
    clock = ManualClock()
    agent = Agent(name="clerk", model=ScriptedModel([]))
    async with Runtime(store, agents=[agent], engine=None, clock=clock) as runtime:
        session = await runtime.open(agent, id="x")
        await session.start("one", key="one")
        await later(session, "two", clock.now() + 60)
        assert not session.is_idle
        await session.stop()
        await session.retract(1)
        await session.retract(2)
        assert session.is_idle
        (row,) = [row async for row in runtime.sessions()]
        assert (row.status, row.summary.runnable, row.summary.wake_at) == ("idle", False, None)
    agent = Agent(name="clerk", model=ScriptedModel(["Done."]))
    async with Runtime(store, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent, id="x")
        await clock.advance(120)
        assert (await soon(session.run("three", key="one"))).output == "Done.", "and the stop was for what is gone"
        assert await said(session) == ["three"]


async def test_what_cannot_be_changed_is_refused_in_a_sentence(store: str | Store) -> None:
    agent = Agent(name="clerk", model=ScriptedModel(["Done."]))
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        await soon(session.run("one"))
        for change in (session.retract(1), session.edit_input(1, "other")):
            with pytest.raises(Conflict, match="taken by run 1 already"):
                await change
        for number in (0, 2, 10**30):
            with pytest.raises(NotFound, match=f"no input {number} waits"):
                await session.retract(number)
        await later(session, "two", runtime._host.world.clock.now() + 3600)
        for empty in ("", [], "  "):
            with pytest.raises(UsageError):
                await session.edit_input(2, empty)
        with pytest.raises(UsageError):
            await session.edit_input(2, "other", by=7)  # type: ignore[arg-type]
        for number in ("2", [2], True, None):
            with pytest.raises(UsageError, match="has a number"):
                await session.retract(number)  # type: ignore[arg-type]
        assert await events(session, InputChanged) == []
        await session.retract(2)
        with pytest.raises(Conflict, match="retracted already"):
            await session.edit_input(2, "other")


def refuses(words: str) -> Guardrail:
    def guard(moment: Any) -> Block | None:
        return Block(f"nothing about {words}") if words in moment.text else None

    return Guardrail(input=guard)


async def test_an_edited_input_is_put_before_the_guardrails_again(store: str | Store) -> None:
    """Blocked beside a run it would have had a run of its own, which refuses it."""
    release = asyncio.Event()

    @tool(effect="read")
    async def look() -> str:
        await release.wait()
        return "fine"

    model = ScriptedModel([[call("look")], "One.", "Two."])
    agent = Agent(name="clerk", model=model, tools=[look], guardrails=[refuses("locks")])
    async with crashing(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        await session.start("one")
        await session.start("about locks")
        await session.start("about doors")
        await session.edit_input(2, "about keys")
        await session.edit_input(3, "about locks")
        release.set()
        await until(lambda: len(session.state.ended) == 3)
        assert [end.reason for end in session.state.ended] == ["completed", "completed", "refusal"]
        assert await said(session) == ["one", "about keys"]


class Slow:
    """A guardrail that looks at what it is shown for as long as nobody lets it go."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.let: dict[str, asyncio.Event] = {}

    async def __call__(self, moment: Any) -> Block | None:
        self.shown.append(moment.text)
        await self.let.setdefault(moment.text, asyncio.Event()).wait()
        return Block("no") if "locks" in moment.text else None


async def test_a_verdict_about_words_that_were_edited_meanwhile_does_not_count(store: str | Store) -> None:
    slow = Slow()
    agent = Agent(name="clerk", model=ScriptedModel(["Done."]), guardrails=[Guardrail(input=slow)])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("about doors")
        await until(lambda: slow.shown == ["about doors"])
        await session.edit_input(1, "about locks")
        await until(lambda: slow.shown == ["about doors", "about locks"])
        await session.edit_input(1, "about windows")
        await until(lambda: slow.shown[2:] == ["about windows"])
        slow.let["about windows"].set()
        assert (await result_of(run)).output == "Done."
        assert await said(session) == ["about windows"]
        assert [event.vetted for event in await events(session, InputChanged)] == [False, False, True]


async def test_a_verdict_that_was_there_before_the_edit_but_not_committed_does_not_count(memory: Store) -> None:
    """The edit comes while the verdict is on its way to the log."""
    edited: list[str] = []

    async def guard(moment: Any) -> Block | None:
        if moment.text == "about doors":
            await other.edit_input(1, "about locks")
        return Block("no") if "locks" in moment.text else None

    agent = Agent(name="clerk", model=ScriptedModel([]), guardrails=[Guardrail(input=guard)])
    async with Runtime(memory, agents=[agent], engine=None) as beside, Runtime(memory, agents=[agent]) as runtime:
        other = await beside.open(agent, id="x")
        session = await runtime.open(agent, id="x")
        result = await soon(session.run("about doors"))
        assert (result.reason, result.detail) == ("refusal", "input: no")
        assert await said(session) == edited == []


async def test_a_session_does_not_wait_for_the_guardrails_of_what_was_retracted(store: str | Store) -> None:
    slow = Slow()
    agent = Agent(name="clerk", model=ScriptedModel(["Done."]), guardrails=[Guardrail(input=slow, timeout=3600)])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        await session.start("about doors")
        await until(lambda: slow.shown)
        await session.retract(1)
        while await runtime.driver_of(session):
            await asyncio.sleep(0.002)
        assert await session.wait_idle()
        slow.let["about locks"] = slow.let["about windows"] = asyncio.Event()
        slow.let["about windows"].set()
        assert (await soon(session.run("about windows"))).output == "Done."
        assert await said(session) == ["about windows"]


@pytest.mark.parametrize("change", ["edit", "retract"])
async def test_of_a_change_and_a_run_exactly_one_is_first(store: str | Store, change: str) -> None:
    agent = Agent(name="clerk", model=ScriptedModel(lambda _: "Done."))
    changed = late = 0
    async with Runtime(store, agents=[agent]) as runtime, Runtime(store, agents=[agent], engine=None) as beside:
        session, other = await runtime.open(agent, id="x"), await beside.open(agent, id="x")
        for number in range(1, 41):
            run = await (session if number % 4 else other).start(f"{number} as it was")
            for _ in range(number % 5):
                await asyncio.sleep(0)
            if number == 20:
                await result_of(run)
            who = other if number % 2 else session
            try:
                await (who.edit_input(number, f"{number} edited") if change == "edit" else who.retract(number))
            except Conflict as refused:
                assert f"was taken by run {run.run}" in str(refused) or run.run is None
                late += 1
                expected = [f"{number} as it was"]
            else:
                changed += 1
                expected = [f"{number} edited"] if change == "edit" else []
            if expected:
                await result_of(run)
            else:
                with pytest.raises(Refused, match="retracted"):
                    await result_of(run)
            heard = [text for text in await said(session) if text.split()[0] == str(number)]
            assert heard == expected
    assert changed
    assert late


async def test_what_waits_survives_the_process_as_it_was_changed(store: str | Store) -> None:
    busy = Busy()
    stuck = Agent(name="clerk", model=busy.model)
    async with crashing(store, agents=[stuck]) as runtime:
        session = await runtime.open(stuck, id="x")
        await session.start("one")
        await soon(busy.asked.wait())
        for text in ("two", "three", "four"):
            await session.start(text)
        await session.retract(2)
        await session.edit_input(3, "drei")
    agent = Agent(name="clerk", model=ScriptedModel(lambda _: "Done."))
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        await seen(session, RunStarted, 3)
        assert await soon(session.wait_idle())
        assert await said(session) == ["one", "drei", "four"]
        assert [started.inputs for started in await events(session, RunStarted)] == [(1,), (3,), (4,)]


@pytest.mark.parametrize("queued", ["one", "all"])
async def test_a_session_is_replayed_with_its_edits_and_retractions(memory: Store, queued: Any) -> None:
    busy = Busy()
    guards = [refuses("locks")]
    agent = Agent(name="clerk", model=busy.model, inputs=Inputs(queued), guardrails=guards)
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        await session.start("one")
        await soon(busy.asked.wait())
        for text in ("two", "three", "four", "about locks"):
            await session.start(text)
        await session.retract(2)
        await session.edit_input(3, "drei")
        busy.let.set()
        assert await soon(session.wait_idle())
        records = await session.records()
    done = await soon(replay(records, agent))
    assert done.identical, show_differences(done.differences)
    assert [step for step in map(show_step, steps_of(records)) if step.startswith("input 2 ")] == [
        "input 2 is retracted"
    ]
    assert "input 3 is now drei" in map(show_step, steps_of(records))
