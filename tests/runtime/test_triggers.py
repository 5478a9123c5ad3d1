"""Triggers: inputs that come by themselves, each planned time once, over restarts, conflicts and clocks that jump."""

from __future__ import annotations

import asyncio
import sys
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import Agent, NotFound, Runtime, Session, UsageError
from perdure.core.codec import decode_event, encode_event
from perdure.core.fold import fold
from perdure.core.specs import Missed, TriggerSpec
from perdure.core.state import SessionState
from perdure.core.views import summarise
from perdure.events import Event, InputAccepted, Noted, RunEnded, RunStarted, SessionOpened
from perdure.ports import Store
from perdure.runtime.firing import ASK_AGAIN_AFTER, GRACE, MOST, due_events
from perdure.runtime.local import LocalEngine
from perdure.runtime.schedules import first_until, next_after
from perdure.stores.memory import MemoryStore
from perdure.testing import ManualClock, ScriptedModel
from perdure.testing.replay import replay
from perdure.triggers import At, Cron, Every, Files, TriggerSet
from tests.core.strategies import often
from tests.runtime.scenes import crashing, events, said, seen, soon, turned, until

HOUR, DAY = 3600.0, 86_400.0
START = 1_767_225_600.0


def clerk(**options: Any) -> Agent:
    return Agent(name="clerk", model=ScriptedModel(lambda request: "Done."), **options)


async def sent(session: Session[Any]) -> list[str]:
    return [event.parts[0].text for event in await events(session, InputAccepted)]  # type: ignore[union-attr]


def calm(clock: ManualClock) -> LocalEngine:
    """Looks for work every ten seconds: hours pass faster so."""
    return LocalEngine(clock, sweep_every=10.0)


async def reached(clock: ManualClock, session: Session[Any], at: float, runs: int) -> None:
    """Waits until that time has come, and then until the session has had so many runs."""
    while clock.now() < at:
        await clock.advance(min(HOUR, at - clock.now()))
    await turned(clock, lambda: len(session.state.ended) >= runs, step=0.5)


async def settled(session: Session[Any], runs: int) -> None:
    await until(lambda: len(session.state.ended) == runs and session.state.run is None)


# Firing


async def test_a_trigger_wakes_a_session_that_nobody_holds(store: str | Store) -> None:
    clock, agent = ManualClock(), clerk()
    async with Runtime(store, agents=[agent], clock=clock, engine=calm(clock)) as runtime:
        session = await runtime.open(agent, id="desk")
        words = "{name} {count}: the report of {date}, at {time} {{sic}}"
        known = await session.set_trigger("daily", Cron("0 9 * * *", tz="Europe/Berlin"), words, by="ann")
        assert known.next_at == clock.now() + 8 * HOUR
        (row,) = [row async for row in runtime.sessions()]
        assert (row.status, row.owner, row.summary.wake_at) == ("idle", None, known.next_at)
        assert (row.summary.triggers, row.summary.watches) == (1, 0)
        await clock.advance(8 * HOUR - 60)
        assert await sent(session) == []
        await reached(clock, session, known.next_at, 1)
        while await runtime.driver_of(session):
            await asyncio.sleep(0.002)
    async with Runtime(store, agents=[agent], clock=clock, engine=calm(clock)) as runtime:
        session = await runtime.open(agent, id="desk")
        await reached(clock, session, known.next_at + DAY, 2)
        assert await sent(session) == [
            "daily 1: the report of 2026-01-01, at 2026-01-01T09:00:00+01:00 {sic}",
            "daily 2: the report of 2026-01-02, at 2026-01-02T09:00:00+01:00 {sic}",
        ]
        first, second = await events(session, InputAccepted)
        assert (first.by, first.key) == ("trigger daily", "trigger daily 2026-01-01T08:00:00+00:00")
        assert second.key == "trigger daily 2026-01-02T08:00:00+00:00"
        known = (await session.triggers())["daily"]
        assert (known.fired, known.last_at, known.error, known.by) == (2, known.until, "", "ann")
        assert known.next_at == known.until + DAY


