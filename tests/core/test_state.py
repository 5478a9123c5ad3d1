"""Properties of evolve: what a log means does not depend on how, when or how often it is read."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from perdure.core.codec import decode_event, encode_event
from perdure.core.events import (
    CallDecided,
    CallEnded,
    CallStarted,
    CallSuspended,
    Event,
    HistoryCompacted,
    HistoryCut,
    HistoryImported,
    InputChanged,
    ModelCalled,
    ModelFailed,
    Reservation,
    RunEnded,
    RunResumed,
    RunStarted,
    SettingsChanged,
    StateChanged,
)
from perdure.core.fold import evolve, fold
from perdure.core.messages import Text, Usage, UserMessage
from perdure.core.rules import next_actions
from perdure.core.specs import Limits, ModelSettings, Overrides, ToolSpec
from perdure.core.state import KeyedInput, Remembered, RunSummary, SessionState, agent_of, in_flight, new_state
from perdure.core.transcript import transcript, unpaired
from perdure.core.views import summarise
from tests.core.logs import (
    allowed,
    answered,
    asking,
    called,
    decided,
    ended,
    folded,
    handed_over,
    log,
    pinned,
    running,
    sent,
    started,
    stopping,
    suspended,
    switched,
    turn,
)
from tests.core.simulate import Simulation
from tests.core.strategies import EVENT, EVENTS, KINDS, often, values


def simulated(seed: int) -> list[Event]:
    return Simulation(seed).wreak(60).events


LOGS = st.integers(0, 10**6).map(simulated) | EVENTS


@often
@given(LOGS, EVENTS)
def test_folding_in_two_parts_is_folding_at_once(first: list[Event], second: list[Event]) -> None:
    assert fold(second, fold(first)) == fold(first + second)


@often
@given(EVENTS)
def test_evolve_takes_any_events_in_any_order(events: list[Event]) -> None:
    state = new_state()
    for event in events:
        state = evolve(state, event)
        next_actions(state)
        summarise(state)
        unpaired(transcript(state))
    assert state.seq == len(events)


@often
@given(st.integers(0, 10**6), EVENT, st.data())
def test_evolve_takes_an_event_that_does_not_belong_there(seed: int, stray: Event, data: st.DataObject) -> None:
    events = simulated(seed)
    at = data.draw(st.integers(0, len(events)))
    state = fold([*events[:at], stray, *events[at:]])
    next_actions(state)
    assert state.seq == len(events) + 1


@pytest.mark.parametrize("kind", [HistoryCompacted, HistoryCut, HistoryImported, InputChanged, StateChanged])
def test_what_changes_the_past_may_come_at_any_time(kind: type[Event]) -> None:
    """Each at any place of a log, with numbers that make sense or none: the log can be read, and goes on."""

    @settings(often, max_examples=40)
    @given(st.integers(0, 10**6), values(kind), st.data())
    def check(seed: int, stray: Event, data: st.DataObject) -> None:
        events = simulated(seed)
        at = data.draw(st.integers(0, len(events)))
        before = fold(events[:at])
        seen = repr(before)
        if isinstance(stray, HistoryCompacted):
            stray = replace(stray, view=before.view)
        state = fold([stray, *events[at:]], before)
        next_actions(state)
        summarise(state)
        assert state.seq == len(events) + 1
        assert repr(before) == seen
        assert state == fold([*events[:at], stray, *events[at:]])

    check()


@often
@given(LOGS, EVENTS, EVENTS)
def test_a_state_never_changes_when_others_go_on_from_it(
    past: list[Event], one: list[Event], other: list[Event]
) -> None:
    seen = [new_state()]
    for event in past:
        seen.append(evolve(seen[-1], event))
    before = [repr(state) for state in seen]
    for state in seen[-1], seen[len(seen) // 2]:
        fold(one, state)
        fold(other, state)
    assert [repr(state) for state in seen] == before


@often
@given(LOGS, EVENTS, EVENTS)
def test_branches_from_one_state_do_not_see_each_other(past: list[Event], one: list[Event], other: list[Event]) -> None:
    root = fold(past)
    left, right = fold(one, root), fold(other, root)
    assert left == fold(past + one)
    assert right == fold(past + other)
    assert fold(other, left) == fold(past + one + other)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_is_what_is_read(kind: type[Event]) -> None:
    @settings(often, max_examples=30)
    @given(values(kind))
    def check(event: Event) -> None:
        data = encode_event(event)
        assert decode_event(data) == event
        assert encode_event(decode_event(data)) == data

    check()


def test_sessions_share_nothing() -> None:
    first, second = fold(log(running())), new_state()
    assert len(first.history) == 1
    assert (len(second.history), second.keys.get("k"), len(SessionState().history)) == (0, None, 0)


def test_every_event_counts() -> None:
    events = log(asking("a"), started(1), ended(1))
    assert fold(events).seq == len(events)


def test_what_ended_stays_ended() -> None:
    state = folded(asking("a", "b"), started(1), ended(1))
    late: list[Event] = [
        *allowed(1),
        CallStarted(1),
        CallSuspended(1, 1, "approval"),
        CallDecided(1, 1, "approve", remember="tool"),
        CallEnded(1, "error", (Text("again"),)),
    ]
    for event in late:
        after = evolve(state, event)
        assert (after.run, after.remembered, after.history) == (state.run, (), state.history)


def test_the_end_of_another_run_is_not_this_one_s() -> None:
    assert evolve(folded(running()), RunEnded(7, "completed")).run is not None


def test_a_stop_of_another_run_is_not_this_one_s() -> None:
    state = evolve(folded(running()), stopping(run=7))
    assert state.run is not None
    assert state.run.stop is None


def test_the_definition_is_what_was_pinned_last() -> None:
    state = folded(pinned(), pinned(instructions="Bill."))
    assert state.spec is not None
    assert (state.agent, state.spec.instructions, state.spec_digest) == ("clerk", "Bill.", "s1")


def test_who_was_chosen_for_a_run_is_the_agent_of_that_run_alone() -> None:
    chosen = sent(1, overrides=Overrides(agent="billing"))
    waiting = folded(pinned(), chosen)
    assert (waiting.agent, agent_of(waiting)) == ("clerk", "billing")
    state = evolve(evolve(waiting, pinned("billing")), RunStarted(1, (1,)))
    assert (state.agent, agent_of(state), state.home) == ("clerk", "billing", "clerk")
    state = evolve(state, RunEnded(1, "completed"))
    assert (state.agent, agent_of(state)) == ("clerk", "clerk")
    assert (state.ended[-1].agent, state.ended[-1].is_chosen) == ("billing", True)


def test_an_input_for_later_is_nobody_s_work_yet() -> None:
    state = folded(sent(1, overrides=Overrides(agent="billing"), at=60.0), sent(2))
    assert agent_of(state) == "clerk"


def test_who_takes_over_has_what_the_run_has_kept_and_spent() -> None:
    tool = ToolSpec("pick", kind="frontend")
    begun = running(Limits(turns=7), model="a", tools=(tool,))
    state = folded(pinned(), begun, turn(), called("hand_off", usage=Usage(5, 7)), started(1, "read"), handed_over(1))
    before = evolve(state, StateChanged({"run/todo": 1, "session/name": "Ann"}))
    after = evolve(before, switched("billing", model="b", tools=(tool,), output={"type": "object"}, window=9))
    assert before.run is not None
    assert after.run is not None
    assert (after.agent, after.home, after.run.agent, after.run.wanted) == ("billing", "clerk", "billing", "")
    assert (after.run.model, after.run.output, after.run.window, after.run.tools) == (
        "b",
        {"type": "object"},
        9,
        (tool,),
    )
    kept = ("limits", "values", "usage", "cost_usd", "turn", "called", "circles", "inputs", "calls")
    assert [name for name in kept if getattr(before.run, name) != getattr(after.run, name)] == []
    assert (after.values, after.history) == (before.values, before.history)


def test_a_hand_off_that_failed_is_told_to_the_same_agent() -> None:
    state = folded(pinned(), running(), turn(), called("hand_off"), started(1, "read"), handed_over(1))
    state = evolve(state, switched("clerk", error="The hand-off failed."))
    assert state.run is not None
    assert (state.agent, state.run.agent, state.run.wanted, state.run.next.agent) == ("clerk", "clerk", "", "")
    assert state.history[-1] == UserMessage((Text("The hand-off failed."),))


def test_who_was_chosen_for_a_run_hands_over_in_that_run_alone() -> None:
    chosen = sent(1, overrides=Overrides(agent="billing"))
    state = folded(chosen, RunStarted(1, (1,)), turn(), called("hand_off"), handed_over(1), switched("refunds"))
    assert (state.agent, agent_of(state)) == ("clerk", "refunds")


def test_an_agent_that_is_set_is_the_session_s_at_once_and_the_run_s_when_it_takes_over() -> None:
    state = folded(running(), SettingsChanged(agent="billing"))
    assert state.run is not None
    assert (state.agent, agent_of(state), state.run.wanted) == ("billing", "clerk", "billing")
    back = evolve(state, SettingsChanged(agent="clerk"))
    assert back.run is not None
    assert (back.agent, back.run.wanted) == ("clerk", "")
    chosen = folded(
        sent(1, overrides=Overrides(agent="refunds")), RunStarted(1, (1,)), SettingsChanged(agent="billing")
    )
    assert chosen.run is not None
    assert (chosen.agent, agent_of(chosen), chosen.run.wanted) == ("billing", "refunds", "")


def test_a_model_of_the_session_s_own_takes_the_place_of_that_of_the_run() -> None:
    given = Overrides(model="a", settings=ModelSettings(seed=1), output={"type": "object"})
    state = folded(pinned(model="m"), sent(1, overrides=given), RunStarted(1, (1,), model="a"), SettingsChanged("b"))
    assert state.run is not None
    assert state.run.overrides == Overrides(output={"type": "object"})


def test_a_run_leaves_a_summary() -> None:
    spent: dict[str, Any] = {"usage": Usage(5, 7), "cost_usd": 0.25}
    state = folded(running(), turn(), answered("hi", **spent), RunEnded(1, "completed", "", "hi"))
    summary = RunSummary(1, "completed", output="hi", usage=Usage(5, 7), cost_usd=0.25, turns=1, agent="clerk")
    assert list(state.ended) == [summary]
    assert (state.usage, state.cost_usd) == (Usage(5, 7), 0.25)


def test_what_a_run_spends_adds_up_over_its_turns() -> None:
    spent: dict[str, Any] = {"usage": Usage(5, 7), "cost_usd": 0.25, "seconds": 1.0}
    first = (turn(), called("a", **spent), *started(1), CallEnded(1, "ok", seconds=3.0))
    run = folded(running(), first, turn(2), answered(**spent)).run
    assert run is not None
    assert (run.usage, run.cost_usd, run.seconds, run.called, run.turn) == (Usage(10, 14), 0.5, 5.0, 1, 2)


def test_a_failed_attempt_takes_its_time() -> None:
    run = folded(running(), turn(), ModelFailed("cut", "gone", seconds=4.0)).run
    assert run is not None
    assert (run.seconds, run.reserved) == (4.0, Reservation())


def test_an_attempt_that_died_counts_as_spent_once() -> None:
    dying = (*running(), ModelCalled(1, reserved=Reservation(50, 0.5)))
    state = folded(dying, RunResumed(2), RunResumed(3))
    assert (state.usage, state.cost_usd) == (Usage(output=50, estimated=True), 0.5)
    assert state.run is not None
    assert (state.run.usage, state.run.cost_usd) == (state.usage, 0.5)
    assert state.epoch == 3


def test_a_reservation_that_was_settled_costs_what_was_used() -> None:
    settled = (*running(), ModelCalled(1, reserved=Reservation(50, 0.5)), answered(usage=Usage(1, 2)))
    state = folded(settled, RunResumed(2))
    assert state.usage == Usage(1, 2)
    assert state.run is not None
    assert state.run.reserved == Reservation()


def test_the_context_is_what_the_provider_counted_plus_an_estimate() -> None:
    state = folded(running(), turn(), called("a", usage=Usage(100, 20)), started(1), ended(1))
    assert state.context_tokens == 120 + 4 + 10 + 1
    assert folded(running()).context_tokens == 4 + 2
    assert folded(running(), turn(), answered("12345678")).context_tokens == 4 + 2 + 4 + 3


def test_inputs_are_taken_once_by_the_run_that_read_them() -> None:
    state = folded(sent(1), sent(2, "join"), RunStarted(1, (1,)), turn(inputs=(2,)), turn(2, inputs=(2,)))
    assert (state.taken.get(1), state.taken.get(2), state.taken.get(3)) == (1, 1, None)
    assert len(state.history) == 2
    assert state.queue == ()


def test_a_retracted_input_leaves_nothing_but_that_it_was() -> None:
    keyed = sent(1, key="bill", digest="d1", at=50.0)
    state = folded(keyed, InputChanged(1, blocked="no"), InputChanged(1, retracted=True))
    assert (state.queue, state.vetted, state.keys.get("bill"), state.taken.get(1)) == ((), {}, None, 0)
    assert (summarise(state).status, summarise(state).wake_at) == ("idle", None)
    again = folded(keyed, InputChanged(1, retracted=True), sent(2, key="bill", digest="d2"))
    assert again.keys.get("bill") == KeyedInput(2, "d2")


def test_an_edited_input_is_heard_with_its_last_words() -> None:
    edits = (InputChanged(1, (Text("two"),)), InputChanged(1, (Text("three"),)))
    state = folded(sent(1, key="bill", digest="d1"), edits, RunStarted(1, (1,)), InputChanged(1, (Text("four"),)))
    assert state.history[:] == [UserMessage((Text("three"),))]
    assert state.keys.get("bill") == KeyedInput(1, "d1")


def test_an_intent_without_outcome_is_in_flight() -> None:
    assert not in_flight(folded(running()))
    assert in_flight(folded(running(), turn()))
    assert not in_flight(folded(running(), turn(), RunResumed(2)))
    assert in_flight(folded(asking("a", "b"), started(1), suspended(2)))
    assert not in_flight(folded(asking("a"), started(1), ended(1)))


@pytest.mark.parametrize(
    ("remember", "expected"),
    [
        ("", ()),
        ("tool", (Remembered("pay"),)),
        ("exact", (Remembered("pay", "d1"),)),
        ("pay_*", (Remembered("pay_*"),)),
    ],
)
def test_an_approval_may_be_remembered(remember: str, expected: tuple[Remembered, ...]) -> None:
    state = folded(asking("pay"), suspended(1), decided(1, "approve", remember=remember))
    assert state.remembered == expected


def test_a_denial_is_not_remembered() -> None:
    assert folded(asking("pay"), suspended(1), decided(1, "deny", remember="tool")).remembered == ()
