"""Foreign histories: repaired once to what keeps our laws, with a line for each repair."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perdure.core.messages import (
    AssistantMessage,
    Message,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    UserMessage,
)
from perdure.core.repair import NO_RESULT, repair
from perdure.core.shared import Buffer
from perdure.core.transcript import unpaired
from tests.core.strategies import often, values

MESSAGES = st.lists(values(Message), max_size=8)


def asks(*calls: tuple[int, str]) -> AssistantMessage:
    return AssistantMessage(tuple(ToolCall(number, "look", "{}", id) for number, id in calls))


def gives(*results: tuple[int, str, str]) -> ToolMessage:
    return ToolMessage(tuple(ToolResult(number, "look", "ok", (Text(text),), id) for number, id, text in results))


HELLO = UserMessage((Text("Hello."),))


def test_what_is_lawful_stays_as_it_is_but_for_its_numbers() -> None:
    history = [HELLO, asks((1, "a"), (2, "b")), gives((1, "a", "A"), (2, "b", "B")), AssistantMessage((Text("Done."),))]
    assert repair(history).messages == tuple(history)
    assert repair(history).repairs == ()
    moved = repair(history, last=5).messages
    assert [call.call for call in moved[1].calls] == [6, 7]  # pyright: ignore[reportAttributeAccessIssue]
    assert [result.call for result in moved[2].results] == [6, 7]  # pyright: ignore[reportAttributeAccessIssue]


def test_results_that_come_one_by_one_are_one_message_in_call_order() -> None:
    done = repair([asks((1, "a"), (2, "b")), gives((2, "b", "B")), gives((1, "a", "A"))])
    assert done.messages[1] == gives((1, "a", "A"), (2, "b", "B"))
    assert done.repairs == ()


def test_a_call_without_a_result_says_that_nobody_knows() -> None:
    done = repair([asks((1, "a")), HELLO])
    (result,) = done.messages[1].results  # pyright: ignore[reportAttributeAccessIssue]
    assert (result.outcome, result.parts, result.id) == ("unknown", (Text(NO_RESULT),), "a")
    assert done.repairs == ("message 1: the call of 'look' has no result; it is unknown",)
    assert done.messages[2] == HELLO


def test_the_first_of_two_results_is_kept() -> None:
    done = repair([asks((1, "a")), gives((1, "a", "first"), (1, "a", "second"))])
    assert done.messages[1] == gives((1, "a", "first"))
    assert done.repairs == ("message 2: the result of 'look' is there twice; the first one is kept",)


def test_an_id_that_is_used_again_is_told_apart() -> None:
    done = repair([asks((1, "a")), gives((1, "a", "one")), asks((2, "a")), gives((2, "a", "two"))])
    assert done.messages == (
        asks((1, "a")),
        gives((1, "a", "one")),
        asks((2, "a-2")),
        gives((2, "a-2", "two")),
    )
    assert done.repairs == ("message 3: the call id 'a' was used before; the calls are told apart",)


def test_a_result_belongs_to_the_latest_call_of_its_id() -> None:
    done = repair([asks((1, "a")), HELLO, asks((2, "a")), gives((2, "a", "late"))])
    outcomes = [result.outcome for message in done.messages for result in getattr(message, "results", ())]
    assert outcomes == ["unknown", "ok"]


def test_a_fresh_id_is_really_fresh() -> None:
    done = repair([asks((1, "a"), (2, "a"), (3, "a-2"))])
    ids = [call.id for call in done.messages[0].calls]  # pyright: ignore[reportAttributeAccessIssue]
    assert ids == ["a", "a-3", "a-2"]


def test_lines_name_the_places_of_the_original() -> None:
    done = repair([HELLO, UserMessage(())], places=[4, 7])
    assert done.repairs == ("message 7: it was empty, and is dropped",)


@often
@given(MESSAGES, st.integers(0, 9))
def test_whatever_comes_is_lawful_and_needs_no_second_repair(history: list[Message], last: int) -> None:
    done = repair(history, last)
    assert unpaired(Buffer(list(done.messages))) == []
    calls = [call.call for message in done.messages for call in getattr(message, "calls", ())]
    assert calls == list(range(last + 1, last + 1 + len(calls)))
    results = [result.call for message in done.messages for result in getattr(message, "results", ())]
    assert results == calls
    again = repair(done.messages, last)
    assert again.messages == done.messages
    assert again.repairs == ()


@often
@given(MESSAGES)
def test_nobody_loses_a_word(history: list[Message]) -> None:
    """Every text of people and models is still there, in order; only results may go."""

    def words(messages: list[Message]) -> list[str]:
        spoken = [message for message in messages if not isinstance(message, ToolMessage)]
        return [part.text for message in spoken for part in message.parts if isinstance(part, Text) and part.text]

    assert words(list(repair(history).messages)) == words(history)
