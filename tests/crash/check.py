"""The judge of a trial: what the store, the ledger and the acks say together, as a list of broken promises.

Rule: it trusts none of the three; the ledger and the acks were written outside of the store.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import apsw
import msgspec

from perdure.core.errors import PerdureError
from perdure.core.fold import fold
from perdure.core.messages import UserMessage
from perdure.core.state import SessionState
from perdure.core.transcript import transcript, unpaired
from perdure.core.views import summarise
from perdure.events import (
    CallDecided,
    CallEnded,
    CallStarted,
    InputAccepted,
    ModelCalled,
    ModelResponded,
    RunEnded,
    RunResumed,
    RunStarted,
    StopRequested,
)
from perdure.ports import Record, SessionRow
from perdure.stores import sqlite_reads
from tests.crash.ledger import ACKS, LEDGER, Ack, Deed, read_lines
from tests.crash.on_postgres import ADDRESS, read_postgres
from tests.crash.scenario import CALLS, CANCELLED, DECISIONS, JOBS, TURNS, digest_state

INPUTS = {*(f"job-{job}" for job in (*JOBS, CANCELLED)), "note-b", "note-c"}


Check: TypeAlias = Callable[["Evidence"], Iterator[str]]


class Evidence(msgspec.Struct, frozen=True):
    folder: Path
    row: SessionRow
    records: list[Record]
    state: SessionState
    acks: list[Ack]
    deeds: list[Deed]

    def all(self, kind: type) -> list:
        return [record.event for record in self.records if isinstance(record.event, kind)]


def check_trial(folder: Path) -> list[str]:
    """What is broken at the end of a trial; nothing, if every promise was kept."""
    return _check(folder, CHECKS)


def check_death(folder: Path) -> list[str]:
    """What is broken right after a kill, before the next life can hide it by sending its inputs again."""
    return _check(folder, (check_acks,))


def _check(folder: Path, checks: tuple[Check, ...]) -> list[str]:
    try:
        evidence = gather(folder)
    except PerdureError as error:
        return [f"the log cannot be read: {error}"]
    if evidence is None:
        acks = read_lines(folder / ACKS, Ack)
        return [f"there is no session, but {ack} was acknowledged" for ack in acks]
    return [broken for check in checks for broken in check(evidence)]


def gather(folder: Path) -> Evidence | None:
    """Reading verifies every record's digest and that there is no gap; None if there is no session yet."""
    if (folder / "sweep.db").exists():
        found = _read_sqlite(folder / "sweep.db")
    else:
        found = read_postgres(folder) if (folder / ADDRESS).exists() else None
    if found is None:
        return None
    row, records = found
    state = fold([record.event for record in records])
    return Evidence(folder, row, records, state, read_lines(folder / ACKS, Ack), read_lines(folder / LEDGER, Deed))


def _read_sqlite(path: Path) -> tuple[SessionRow, list[Record]] | None:
    # Read-only: closing it leaves the write-ahead log as the kill left it, for the next life to recover.
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        has_schema = connection.execute("SELECT count(*) FROM sqlite_schema").get
        row = sqlite_reads.find(connection, "", "order") if has_schema else None
        return (row, sqlite_reads.read(connection, row.uid, 0, None)) if row else None
    finally:
        connection.close()


def check_log(evidence: Evidence) -> Iterator[str]:
    if [record.seq for record in evidence.records] != list(range(1, evidence.row.head + 1)):
        yield "the log has a gap"
    if evidence.row.summary != summarise(evidence.state):
        yield "the session's row does not fit its log"
    if (evidence.folder / "state.txt").read_text() != digest_state(evidence.state):
        yield "the fold of the log is not the state that the last process saw"
    if evidence.row.status != "idle" or evidence.state.queue:
        yield f"the session is {evidence.row.status} at the end"
    epochs = [event.epoch for event in evidence.all(RunResumed)]
    if epochs != sorted(set(epochs)):
        yield f"epochs go back: {epochs}"
    if (evidence.folder / "errors.log").exists():
        yield f"errors were logged: {(evidence.folder / 'errors.log').read_text()}"


def check_acks(evidence: Evidence) -> Iterator[str]:
    """What was acknowledged is in the log."""
    inputs = {event.key for event in evidence.all(InputAccepted)}
    stops = {str(event.run) for event in evidence.all(StopRequested)}
    decisions = {
        (f"{evidence.row.uid}-{event.call}-{event.pause}", event.decision) for event in evidence.all(CallDecided)
    }
    for ack in evidence.acks:
        match ack.what:
            case "input":
                kept = ack.name in inputs
            case "decision":
                kept = (ack.name, ack.value) in decisions
            case "cancel":
                kept = ack.name in stops
        if not kept:
            yield f"the acknowledged {ack.what} {ack.name} {ack.value} is lost"


