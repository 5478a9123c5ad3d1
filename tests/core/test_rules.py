"""The decision table of the agent loop: what is in the log, and what the rules then ask for."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from perdure.core.events import (
    CallAdvanced,
    CallChecked,
    CallEnded,
    CallStarted,
    CallSuspended,
    Event,
    InputAccepted,
    InputChanged,
    ModelFailed,
    Noted,
    RunEnded,
    RunResumed,
    RunStarted,
    SettingsChanged,
)
from perdure.core.messages import Text, Usage
from perdure.core.specs import Inputs, Limits, Overrides, StopWhen, Window
from tests.core.logs import (
    allowed,
    answered,
    asking,
    asks_for,
    called,
    compacted,
    decided,
    ended,
    handed_over,
    log,
    long_talk,
    overflow,
    pinned,
    running,
    sent,
    started,
    stopping,
    suspended,
    switched,
    turn,
    vetted,
)

Row = tuple[str, list[Event], list[str]]

CRASH = RunResumed(2)
APPROVED = decided(1, "approve")
WRONG = answered(invalid="no name")


def in_doubt(call: int) -> tuple[Event, ...]:
    """A once call whose process died, put before a person."""
    return *started(call), CRASH, *suspended(call, "unknown")


def waits(call: int) -> CallSuspended:
    return CallSuspended(call, 1, "approval")


RUNS: list[Row] = [
    ("a new session asks for nothing", log(), []),
    ("an input starts a run", log(sent(1)), ["start run for 1"]),
    ("inputs that wait are started one at a time", log(sent(1), sent(2)), ["start run for 1"]),
    ("an interrupt goes before what waits", log(sent(1), sent(2, "interrupt")), ["start run for 2"]),
    ("interrupts keep their order", log(sent(1, "interrupt"), sent(2, "interrupt")), ["start run for 1"]),
    ("a started run asks the model", log(running()), ["model 1"]),
    ("the model in flight is waited for", log(running(), turn()), []),
    ("an input that queues does not disturb the run", log(running(), turn(), sent(2)), []),
    ("an input that joins comes with the next turn", log(running(), sent(2, "join")), ["model 1 with 2"]),
    ("joins wait for the calls of the turn", log(asking("a"), allowed(1), sent(2, "join")), ["run 1"]),
    ("joins come behind the results",
     log(asking("a"), started(1), sent(2, "join"), ended(1)), ["model 2 with 2"]),
    ("several join in order",
     log(running(), sent(2, "join"), sent(3), sent(4, "join")), ["model 1 with 2,4"]),
    ("a join takes a finished answer further",
     log(running(), turn(), sent(2, "join"), answered()), ["model 2 with 2"]),
    ("an answer without calls completes the run",
     log(running(), turn(), answered()), ["end run 1 completed"]),
    ("a note changes nothing", log(running(), turn(), answered(), Noted("tag")), ["end run 1 completed"]),
    ("an ended run leaves the session idle", log(running(), RunEnded(1, "completed")), []),
    ("an ended run makes room for the queue",
     log(running(), sent(2), RunEnded(1, "failed")), ["start run for 2"]),
    ("a run that continues another asks the model",
     log(running(), RunEnded(1, "failed"), RunStarted(2, (), continues=1)), ["model 1"]),
    ("results go back to the model", log(asking("a"), started(1), ended(1)), ["model 2"]),
]  # fmt: skip

CRASHES: list[Row] = [
    ("a crash with nothing under way changes nothing", log(running(), CRASH), ["model 1"]),
    ("a crash of the model attempt repeats it", log(running(), turn(), CRASH), ["model 1 attempt 2"]),
    ("each crash counts as one more attempt",
     log(running(), turn(), CRASH, turn(1, attempt=2), CRASH), ["model 1 attempt 3"]),
    ("a crash between turns goes on", log(asking("a"), started(1), ended(1), CRASH), ["model 2"]),
    ("a crash before the start runs the call once", log(asking("a"), allowed(1), CRASH), ["run 1"]),
    ("a crash in a read runs it again", log(asking("a"), started(1, "read"), CRASH), ["run 1 attempt 2"]),
    ("a crash in an idempotent call runs it again",
     log(asking("a"), started(1, "idempotent"), CRASH), ["run 1 attempt 2"]),
    ("a crash in a transactional call runs it again",
     log(asking("a"), started(1, "transactional"), CRASH), ["run 1 attempt 2"]),
    ("a crash in a once call asks a person", log(asking("a"), started(1), CRASH), ["suspend 1 unknown"]),
    ("a crash in a call with on_unknown=tell is told to the model",
     log(asking("a"), started(1, on_unknown="tell"), CRASH), ["end 1 unknown in doubt"]),
    ("a crash touches started calls only",
     log(asking("a", "b", "c", "d"), started(1), ended(1), started(2), started(3, "read"), allowed(4), CRASH),
     ["suspend 2 unknown", "run 3 attempt 2", "run 4"]),
    ("what waits for a person waits on after a crash", log(asking("a"), suspended(1), CRASH), []),
    ("a call in doubt waits on after another crash", log(asking("a"), in_doubt(1), RunResumed(3)), []),
    ("a retry that dies is in doubt again",
     log(asking("a"), in_doubt(1), decided(1, "retry"), CallStarted(1, attempt=2), RunResumed(3)),
     ["suspend 1 unknown again (2)"]),
]  # fmt: skip

CALLS: list[Row] = [
    ("each call is checked first", log(asking("a", "b")), ["check 1", "check 2"]),
    ("calls of one turn run in parallel", log(asking("a", "b"), allowed(1, 2)), ["run 1", "run 2"]),
    ("running calls are waited for", log(asking("a", "b"), started(1), started(2)), []),
    ("the model waits for the last call", log(asking("a", "b"), started(1), started(2), ended(1)), []),
    ("the model is asked when all calls have ended",
     log(asking("a", "b"), started(1), started(2), ended(2, 1)), ["model 2"]),
    ("a later turn's calls go their own way",
     log(asking("a"), started(1), ended(1), turn(2), called("a", first=2)), ["check 2"]),
    ("a call that ended stays ended", log(asking("a", "b"), started(1), ended(1), allowed(1)), ["check 2"]),
    ("a call that does not fit is an error", log(asking("a"), CallChecked(1, "invalid")), ["end 1 error"]),
    ("a call that a rule forbids is denied", log(asking("a"), CallChecked(1, "deny")), ["end 1 denied"]),
    ("a denial does not end the run",
     log(asking("a"), CallChecked(1, "deny"), ended(1, outcome="denied")), ["model 2"]),
    ("a sequential call starts alone", log(asking("a", "b"), allowed(1, 2, sequential=True)), ["run 1"]),
    ("the next sequential call starts when the first has ended",
     log(asking("a", "b"), allowed(1, 2, sequential=True), CallStarted(1), ended(1)), ["run 2"]),
    ("a sequential call waits for those before it and holds those behind it",
     log(asking("a", "b", "c"), allowed(1), allowed(2, sequential=True), allowed(3)), ["run 1"]),
    ("while a sequential call runs nothing else starts",
     log(asking("a", "b"), allowed(1, sequential=True), CallStarted(1), allowed(2)), []),
    ("a sequential call approved late waits for what runs",
     log(asking("a", "b"), CallChecked(1, "ask", sequential=True), waits(1), started(2), APPROVED), []),
    ("an approved call waits for a sequential one behind it",
     log(asking("a", "b"), suspended(1), allowed(2, sequential=True), CallStarted(2), decided(1, "approve")),
     []),
    ("a call waits until those before it are checked", log(asking("a", "b"), allowed(2)), ["check 1"]),
    ("a suspended call does not hold its siblings",
     log(asking("a", "b"), suspended(1), allowed(2)), ["run 2"]),
    ("a suspended sequential call does not hold them either",
     log(asking("a", "b"), CallChecked(1, "ask", sequential=True), waits(1), allowed(2)), ["run 2"]),
    ("the turn waits for its suspended call", log(asking("a", "b"), suspended(1), started(2), ended(2)), []),
    ("no more calls than the cap run at once",
     log(pinned(concurrency=2), asking("a", "b", "c"), allowed(1, 2, 3)), ["run 1", "run 2"]),
    ("one that ends makes room under the cap",
     log(pinned(concurrency=2), asking("a", "b", "c"), started(1), started(2), allowed(3), ended(1)),
     ["run 3"]),
    ("suspended calls take no room under the cap",
     log(pinned(concurrency=1), asking("a", "b"), suspended(1), allowed(2)), ["run 2"]),
    ("repeated reads respect the cap",
     log(pinned(concurrency=1), asking("a", "b"), started(1, "read"), started(2, "read"), CRASH),
     ["run 1 attempt 2"]),
]  # fmt: skip

DECISIONS: list[Row] = [
    ("a rule that asks suspends the call", log(asking("a"), CallChecked(1, "ask")), ["suspend 1 approval"]),
    ("a suspended call waits", log(asking("a"), suspended(1)), []),
    ("several may wait at once", log(asking("a", "b"), suspended(1), suspended(2)), []),
    ("an approved call runs", log(asking("a"), suspended(1), decided(1, "approve")), ["run 1"]),
    ("a denied call is not carried out",
     log(asking("a"), suspended(1), decided(1, "deny")), ["end 1 denied"]),
    ("edited arguments are checked again",
     log(asking("a"), suspended(1), decided(1, "edit")), ["check 1 approved"]),
    ("an edit may meet a rule that forbids it",
     log(asking("a"), suspended(1), decided(1, "edit"), CallChecked(1, "deny")), ["end 1 denied"]),
    ("an edit may be put before a person again",
     log(asking("a"), suspended(1), decided(1, "edit"), CallChecked(1, "ask")),
     ["suspend 1 approval again (2)"]),
    ("an answer is the result",
     log(asking("a"), suspended(1, "question"), decided(1, "answer")), ["end 1 ok"]),
    ("a call in doubt that happened ends with what it gave",
     log(asking("a"), in_doubt(1), decided(1, "answer", value="paid")), ["end 1 ok"]),
    ("a call in doubt that failed is an error",
     log(asking("a"), in_doubt(1), decided(1, "deny")), ["end 1 error"]),
    ("a call in doubt that nobody decided stays unknown",
     log(asking("a"), in_doubt(1), decided(1, "deny", by="expiry")), ["end 1 unknown in doubt"]),
    ("a retry starts it again", log(asking("a"), in_doubt(1), decided(1, "retry")), ["run 1 attempt 2"]),
    ("one decision leaves the others waiting",
     log(asking("a", "b"), suspended(1), suspended(2), decided(2, "approve")), ["run 2"]),
]  # fmt: skip

STOPS: list[Row] = [
    ("stop breaks off the model", log(running(), turn(), stopping()), ["abort model 1"]),
    ("cancel breaks off the model", log(running(), turn(), stopping("cancel")), ["abort model 1"]),
    ("stop ends the run when the model is broken off",
     log(running(), turn(), stopping(by="ops"), ModelFailed("stopped")), ["end run 1 stopped: by ops"]),
    ("stop ends a run that waits for nothing", log(running(), stopping()), ["end run 1 stopped"]),
    ("cancel ends a run that waits for nothing, and says by whom",
     log(running(), stopping("cancel", by="ops")), ["end run 1 cancelled: by ops"]),
    ("an interrupt ends the run before the new one starts",
     log(running(), sent(2, "interrupt"), stopping("interrupt")),
     ["end run 1 cancelled: interrupted by a new input"]),
    ("an answer that came anyway does not undo the stop",
     log(running(), turn(), stopping(), answered()), ["end run 1 stopped"]),
    ("a stop of another run does nothing", log(running(), turn(), stopping(run=7)), []),
    ("stop leaves calls that were not looked at", log(asking("a"), stopping()), ["end 1 cancelled"]),
    ("stop leaves allowed calls", log(asking("a"), allowed(1), stopping()), ["end 1 cancelled"]),
    ("stop leaves calls that a rule wants to ask about",
     log(asking("a"), CallChecked(1, "ask"), stopping()), ["end 1 cancelled"]),
    ("stop leaves calls that do not fit",
     log(asking("a"), CallChecked(1, "invalid"), stopping()), ["end 1 cancelled"]),
    ("stop leaves suspended calls", log(asking("a"), suspended(1), stopping()), ["end 1 cancelled"]),
    ("stop says of a refused call that it was refused",
     log(asking("a"), CallChecked(1, "deny"), stopping()), ["end 1 denied"]),
    ("stop keeps an answer that was given",
     log(asking("a"), suspended(1, "question"), decided(1, "answer"), stopping()), ["end 1 ok"]),
    ("stop lets started tools finish", log(asking("a", "b"), started(1), stopping()), ["end 2 cancelled"]),
    ("a graceful stop ends the run when the last tool has finished",
     log(asking("a"), started(1), stopping(), ended(1)), ["end run 1 stopped"]),
    ("cancel breaks off started tools",
     log(asking("a", "b"), started(1), stopping("cancel")), ["abort 1", "end 2 cancelled"]),
    ("an interrupt breaks off started tools",
     log(asking("a"), started(1), stopping("interrupt")), ["abort 1"]),
    ("a run out of time breaks off started tools",
     log(asking("a"), started(1), stopping("seconds")), ["abort 1"]),
    ("an interrupt supersedes what waits for a person",
     log(asking("a"), suspended(1), stopping("interrupt")), ["end 1 superseded"]),
    ("cancel leaves suspended calls",
     log(asking("a"), suspended(1), stopping("cancel")), ["end 1 cancelled"]),
    ("stop after a crash: a read is cancelled",
     log(asking("a"), started(1, "read"), CRASH, stopping()), ["end 1 cancelled"]),
    ("stop after a crash: a transactional call is cancelled",
     log(asking("a"), started(1, "transactional"), CRASH, stopping()), ["end 1 cancelled"]),
    ("stop after a crash: a once call is unknown",
     log(asking("a"), started(1), CRASH, stopping()), ["end 1 unknown in doubt"]),
    ("stop after a crash: an idempotent call is unknown",
     log(asking("a"), started(1, "idempotent"), stopping(), CRASH), ["end 1 unknown in doubt"]),
    ("stop of a call in doubt that waits: unknown, also when interrupted",
     log(asking("a"), in_doubt(1), stopping("interrupt")), ["end 1 unknown in doubt"]),
    ("stop before a retry has started: still unknown",
     log(asking("a"), in_doubt(1), decided(1, "retry"), stopping()), ["end 1 unknown in doubt"]),
    ("stop after a crash of the model ends the run",
     log(running(), turn(), CRASH, stopping()), ["end run 1 stopped"]),
    ("a cancel breaks off a final answer too",
     log(running(), turn(final=True), stopping("cancel")), ["abort model 1"]),
]  # fmt: skip

FULL = Usage(input=60, output=40)


def capped(**limits: Any) -> tuple[Event, ...]:
    """Two turns of one call each, under these limits."""
    spent = {"usage": FULL, "cost_usd": 0.5, "seconds": 5.0}
    first = (*running(Limits(**limits)), turn(), called("a", **spent), *started(1), *ended(1))
    return *first, turn(2), called("a", first=2, **spent), *started(2), *ended(2)


LIMITS: list[Row] = [
    ("below every limit it goes on",
     log(capped(turns=3, calls=3, tokens=201, cost_usd=1.1, seconds=11)), ["model 3"]),
    ("the turns are spent", log(capped(turns=2)), ["end run 1 limit: turns"]),
    ("a run without turns ends at once", log(running(Limits(turns=0))), ["end run 1 limit: turns"]),
    ("without a limit of turns it goes on", log(capped(turns=None)), ["model 3"]),
    ("the tokens are spent", log(capped(tokens=200)), ["end run 1 limit: tokens"]),
    ("the money is spent", log(capped(cost_usd=1.0)), ["end run 1 limit: cost_usd"]),
    ("the time is spent", log(capped(seconds=10)), ["end run 1 limit: seconds"]),
    ("exactly at the limit of calls the model may still answer", log(capped(calls=2)), ["model 3"]),
    ("calls over the limit are not started",
     log(asking("a", "b", "c", limits=Limits(calls=2))), ["check 1", "check 2", "end 3 cancelled"]),
    ("the run ends behind the calls within the limit",
     log(asking("a", "b", limits=Limits(calls=1)), started(1), ended(1), ended(2, outcome="cancelled")),
     ["end run 1 limit: calls"]),
    ("a limit does not spoil an answer",
     log(running(Limits(turns=1)), turn(), answered()), ["end run 1 completed"]),
    ("no room for the call", log(running(), ModelFailed("limit", "tokens")), ["end run 1 limit: tokens"]),
    ("no room, and nobody said for what", log(running(), ModelFailed("limit")), ["end run 1 limit: limit"]),
    ("no room for a join: the answer before it counts",
     log(running(), turn(), sent(2, "join"), answered(), ModelFailed("limit", "tokens")),
     ["end run 1 completed"]),
    ("at the limit a join waits for a run of its own",
     log(running(Limits(turns=1)), turn(), sent(2, "join"), answered()), ["end run 1 completed"]),
    ("its own time breaks off the model", log(running(), turn(), stopping("seconds")), ["abort model 1"]),
    ("its own time ends it",
     log(running(), turn(), stopping("seconds"), ModelFailed("stopped")), ["end run 1 limit: seconds"]),
    ("an answer just in time counts",
     log(running(), turn(), stopping("seconds"), answered()), ["end run 1 completed"]),
    ("out of time, a crashed attempt is not repeated",
     log(running(), turn(), stopping("seconds"), CRASH), ["end run 1 limit: seconds"]),
]  # fmt: skip

LAST = Limits(turns=1, at_limit="answer")
TIMED = Limits(seconds=9, at_limit="answer")

ANSWERS: list[Row] = [
    ("at_limit=answer makes one last call",
     log(asking("a", limits=LAST), started(1), ended(1)), ["model 2 final"]),
    ("inputs do not join the last call",
     log(asking("a", limits=LAST), sent(2, "join"), started(1), ended(1)), ["model 2 final"]),
    ("the last answer completes the run",
     log(running(LAST), turn(final=True), answered()), ["end run 1 completed: answered at the limit: turns"]),
    ("calls in a last answer are never executed",
     log(running(LAST), turn(final=True), called("a", "b")), ["end 1 cancelled", "end 2 cancelled"]),
    ("calls in a last answer end the run at its limit",
     log(running(LAST), turn(final=True), called("a"), ended(1, outcome="cancelled")),
     ["end run 1 limit: turns"]),
    ("a crash repeats the last call as such",
     log(running(LAST), turn(final=True), CRASH), ["model 1 attempt 2 final"]),
    ("a last call that fails is a failure",
     log(running(LAST), turn(final=True), ModelFailed("auth", "no key")), ["end run 1 failed: auth: no key"]),
    ("no room: one last call", log(running(TIMED), ModelFailed("limit", "tokens")), ["model 1 final"]),
    ("a last answer for want of room completes the run",
     log(running(TIMED), ModelFailed("limit", "tokens"), turn(final=True), answered()),
     ["end run 1 completed: answered at the limit: tokens"]),
    ("calls in a last answer for want of room end the run too",
     log(running(TIMED), ModelFailed("limit", "tokens"), turn(final=True), called("a"), ended(1)),
     ["end run 1 limit: tokens"]),
    ("out of time: one last call",
     log(running(TIMED), turn(), stopping("seconds"), ModelFailed("stopped")), ["model 2 final"]),
    ("out of time in a crashed attempt: one last call",
     log(running(TIMED), turn(), stopping("seconds"), CRASH), ["model 2 final"]),
    ("out of time in a tool: one last call",
     log(asking("a", limits=TIMED), started(1), stopping("seconds"), ended(1)), ["model 2 final"]),
    ("the clock does not break off the last call",
     log(running(TIMED), turn(final=True), stopping("seconds")), []),
    ("a crashed last call is repeated, out of time or not",
     log(running(TIMED), turn(final=True), stopping("seconds"), CRASH), ["model 1 attempt 2 final"]),
    ("a last answer out of time completes the run",
     log(running(TIMED), turn(final=True), stopping("seconds"), answered()),
     ["end run 1 completed: answered at the limit: seconds"]),
    ("a stop at the limit leaves out the last call",
     log(asking("a", limits=LAST), stopping(), ended(1)), ["end run 1 stopped"]),
]  # fmt: skip

HANDED = (*started(1, "read"), handed_over(1))
BESIDE = (*started(2), CallAdvanced(2, "bake-2", background=True))
FOR_BILLING = Overrides(agent="billing")

HAND_OFFS: list[Row] = [
    ("who is to take over does so before the next turn", log(asking("hand_off"), HANDED), ["switch to billing for 1"]),
    ("not before the other calls of the turn have ended",
     log(asking("hand_off", "a"), HANDED, started(2)), []),
    ("behind them, in whatever order they end",
     log(asking("hand_off", "a"), started(2), HANDED, ended(2)), ["switch to billing for 1"]),
    ("of two the first one counts",
     log(asking("hand_off", "hand_off"), HANDED, started(2, "read"), handed_over(2, "refunds")),
     ["switch to billing for 1"]),
    ("not while a call is under way in the background", log(asking("hand_off", "a"), BESIDE, HANDED), []),
    ("but behind it", log(asking("hand_off", "a"), BESIDE, HANDED, ended(2)), ["switch to billing for 1"]),
    ("who took over goes on", log(asking("hand_off"), HANDED, switched("billing")), ["model 2"]),
    ("after a hand-off that failed the same one goes on",
     log(asking("hand_off"), HANDED, switched("clerk", error="It failed.")), ["model 2"]),
    ("a crash changes nothing in it", log(asking("hand_off"), HANDED, CRASH), ["switch to billing for 1"]),
    ("inputs that join come behind it",
     log(asking("hand_off"), HANDED, sent(2, "join")), ["switch to billing for 1"]),
    ("who took over hears them",
     log(asking("hand_off"), HANDED, sent(2, "join"), switched("billing")), ["model 2 with 2"]),
    ("it is made at a limit too, for whoever goes on then",
     log(asking("hand_off", limits=Limits(turns=1)), HANDED), ["switch to billing for 1"]),
    ("the limits of the run hold for who took over",
     log(asking("hand_off", limits=Limits(turns=1)), HANDED, switched("billing")), ["end run 1 limit: turns"]),
    ("a run that is stopped hands nothing over",
     log(asking("hand_off"), HANDED, stopping()), ["end run 1 stopped"]),
    ("an agent that is set waits for the end of the turn",
     log(running(), turn(), SettingsChanged(agent="billing")), []),
    ("and takes over then",
     log(asking("a"), SettingsChanged(agent="billing"), started(1), ended(1)), ["switch to billing"]),
    ("before the first turn too", log(running(), SettingsChanged(agent="billing")), ["switch to billing"]),
    ("an answer ends the run all the same",
     log(running(), turn(), SettingsChanged(agent="billing"), answered()), ["end run 1 completed"]),
    ("an attempt that crashed is repeated first",
     log(running(), turn(), SettingsChanged(agent="billing"), CRASH), ["model 1 attempt 2"]),
    ("an input for another agent does not join",
     log(running(), sent(2, "join", overrides=FOR_BILLING)), ["model 1"]),
    ("one for the agent of the run does",
     log(running(), sent(2, "join", overrides=Overrides(agent="clerk"))), ["model 1 with 2"]),
    ("the run of one agent makes room for that of another",
     log(running(), sent(2, "join", overrides=FOR_BILLING), RunEnded(1, "completed")), ["start run for 2"]),
]  # fmt: skip

OUTPUT = {"type": "object"}
TYPED = running(output=OUTPUT)

ENDS: list[Row] = [
    ("a model that fails ends the run",
     log(running(), turn(), ModelFailed("auth", "no key")), ["end run 1 failed: auth: no key"]),
    ("a driver that fails ends the run",
     log(running(), turn(), ModelFailed("internal", "bug")), ["end run 1 failed: internal: bug"]),
    ("an attempt broken off without a stop is made anew",
     log(running(), turn(), ModelFailed("stopped")), ["model 2"]),
    ("a refusal ends the run",
     log(running(), turn(), answered("I won't.", stop="refusal")), ["end run 1 refusal: I won't."]),
    ("a cut answer completes the run and says so",
     log(running(), turn(), answered(stop="length")),
     ["end run 1 completed: the answer was cut at the model's output limit"]),
    ("an output that does not fit is asked for again", log(TYPED, turn(), WRONG), ["model 2"]),
    ("an output is asked for twice more", log(TYPED, turn(), WRONG, turn(2), WRONG), ["model 3"]),
    ("an output that never fits fails the run",
     log(TYPED, turn(), WRONG, turn(2), WRONG, turn(3), WRONG), ["end run 1 failed: output: no name"]),
    ("no repair beyond a limit",
     log(running(Limits(turns=1), output=OUTPUT), turn(), WRONG), ["end run 1 limit: turns"]),
    ("no repair of a last answer",
     log(running(LAST), turn(final=True), WRONG), ["end run 1 failed: output: no name"]),
    ("a mended output completes the run",
     log(TYPED, turn(), WRONG, turn(2), answered(output={})), ["end run 1 completed"]),
]  # fmt: skip


def filled(tokens: int, window: int | None = 1000, **spec: Any) -> tuple[Event, ...]:
    """Six turns in a window of 1,000 tokens, of which the provider counted so many at last."""
    last = (turn(6), called("a", first=6, usage=Usage(tokens)), *started(6), CallEnded(6, "ok"))
    return pinned(window=Window(**spec)), *running(window=window), *long_talk(5), *last


FAILS = compacted(0, error="no summary")
SHORTER = compacted(0, 0, 9)
"""Nine messages give way, and what is left is far below the window."""
TOO_LITTLE = compacted(0, pruned=(1,))
"""One result gives way: that helps, and does not do."""
LONG = (*running(), *long_talk(5))
RETRIED = "model 6 attempt 2"
SLOW = (pinned(), *running(), turn(), called("slow"), *started(1, "read"), CallAdvanced(1, "slow-1", background=True))

WINDOWS: list[Row] = [
    ("a view with room left is sent as it is", log(filled(700)), ["model 7"]),
    ("a view that fills up is compacted beside the run",
     log(filled(850)), ["compact view 0 threshold beside", "model 7"]),
    ("without a background it is compacted before the run goes on",
     log(filled(850, background=False)), ["compact view 0 threshold"]),
    ("with no room left it is compacted before the run goes on", log(filled(960)), ["compact view 0 threshold"]),
    ("the share of the window is the agent's own", log(filled(700, at=0.5)),
     ["compact view 0 threshold beside", "model 7"]),
    ("switched off, a full view is sent as it is", log(filled(960, is_on=False)), ["model 7"]),
    ("without a known window nothing is compacted before it is too long",
     log(filled(960, window=None)), ["model 7"]),
    ("the model in flight is waited for while the view is compacted", log(filled(850), turn(7)), []),
    ("a shorter view goes to the model", log(filled(960), SHORTER), ["model 7"]),
    ("a compaction for an older view changes nothing",
     log(filled(960), compacted(7, 0, 9)), ["compact view 0 threshold"]),
    ("a compaction in vain does not hold up the turn", log(filled(960), FAILS), ["model 7"]),
    ("nor does one that leaves nothing out", log(filled(960), compacted(0)), ["model 7"]),
    ("nor one that would part a call from its result", log(filled(960), compacted(0, 0, 2)), ["model 7"]),
    ("after one in vain the next turn tries again",
     log(filled(960), FAILS, turn(7), called("a", first=7, usage=Usage(960)), started(7), ended(7)),
     ["compact view 0 threshold"]),
    ("what did not do is done again", log(filled(9000), TOO_LITTLE), ["compact view 1 threshold"]),
    ("three in a row that did not do are enough",
     log(filled(9000), TOO_LITTLE, compacted(1, pruned=(2,)), compacted(2, pruned=(3,))), ["model 7"]),
    ("the last call of a run is not held up by a compaction",
     log(pinned(), running(LAST, window=10), turn(), called("a", usage=Usage(900)), started(1), ended(1)),
     ["model 2 final"]),
    ("a request that is too long has its view compacted", log(LONG, overflow(6)), ["compact view 0 overflow"]),
    ("and is made again", log(LONG, overflow(6), compacted(0, 0, 9, "overflow")), [RETRIED]),
    ("an overflow of the last call is a last call again",
     log(running(LAST), long_talk(5), turn(6, final=True), ModelFailed("context_too_long"),
         compacted(0, 0, 9, "overflow")), [f"{RETRIED} final"]),
    ("an overflow without a pinned window is compacted too",
     log(filled(100, window=None), overflow(7)), ["compact view 0 overflow"]),
    ("switched off, an overflow ends the run",
     log(filled(100, is_on=False), overflow(7)), ["end run 1 failed: context_too_long: too long"]),
    ("an overflow that cannot be helped ends the run",
     log(LONG, overflow(6), compacted(0, cause="overflow", error="no summary")),
     ["end run 1 failed: context_too_long: too long"]),
    ("an overflow is helped by a compaction that was under way",
     log(LONG, overflow(6), SHORTER), [RETRIED]),
    ("one that was under way and failed leaves the overflow its own try",
     log(LONG, overflow(6), FAILS), ["compact view 0 overflow"]),
    ("also if it failed before the request did",
     log(LONG, turn(6), FAILS, ModelFailed("context_too_long")), ["compact view 0 overflow"]),
    ("an overflow may need a second one",
     log(LONG, overflow(6), compacted(0, pruned=(1,), cause="overflow"), overflow(6, 2)), ["compact view 1 overflow"]),
    ("three in a row that do not help an overflow are enough",
     log(LONG, overflow(6), compacted(0, pruned=(1,), cause="overflow"),
         overflow(6, 2), compacted(1, pruned=(2,), cause="overflow"),
         overflow(6, 3), compacted(2, pruned=(3,), cause="overflow"), overflow(6, 4)),
     ["end run 1 failed: context_too_long: too long"]),
    ("a stop does not wait for the compaction of an overflow",
     log(LONG, overflow(6), stopping()), ["end run 1 stopped"]),
    ("a stop behind the compaction of an overflow ends the run",
     log(LONG, overflow(6), compacted(0, 0, 9, "overflow"), stopping()), ["end run 1 stopped"]),
    ("out of time, the request is not made again",
     log(LONG, overflow(6), stopping("seconds"), compacted(0, 0, 9, "overflow")), ["end run 1 limit: seconds"]),
    ("a compaction leaves suspended calls waiting",
     log(LONG, turn(6), called("a", first=6), suspended(6), SHORTER), []),
    ("a compaction leaves calls under way alone", log(LONG, turn(6), called("a", first=6), started(6), SHORTER), []),
    ("a compaction lands behind its run", log(LONG, turn(6), answered(), RunEnded(1, "completed"), SHORTER), []),
    ("background calls outlive an overflow", log(SLOW, overflow(2)), ["compact view 0 overflow"]),
    ("a background read that died is not started again in a run that is told to end",
     log(SLOW, CRASH, stopping()), ["end 1 cancelled"]),
    ("background calls end with an overflow that cannot be helped",
     log(SLOW, overflow(2), compacted(0, cause="overflow", error="no summary")), ["abort 1"]),
]  # fmt: skip

VETS = pinned(vets_input=True)
RETRACTED = InputChanged(1, retracted=True)

INPUTS: list[Row] = [
    ("an input of later waits", log(sent(1, at=50.0)), []),
    ("an input of later lets others go first", log(sent(1, at=50.0), sent(2)), ["start run for 2"]),
    ("an input whose time has come starts a run",
     log(sent(1, at=50.0), InputChanged(1, due=True)), ["start run for 1"]),
    ("an input of later does not join before its time", log(running(), sent(2, "join", at=50.0)), ["model 1"]),
    ("an input of later joins in its time",
     log(running(), sent(2, "join", at=50.0), InputChanged(2, due=True)), ["model 1 with 2"]),
    ("an input of later does not keep a run from its end",
     log(running(), turn(), sent(2, "join", at=50.0), answered()), ["end run 1 completed"]),
    ("without guardrails inputs join as they are", log(pinned(), running(), sent(2, "join")), ["model 1 with 2"]),
    ("a guardrail sees an input before it joins", log(VETS, running(), sent(2, "join")), ["vet 2"]),
    ("one after the other", log(VETS, running(), sent(2, "join"), sent(3, "join"), vetted(2)), ["vet 3"]),
    ("inputs that were vetted join",
     log(VETS, running(), sent(2, "join"), sent(3, "join"), vetted(2), vetted(3)), ["model 1 with 2,3"]),
    ("a blocked input does not join",
     log(VETS, running(), sent(2, "join"), sent(3, "join"), vetted(2, "no"), vetted(3)), ["model 1 with 3"]),
    ("a blocked input does not keep a run from its end",
     log(VETS, running(), turn(), sent(2, "join"), answered(), vetted(2, "no")), ["end run 1 completed"]),
    ("a blocked input gets a run of its own",
     log(VETS, running(), sent(2, "join"), vetted(2, "no"), RunEnded(1, "completed")), ["start run for 2"]),
    ("which refuses it", log(VETS, sent(1), vetted(1, "no"), RunStarted(1, (1,))), ["end run 1 refusal: input: no"]),
    ("a wish to go on may be blocked too",
     log(running(), RunEnded(1, "failed"), sent(2, continues=1), vetted(2, "no"), RunStarted(2, (2,), continues=1)),
     ["end run 2 refusal: input: no"]),
    ("at a limit nothing is vetted",
     log(VETS, running(Limits(turns=1)), turn(), sent(2, "join"), answered()), ["end run 1 completed"]),
    ("a stop does not wait for guardrails", log(VETS, running(), sent(2, "join"), stopping()), ["end run 1 stopped"]),
    ("background calls do not keep a new input from being vetted",
     log(VETS, SLOW[1:], turn(2), answered(), sent(2, "join")), ["vet 2"]),
    ("and are waited for when it is blocked",
     log(VETS, SLOW[1:], turn(2), answered(), sent(2, "join"), vetted(2, "no")), []),
    ("a push takes an answered run further",
     log(running(), turn(), answered(), sent(2, "join", by="natural_end")), ["model 2 with 2"]),
    ("a push does not lead beyond a limit",
     log(running(Limits(turns=1)), turn(), answered(), sent(2, "join", by="natural_end")), ["end run 1 completed"]),
    ("a push that came to nothing starts no run",
     log(running(Limits(turns=1)), turn(), answered(), sent(2, "join", by="natural_end"), RunEnded(1, "completed")),
     []),
    ("a retracted input starts nothing", log(sent(1), RETRACTED), []),
    ("and makes room for the next", log(sent(1), sent(2), RETRACTED), ["start run for 2"]),
    ("a retracted input does not join",
     log(running(), sent(2, "join"), InputChanged(2, retracted=True)), ["model 1"]),
    ("a retracted input keeps no run from its end",
     log(running(), turn(), sent(2, "join"), InputChanged(2, retracted=True), answered()), ["end run 1 completed"]),
    ("what was taken cannot be retracted", log(running(), RETRACTED), ["model 1"]),
    ("a retraction does not give back the run that was interrupted for it",
     log(running(), sent(2, "interrupt"), stopping("interrupt"), InputChanged(2, retracted=True)),
     ["end run 1 cancelled: interrupted by a new input"]),
    ("an edited input is vetted again",
     log(VETS, running(), sent(2, "join"), vetted(2), InputChanged(2, (Text("other"),))), ["vet 2"]),
    ("also if it was blocked",
     log(VETS, running(), sent(2, "join"), vetted(2, "no"), InputChanged(2, (Text("other"),))), ["vet 2"]),
]  # fmt: skip

TOGETHER = pinned(inputs=Inputs(queued="all"))
ONE_BY_ONE = pinned(inputs=Inputs(joined="one"))
SMALL = Overrides(limits=Limits(turns=1))

BATCHES: list[Row] = [
    ("inputs that wait start a run together",
     log(TOGETHER, sent(1), sent(2, "join"), sent(3)), ["start run for 1,2,3"]),
    ("interrupts are first among them", log(TOGETHER, sent(1), sent(2, "interrupt")), ["start run for 2,1"]),
    ("those of later are not among them", log(TOGETHER, sent(1), sent(2, at=50.0), sent(3)), ["start run for 1,3"]),
    ("other overrides end the row, so that the order stays",
     log(TOGETHER, sent(1), sent(2, overrides=SMALL), sent(3)), ["start run for 1"]),
    ("the same overrides are one run",
     log(TOGETHER, sent(1, overrides=SMALL), sent(2, overrides=SMALL)), ["start run for 1,2"]),
    ("a blocked input ends the row",
     log(TOGETHER, sent(1), sent(2), sent(3), vetted(1), vetted(2, "no")), ["start run for 1"]),
    ("and has a run of its own", log(TOGETHER, sent(1), sent(2), vetted(1, "no")), ["start run for 1"]),
    ("a wish to go on is taken alone",
     log(TOGETHER, running(), RunEnded(1, "failed"), InputAccepted(2, continues=1), sent(3)), ["start run for 2"]),
    ("and not behind another", log(TOGETHER, sent(1), InputAccepted(2, continues=1)), ["start run for 1"]),
    ("what was retracted is not among them",
     log(TOGETHER, sent(1), sent(2), sent(3), InputChanged(2, retracted=True)), ["start run for 1,3"]),
    ("a run that has begun takes no queued ones", log(TOGETHER, running(), sent(2)), ["model 1"]),
    ("several join one at a time",
     log(ONE_BY_ONE, running(), sent(2, "join"), sent(3, "join")), ["model 1 with 2"]),
    ("each at a turn of its own",
     log(ONE_BY_ONE, running(), sent(2, "join"), sent(3, "join"), turn(inputs=(2,)), answered()), ["model 2 with 3"]),
    ("inputs that join one at a time start runs one at a time", log(ONE_BY_ONE, sent(1), sent(2)), ["start run for 1"]),
]  # fmt: skip

NO = ModelFailed("rejected", "Be polite.")
SEVEN = tuple(event for number in range(1, 8) for event in (turn(number), NO))

REJECTIONS: list[Row] = [
    ("a rejected answer is asked for again", log(running(), turn(), NO), ["model 2"]),
    ("seven times", log(running(), SEVEN), ["model 8"]),
    ("an eighth rejection ends the run",
     log(running(), SEVEN, turn(8), NO), ["end run 1 failed: output: rejected 8 times"]),
    ("an answer in between starts the count again",
     log(running(), SEVEN, turn(8), called("a"), started(1), ended(1), turn(9), NO), ["model 10"]),
    ("no better answer beyond a limit", log(running(Limits(turns=1)), turn(), NO), ["end run 1 limit: turns"]),
    ("a rejected answer at the limit is asked for a last time", log(running(LAST), turn(), NO), ["model 2 final"]),
    ("a last answer that is rejected ends the run at its limit",
     log(running(LAST), turn(), NO, turn(2, final=True), NO), ["end run 1 limit: turns"]),
    ("a stop comes before a better answer", log(running(), turn(), stopping(), NO), ["end run 1 stopped"]),
    ("inputs join the next try", log(running(), turn(), sent(2, "join"), NO), ["model 2 with 2"]),
    ("background calls outlive a rejection", log(SLOW, turn(2), NO), ["model 3"]),
    ("a blocked answer ends the run",
     log(running(), turn(), ModelFailed("blocked", "secrets")), ["end run 1 refusal: output: secrets"]),
    ("a blocked answer breaks off background calls",
     log(SLOW, turn(2), ModelFailed("blocked", "secrets")), ["abort 1"]),
]  # fmt: skip


def until(*conditions: StopWhen, outcome: Any = "ok", said: str = "") -> tuple[Event, ...]:
    """Two turns with a call each, under these conditions; 200 tokens, 1 dollar and 10 seconds."""
    spent: dict[str, Any] = {"usage": FULL, "cost_usd": 0.5, "seconds": 5.0}
    result = (Text("the same"),)
    events: list[Event] = [pinned(stop_when=conditions), *running()]
    for number in (1, 2):
        answer = called("look", first=number, **spent)
        words = (Text(said),) if said else ()
        answer = replace(answer, message=replace(answer.message, parts=(*words, *answer.message.parts)))
        checked = CallChecked(number, "allow", digest="same")
        events += (turn(number), answer, checked, CallStarted(number), CallEnded(number, outcome, result))
    return tuple(events)


def met(why: str) -> list[str]:
    return [f"end run 1 stopped: stop condition: {why}"]


CONDITIONS: list[Row] = [
    ("a run goes on while no condition holds", log(until(StopWhen(turns=3), StopWhen(errors=1))), ["model 3"]),
    ("enough turns", log(until(StopWhen(turns=2))), met("turns 2")),
    ("enough seconds", log(until(StopWhen(seconds=10))), met("seconds 10")),
    ("enough tokens", log(until(StopWhen(tokens=200))), met("tokens 200")),
    ("enough money", log(until(StopWhen(cost_usd=1.0))), met("cost_usd 1")),
    ("enough errors in a row", log(until(StopWhen(errors=2), outcome="error")), met("errors 2")),
    ("a denial is no error", log(until(StopWhen(errors=2), outcome="denied")), ["model 3"]),
    ("a repaired output is no error",
     log(pinned(stop_when=(StopWhen(errors=1),)), TYPED, turn(), WRONG), ["model 2"]),
    ("enough repeats", log(until(StopWhen(repeats=2))), met("repeats 2")),
    ("a tool was called", log(until(StopWhen(tool="look"))), met("look was called")),
    ("a tool of a pattern was called", log(until(StopWhen(tool="lo*"))), met("look was called")),
    ("a tool that failed was not called", log(until(StopWhen(tool="look"), outcome="error")), ["model 3"]),
    ("the answer says so", log(until(StopWhen(text="FOUND"), said="FOUND it")), met("the answer matches 'FOUND'")),
    ("the answer does not say so", log(until(StopWhen(text="^it"), said="FOUND it")), ["model 3"]),
    ("a pattern that is none never holds", log(until(StopWhen(text="("), said="(")), ["model 3"]),
    ("all that is given has to hold", log(until(StopWhen(turns=2, tool="pay"))), ["model 3"]),
    ("all that is given holds",
     log(until(StopWhen(turns=2, tokens=100, tool="look"))), met("turns 2, tokens 200, look was called")),
    ("any of several conditions is enough",
     log(until(StopWhen(turns=9), StopWhen(tool="look"))), met("look was called")),
    ("an answer completes the run, whatever holds",
     log(pinned(stop_when=(StopWhen(turns=1),)), running(), turn(), answered()), ["end run 1 completed"]),
    ("an input does not join a run whose condition holds",
     log(until(StopWhen(turns=2)), sent(3, "join")), met("turns 2")),
    ("nor does a push keep it from its end",
     log(until(StopWhen(turns=2)), sent(3, "join", by="natural_end")), met("turns 2")),
    ("a condition comes before a limit",
     log(pinned(stop_when=(StopWhen(turns=2),)), capped(turns=2)), met("turns 2")),
    ("a condition is for the time behind a turn",
     log(pinned(stop_when=(StopWhen(turns=1),)), running(), turn(), NO), ["model 2"]),
    ("a condition breaks off what is in the background",
     log(SLOW, pinned(stop_when=(StopWhen(turns=1),))), ["abort 1"]),
    ("a stop is a stop, whatever holds", log(until(StopWhen(turns=2)), stopping("cancel")), ["end run 1 cancelled"]),
]  # fmt: skip

TABLE = (
    RUNS
    + CRASHES
    + CALLS
    + DECISIONS
    + STOPS
    + LIMITS
    + ANSWERS
    + ENDS
    + WINDOWS
    + INPUTS
    + BATCHES
    + REJECTIONS
    + CONDITIONS
    + HAND_OFFS
)


@pytest.mark.parametrize(("events", "expected"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_the_rules_ask_for(events: list[Event], expected: list[str]) -> None:
    assert asks_for(*events[1:]) == expected


def test_every_sentence_is_said_once() -> None:
    sentences = [row[0] for row in TABLE]
    assert len(sentences) == len(set(sentences))
