"""A thousand sessions from seeds: whatever happens, in whatever order, the laws of the log hold."""

from __future__ import annotations

from collections import Counter

import pytest

from perdure.core.codec import decode_event, encode_event
from perdure.core.events import (
    CallDecided,
    CallEnded,
    CallStarted,
    Event,
    HistoryCompacted,
    HistoryImported,
    InputAccepted,
    InputChanged,
    MessageSent,
    MessageSettled,
    ModelCalled,
    ModelResponded,
    RunEnded,
    RunResumed,
    RunStarted,
    StopRequested,
)
from perdure.core.fold import fold
from perdure.core.inputs import NATURAL_END
from perdure.core.transcript import unpaired
from perdure.core.window import calls_of
from tests.core.simulate import Simulation

BLOCKS = 24
SEEDS_PER_BLOCK = 50
STEPS = 150


@pytest.mark.parametrize("block", range(BLOCKS))
def test_the_laws_hold_in_every_session(block: int) -> None:
    for seed in range(block * SEEDS_PER_BLOCK, (block + 1) * SEEDS_PER_BLOCK):
        session = Simulation(seed).wreak(STEPS).settle()
        try:
            check_log(session)
        except AssertionError as broken:
            raise AssertionError(f"seed {seed}: {broken}") from broken


def check_log(session: Simulation) -> None:
    events, state = session.events, session.state
    assert fold([decode_event(encode_event(event)) for event in events]) == state
    assert unpaired(state.history) == []
    check_runs(events)
    check_calls(events)
    check_starts(events)
    check_inputs(session)
    check_errands(session)


def check_errands(session: Simulation) -> None:
    """Everybody who waits for an input's end hears of it once, and every message is brought or given up."""
    events, state = session.events, session.state
    assert (state.owed, state.outbox) == ((), ())
    wanted = [event.input for event in events if isinstance(event, InputAccepted) and event.reply]
    told = [event.input for event in events if isinstance(event, MessageSettled) and event.input]
    assert sorted(told) == wanted
    sent = Counter(event.message for event in events if isinstance(event, MessageSent))
    settled = [event for event in events if isinstance(event, MessageSettled) and event.message]
    assert Counter(event.message for event in settled) == sent
    last = {event.message: event.dead for event in settled}
    assert {letter.sent.message for letter in state.dead} == {number for number, dead in last.items() if dead}


def check_runs(events: list[Event]) -> None:
    """Every run ends exactly once, and is under way between its start and its end only."""
    opened = [event.run for event in events if isinstance(event, RunStarted)]
    closed = [event.run for event in events if isinstance(event, RunEnded)]
    assert opened == closed == list(range(1, len(opened) + 1))
    current: int | None = None
    turns = 0
    limits = None
    for event in events:
        if isinstance(event, RunStarted):
            assert current is None
            current, limits, turns = event.run, event.limits, 0
        elif isinstance(event, RunEnded):
            assert current == event.run
            current = None
        elif isinstance(event, ModelCalled) and limits and limits.turns is not None:
            turns = max(turns, event.turn)
            assert turns <= limits.turns + (limits.at_limit == "answer")


def check_calls(events: list[Event]) -> None:
    """Every call has exactly one outcome; ordinals count on and never repeat."""
    asked: list[int] = []
    imported: list[int] = []
    for event in events:
        match event:
            case ModelResponded(message=message):
                asked += [call.call for call in message.calls]
            case HistoryImported(messages=messages):
                imported += [call.call for message in messages for call in calls_of(message)]
            case _:
                pass
    assert sorted(asked + imported) == list(range(1, len(asked + imported) + 1))
    assert asked == sorted(asked)
    assert Counter(event.call for event in events if isinstance(event, CallEnded)) == Counter(asked)