def check_inputs(evidence: Evidence) -> Iterator[str]:
    """Nothing is missing, nothing comes twice."""
    accepted = evidence.all(InputAccepted)
    keys = Counter(event.key for event in accepted)
    yield from (f"input {key} is in the log {count} times" for key, count in keys.items() if count != 1)
    yield from (f"input {key} was never sent" for key in INPUTS - keys.keys())
    taken = Counter(n for event in evidence.all(RunStarted) for n in event.inputs)
    taken.update(n for event in evidence.all(ModelCalled) for n in event.inputs)
    for event in accepted:
        if taken[event.input] != 1:
            yield f"input {event.key} was taken {taken[event.input]} times"
    said = Counter(message.parts for message in transcript(evidence.state) if isinstance(message, UserMessage))
    for event in accepted:
        if said[event.parts] != 1:
            yield f"the model reads input {event.key} {said[event.parts]} times"


def check_runs(evidence: Evidence) -> Iterator[str]:
    started = Counter(event.run for event in evidence.all(RunStarted))
    ended = Counter(event.run for event in evidence.all(RunEnded))
    for run in started.keys() | ended.keys():
        if started[run] != 1 or ended[run] != 1:
            yield f"run {run} starts {started[run]} times and ends {ended[run]} times"
    reasons = Counter(event.reason for event in evidence.all(RunEnded))
    if reasons != {"completed": len(started) - 1, "cancelled": 1}:
        yield f"the runs end as {dict(reasons)}"
    turns = len(evidence.all(ModelResponded))
    # A note that came after its job was done is a run of one turn.
    extra = len(started) - len(JOBS) - 1
    if turns != TURNS + extra:
        yield f"there are {turns} turns in {len(started)} runs"


def check_calls(evidence: Evidence) -> Iterator[str]:
    """Every call has one result, in the log and in what the model reads."""
    asked = [call for event in evidence.all(ModelResponded) for call in event.message.calls]
    if [call.call for call in asked] != list(range(1, CALLS + 1)):
        yield f"{len(asked)} calls, or not numbered from 1 on"
    ended = Counter(event.call for event in evidence.all(CallEnded))
    for call in range(1, CALLS + 1):
        if ended.pop(call, 0) != 1:
            yield f"call {call} does not have exactly one end"
    yield from (f"call {call} ended but was never made" for call in ended)
    yield from (f"call {call} has no result behind it" for call in unpaired(transcript(evidence.state)))


def check_decisions(evidence: Evidence) -> Iterator[str]:
    """What was decided is in the log once, and was done."""
    decided = evidence.all(CallDecided)
    made = Counter((event.call, event.pause) for event in decided)
    yield from (f"the pause {pause} was decided {count} times" for pause, count in made.items() if count != 1)
    cents = {deed.item: deed.cents for deed in evidence.deeds if deed.what == "effect" and deed.tool == "refund"}
    if cents != {"a2.0": 990, "c2.0": 495}:
        yield f"the refunds came to {cents} although the decisions were {DECISIONS}"


def check_cancel(evidence: Evidence) -> Iterator[str]:
    """After a stop nothing new starts in its run."""
    stopped: set[int] = set()
    for record in evidence.records:
        if isinstance(record.event, StopRequested):
            stopped.add(record.event.run)
        elif isinstance(record.event, CallStarted | ModelCalled) and record.run in stopped:
            yield f"record {record.seq} starts something in run {record.run}, which was cancelled"


def check_starts(evidence: Evidence) -> Iterator[str]:
    """A tool starts once per intent, and a `once` call again only if somebody said so."""
    intents = Counter((event.call, event.attempt) for event in evidence.all(CallStarted))
    effects = {event.call: event.effect for event in evidence.all(CallStarted)}
    starts = Counter((deed.call, deed.attempt) for deed in evidence.deeds if deed.what == "start")
    for (call, attempt), count in starts.items():
        if count > intents[call, attempt]:
            yield f"call {call} attempt {attempt} started {count} times on {intents[call, attempt]} intents"
    retries = Counter(event.call for event in evidence.all(CallDecided) if event.decision == "retry")
    times = Counter(deed.call for deed in evidence.deeds if deed.what == "start")
    for call, count in times.items():
        if effects.get(call) == "once" and count > 1 + retries[call]:
            yield f"the once call {call} started {count} times with {retries[call]} retries"


def check_effects(evidence: Evidence) -> Iterator[str]:
    """Idempotent tools take effect once per key and once per business action; what is called done was done."""
    keys: dict[tuple[str, str], set[str]] = {}
    for deed in evidence.deeds:
        if deed.what == "effect" and deed.tool in ("charge", "ship", "refund"):
            keys.setdefault((deed.tool, deed.item), set()).add(deed.key)
    owners = Counter(key for found in keys.values() for key in found)
    yield from (f"{action} took effect under the keys {found}" for action, found in keys.items() if len(found) > 1)
    yield from (f"the key {key} stands for {count} actions" for key, count in owners.items() if count > 1)
    done = {deed.call for deed in evidence.deeds if deed.what == "end"}
    answered = {event.call for event in evidence.all(CallDecided) if event.decision == "answer"}
    for event in evidence.all(CallEnded):
        if event.outcome == "ok" and event.call not in done | answered:
            yield f"call {event.call} is called done, but was not"


CHECKS: tuple[Check, ...] = (
    check_log,
    check_acks,
    check_inputs,
    check_runs,
    check_calls,
    check_decisions,
    check_cancel,
    check_starts,
    check_effects,
)
