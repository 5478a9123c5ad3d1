"""What the model reads when views change under a run, and how many tokens that is: the hard cases."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.events import (
    CallEnded,
    Event,
    HistoryCut,
    HistoryImported,
    InputChanged,
    ModelFailed,
    ModelResponded,
    Origin,
    RunEnded,
    RunStarted,
    SessionOpened,
    SettingsChanged,
)
from perdure.core.fold import evolve, fold
from perdure.core.fork import fork_events
from perdure.core.messages import AssistantMessage, Media, Text, ToolCall, ToolMessage, ToolResult, Usage, UserMessage
from perdure.core.specs import Window
from perdure.core.state import SessionState, new_state
from perdure.core.transcript import unpaired
from perdure.core.views import summarise
from perdure.core.window import estimate_view, ledger_of
from tests.core.logs import (
    allowed,
    answered,
    asking,
    asks_for,
    called,
    compacted,
    decided,
    ended,
    folded,
    long_talk,
    overflow,
    pinned,
    running,
    sent,
    started,
    suspended,
    turn,
    vetted,
)
from tests.core.simulate import Simulation
from tests.core.strategies import often

LONG = (*running(), *long_talk(5))
MIDDLE = compacted(0, 1, 9)


def words(state: SessionState) -> list[str]:
    """What the user's side of the view says, by message."""
    users = [message for message in state.history if isinstance(message, UserMessage)]
    return [" ".join(part.text for part in message.parts if isinstance(part, Text)) for message in users]


def kinds(state: SessionState) -> str:
    return "".join(type(message).__name__[0] for message in state.history)


# Views that change under a run


def test_an_answer_in_flight_lands_behind_the_shorter_view() -> None:
    state = folded(LONG, turn(6), MIDDLE, called("look", first=6), started(6), ended(6))
    assert kinds(state) == "UUATAT"
    assert unpaired(state.history) == []


def test_results_land_behind_their_calls_when_the_view_changed_under_them() -> None:
    state = folded(LONG, turn(6), called("a", "b", first=6), suspended(6), started(7), MIDDLE)
    assert unpaired(state.history) == [6, 7]
    state = fold([*ended(7), decided(6, "deny"), *ended(6, outcome="denied")], state)
    assert kinds(state) == "UUATAT"
    assert unpaired(state.history) == []


def test_the_last_input_outlives_every_compaction() -> None:
    state = folded(LONG, compacted(0, 0, 11), turn(6), called("a", first=6), started(6), ended(6), compacted(1, 0, 4))
    assert [line for line in words(state) if "earlier messages are left out" not in line] == ["input 1"]
    assert len(state.history) == 2
    assert state.history[state.asked] == UserMessage((Text("input 1"),))


@pytest.mark.parametrize("bounds", [(0, 2), (2, 9), (-3, 2), (4, 4), (9, 3), (11, 40), (50, 90)])
def test_a_range_that_makes_no_sense_does_no_harm(bounds: tuple[int, int]) -> None:
    before = folded(LONG)
    after = evolve(before, compacted(0, *bounds))
    assert unpaired(after.history) == []
    assert after.estimated_tokens <= before.estimated_tokens
    assert after.history[after.asked] == before.history[before.asked]


def test_a_negative_start_in_an_empty_view_is_no_accident() -> None:
    assert len(evolve(new_state(), compacted(0, -1, 5)).history) == 0


@often
@given(st.integers(0, 10**6), st.integers(-2, 40), st.integers(-2, 40), st.data())
def test_no_compaction_breaks_a_pair_or_loses_the_last_input(
    seed: int, start: int, stop: int, data: st.DataObject
) -> None:
    events = Simulation(seed).wreak(60).events
    before = fold(events[: data.draw(st.integers(0, len(events)))])
    after = evolve(before, compacted(before.view, start, stop, parts=(Text("They talked."),), pruned=(1, 2)))
    assert unpaired(after.history) == unpaired(before.history)
    assert after.estimated_tokens == estimate_view(after.history)
    if before.asked >= 0:
        assert after.history[after.asked] == before.history[before.asked]


@often
@given(st.integers(0, 10**6), st.data())
def test_a_fork_from_anywhere_is_whole_and_at_rest(seed: int, data: st.DataObject) -> None:
    """What waits, was vetted or is for later stays with the parent, whose own state does not change."""
    events = Simulation(seed).wreak(60).events
    parent = fold(events[: data.draw(st.integers(1, len(events)))])
    seen = repr(parent)
    fork = fold([*fork_events(parent, SessionOpened("f", "f", "clerk", origin=Origin(parent.uid, parent.seq)))], parent)
    assert (fork.run, fork.queue, fork.vetted, unpaired(fork.history)) == (None, (), {}, [])
    assert (summarise(fork).status, summarise(fork).wake_at) == ("idle", None)
    assert (fork.view, list(fork.history)[: len(parent.history)]) == (parent.view, list(parent.history))
    assert repr(parent) == seen


