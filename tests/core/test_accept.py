"""The second table: what is in the log, what somebody asks for, and the events or refusal it becomes."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.core.accept import DECISIONS, accept
from perdure.core.commands import Command, ContinueRun, Decide, ExpireCalls, SendInput, StopRun
from perdure.core.errors import Conflict, NotFound, PerdureError, Refused, UsageError
from perdure.core.events import CallDecided, Event, InputAccepted, RunEnded, RunResumed, StopRequested
from perdure.core.fold import fold
from perdure.core.messages import Text
from perdure.core.specs import Limits, Overrides
from tests.core.logs import (
    UID,
    asking,
    decided,
    ended,
    folded,
    log,
    running,
    sent,
    started,
    stopping,
    suspended,
    turn,
)

WORDS = (Text("hello"),)
KEYED = sent(1, key="bill", digest="d1")
WAITING = (*asking("a"), *suspended(1))
IN_DOUBT = (*asking("a"), *started(1), RunResumed(2), *suspended(1, "unknown"))
WHO = {"by": "ops", "reason": "fine", "remember": "tool"}
MORE = Overrides(limits=Limits(turns=9))

Accepted = tuple[str, list[Event], Command, list[Event]]
Turned = tuple[str, list[Event], Command, type[PerdureError], str]


def send(busy: Any = "queue", **more: Any) -> SendInput:
    return SendInput(WORDS, busy=busy, **more)


def decide(decision: Any, pending: str = f"{UID}-1-1", **more: Any) -> Decide:
    return Decide(pending, decision, **more)


def taken(number: int, busy: Any = "queue", **more: Any) -> InputAccepted:
    return InputAccepted(number, WORDS, busy=busy, **more)


ACCEPTED: list[Accepted] = [
    ("a first input", log(), send(), [taken(1)]),
    ("a second input gets the next number", log(sent(1)), send(), [taken(2)]),
    ("an input keeps its key, digest and overrides",
     log(), send(key="k", digest="d", overrides=MORE), [taken(1, key="k", digest="d", overrides=MORE)]),
    ("the same key and digest is the same input", log(KEYED), send(key="bill", digest="d1"), []),
    ("also when its run is over",
     log(running(), KEYED, RunEnded(1, "completed")), send(key="bill", digest="d1"), []),
    ("another key is another input",
     log(KEYED), send(key="ship", digest="d1"), [taken(2, key="ship", digest="d1")]),
    ("an input queues behind a run", log(running()), send(), [taken(2)]),
    ("an input joins a run", log(running()), send("join"), [taken(2, "join")]),
    ("busy=refuse is taken by an idle session", log(), send("refuse"), [taken(1, "refuse")]),
    ("an interrupt of an idle session is an input", log(), send("interrupt"), [taken(1, "interrupt")]),
    ("an interrupt stops the run",
     log(running()), send("interrupt"), [taken(2, "interrupt"), StopRequested(1, "interrupt")]),
    ("an interrupt overtakes a graceful stop",
     log(running(), stopping()), send("interrupt"), [taken(2, "interrupt"), StopRequested(1, "interrupt")]),
    ("an interrupt overtakes a run's last answer",
     log(running(), stopping("seconds")),
     send("interrupt"), [taken(2, "interrupt"), StopRequested(1, "interrupt")]),
    ("an interrupt waits for a cancel that is under way",
     log(running(), stopping("cancel")), send("interrupt"), [taken(2, "interrupt")]),
    ("a stopped run goes on",
     log(running(), RunEnded(1, "stopped")), ContinueRun(), [InputAccepted(2, continues=1)]),
    ("a run at its limit goes on with other limits",
     log(running(), RunEnded(1, "limit")),
     ContinueRun(MORE), [InputAccepted(2, overrides=MORE, continues=1)]),
    ("a failed run goes on",
     log(running(), RunEnded(1, "failed")), ContinueRun(), [InputAccepted(2, continues=1)]),
    ("a cancelled run goes on",
     log(running(), RunEnded(1, "cancelled")), ContinueRun(), [InputAccepted(2, continues=1)]),
    ("a decision keeps who, why and what",
     log(WAITING), decide("approve", **WHO), [decided(1, "approve", **WHO)]),
    ("an edit carries the arguments",
     log(WAITING), decide("edit", arguments="{}"), [decided(1, "edit", arguments="{}")]),
    ("a call in doubt is answered",
     log(IN_DOUBT), decide("answer", value=7), [decided(1, "answer", value=7)]),
    ("a call in doubt is retried", log(IN_DOUBT), decide("retry"), [decided(1, "retry")]),
    ("the second suspension has its own id",
     log(WAITING, decided(1, "edit"), suspended(1, pause=2)),
     decide("approve", f"{UID}-1-2"), [decided(1, "approve", pause=2)]),
    ("a stop is written down", log(running()), StopRun("stop", "ops"), [StopRequested(1, "stop", "ops")]),
    ("a second stop changes nothing", log(running(), stopping()), StopRun("stop"), []),
    ("a cancel overtakes a stop", log(running(), stopping()), StopRun("cancel"), [stopping("cancel")]),
    ("a stop does not undo a cancel", log(running(), stopping("cancel")), StopRun("stop"), []),
    ("a second cancel changes nothing", log(running(), stopping("cancel")), StopRun("cancel"), []),
    ("a run out of time is stopped", log(running()), StopRun("seconds"), [stopping("seconds")]),
    ("a run that is stopping needs no clock", log(running(), stopping()), StopRun("seconds"), []),
    ("a cancel overtakes the clock",
     log(running(), stopping("seconds")), StopRun("cancel"), [stopping("cancel")]),
    ("the clock does not overtake an interrupt",
     log(running(), stopping("interrupt")), StopRun("seconds"), []),
    ("nothing expires in an idle session", log(), ExpireCalls(99.0), []),
    ("a call without expiry waits for ever", log(WAITING), ExpireCalls(1e12), []),
    ("a call waits until its time", log(asking("a"), suspended(1, expires_at=50.0)), ExpireCalls(49.9), []),
    ("a call past its time is denied",
     log(asking("a"), suspended(1, expires_at=50.0)),
     ExpireCalls(50.0), [CallDecided(1, 1, "deny", by="expiry", reason="nobody decided in time")]),
    ("each expires for itself",
     log(asking("a", "b"), suspended(1, expires_at=90.0), suspended(2, expires_at=50.0)),
     ExpireCalls(60.0), [CallDecided(2, 1, "deny", by="expiry", reason="nobody decided in time")]),
]  # fmt: skip

REFUSED: list[Turned] = [
    ("an empty input", log(), SendInput(()), UsageError, "empty"),
    ("the same key for other words", log(KEYED), send(key="bill", digest="d2"), Conflict, "'bill'"),
    ("busy=refuse beside a run", log(running()), send("refuse"), Refused, "busy"),
    ("busy=refuse beside a waiting input", log(sent(1)), send("refuse"), Refused, "busy"),
    ("going on with a run under way", log(running()), ContinueRun(), Refused, "under way"),
    ("going on with an input waiting", log(sent(1)), ContinueRun(), Refused, "under way"),
    ("going on with nothing", log(), ContinueRun(), Refused, "no run yet"),
    ("going on with a completed run",
     log(running(), RunEnded(1, "completed")), ContinueRun(), Refused, "is completed"),
    ("going on after a refusal",
     log(running(), RunEnded(1, "refusal")), ContinueRun(), Refused, "is refusal"),
    ("a second decision",
     log(WAITING, decided(1, "deny", by="ops")), decide("approve"), Conflict, "by ops: deny"),
    ("a decision for a call that has ended",
     log(asking("a", "b"), suspended(1), ended(1)), decide("approve"), Conflict, "no longer waits"),
    ("a decision for a call of an earlier turn",
     log(WAITING, ended(1), turn(2)), decide("approve"), Conflict, "no longer waits"),
    ("a decision for a run that is over",
     log(WAITING, ended(1), RunEnded(1, "stopped")), decide("approve"), Conflict, "no longer waits"),
    ("a decision for a call that never waited",
     log(asking("a")), decide("approve"), Conflict, "no longer waits"),
    ("a late decision for the suspension before",
     log(WAITING, decided(1, "edit"), suspended(1, pause=2)), decide("approve"), Conflict, "already decided: edit"),
    ("a decision of another session", log(WAITING), decide("approve", "0ther-1-1"), NotFound, "no pending"),
    ("a decision that is not one", log(WAITING), decide("approve", "nonsense"), NotFound, "no pending"),
    ("a decision without an ordinal", log(WAITING), decide("approve", f"{UID}-x-1"), NotFound, "no pending"),
    ("a decision for call 0", log(WAITING), decide("approve", f"{UID}-0-1"), NotFound, "no pending"),
    ("a decision for a call to come", log(WAITING), decide("approve", f"{UID}-2-1"), NotFound, "no pending"),
    ("a decision with an endless ordinal",
     log(WAITING), decide("approve", f"{UID}-{'9' * 5000}-1"), NotFound, "no pending"),
    ("a decision that the kind does not take",
     log(WAITING), decide("retry"), Refused, "approve or deny or edit"),
    ("an approval of a call in doubt", log(IN_DOUBT), decide("approve"), Refused, "answer or deny or retry"),
    ("a decision in place of a child session",
     log(asking("a"), suspended(1, "child")), decide("answer"), Refused, "its own session"),
    ("an edit without arguments", log(WAITING), decide("edit"), UsageError, "arguments"),
    ("a stop of an idle session", log(), StopRun("stop"), Refused, "no open run"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("events", "command", "expected"), [row[1:] for row in ACCEPTED], ids=[row[0] for row in ACCEPTED]
)
def test_a_command_becomes(events: list[Event], command: Command, expected: list[Event]) -> None:
    assert list(accept(fold(events), command)) == expected


@pytest.mark.parametrize(
    ("events", "command", "error", "says"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
def test_a_command_is_refused(events: list[Event], command: Command, error: type[PerdureError], says: str) -> None:
    with pytest.raises(error, match=says) as refusal:
        accept(fold(events), command)
    assert type(refusal.value) is error
    assert str(refusal.value).endswith(".")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("kind", DECISIONS)
@pytest.mark.parametrize("decision", ["approve", "deny", "edit", "answer", "retry"])
def test_each_kind_of_pause_takes_its_own_decisions(kind: Any, decision: Any) -> None:
    state = folded(asking("a"), suspended(1, kind))
    command = decide(decision, arguments="{}")
    if decision in DECISIONS[kind]:
        assert accept(state, command) == (decided(1, decision, arguments="{}"),)
    else:
        with pytest.raises(Refused):
            accept(state, command)


def test_a_uid_with_dashes_keeps_its_pending_ids() -> None:
    opened = log()[0]
    state = fold([type(opened)("a-b-c", "s", "clerk"), *WAITING])
    assert accept(state, decide("approve", "a-b-c-1-1")) == (decided(1, "approve"),)