async def test_a_trigger_is_due_while_its_session_works(memory: MemoryStore) -> None:
    clock, gate = ManualClock(), asyncio.Event()

    async def answer(request: Any) -> str:
        await gate.wait()
        return "Done."

    agent = Agent(name="clerk", model=ScriptedModel(answer))
    async with Runtime(memory, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent, id="desk")
        await session.set_trigger("each", Every(60), "Look", busy="queue", missed="all")
        await session.set_trigger("often", Every(70), "Once", busy="queue")
        run = await session.start("Work")
        await clock.advance(300)
        # An input that still waits stands for those behind it, unless each is wanted.
        assert await sent(session) == ["Work", "Look", "Once", "Look", "Look", "Look", "Look"]
        assert session.state.triggers["often"].until == clock.now() - 20
        gate.set()
        await soon(run)
        await settled(session, 7)
        await turned(clock, lambda: session.state.triggers["often"].fired == 2)


def test_a_time_that_was_moved_counts_although_its_words_of_before_still_wait() -> None:
    first = TriggerSet("t", At(START + 1), "first", until=START, next_at=START + 1)
    state = fold([SessionOpened("u", "s", "clerk"), first])
    state = fold(due_events(state, START + 1), state)
    state = fold([TriggerSet("t", At(START + 9), "second", until=START + 1, next_at=START + 9)], state)
    sent, _ = due_events(state, START + 9)
    assert isinstance(sent, InputAccepted)


async def test_an_interrupting_trigger_interrupts(memory: MemoryStore) -> None:
    clock, gate = ManualClock(), asyncio.Event()

    async def answer(request: Any) -> str:
        if len(request.messages) == 1:
            await gate.wait()
        return "Done."

    agent = Agent(name="clerk", model=ScriptedModel(answer))
    async with Runtime(memory, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent, id="desk")
        await session.set_trigger("alarm", At(clock.now() + 60), "Fire!", busy="interrupt")
        await session.start("Work")
        await turned(clock, lambda: len(session.state.ended) == 2)
        assert [end.reason for end in session.state.ended] == ["cancelled", "completed"]
        known = (await session.triggers())["alarm"]
        assert (known.fired, known.next_at) == (1, None)


# What was missed


@pytest.mark.parametrize(
    ("missed", "expected"),
    [("once", ["3"]), ("skip", []), ("all", ["1", "2", "3"])],
)
async def test_what_was_missed_while_nobody_was_there(store: str | Store, missed: Missed, expected: list[str]) -> None:
    clock, agent = ManualClock(), clerk()
    async with Runtime(store, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent, id="desk")
        await session.set_trigger("daily", Cron("0 9 * * *"), "{date}", missed=missed)
    clock.skip(3 * DAY)
    async with Runtime(store, agents=[agent], clock=clock, engine=calm(clock)) as runtime:
        session = await runtime.open(agent, id="desk")
        await until(lambda: session.state.triggers["daily"].until > clock.now() - DAY)
        await settled(session, len(expected))
        assert await sent(session) == [f"2026-01-0{day}" for day in expected]
        notes = await events(session, Noted, kind="trigger_left_out")
        assert [note.data["trigger"] for note in notes] == (["daily"] if missed == "skip" else [])
        # What comes after it comes as ever.
        await reached(clock, session, START + 3 * DAY + 9 * HOUR, len(expected) + 1)
        assert (await sent(session))[-1] == "2026-01-04"


async def test_what_is_only_a_little_late_is_not_skipped(memory: MemoryStore) -> None:
    clock, agent = ManualClock(), clerk()
    async with Runtime(memory, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent, id="desk")
        await session.set_trigger("t", At(clock.now() + 60), "Look", missed="skip")
    clock.skip(60 + GRACE)
    async with Runtime(memory, agents=[agent], clock=clock) as runtime:
        await settled(await runtime.open(agent, id="desk"), 1)


