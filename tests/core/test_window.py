"""The view of a long past: whatever is left out, pairs stay whole, what must stay stays, and the log is whole."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from perdure.core.codec import encode_event
from perdure.core.events import (
    CallEnded,
    Event,
    HistoryCompacted,
    HistoryCut,
    InputAccepted,
    ModelCalled,
    ModelFailed,
    ModelResponded,
    RunStarted,
)
from perdure.core.fold import evolve, fold
from perdure.core.history import UNRELATED_AFTER
from perdure.core.messages import AssistantMessage, Media, Text, ToolCall, ToolMessage, Usage, UserMessage
from perdure.core.rules import next_actions
from perdure.core.specs import Guards, ToolSpec, Window
from perdure.core.state import SessionState
from perdure.core.transcript import FullHistory, unpaired
from perdure.core.window import (
    LEDGER_ROOM,
    MAX_LEDGER,
    estimate_message,
    find_range,
    is_summary,
    joined_ledger,
    ledger_of,
    superseded,
)
from tests.core.logs import answered, decided, folded, log, pinned, running, sent, started, suspended, turn
from tests.core.strategies import often

READ = ToolSpec("read", effect="read")
ACT = ToolSpec("act")
TOOLS = (READ, ACT)
OUTCOMES = ("ok", "ok", "ok", "error", "denied", "unknown", "timeout")


# Any history


def any_log(random: Random, turns: int) -> list[Event]:
    """A run of so many turns, with joined inputs, decisions, all outcomes and long results; the last may be open."""
    events = log(pinned(tools=TOOLS), *running(window=100_000))
    inputs, call = 1, 0
    for number in range(1, turns + 1):
        joined: tuple[int, ...] = ()
        if random.random() < 0.3:
            inputs += 1
            joined = (inputs,)
            events.append(InputAccepted(inputs, (Text(f"input {inputs}"),), busy="join"))
        events.append(ModelCalled(number, inputs=joined))
        calls = [
            ToolCall(call + at, random.choice(("read", "act")), f'{{"path":"src/{random.randrange(4)}.py"}}')
            for at in range(1, random.choice((0, 1, 1, 2, 3)) + 1)
        ]
        call += len(calls)
        said = (Text(f"words {number}"),) if random.random() < 0.5 else ()
        events.append(ModelResponded(AssistantMessage((*said, *calls)), stop="calls" if calls else "end"))
        for item in calls:
            if number == turns and random.random() < 0.4:
                continue
            events += _ended(random, item)
    return events


def _ended(random: Random, call: ToolCall) -> list[Event]:
    events: list[Event] = []
    if random.random() < 0.2:
        events += [*suspended(call.call), decided(call.call, random.choice(("approve", "deny")), by="ann")]
    text = "x" * random.choice((3, 250, 2_500))
    parts = (Media("image", "a1", "image/png", 9),) if random.random() < 0.1 else (Text(f"{call.call} {text}"),)
    return [*events, *started(call.call), CallEnded(call.call, random.choice(OUTCOMES), parts)]


def compacted(state: SessionState, random: Random, words: str) -> HistoryCompacted:
    """A compaction as it is made for this state, with any number of messages to keep; or one that nobody would make."""
    if random.random() < 0.2:
        start, stop = random.randrange(-3, 30), random.randrange(-3, 60)
        pruned = tuple(random.sample(range(1, 20), random.randrange(4)))
        return HistoryCompacted(state.view, "request", start, stop, (Text(words),), pruned=pruned)
    keep_first, keep_last = random.choice((0, 0, 1, 3)), random.choice((1, 2, 4, 10))
    pruned = superseded(state, keep_first, keep_last) if random.random() < 0.5 else ()
    found = find_range(state.history, keep_first, keep_last)
    if found is None:
        return HistoryCompacted(state.view, "threshold", pruned=pruned)
    ledger = ledger_of(state, state.history[found.start : found.stop])
    parts = (Text(words),) if random.random() < 0.8 else ()
    return HistoryCompacted(state.view, "threshold", found.start, found.stop, parts, ledger, pruned)


def text_of(messages: Any) -> str:
    return "\n".join(part.text for m in messages for part in getattr(m, "parts", ()) if isinstance(part, Text))


def split(events: list[Event], random: Random) -> None:
    """Two compactions somewhere in the log, each made a while before it lands; the laws hold after every event."""
    points = sorted(random.sample(range(3, len(events) + 1), 2))
    plain, state = fold([]), fold([])
    written: list[Event] = []
    made: list[tuple[int, HistoryCompacted]] = []
    for at, event in enumerate([*events, None]):
        for number, point in enumerate(points):
            if point == at:
                made.append((at + random.choice((0, 0, 1, 5)), compacted(state, random, f"summary {number}")))
        for landing, compaction in [item for item in made if item[0] <= at or event is None]:
            made.remove((landing, compaction))
            before = state
            state = evolve(state, compaction)
            written.append(compaction)
            if compaction.view != before.view:
                assert state.history == before.history, "made for another view, it changes nothing"
            elif compaction.ledger:
                assert set(compaction.ledger) <= set(text_of(state.history).splitlines())
            assert set(before.ledger) <= set(state.ledger), "the second knows the first"
        if event is not None:
            plain, state = evolve(plain, event), evolve(state, event)
            written.append(event)
        assert unpaired(state.history) == unpaired(plain.history), "no call without its result but those still open"
        if plain.asked >= 0:
            assert state.history[state.asked] == plain.history[plain.asked], "the last input stands"
        if state.ledger and any(map(is_summary, state.history)):
            assert set(state.ledger) <= set(text_of(state.history).splitlines())
    whole = FullHistory()
    whole.add(written)
    assert whole.messages == plain.history[:], "nothing is lost"
    assert [encode_event(e) for e in written if not isinstance(e, HistoryCompacted)] == list(map(encode_event, events))


@often
@given(st.integers(0, 2**32), st.integers(1, 14))
def test_any_history_may_be_split_anywhere(seed: int, turns: int) -> None:
    """A seed instead of drawn choices: with 120 examples, 5,040 splits take seconds."""
    random = Random(seed)
    events = any_log(random, turns)
    for _ in range(42):
        split(events, random)


@pytest.mark.parametrize("keep_first", [0, 1, 2, 5])
@pytest.mark.parametrize("keep_last", [1, 2, 3, 8])
def test_the_first_and_the_last_messages_stay_as_they_are(keep_first: int, keep_last: int) -> None:
    state = fold(any_log(Random(keep_first * 10 + keep_last), 12))
    found = find_range(state.history, keep_first, keep_last)
    assert found is not None
    event = HistoryCompacted(state.view, "request", found.start, found.stop, (Text("s"),))
    event = replace(event, pruned=superseded(state, keep_first, keep_last))
    after = evolve(state, event)
    assert len(after.history) < len(state.history)
    assert after.history[:keep_first] == state.history[:keep_first]
    assert after.history[-keep_last:] == state.history[-keep_last:]


# What is pruned


def reading(*results: tuple[str, str, str]) -> SessionState:
    """One call a turn: tool, outcome and the text of its result."""
    events: list[Any] = [pinned(tools=TOOLS), *running()]
    for number, (name, outcome, text) in enumerate(results, 1):
        name, _, path = name.partition(" ")
        message = AssistantMessage((ToolCall(number, name, f'{{"path": "{path}"}}'),))
        end = CallEnded(number, outcome, (Text(text),))  # pyright: ignore[reportArgumentType]
        events += [turn(number), ModelResponded(message), started(number), end]
    return folded(*events)


LONG, SHORT = "x" * 3_000, "x" * 300


def test_superseded_reads_and_long_outputs_are_pruned() -> None:
    state = reading(("read a", "ok", SHORT), ("act a", "ok", LONG), ("read b", "ok", SHORT), ("read a", "ok", SHORT))
    assert superseded(state, 0, 1) == (1, 2)
    after = evolve(state, HistoryCompacted(0, "threshold", pruned=(1, 2)))
    told = [part.text for m in after.history if isinstance(m, ToolMessage) for r in m.results for part in r.parts]
    assert told[0] == "[The result of read, 300 characters, is left out to save room; ask again if needed.]"
    assert told[2:] == [SHORT, SHORT]
    assert after.context_tokens < state.context_tokens
    assert superseded(after, 0, 1) == (), "once is enough"


def test_errors_and_new_results_are_not_pruned() -> None:
    state = reading(("read a", "error", LONG), ("act", "unknown", LONG), ("act", "denied", LONG), ("act", "ok", LONG))
    assert superseded(state, 0, 1) == ()
    assert superseded(state, 0, 0) == (4,)
    assert superseded(state, 99, 0) == (), "the first messages stay"


def test_writes_are_not_superseded_by_the_same_write() -> None:
    assert superseded(reading(("act a", "ok", SHORT), ("act a", "ok", SHORT)), 0, 1) == ()


def test_what_a_person_answered_is_not_pruned() -> None:
    events = (pinned(tools=TOOLS), *running(), turn(), ModelResponded(AssistantMessage((ToolCall(1, "act", "{}"),))))
    answer = (suspended(1, "question"), decided(1, "answer", by="ann", value=LONG))
    state = folded(*events, *answer, CallEnded(1, "ok", (Text(LONG),)), turn(2), answered())
    assert superseded(state, 0, 0) == ()
    (line,) = ledger_of(state, state.history)
    assert line == f"call 1, act {{}}: answer by ann: {LONG[:500]}"


# The ledger


def test_decisions_denials_unknown_outcomes_and_paths_are_on_record() -> None:
    calls = [ToolCall(n, "act", f'{{"file": "src/{n}.py", "note": "a b"}}') for n in (1, 2, 3)]
    state = folded(
        *(pinned(tools=TOOLS), *running(), turn(), ModelResponded(AssistantMessage(tuple(calls)))),
        *(suspended(1), decided(1, "approve", by="ann"), CallEnded(1, "ok", (Text("fine"),))),
        *(suspended(2), decided(2, "deny", by="ben"), CallEnded(2, "denied", (Text("denied: too dear"),))),
        *(started(3), CallEnded(3, "unknown", (Text("nobody knows"),))),
    )
    said = [f'call {n}, act {{"file": "src/{n}.py", "note": "a b"}}: ' for n in (1, 2, 3)]
    assert ledger_of(state, state.history) == (
        "path src/1.py",
        "path src/2.py",
        "path src/3.py",
        f"{said[0]}approve by ann",
        f"{said[1]}deny by ben",
        f"{said[1]}denied: denied: too dear",
        f"{said[2]}unknown: nobody knows",
    )
    known = replace(state, ledger=("path src/1.py",))
    assert "path src/1.py" not in ledger_of(known, state.history), "what is on record is not put there again"


def test_a_ledger_is_bounded_and_paths_go_first() -> None:
    paths = tuple(f"path {n}" for n in range(MAX_LEDGER))
    decisions = tuple(f"call {n}: approve" for n in range(10))
    joined = joined_ledger(replace(fold([]), ledger=paths), decisions)
    assert joined == (*paths[10:], *decisions)
    long = tuple(f"call {n}: {'x' * 1_000}" for n in range(100))
    assert sum(map(len, joined_ledger(fold([]), long))) <= LEDGER_ROOM
    assert joined_ledger(fold([]), long)[-1] == long[-1]
    small = folded(pinned(window=Window(tokens=3_000)))
    assert joined_ledger(small, long) == long[-2:], "a quarter of a small window"


# Tokens


def test_system_prompt_tool_schemas_and_images_are_counted() -> None:
    bare = folded(pinned())
    spoken = folded(pinned(instructions="x" * 4_000))
    schema = {"type": "object", "properties": {"text": {"description": "y" * 4_000}}}
    tooled = folded(pinned(tools=(ToolSpec("write", parameters=schema),)))
    hidden = folded(pinned(tools=(ToolSpec("write", parameters=schema, hidden=True),)))
    assert spoken.context_tokens - bare.context_tokens == 1_000
    assert tooled.context_tokens > 1_000 > hidden.context_tokens
    picture = UserMessage((Media("image", "a1", "image/png", 5),))
    assert estimate_message(picture) >= 1_000


def test_estimates_are_corrected_by_what_the_provider_counts() -> None:
    ask = (pinned(), InputAccepted(1, (Text("x" * 4_000),)), RunStarted(1, (1,)), turn())
    state = folded(*ask, answered("y" * 400, usage=Usage(2_000, 100)))
    assert state.context_tokens == 2_100
    assert 1.8 < state.token_ratio < 2.0
    later = folded(*ask, answered("y" * 400, usage=Usage(2_000, 100)), InputAccepted(2, (Text("x" * 4_000),)))
    later = evolve(later, RunStarted(2, (2,)))
    assert 1_800 < later.context_tokens - state.context_tokens < 2_100, "our estimate times the ratio"


def test_a_view_that_changed_while_the_model_answered_is_counted_without_what_went() -> None:
    asked = (
        pinned(),
        InputAccepted(1, (Text("x" * 4_000),)),
        RunStarted(1, (1,)),
        turn(),
        answered(usage=Usage(1_000)),
    )
    first = folded(*asked, InputAccepted(2, (Text("next"),), busy="join"), turn(2, inputs=(2,)))
    after = evolve(first, HistoryCompacted(0, "threshold", 0, 2, (Text("short"),)))
    saved = first.context_tokens - after.context_tokens
    assert saved > 500
    assert evolve(after, answered(usage=Usage(1_010, 5))).context_tokens == 1_015 - saved


# When


def full(share: float, **window: Any) -> SessionState:
    """A run whose view fills this share of its window of 1,000 tokens."""
    spec = pinned(window=Window(**window), guards=Guards(empty_answers=None))
    state = folded(spec, *running(window=1_000), turn(), answered("", usage=Usage(1)), sent(2, "join"))
    return replace(state, context_tokens=int(1_000 * share))


def due(state: SessionState) -> list[str]:
    return [f"{type(a).__name__} {getattr(a, 'background', '')}".strip() for a in next_actions(state)]


@pytest.mark.parametrize(
    ("share", "window", "actions"),
    [
        (0.8, {}, ["CallModel"]),
        (0.81, {}, ["CompactHistory True", "CallModel"]),
        (0.96, {}, ["CompactHistory False"]),
        (0.81, {"background": False}, ["CompactHistory False"]),
        (0.51, {"at": 0.5}, ["CompactHistory True", "CallModel"]),
        (2.0, {"is_on": False}, ["CallModel"]),
    ],
)
def test_it_is_due_at_the_threshold(share: float, window: dict[str, Any], actions: list[str]) -> None:
    assert due(full(share, **window)) == actions


def test_at_most_three_in_a_row() -> None:
    state = full(0.99)
    for number in range(3):
        assert due(state) == ["CompactHistory False"], number
        state = evolve(state, HistoryCompacted(state.view, "threshold", error="no"))
        assert due(state) == ["CallModel"], "the turn goes on"
        for event in (turn(2 + number), answered(usage=Usage(990)), sent(3 + number, "join")):
            state = evolve(state, event)
    assert due(state) == ["CallModel"]
    assert state.run is not None
    later = replace(state, run=replace(state.run, turn=state.run.compacted_at + UNRELATED_AFTER))
    assert due(later) == ["CompactHistory False"], "ten turns later it is not in a row any more"


def overflowing(**window: Any) -> SessionState:
    words = InputAccepted(1, (Text("x" * 400),))
    history = (words, RunStarted(1, (1,)), turn(), answered("y" * 4_000), sent(2, "join"), turn(2, inputs=(2,)))
    return folded(pinned(window=Window(**window)), *history, ModelFailed("context_too_long", "too long"))


def test_an_overflow_is_compacted_and_asked_about_again() -> None:
    state = overflowing()
    assert due(state) == ["CompactHistory False"]
    after = evolve(state, HistoryCompacted(0, "overflow", 0, 2, (Text("short"),)))
    (again,) = next_actions(after)
    assert (getattr(again, "turn", 0), getattr(again, "attempt", 0)) == (2, 2)


def test_one_that_was_under_way_serves_an_overflow_too() -> None:
    after = evolve(overflowing(), HistoryCompacted(0, "threshold", 0, 2, (Text("short"),)))
    assert due(after) == ["CallModel"]


@pytest.mark.parametrize("window", [{}, {"is_on": False}])
def test_an_overflow_that_cannot_be_helped_fails_the_run(window: dict[str, Any]) -> None:
    state = overflowing(**window)
    if not window:
        state = evolve(state, HistoryCompacted(0, "overflow", error="no"))
    assert due(state) == ["AppendEvents"]
    (action,) = next_actions(state)
    assert "context_too_long" in repr(action)


def test_overflows_far_apart_are_not_in_a_row() -> None:
    state = overflowing()
    for number in range(3, 9):
        state = evolve(state, HistoryCompacted(state.view, "overflow", 0, 2, (Text(""),)))
        assert due(state) == ["CallModel"], number
        for event in (turn(number - 1, attempt=2), answered("z" * 4_000), sent(number, "join")):
            state = evolve(state, event)
        state = evolve(evolve(state, turn(number, inputs=(number,))), ModelFailed("context_too_long"))
        assert due(state) == ["CompactHistory False"], number


# The whole past


def test_what_was_cut_stays_cut_in_the_whole_past() -> None:
    events = log(pinned(), *running(), turn(), answered("one"), sent(2, "join"), turn(2, inputs=(2,)), answered("two"))
    cut_at = len(events) - 3
    events.append(HistoryCompacted(0, "request", 0, 2, (Text("short"),)))
    events.append(HistoryCut(cut_at, 0, fold(events[:cut_at]).history[:]))  # pyright: ignore[reportArgumentType]
    whole = FullHistory()
    whole.add(events)
    assert whole.messages == fold(events[:cut_at]).history[:]
    whole.add([HistoryCut(0)])
    assert whole.messages == []