# Tokens


def test_what_is_saved_while_a_model_answers_is_not_in_its_count() -> None:
    """The provider counts the request as it was sent; two compactions landed meanwhile."""
    before = folded(LONG, turn(6))
    state = fold([compacted(0, 1, 5), compacted(1, 2, 6)], before)
    saved = before.context_tokens - state.context_tokens
    assert saved > 100
    answer = answered(usage=Usage(before.context_tokens, 10))
    assert evolve(state, answer).context_tokens == before.context_tokens + 10 - saved


def test_a_compaction_before_the_request_was_sent_is_in_its_count() -> None:
    state = folded(LONG, MIDDLE, turn(6), answered(usage=Usage(150, 10)))
    assert state.context_tokens == 160


@pytest.mark.parametrize(
    ("usage", "ratio"),
    [
        (Usage(10**9, 1), 4.0),
        (Usage(10**400, 1), 4.0),
        (Usage(199, 1), 1.0),
        (Usage(-5, -5), 1.0),
        (Usage(0, 900), 1.0),
        (Usage(2000, 1, estimated=True), 1.0),
    ],
)
def test_what_a_provider_counts_corrects_our_estimates_within_reason(usage: Usage, ratio: float) -> None:
    state = folded(LONG, turn(6), answered(usage=usage))
    assert state.token_ratio == ratio
    assert state.context_tokens >= 0
    assert evolve(state, MIDDLE).context_tokens >= 0


def test_a_provider_that_counts_far_less_does_not_make_a_compaction_vain() -> None:
    """Whether a view got shorter is measured by one measure, before and after."""
    few = (pinned(window=Window(at=0.1)), *running(window=900), *long_talk(9, usage=Usage(100)))
    state = folded(few, compacted(0, 1, 5))
    assert state.run is not None
    assert state.run.compacted_in_vain == 0


def test_an_import_with_a_size_that_is_none_can_be_read() -> None:
    huge = Media("document", "x", "application/pdf", 10**400)
    state = folded(HistoryImported((UserMessage((huge,)), UserMessage((Media("document", "x", "a/b", -9),)))))
    assert 0 < state.context_tokens < 10**9


# Runs that live long


def test_overflows_far_apart_are_not_in_a_row() -> None:
    """A run of which nobody knows the window lives on overflows; each one starts to count anew."""
    events: list[Event] = [*LONG]
    number, view = 6, 0
    for _ in range(6):
        events += overflow(number)
        assert asks_for(tuple(events)) == [f"compact view {view} overflow"]
        events.append(compacted(view, 1, 8 if view else 7, "overflow"))
        assert asks_for(tuple(events)) == [f"model {number} attempt 2"]
        events += (turn(number, attempt=2), called("look", first=number), *started(number, "read"), *ended(number))
        events += long_talk(5, first=number + 1)
        number, view = number + 6, view + 1
    assert asks_for(tuple(events)) == [f"model {number}"]


def test_after_three_that_did_not_do_an_overflow_is_still_compacted() -> None:
    prunes = [compacted(view, pruned=(view + 1,)) for view in range(3)]
    full = (pinned(), *running(window=100), *long_talk(5, usage=Usage(9000)))
    assert asks_for(full, tuple(prunes)) == ["model 6"]
    assert asks_for(full, tuple(prunes), overflow(6)) == ["compact view 3 overflow"]


def test_what_a_compaction_costs_is_paid_even_if_it_came_too_late() -> None:
    spent: dict[str, Any] = {"usage": Usage(7, 3), "cost_usd": 0.5}
    state = folded(LONG, compacted(9, 1, 5, **spent), RunEnded(1, "completed"), compacted(9, 1, 5, **spent))
    assert (state.usage.total, state.cost_usd, state.view) == (20, 1.0, 0)
    assert (state.ended[-1].usage.total, state.ended[-1].cost_usd) == (10, 0.5)
    unpriced = folded(LONG, compacted(9, cost_usd=None))
    assert (unpriced.is_priced, unpriced.run and unpriced.run.is_priced) == (False, False)


# What the ledger says


@pytest.mark.parametrize(
    ("decision", "outcome", "line"),
    [
        ("approve", "ok", 'call 1, pay {"n":1}: approve by ops'),
        ("answer", "ok", 'call 1, pay {"n":1}: answer by ops: 12'),
        ("edit", "ok", 'call 1, pay {"n":1}: edit by ops'),
    ],
)
def test_the_ledger_has_each_decision(decision: Any, outcome: Any, line: str) -> None:
    state = folded(running(), turn(), called("pay"), suspended(1), decided(1, decision, by="ops"), ended(1))
    (found,) = ledger_of(state, state.history)
    assert found.startswith(line)


