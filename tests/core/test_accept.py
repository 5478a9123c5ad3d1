"""The second table: what is in the log, what somebody asks for, and the events or refusal it becomes."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.core.accept import DECISIONS, accept
from perdure.core.commands import (
    ChangeInput,
    ChangeSettings,
    ChangeState,
    Command,
    CompactView,
    ContinueRun,
    CutHistory,
    Decide,
    ExpireCalls,
    ImportHistory,
    SendInput,
    StopRun,
)
from perdure.core.errors import Conflict, NotFound, PerdureError, Refused, UsageError
from perdure.core.events import (
    CallDecided,
    Event,
    HistoryCut,
    HistoryImported,
    InputAccepted,
    InputChanged,
    RunEnded,
    RunResumed,
    RunStarted,
    SessionOpened,
    SettingsChanged,
    StateChanged,
    StopRequested,
)
from perdure.core.fold import fold
from perdure.core.messages import AssistantMessage, Text, ToolCall, ToolMessage, ToolResult, UserMessage
from perdure.core.specs import Limits, ModelSettings, Overrides
from tests.core.logs import (
    UID,
    asking,
    compacted,
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
    vetted,
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


def imported(first: int) -> HistoryImported:
    """A foreign conversation with one call, which has this number here."""
    asked = AssistantMessage((ToolCall(first, "look", "{}"),))
    told = ToolMessage((ToolResult(first, "look", "ok", WORDS),))
    return HistoryImported((UserMessage(WORDS), asked, told))


COLD = ModelSettings(temperature=0.0)
CUT = HistoryCut(3, keep=1)
CHANGES = {"session/notes": 1}
LATER = sent(1, at=50.0)
OVER = (*asking("a"), *started(1), *ended(1), RunEnded(1, "completed"))

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
    ("an input of later keeps its time, and who sent it",
     log(), send(at=50.0, by="remind-3"), [taken(1, at=50.0, by="remind-3")]),
    ("an interrupt of later does not interrupt yet",
     log(running()), send("interrupt", at=50.0), [taken(2, "interrupt", at=50.0)]),
    ("busy=refuse does not mind what is for later", log(LATER), send("refuse"), [taken(2, "refuse")]),
    ("an input of later waits for its time", log(LATER), ExpireCalls(49.9), []),
    ("an input whose time has come is due", log(LATER), ExpireCalls(50.0), [InputChanged(1, due=True)]),
    ("an input is due once", log(LATER, InputChanged(1, due=True)), ExpireCalls(60.0), []),
    ("an interrupt whose time has come interrupts",
     log(running(), sent(2, "interrupt", at=50.0)),
     ExpireCalls(50.0), [InputChanged(2, due=True), StopRequested(1, "interrupt")]),
    ("but not a run that is told to end already",
     log(running(), sent(2, "interrupt", at=50.0), stopping("cancel")), ExpireCalls(50.0), [InputChanged(2, due=True)]),
    ("a join whose time has come lets the run go on",
     log(running(), sent(2, "join", at=50.0)), ExpireCalls(50.0), [InputChanged(2, due=True)]),
    ("an input that is due is a run to be, and can be stopped",
     log(LATER, InputChanged(1, due=True)), StopRun("stop"), [StopRequested(1, "stop")]),
    ("a run goes on although an input is for later",
     log(running(), RunEnded(1, "failed"), sent(2, at=50.0)), ContinueRun(), [InputAccepted(3, continues=1)]),
    ("a push joins its run",
     log(running()), send("join", by="natural_end"), [taken(2, "join", by="natural_end")]),
    ("a model", log(), ChangeSettings("openai:a"), [SettingsChanged("openai:a")]),
    ("the same model", log(SettingsChanged("openai:a")), ChangeSettings("openai:a"), []),
    ("a title", log(), ChangeSettings(title="Bills"), [SettingsChanged(title="Bills")]),
    ("the same title", log(SettingsChanged(title="Bills")), ChangeSettings(title="Bills"), []),
    ("another title for the same model",
     log(SettingsChanged("openai:a", title="Bills")),
     ChangeSettings("openai:a", title="Old bills"), [SettingsChanged("openai:a", title="Old bills")]),
    ("a title that is taken away",
     log(SettingsChanged(title="Bills")), ChangeSettings(title=""), [SettingsChanged(title="")]),
    ("no title leaves it as it is",
     log(SettingsChanged(title="Bills")), ChangeSettings(settings=COLD), [SettingsChanged(settings=COLD)]),
    ("an agent", log(), ChangeSettings(agent="billing"), [SettingsChanged(agent="billing")]),
    ("the same agent", log(SettingsChanged(agent="billing")), ChangeSettings(agent="billing"), []),
    ("the agent that it has", log(), ChangeSettings(agent="clerk"), []),
    ("a run goes on with who was chosen for it",
     log(sent(1, overrides=Overrides(agent="billing")), RunStarted(1, (1,)), RunEnded(1, "failed")),
     ContinueRun(), [InputAccepted(2, overrides=Overrides(agent="billing"), continues=1)]),
    ("a run goes on with the agent that was set meanwhile",
     log(running(), RunEnded(1, "failed"), SettingsChanged(agent="billing")),
     ContinueRun(), [InputAccepted(2, continues=1)]),
    ("a change of state",
     log(), ChangeState(CHANGES, "ops", "hook-1"), [StateChanged(CHANGES, "ops", "hook-1")]),
    ("the same origin changes the state once",
     log(StateChanged(CHANGES, origin="hook-1")), ChangeState({"session/notes": 2}, origin="hook-1"), []),
    ("without an origin every change counts",
     log(StateChanged(CHANGES)), ChangeState(CHANGES), [StateChanged(CHANGES)]),
    ("no change of state", log(), ChangeState({}, origin="hook-1"), []),
    ("a compaction for the view of now",
     log(running(), compacted(0)), CompactView(compacted(1, 0, 1)), [compacted(1, 0, 1)]),
    ("a cut of what was looked at", log(OVER), CutHistory(CUT, len(log(OVER))), [CUT]),
    ("a cut although an input is for later", log(OVER, sent(2, at=50.0)), CutHistory(CUT, len(log(OVER)) + 1), [CUT]),
    ("a history from elsewhere", log(), ImportHistory(imported(1)), [imported(1)]),
    ("a history behind the session's own", log(OVER), ImportHistory(imported(2)), [imported(2)]),
    ("a history although an input is for later", log(LATER), ImportHistory(imported(1)), [imported(1)]),
    ("other words for an input that waits",
     log(sent(1)), ChangeInput(1, WORDS, "ops"), [InputChanged(1, WORDS, by="ops")]),
    ("other words for one that a guardrail has seen",
     log(sent(1), vetted(1, "no")), ChangeInput(1, WORDS), [InputChanged(1, WORDS)]),
    ("other words for one of later", log(LATER), ChangeInput(1, WORDS), [InputChanged(1, WORDS)]),
    ("the same words again", log(sent(1)), ChangeInput(1, (Text("input 1"),)), []),
    ("the retraction of an input that waits",
     log(sent(1)), ChangeInput(1, by="ops"), [InputChanged(1, by="ops", retracted=True)]),
    ("the retraction of one of later", log(LATER), ChangeInput(1), [InputChanged(1, retracted=True)]),
    ("the retraction of a wish to go on",
     log(running(), RunEnded(1, "failed"), InputAccepted(2, continues=1)),
     ChangeInput(2), [InputChanged(2, retracted=True)]),
    ("the retraction of what a call scheduled",
     log(sent(1, at=50.0, by="remind (call 3)")), ChangeInput(1), [InputChanged(1, retracted=True)]),
    ("a key is free when its input is retracted",
     log(KEYED, InputChanged(1, retracted=True)), send(key="bill", digest="d2"), [taken(2, key="bill", digest="d2")]),
    ("an edited input keeps the key of the words that it came with",
     log(KEYED, InputChanged(1, WORDS)), send(key="bill", digest="d1"), []),
    ("a session is not busy with what was retracted",
     log(sent(1), InputChanged(1, retracted=True)), send("refuse"), [taken(2, "refuse")]),
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
    ("a stop of what is for later", log(LATER), StopRun("stop"), Refused, "no open run"),
    ("more work while an input is due",
     log(LATER, InputChanged(1, due=True)), send("refuse"), Refused, "busy"),
    ("a push without a run", log(OVER), send("join", by="natural_end"), Refused, "ended meanwhile"),
    ("a compaction for an old view",
     log(running(), compacted(0)), CompactView(compacted(0, 0, 1)), Conflict, "changed meanwhile"),
    ("a cut of a session that has moved on", log(OVER), CutHistory(CUT, 4), Conflict, "moved on"),
    ("a cut under an open run", log(running()), CutHistory(CUT, 3), Refused, "no work"),
    ("a cut before an input that waits", log(OVER, sent(2)), CutHistory(CUT, len(log(OVER)) + 1), Refused, "no work"),
    ("a history from elsewhere for an open run", log(running()), ImportHistory(imported(1)), Refused, "no work"),
    ("a history before an input that waits", log(sent(1)), ImportHistory(imported(1)), Refused, "no work"),
    ("a history whose numbers are taken", log(OVER), ImportHistory(imported(1)), Conflict, "import the history again"),
    ("an edit of what a run has taken", log(running()), ChangeInput(1, WORDS), Conflict, "taken by run 1 already"),
    ("a retraction of what a run has taken", log(running()), ChangeInput(1), Conflict, "taken by run 1 already"),
    ("a retraction of what joined",
     log(running(), sent(2, "join"), turn(inputs=(2,))), ChangeInput(2), Conflict, "taken by run 1 already"),
    ("a second retraction",
     log(sent(1), InputChanged(1, retracted=True)), ChangeInput(1), Conflict, "retracted already"),
    ("an edit behind a retraction",
     log(sent(1), InputChanged(1, retracted=True)), ChangeInput(1, WORDS), Conflict, "retracted already"),
    ("an edit of an input that never was", log(sent(1)), ChangeInput(2, WORDS), NotFound, "no input 2"),
    ("a retraction of input 0", log(sent(1)), ChangeInput(0), NotFound, "no input 0"),
    ("an edit in a fork of what was left to the parent",
     [*log(sent(1)), SessionOpened("f0", "fork", "clerk")], ChangeInput(1, WORDS), NotFound, "'fork' no input 1"),
    ("an edit without words", log(sent(1)), ChangeInput(1, ()), UsageError, "retract it"),
    ("an edit of a wish to go on",
     log(running(), RunEnded(1, "failed"), InputAccepted(2, continues=1)),
     ChangeInput(2, WORDS), Refused, "lets run 1 go on"),
    ("an edit of a hook's push",
     log(running(), sent(2, "join", by="natural_end")), ChangeInput(2, WORDS), Refused, "a hook's"),
    ("a retraction of a hook's push",
     log(running(), sent(2, "join", by="natural_end")), ChangeInput(2), Refused, "a hook's"),
    ("the key of an edited input for its new words",
     log(KEYED, InputChanged(1, WORDS)), send(key="bill", digest="d2"), Conflict, "'bill'"),
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