async def test_more_than_a_thousand_missed_are_left_out_and_it_is_told(memory: MemoryStore) -> None:
    state, now = scene("all", Every(1.0), 5_000.0)
    made = due_events(state, now)
    inputs = [event for event in made if isinstance(event, InputAccepted)]
    assert [event.parts[0].text for event in inputs[:2]] == ["1", "2"]  # type: ignore[union-attr]
    assert len(inputs) == MOST
    (note,) = [event for event in made if isinstance(event, Noted)]
    assert note == Noted("trigger_left_out", {"trigger": "t", "until": now, "detail": "more than 1,000 were missed"})
    after = fold(made, state)
    assert after.triggers["t"].next_at == now + 1
    assert due_events(after, now) == []
    (one, _) = due_events(after, now + 1)
    assert isinstance(one, InputAccepted)
    assert one.key == f"trigger t {datetime.fromtimestamp(now + 1, ZoneInfo('UTC')).isoformat()}"


def scene(missed: Missed, trigger: TriggerSpec, later: float) -> tuple[SessionState, float]:
    following = next_after(trigger, START)
    known = TriggerSet("t", trigger, "{count}", missed, until=START, next_at=following)
    return fold([SessionOpened("u", "s", "clerk"), known]), START + later


@often
@given(
    trigger=st.sampled_from(
        [Every(60.0), Every(7.5), Cron("*/20 * * * *", "Europe/Berlin"), Cron("30 2 * * *"), At(START + 5_000)]
    ),
    steps=st.lists(st.floats(-500, 20_000), max_size=12),
    missed=st.sampled_from(["once", "skip", "all"]),
)
def test_each_planned_time_counts_once_however_time_goes(
    trigger: TriggerSpec, steps: list[float], missed: Missed
) -> None:
    """Whoever looks and whenever, also on a clock that is set back: in order, none twice, and for `all` none lost."""
    state, now = scene(missed, trigger, 0.0)
    times: list[str | None] = []
    latest = now
    for step in steps:
        now += step
        latest = max(latest, now)
        made = due_events(state, now)
        assert [decode_event(encode_event(event)) for event in made] == made
        inputs = [event for event in made if isinstance(event, InputAccepted)]
        times += [event.key for event in inputs]
        state = fold(made, state)
        if inputs:
            run = state.runs + 1
            state = fold([RunStarted(run, tuple(e.input for e in inputs)), RunEnded(run, "completed")], state)
        assert due_events(state, now) == []
        wake_at = summarise(state).wake_at
        assert wake_at is None or wake_at > now
    planned = [
        f"trigger t {datetime.fromtimestamp(at, ZoneInfo('UTC')).isoformat()}"
        for at in first_until(trigger, START, latest, 100_000)
    ]
    assert len(times) == len(set(times))
    assert [key for key in planned if key in set(times)] == times
    if missed == "all":
        assert len(planned) > MOST or times == planned
    elif missed == "once":
        assert bool(times) == bool(planned)
        assert times[-1:] == planned[-1:]
    assert state.triggers["t"].fired == len(times)


async def test_a_clock_that_is_set_back_and_forth_fires_nothing_twice(memory: MemoryStore) -> None:
    clock, agent = ManualClock(), clerk()
    async with Runtime(memory, agents=[agent], clock=clock, engine=calm(clock)) as runtime:
        session = await runtime.open(agent, id="desk")
        await session.set_trigger("daily", Cron("0 9 * * *"), "{date}")
        await reached(clock, session, START + 9 * HOUR, 1)
        clock.set(clock.now() - 5 * HOUR)
        await reached(clock, session, START + 16 * HOUR, 1)
        assert await sent(session) == ["2026-01-01"]
        clock.set(clock.now() + 10 * DAY)
        await reached(clock, session, clock.now(), 2)
        assert await sent(session) == ["2026-01-01", "2026-01-11"]