def test_the_ledger_has_every_pause_of_a_call_and_how_it_ended() -> None:
    edited = (
        *suspended(1),
        decided(1, "edit", by="ops"),
        *suspended(1, pause=2),
        decided(1, "deny", pause=2, by="boss"),
    )
    state = folded(running(), turn(), called("pay"), edited, ended(1, outcome="denied"))
    what = 'call 1, pay {"n":1}'
    edit, *others = ledger_of(state, state.history)
    assert edit.startswith(f"{what}: edit by ops")
    assert others == [f"{what}: deny by boss", f"{what}: denied: 12"]
    known = fold([compacted(0, 0, 3, ledger=ledger_of(state, state.history))], state)
    assert ledger_of(known, state.history) == ()


# Inputs, settings and imports


def test_a_verdict_on_an_input_that_was_taken_changes_nothing() -> None:
    state = folded(running())
    for late in (vetted(1), vetted(1, "no"), InputChanged(1, (Text("other"),)), InputChanged(1, due=True), vetted(7)):
        after = evolve(state, late)
        assert (after.vetted, after.queue, after.history, after.run) == ({}, (), state.history, state.run)


def test_nothing_of_a_blocked_input_is_left_behind() -> None:
    state = folded(sent(1), vetted(1, "no"), RunStarted(1, (1,)), RunEnded(1, "refusal"), sent(2), RunStarted(2, (2,)))
    assert (words(state), state.vetted, state.taken.get(1)) == (["input 2"], {}, 1)
    assert state.run is not None
    assert state.run.blocked == ""


def test_a_title_leaves_the_model_of_an_open_run_alone() -> None:
    begun = (pinned(model="a"), *running(model="c"))
    state = folded(begun, SettingsChanged(title="Bills"))
    assert state.run is not None
    assert (state.run.model, state.title) == ("c", "Bills")
    other = folded(begun, SettingsChanged("b", title="Bills"), SettingsChanged())
    assert other.run is not None
    assert (other.run.model, other.title) == ("a", "Bills")


def test_an_import_never_counts_calls_back() -> None:
    asked = AssistantMessage((ToolCall(2, "look", "{}"),))
    told = ToolMessage((ToolResult(2, "look", "ok"),))
    assert folded(LONG, HistoryImported((asked, told))).calls == 5
    assert folded(HistoryImported((asked, told))).calls == 2
    assert folded(LONG, HistoryImported(())).calls == 5


def test_a_cut_takes_the_conversation_and_its_state_back_and_nothing_else() -> None:
    spent = ModelResponded(AssistantMessage((Text("Done."),)), usage=Usage(5, 5), cost_usd=0.1)
    past = (*running(), turn(), spent, RunEnded(1, "completed"), sent(2, at=9.0))
    state = folded(past, HistoryCut(3, keep=1, values={"a": 1}))
    assert (words(state), state.values, state.asked) == (["input 1"], {"a": 1}, 0)
    assert (state.usage.total, state.cost_usd, state.calls, len(state.ended), len(state.queue)) == (10, 0.1, 0, 1, 1)
    assert folded(past, HistoryCut(1)).asked == -1


def test_a_shorter_view_shares_nothing_with_the_one_before() -> None:
    before = folded(LONG)
    seen = list(before.history)
    for event in (MIDDLE, HistoryCut(1, keep=11), HistoryImported(()), compacted(0)):
        one = fold([event, turn(6), answered("one")], before)
        other = fold([event, turn(6), answered("other")], before)
        assert one.history[-1] != other.history[-1]
        assert list(before.history) == seen


def test_rejected_words_are_not_kept_and_what_to_do_better_is() -> None:
    state = folded(running(), turn(), ModelFailed("rejected", "Be polite.", wasted=Usage(3, 4), cost_usd=0.2))
    assert words(state) == ["input 1", "Be polite."]
    assert (state.usage.total, state.cost_usd, kinds(state)) == (7, 0.2, "UU")
    assert state.estimated_tokens == estimate_view(state.history)


@pytest.mark.parametrize(
    ("effect", "is_started", "outcome", "words"),
    [
        ("read", False, "superseded", "forked before this call started"),
        ("read", True, "superseded", "forked while this call was under way"),
        ("once", True, "unknown", "the session was forked while it was under way"),
    ],
)
def test_a_fork_says_of_open_calls_what_is_so(effect: Any, is_started: bool, outcome: str, words: str) -> None:
    past = folded(asking("a"), started(1, effect) if is_started else allowed(1))
    events = fork_events(past, SessionOpened("u2", "fork", "clerk"))
    (closed,) = [event for event in events if isinstance(event, CallEnded)]
    (part,) = closed.parts
    assert isinstance(part, Text)
    assert (closed.outcome, words in part.text, "died" in part.text) == (outcome, True, False)
