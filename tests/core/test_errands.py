"""The decision table of sub-agents and messages: what is in the log, and what the rules then ask for."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from perdure.core.accept import accept
from perdure.core.commands import Decide, EndChild, ExpireCalls, SendAgain, SendMessage
from perdure.core.errands import MAX_HOPS
from perdure.core.errors import NotFound, Refused, UsageError
from perdure.core.events import (
    Address,
    CallAdvanced,
    CallChecked,
    CallEnded,
    CallStarted,
    CallSuspended,
    Event,
    InputAccepted,
    MessageSent,
    MessageSettled,
    Origin,
    Reply,
    RunEnded,
    RunResumed,
    RunStarted,
    SessionOpened,
    Spent,
)
from perdure.core.fold import fold
from perdure.core.messages import Text, Usage
from perdure.core.specs import Limits
from perdure.core.views import pending_of, summarise
from tests.core.logs import answered, asking, asks_for, called, folded, log, pinned, running, sent, stopping, turn

Row = tuple[str, list[Event], list[str]]


def checked(*calls: int) -> tuple[Event, ...]:
    return tuple(CallChecked(call, "allow", digest=f"d{call}", kind="agent") for call in calls)


def born(call: int, attempt: int = 1, granted: Limits | None = None) -> CallStarted:
    return CallStarted(call, "idempotent", attempt, child=f"child{call}", granted=granted or Limits())


def away(call: int, expires_at: float | None = None) -> tuple[Event, ...]:
    """A sub-agent works on the call in its own session."""
    return *checked(call), born(call), CallSuspended(call, 1, "child", expires_at=expires_at)


def told(call: int, outcome: str = "ok", **more: object) -> CallEnded:
    return CallEnded(call, outcome, (Text("it says"),), **more)  # pyright: ignore[reportArgumentType]


def answer_to(number: int = 1, call: int = 4) -> InputAccepted:
    return replace(sent(number), reply=Reply("parent", call), by="session boss")


def letter(number: int = 1, name: str = "a", **more: object) -> MessageSent:
    return MessageSent(number, Address("session", name), (Text("hello"),), **more)  # pyright: ignore[reportArgumentType]


ROWS: list[Row] = [
    ("a sub-agent is started like a tool", log(asking("helper"), checked(1)), ["run 1"]),
    ("while it is being started nothing else happens", log(asking("helper"), checked(1), born(1)), []),
    ("while it works the parent waits", log(asking("helper"), away(1)), []),
    (
        "its end is the call's outcome",
        log(asking("helper"), away(1), told(1)),
        ["model 2"],
    ),
    (
        "one that is faster than its parent's next commit is no exception",
        log(asking("helper"), checked(1), born(1), told(1)),
        ["model 2"],
    ),
    (
        "a crash while it is being started: the same child again",
        log(asking("helper"), checked(1), born(1), RunResumed(2)),
        ["run 1 attempt 2"],
    ),
    ("a crash while it works concerns nobody here", log(asking("helper"), away(1), RunResumed(2)), []),
    (
        "siblings go on while one works",
        log(asking("helper", "look"), away(1), CallChecked(2, "allow")),
        ["run 2"],
    ),
    (
        "children count in what may run at once",
        log(pinned(concurrency=1), asking("helper", "helper"), away(1), checked(2)),
        [],
    ),
    (
        "a run may start so many and no more",
        log(asking("helper", "helper", limits=Limits(children=1)), checked(1, 2)),
        ["run 1", "end 2 error"],
    ),
    ("at the bottom there are no children", log(asking("helper", limits=Limits(depth=0)), checked(1)), ["end 1 error"]),
    ("a stop is told to the child", log(asking("helper"), away(1), stopping("stop")), ["recall 1 stop"]),
    ("a cancel is", log(asking("helper"), away(1), stopping("cancel")), ["recall 1 cancel"]),
    ("the time limit of the run is", log(asking("helper"), away(1), stopping("seconds")), ["recall 1 seconds"]),
    (
        "a child that is just being started is not forgotten",
        log(asking("helper"), checked(1), born(1), stopping("cancel")),
        [],
    ),
    (
        "nor is one whose start a crash interrupted",
        log(asking("helper"), checked(1), born(1), stopping("cancel"), RunResumed(2)),
        ["recall 1 cancel"],
    ),
    (
        "in the background it goes on while the model talks",
        log(asking("helper"), checked(1), born(1), CallAdvanced(1, "helper-1", background=True)),
        ["model 2"],
    ),
    (
        "the run waits for it at its end",
        log(
            asking("helper"),
            checked(1),
            born(1),
            CallAdvanced(1, "helper-1", background=True),
            CallSuspended(1, 1, "child"),
            turn(2),
            answered(),
        ),
        [],
    ),
    (
        "what it says then is news",
        log(
            asking("helper"),
            checked(1),
            born(1),
            CallAdvanced(1, "helper-1", background=True),
            CallSuspended(1, 1, "child"),
            turn(2),
            answered(),
            told(1),
        ),
        ["model 3"],
    ),
    (
        "a run that has to end recalls it",
        log(
            asking("helper", limits=Limits(turns=2)),
            checked(1),
            born(1),
            CallAdvanced(1, "helper-1", background=True),
            CallSuspended(1, 1, "child"),
            turn(2),
            called("look", first=2),
            CallChecked(2, "deny"),
            told(2, "denied"),
        ),
        ["recall 1 cancel"],
    ),
    (
        "who waits for an input's end is told when its run is over",
        log(answer_to(), RunStarted(1, (1,)), turn(), answered(), RunEnded(1, "completed")),
        ["report the end of 1"],
    ),
    ("not before", log(answer_to(), RunStarted(1, (1,)), turn()), []),
    (
        "and once",
        log(answer_to(), RunStarted(1, (1,)), turn(), answered(), RunEnded(1, "completed"), MessageSettled(input=1)),
        [],
    ),
    (
        "the next run does not wait for that",
        log(answer_to(), RunStarted(1, (1,)), turn(), answered(), RunEnded(1, "completed"), sent(2)),
        ["start run for 2", "report the end of 1"],
    ),
    (
        "one that joined is told too",
        log(
            running(),
            answer_to(2),
            turn(inputs=(2,)),
            answered(),
            RunEnded(1, "completed"),
        ),
        ["report the end of 2"],
    ),
    ("a message is brought", log(letter()), ["deliver 1"]),
    ("those to one address one after the other", log(letter(), letter(2), letter(3, "b")), ["deliver 1", "deliver 3"]),
    ("the next one when the first is there", log(letter(), letter(2), MessageSettled(1)), ["deliver 2"]),
    ("or cannot be", log(letter(), letter(2), MessageSettled(1, dead="nobody")), ["deliver 2"]),
    ("a dead letter that is sent again", log(letter(), MessageSettled(1, dead="nobody"), letter()), ["deliver 1"]),
    ("whatever the run does", log(running(), turn(), letter()), ["deliver 1"]),
]


@pytest.mark.parametrize(("what", "events", "wanted"), ROWS, ids=[row[0] for row in ROWS])
def test_what_the_rules_ask_for(what: str, events: list[Event], wanted: list[str]) -> None:
    assert asks_for(*events[1:]) == wanted


def test_a_parent_that_waits_for_a_child_asks_no_person_anything() -> None:
    state = folded(asking("helper"), away(1))
    assert pending_of(state) == ()
    assert summarise(state).status == "waiting"
    with pytest.raises(Refused, match="waits for its own session"):
        accept(state, Decide(f"{state.uid}-1-1", "approve"))


def test_what_a_child_has_used_counts_in_the_run_and_the_session() -> None:
    spent = Spent(Usage(10, 5), 0.25, 3)
    asked = (*running(), turn(), called("helper", cost_usd=0.0))
    state = folded(asked, away(1), told(1, spent=spent))
    assert state.run is not None
    assert (state.run.usage.total, state.run.cost_usd, state.run.called) == (15, 0.25, 1 + 3)
    assert (state.usage.total, state.cost_usd, state.is_priced) == (15, 0.25, True)
    assert not folded(asked, away(1), told(1, spent=replace(spent, cost_usd=None))).is_priced


def test_time_that_children_take_at_once_is_counted_once() -> None:
    both = log(asking("helper", "helper"), away(1), away(2), told(1, seconds=8.0), told(2, seconds=5.0))
    state = fold(both)
    assert state.run is not None
    assert state.run.seconds == 8.0


def test_an_end_counts_once_and_from_the_right_child_alone() -> None:
    state = folded(asking("helper"), away(1))
    assert accept(state, EndChild("child1", told(1))) == (told(1),)
    assert accept(state, EndChild("child2", told(1))) == ()
    after = folded(asking("helper"), away(1), told(1))
    assert accept(after, EndChild("child1", told(1))) == ()
    assert accept(folded(), EndChild("child1", told(1))) == ()


def test_a_child_that_is_late_is_recalled() -> None:
    state = folded(asking("helper"), away(1, expires_at=60.0))
    assert summarise(state).wake_at == 60.0
    assert accept(state, ExpireCalls(59.0)) == ()
    late = accept(state, ExpireCalls(60.0))
    assert asks_for(asking("helper"), away(1, expires_at=60.0), late) == ["recall 1 seconds"]


def test_a_fork_owes_nothing_and_sends_nothing() -> None:
    events = log(letter(), letter(2), MessageSettled(2, dead="nobody"), answer_to(), RunStarted(1, (1,)), turn())
    state = fold([*events, answered(), RunEnded(1, "completed"), SessionOpened("f0", "fork", "clerk")])
    assert (state.owed, state.outbox, state.dead) == ((), (), ())


def test_messages_that_are_refused() -> None:
    with pytest.raises(Refused, match="has no parent"):
        accept(folded(), SendMessage(Address("parent"), (Text("hello"),)))
    with pytest.raises(UsageError, match="is empty"):
        accept(folded(), SendMessage(Address("session", "a")))
    with pytest.raises(NotFound, match="no dead letter 1"):
        accept(folded(letter()), SendAgain(1))
    far = replace(sent(1), hops=MAX_HOPS)
    with pytest.raises(Refused, match="ask a person"):
        accept(folded(far, RunStarted(1, (1,))), SendMessage(Address("session", "a"), (Text("hello"),)))


def test_a_child_may_write_to_its_parent() -> None:
    opened = SessionOpened("c1", "boss.helper-1", "helper", origin=Origin("5e55", 0, 1, ("boss",)))
    (event,) = accept(fold([opened]), SendMessage(Address("parent"), (Text("hello"),)))
    assert event == MessageSent(1, Address("parent"), (Text("hello"),), hops=1)
    forked = replace(opened, origin=Origin("5e55", 7))
    with pytest.raises(Refused, match="has no parent"):
        accept(fold([forked]), SendMessage(Address("parent"), (Text("hello"),)))


def test_hops_are_those_of_the_farthest_input() -> None:
    near, far = replace(sent(1), hops=2), replace(sent(2, "join"), hops=7)
    state = folded(near, RunStarted(1, (1,)), far, turn(inputs=(2,)))
    (event,) = accept(state, SendMessage(Address("session", "a"), (Text("hello"),)))
    assert isinstance(event, MessageSent)
    assert event.hops == 8


def test_a_dead_letter_is_sent_again_by_its_number() -> None:
    state = folded(letter(), MessageSettled(1, dead="nobody there"))
    assert [(item.sent.message, item.why) for item in state.dead] == [(1, "nobody there")]
    assert summarise(state).dead == 1
    assert accept(state, SendAgain(1)) == (letter(),)