async def test_two_processes_fire_once(tmp_path: Path) -> None:
    clock, agent = ManualClock(), clerk()
    url = f"sqlite:{tmp_path / 'x.db'}"
    async with Runtime(url, agents=[agent], clock=clock) as one, Runtime(url, agents=[agent], clock=clock) as other:
        session = await one.open(agent, id="desk")
        await session.set_trigger("often", Every(60), "{time}")
        for number in range(1, 11):
            await clock.advance(60)
            await turned(clock, lambda number=number: len(session.state.ended) >= number, step=0.5)
        await until(lambda: session.state.run is None)
        seen_there = await sent(await other.session("desk"))
        assert seen_there == await sent(session)
        assert len(seen_there) == len(set(seen_there)) >= 10


@pytest.mark.slow
async def test_a_thousand_triggers_in_a_session_and_a_thousand_sessions_with_one(memory: MemoryStore) -> None:
    clock, agent = ManualClock(), clerk()
    async with Runtime(memory, agents=[agent], clock=clock, engine=LocalEngine(clock, 600)) as runtime:
        one = await runtime.open(agent, id="one")
        for number in range(1_000):
            await one.set_trigger(f"t{number}", Cron(f"{number % 60} {number % 24} * * *"), "{name}")
            session = await runtime.open(agent, id=f"s{number}")
            await session.set_trigger("t", Every(40_000 + number), "{name}")
        assert len(await runtime.triggers()) == 2_000
        for _ in range(25):
            await clock.advance(HOUR)
        await until(lambda: one.state.run is None and not one.state.queue)
        assert {known.fired for known in (await one.triggers()).values()} == {1, 2}
        assert len(one.state.ended) == sum(known.fired for known in (await one.triggers()).values())
        assert {item.trigger.fired for item in await runtime.triggers() if item.session != "one"} == {2}


# Failures


async def test_a_refused_input_is_told_and_stops_nothing(memory: MemoryStore) -> None:
    clock, gate = ManualClock(), asyncio.Event()

    async def answer(request: Any) -> str:
        await gate.wait()
        return "Done."

    agent = Agent(name="clerk", model=ScriptedModel(answer))
    async with Runtime(memory, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent, id="desk")
        await session.set_trigger("often", Every(60), "Look {count}", busy="refuse")
        run = await session.start("Work")
        await clock.advance(130)
        known = (await session.triggers())["often"]
        assert (known.fired, "busy" in known.error) == (0, True)
        notes = await events(session, Noted, kind="trigger_failed")
        assert [note.data["trigger"] for note in notes] == ["often", "often"]
        gate.set()
        await soon(run)
        await turned(clock, lambda: len(session.state.ended) == 2)
        known = (await session.triggers())["often"]
        assert (known.fired, known.error) == (1, "")
        assert (await sent(session))[-1] == "Look 1"


async def test_a_process_that_cannot_work_out_the_next_time_says_so_and_tries_again(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, agent = ManualClock(), clerk()
    async with Runtime(memory, agents=[agent], clock=clock, engine=calm(clock)) as runtime:
        session = await runtime.open(agent, id="desk")
        await session.set_trigger("daily", Cron("0 9 * * *"), "{date}")
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, "cronsim", None)
            await reached(clock, session, START + 9 * HOUR + 60, 0)
            assert session.state.triggers["daily"].error
            await reached(clock, session, START + DAY + 9 * HOUR + 60, 0)
        known = (await session.triggers())["daily"]
        assert "pip install" in known.error
        assert len(await events(session, Noted, kind="trigger_failed")) == 1
        await reached(clock, session, clock.now() + ASK_AGAIN_AFTER, 1)
        assert await sent(session) == ["2026-01-02"]
        assert (await session.triggers())["daily"].error == ""


