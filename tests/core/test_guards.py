"""Loop guards: a nudge one step before, then an end with a clear detail; all of it folded from the log."""

from __future__ import annotations

import pytest

from perdure.core.actions import AppendEvents, CallModel
from perdure.core.events import (
    AgentPinned,
    CallChecked,
    CallEnded,
    CallStarted,
    Event,
    InputAccepted,
    ModelCalled,
    ModelResponded,
    RunEnded,
    RunStarted,
    SessionOpened,
)
from perdure.core.fold import fold
from perdure.core.messages import AssistantMessage, Text, ToolCall, UserMessage
from perdure.core.rules import next_actions
from perdure.core.specs import AgentSpec, Guards
from perdure.core.state import SessionState


def opened(guards: Guards = Guards()) -> list[Event]:  # noqa: B008 - frozen
    return [
        SessionOpened("u", "s", "clerk"),
        AgentPinned("d", AgentSpec(name="clerk", guards=guards)),
        InputAccepted(1, (Text("go"),)),
        RunStarted(1, (1,)),
    ]


def answer(turn: int, text: str) -> list[Event]:
    return [ModelCalled(turn), ModelResponded(AssistantMessage((Text(text),) if text else ()))]


def called(turn: int, result: str, *, arguments: str = "{}", stop: str = "calls") -> list[Event]:
    message = AssistantMessage((ToolCall(turn, "look", arguments),))
    return [
        ModelCalled(turn),
        ModelResponded(message, stop=stop),  # pyright: ignore[reportArgumentType]
        CallChecked(turn, "allow", digest=arguments),
        CallStarted(turn, "read"),
        CallEnded(turn, "ok", (Text(result),)),
    ]


def cut(turn: int) -> list[Event]:
    """A call that the output limit cut, so that it was refused."""
    message = AssistantMessage((ToolCall(turn, "look", '{"what'),))
    return [
        ModelCalled(turn),
        ModelResponded(message, stop="length"),
        CallChecked(turn, "invalid", "schema", "no JSON"),
        CallEnded(turn, "error", (Text(f"no JSON {turn}"),)),
    ]


def last_said(state: SessionState) -> str:
    message = state.history[-1]
    return message.parts[0].text if isinstance(message, UserMessage) and isinstance(message.parts[0], Text) else ""


def end_of(state: SessionState) -> RunEnded | None:
    match next_actions(state):
        case (AppendEvents(events=(RunEnded() as end,)),):
            return end
        case _:
            return None


def test_an_empty_answer_is_nudged_and_a_second_ends_the_run() -> None:
    events = opened() + answer(1, "")
    state = fold(events)
    assert next_actions(state) == (CallModel(2),)
    assert "empty" in last_said(state)
    end = end_of(fold(events + answer(2, " ")))
    assert end == RunEnded(1, "failed", "loop guard: 2 empty answers in a row")


def test_an_answer_in_between_starts_the_count_again() -> None:
    events = opened() + answer(1, "") + called(2, "x") + answer(3, "")
    assert next_actions(fold(events)) == (CallModel(4),)


def test_the_third_same_call_is_nudged_and_the_fourth_ends_the_run() -> None:
    events = opened() + called(1, "same") + called(2, "same")
    assert last_said(fold(events)) == ""
    events += called(3, "same")
    assert "look 3 times" in last_said(fold(events))
    assert next_actions(fold(events)) == (CallModel(4),)
    end = end_of(fold(events + called(4, "same")))
    assert end == RunEnded(1, "failed", "loop guard: look called 4 times with the same arguments and result")


@pytest.mark.parametrize("differs", ["result", "arguments"])
def test_another_result_or_other_arguments_are_no_circle(differs: str) -> None:
    events = opened()
    for turn in range(1, 9):
        result = str(turn) if differs == "result" else "same"
        events += called(turn, result, arguments=f'{{"n":{turn}}}' if differs == "arguments" else "{}")
    assert next_actions(fold(events)) == (CallModel(9),)
    assert last_said(fold(events)) == ""


def test_a_circle_of_two_calls_is_one_too() -> None:
    events = opened()
    for turn in range(1, 8):
        events += called(turn, "same", arguments='{"n":1}' if turn % 2 else '{"n":2}')
    end = end_of(fold(events))
    assert end is not None
    assert "4 times" in end.detail


def test_truncated_calls_are_nudged_and_the_third_in_a_row_ends_the_run() -> None:
    events = opened() + cut(1)
    assert "cut off" in last_said(fold(events))
    events += cut(2)
    assert end_of(fold(events)) is None
    end = end_of(fold(events + cut(3)))
    assert end == RunEnded(1, "failed", "loop guard: 3 truncated tool calls in a row")
    assert end_of(fold(events + called(3, "c") + cut(4))) is None, "in a row"


def test_a_call_that_ran_is_never_said_to_be_cut() -> None:
    """Whoever reads that a payment was not carried out pays again."""
    events = opened() + called(1, "paid", stop="length")
    assert last_said(fold(events)) == ""
    for turn in range(2, 6):
        events += called(turn, f"paid {turn}", stop="length")
    assert end_of(fold(events)) is None


def test_guards_that_are_off_let_everything_pass() -> None:
    off = Guards(empty_answers=None, repeated_calls=None, truncated_calls=None)
    events = opened(off)
    for turn in range(1, 9):
        events += called(turn, "same") if turn % 2 else cut(turn)
    assert next_actions(fold(events)) == (CallModel(9),)
    assert last_said(fold(events)) == ""
    assert end_of(fold(opened(off) + answer(1, ""))) == RunEnded(1, "completed", "", "")


def test_a_nudge_never_comes_between_a_call_and_its_result() -> None:
    events = opened()
    for turn in range(1, 4):
        events += called(turn, "same", stop="length")
    kinds = [type(message).__name__ for message in fold(events).history]
    for index, kind in enumerate(kinds):
        if kind == "AssistantMessage":
            assert kinds[index + 1] == "ToolMessage"
