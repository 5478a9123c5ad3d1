"""What a session has for its parent keeps the order in which it was said: words, ends, and words after an end."""

from __future__ import annotations

from perdure.core.errands import errands
from perdure.core.events import (
    Address,
    Event,
    InputAccepted,
    InputChanged,
    MessageSent,
    MessageSettled,
    Origin,
    Reply,
    RunEnded,
    RunStarted,
    SessionOpened,
)
from perdure.core.fold import fold
from perdure.core.messages import Text

PARENT = Address("parent")


def said(*events: Event) -> list[str]:
    """What can be brought behind these facts, by a child of `p`."""
    opened = SessionOpened("u", "s", "clerk", origin=Origin("p", agents=("boss",)))
    return [_brief(action) for action in errands(fold([opened, *events]))]


def _brief(action: object) -> str:
    return f"{type(action).__name__} {getattr(action, 'input', getattr(action, 'message', ''))}"


def asked(number: int, call: int = 0) -> tuple[Event, Event]:
    return InputAccepted(number, (Text("go"),), reply=Reply("p", call)), RunStarted(number, (number,))


def sent(number: int, to: Address = PARENT) -> MessageSent:
    return MessageSent(number, to, (Text("words"),))


def test_the_end_waits_for_what_was_said_before_it() -> None:
    log = (*asked(1, 7), sent(1), sent(2), RunEnded(1, "completed"))
    assert said(*log) == ["DeliverMessage 1"]
    assert said(*log, MessageSettled(1)) == ["DeliverMessage 2"]
    assert said(*log, MessageSettled(1), MessageSettled(2, dead="it is gone")) == ["ReportEnd 1"]


def test_what_is_said_after_an_end_waits_for_it() -> None:
    log = (*asked(1), RunEnded(1, "completed"), *asked(2), sent(1))
    assert said(*log) == ["ReportEnd 1"]
    assert said(*log, MessageSettled(input=1)) == ["DeliverMessage 1"]


def test_others_are_not_held_up() -> None:
    log = (*asked(1, 7), sent(1), sent(2, Address("session", "x")), sent(3, Address("session", "x")))
    assert said(*log, RunEnded(1, "completed")) == ["DeliverMessage 1", "DeliverMessage 2"]


def test_news_come_one_after_the_other_and_ends_of_calls_at_once() -> None:
    news = (*asked(1), RunEnded(1, "completed"), *asked(2), RunEnded(2, "completed"))
    assert said(*news) == ["ReportEnd 1"]
    calls = (*asked(1, 7), RunEnded(1, "completed"), *asked(2, 8), RunEnded(2, "completed"))
    assert said(*calls) == ["ReportEnd 1", "ReportEnd 2"]


def test_of_a_retracted_task_the_end_is_told() -> None:
    waiting = InputAccepted(1, (Text("go"),), key="k", reply=Reply("p", 7))
    state = fold([SessionOpened("u", "s", "clerk"), waiting, InputChanged(1, retracted=True)])
    assert [(owed.input, owed.run) for owed in state.owed] == [(1, 0)]
    assert state.queue == ()
    assert _brief(errands(state)[0]) == "ReportEnd 1"


def test_one_of_the_calls_that_a_run_answers_pays_for_it() -> None:
    inputs = [InputAccepted(number, (Text("go"),), reply=Reply("p", number)) for number in (1, 2)]
    log = [SessionOpened("u", "s", "clerk"), *inputs, RunStarted(1, (1, 2)), RunEnded(1, "completed")]
    assert [owed.pays for owed in fold(log).owed] == [True, False]
    assert [owed.pays for owed in fold([*log, MessageSettled(input=1)]).owed] == [False], "also after a crash"