@pytest.mark.parametrize(
    ("trigger", "template", "options", "said"),
    [
        (Every(60), "Look at {when}", {}, r"has \{when\}, which nothing fills in"),
        (Every(60), "{time.__class__}", {}, "which nothing fills in"),
        (Every(60), "{time!r}", {}, "which nothing fills in"),
        (Every(60), "{count:>99999999}", {}, "which nothing fills in"),
        (Every(60), "{}", {}, "which nothing fills in"),
        (Every(60), "{path}", {}, "which nothing fills in"),
        (Every(60), "{time", {}, "cannot be read"),
        (Every(60), "  ", {}, "is empty"),
        (Every(60), 7, {}, "is text"),
        (Every(0), "Look", {}, "at least 1"),
        (At(1.0), "Look", {}, "has passed"),
        (Files(""), "Look", {}, "give the path"),
        ("0 9 * * *", "Look", {}, "not str"),
        (Every(60), "Look", {"missed": "never"}, "missed='never'"),
        (Every(60), "Look", {"busy": "wait"}, "busy='wait'"),
    ],
)
async def test_what_makes_no_sense_is_refused_when_it_is_set(
    memory: MemoryStore, trigger: Any, template: Any, options: dict[str, Any], said: str
) -> None:
    agent = clerk()
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="desk")
        with pytest.raises(UsageError, match=said):
            await session.set_trigger("t", trigger, template, **options)
        with pytest.raises(UsageError, match="name of the trigger is empty"):
            await session.set_trigger(" ", Every(60), "Look")
        assert await session.triggers() == {}


# Changing


async def test_setting_it_again_changes_nothing_and_other_words_keep_its_time(memory: MemoryStore) -> None:
    clock, agent = ManualClock(), clerk()
    async with Runtime(memory, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent, id="desk")
        at = At(clock.now() + 90)
        first = await session.set_trigger("often", Every(60), "Look")
        once = await session.set_trigger("once", at, "Once")
        await clock.advance(100)
        records = len(await session.records())
        assert (await session.set_trigger("often", Every(60.0), "Look")).until == first.until + 60
        # Its time has passed, but it is the one that was set: a program may set its triggers whenever it starts.
        assert (await session.set_trigger("once", at, "Once")).fired == once.fired + 1
        assert len(await session.records()) == records
        other = await session.set_trigger("often", Every(60), "Look again", busy="join")
        assert (other.next_at, other.fired, other.template) == (first.until + 120, 1, "Look again")
        rare = await session.set_trigger("often", Every(600), "Look again", busy="join")
        assert (rare.next_at, rare.fired) == (clock.now() + 600, 1)


async def test_pausing_leaves_out_what_would_have_come(store: str | Store) -> None:
    clock, agent = ManualClock(), clerk()
    async with Runtime(store, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent, id="desk")
        await session.set_trigger("often", Every(60), "Look", missed="all")
        await session.set_trigger("once", At(clock.now() + 90), "Once")
        for name in ("often", "once", "once"):
            await session.pause_trigger(name, by="ann")
        (row,) = [row async for row in runtime.sessions()]
        assert (row.summary.wake_at, row.summary.triggers) == (None, 2)
        await clock.advance(150)
        assert await sent(session) == []
        for name in ("often", "once", "once"):
            await session.resume_trigger(name, by="bob")
        known = await session.triggers()
        assert (known["often"].next_at, known["often"].by) == (clock.now() + 30, "bob")
        assert (known["once"].next_at, known["once"].error) == (None, "Its time passed while it was paused.")
        await reached(clock, session, clock.now() + 30, 1)
        await session.remove_trigger("often")
        words = await sent(session)
        assert set(words) == {"Look"}
        assert list(await session.triggers()) == ["once"]
        for change in (session.remove_trigger, session.pause_trigger, session.resume_trigger):
            with pytest.raises(NotFound, match="has no trigger 'often'; its triggers are: once"):
                await change("often")
        await clock.advance(600)
        assert await sent(session) == words


async def test_the_triggers_of_all_sessions(store: str | Store) -> None:
    clock, agent = ManualClock(), clerk()
    async with Runtime(store, agents=[agent], clock=clock) as runtime:
        for number, tenant in enumerate(("", "acme", "acme")):
            session = await runtime.open(agent, id=f"s{number}", tenant=tenant)
            await session.set_trigger("t", Every(600 - number), "Look")
        await runtime.open(agent, id="none")
        assert [(item.session, item.tenant) for item in await runtime.triggers()] == [
            ("s2", "acme"),
            ("s1", "acme"),
            ("s0", ""),
        ]
        assert [item.session for item in await runtime.triggers(tenant="acme")] == ["s2", "s1"]
        await session.delete()
        assert [item.session for item in await runtime.triggers(tenant="acme")] == ["s1"]