def check_starts(events: list[Event]) -> None:
    """No start behind an end or a stop; no second start without a crash, of `once` none without a retry."""
    over: set[int] = set()
    attempts: Counter[int] = Counter()
    may_repeat: set[int] = set()
    crashed = stopping = False
    for event in events:
        match event:
            case CallEnded(call=call):
                over.add(call)
            case CallDecided(call=call, decision="retry"):
                may_repeat.add(call)
            case RunResumed():
                crashed = True
            case StopRequested():
                stopping = True
            case RunStarted():
                stopping = False
            case CallStarted(call=call, effect=effect, attempt=attempt):
                attempts[call] += 1
                assert call not in over
                assert not stopping
                assert attempt == attempts[call]
                if attempt > 1:
                    assert crashed
                    assert effect != "once" or call in may_repeat
                    may_repeat.discard(call)
            case _:
                pass


def check_inputs(session: Simulation) -> None:
    """Every accepted input is taken exactly once, or retracted; and no key is accepted twice for what counts."""
    accepted = [event for event in session.events if isinstance(event, InputAccepted)]
    retracted = [event.input for event in session.events if isinstance(event, InputChanged) and event.retracted]
    assert len(retracted) == len(set(retracted))
    keys = [event.key for event in accepted if event.key is not None and event.input not in retracted]
    assert len(keys) == len(set(keys))
    assert [event.input for event in accepted] == list(range(1, len(accepted) + 1))
    assert [event.input for event in accepted if not session.state.taken.get(event.input)] == sorted(retracted)
    taken = [
        number for event in session.events if isinstance(event, RunStarted | ModelCalled) for number in event.inputs
    ]
    pushes = {event.input for event in accepted if event.by == NATURAL_END}
    assert len(taken) == len(set(taken))
    assert not set(taken) & set(retracted), "taken and retracted"
    left = {event.input for event in accepted} - set(taken) - set(retracted)
    assert left <= pushes, "only a push may end with its run"


def test_the_simulation_reaches_every_corner() -> None:
    """Laws that hold because nothing happens would prove nothing."""
    kinds: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    refusals: Counter[str] = Counter()
    compactions: Counter[str] = Counter()
    details: Counter[str] = Counter()
    changed: Counter[str] = Counter()
    repeated = stale = together = 0
    for seed in range(250):
        session = Simulation(seed).wreak(STEPS).settle()
        kinds.update(type(event).__name__ for event in session.events)
        reasons.update(event.reason for event in session.events if isinstance(event, RunEnded))
        outcomes.update(event.outcome for event in session.events if isinstance(event, CallEnded))
        together += sum(1 for e in session.events if isinstance(e, RunStarted) and len(e.inputs) > 1)
        repeated += sum(1 for e in session.events if isinstance(e, CallStarted) and e.attempt > 1)
        refusals.update(session.refusals)
        stale += session.stale
        compactions.update(
            how for event in session.events if isinstance(event, HistoryCompacted) for how in how_of(event)
        )
        details.update(event.detail.split(":")[0] for event in session.events if isinstance(event, RunEnded))
        changed.update(what for event in session.events if isinstance(event, InputChanged) for what in what_of(event))
    assert len(kinds) == len(Event.__args__)  # pyright: ignore[reportAttributeAccessIssue]
    assert set(reasons) == {"completed", "limit", "stopped", "cancelled", "failed", "refusal"}
    assert set(outcomes) == {"ok", "error", "denied", "cancelled", "timeout", "unknown", "superseded"}
    assert set(refusals) == {"Conflict", "NotFound", "Refused", "UsageError"}
    assert repeated > 20
    assert stale > 5
    assert set(compactions) == {"threshold", "overflow", "request", "error", "shorter", "pruned"}
    assert set(changed) == {"vetted", "blocked", "parts", "due", "edited", "retracted"}
    assert together > 20
    assert set(details) >= {"stop condition", "input", "output", "context_too_long"}


def how_of(event: HistoryCompacted) -> list[str]:
    shown = {"error": event.error, "shorter": event.stop > event.start, "pruned": event.pruned}
    return [event.cause, *(name for name, value in shown.items() if value)]


def what_of(event: InputChanged) -> list[str]:
    shown = {"vetted": event.vetted, "blocked": event.blocked, "parts": event.parts, "due": event.due}
    shown |= {"retracted": event.retracted, "edited": event.parts and not event.vetted}
    return [name for name, value in shown.items() if value]