# Time travel


async def test_forks_leave_triggers_to_their_parent_and_going_back_does_not_touch_them(store: str | Store) -> None:
    clock, agent = ManualClock(), clerk()
    async with Runtime(store, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent, id="desk")
        await soon(session.run("Hello"))
        known = await session.set_trigger("often", Every(60), "Look")
        fork = await session.fork(id="other")
        early = await session.fork(at=2, id="early")
        assert await fork.triggers() == await early.triggers() == {}
        assert [row.summary.triggers async for row in runtime.sessions()] == [0, 0, 1]
        await session.rewind(2)
        await session.clear()
        assert await session.triggers() == {"often": known}
        await reached(clock, session, clock.now() + 60, 2)
        await settled(session, 2)
        assert await said(session) == ["Look"]
        assert await said(fork) == ["Hello"]


async def test_an_imported_session_has_its_triggers_paused(store: str | Store, memory: MemoryStore) -> None:
    clock, agent = ManualClock(), clerk()
    async with Runtime(store, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent, id="desk")
        await session.set_trigger("often", Every(60), "Look")
        await session.set_trigger("paused", Every(60), "Look")
        await session.pause_trigger("paused")
        lines = [line async for line in session.export()]
        assert (await runtime.import_session(lines)).uid == session.uid
        assert not (await session.triggers())["often"].is_paused
        copy = await runtime.import_session(lines, id="copy")
        assert [known.is_paused for known in (await copy.triggers()).values()] == [True, True]
    async with Runtime(memory, agents=[agent], clock=clock) as runtime:
        for _ in range(2):
            session = await runtime.import_session(lines)
        known = (await session.triggers())["often"]
        assert (known.is_paused, known.next_at, "imported" in known.error) == (True, None, True)
        await clock.advance(600)
        assert await sent(session) == []
        await session.resume_trigger("often")
        await turned(clock, lambda: len(session.state.ended) == 1)


async def test_a_replay_gives_what_triggers_sent_and_sets_none(memory: MemoryStore) -> None:
    clock, agent = ManualClock(), clerk()
    async with Runtime(memory, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent, id="desk")
        await session.set_trigger("often", Every(60), "Look {count}")
        await soon(session.run("Hello"))
        await turned(clock, lambda: len(session.state.ended) == 4)
        await session.remove_trigger("often")
        records = await session.records()
    played = await replay(records, agent)
    assert played.identical
    assert not [record for record in played.records if isinstance(record.event, TriggerSet)]


async def test_a_crash_in_the_middle_of_a_triggered_run_goes_on_with_it(store: str | Store) -> None:
    clock = ManualClock()
    stuck = Agent(name="clerk", model=ScriptedModel(lambda request: asyncio.Event().wait()))
    async with crashing(store, agents=[stuck], clock=clock) as runtime:
        session = await runtime.open(stuck, id="desk")
        await session.set_trigger("once", At(clock.now() + 60), "Look")
        await turned(clock, lambda: session.state.run is not None)
    agent = clerk()
    async with Runtime(store, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent, id="desk")
        ended = await seen(session, RunEnded)
        assert ended.reason == "completed"
        assert await sent(session) == ["Look"]


def test_an_event_of_a_trigger_says_all_of_it() -> None:
    """So that nothing before it has to be read to know what is set."""
    events: list[Event] = [
        SessionOpened("u", "s", "clerk"),
        TriggerSet("t", Every(60.0), "Look", fired=3, next_at=60.0),
        TriggerSet("t", Every(60.0), "Look", next_at=90.0),
    ]
    assert fold(events).triggers == {"t": events[2]}
    assert fold([*events, TriggerSet("t")]).triggers == {}
    assert fold([*events, TriggerSet("other")]).triggers == {"t": events[2]}
