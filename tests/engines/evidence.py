"""What a trial with workers must have come to: the laws, checked on the log and on what was written outside of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from perdure.core.fold import fold
from perdure.events import CallStarted, InputAccepted, ModelCalled, ModelResponded, RunEnded, RunStarted
from perdure.ports import Record
from tests.crash.ledger import read_lines
from tests.engines.clerks import APPENDS, DEEDS, Append, Deed
from tests.runtime.scenes import check_log


def broken(folder: Path, logs: dict[str, list[Record]], acked: dict[str, list[str]], turns: int) -> Iterator[str]:
    """Everything that is wrong, in words; `acked` are the keys of acknowledged inputs by session."""
    deeds: dict[str, list[Deed]] = {}
    for deed in read_lines(folder / DEEDS, Deed):
        deeds.setdefault(deed.session, []).append(deed)
    for uid, records in logs.items():
        check_log(records)
        own = deeds.get(fold([record.event for record in records]).id, [])
        if not own:
            yield f"session {uid}: it did nothing"
        for law in (_finished(records, turns), _inputs(records, acked[uid]), _deeds(records, own)):
            for what in law:
                yield f"session {uid}: {what}"
    yield from _stale(read_lines(folder / APPENDS, Append))


def _finished(records: list[Record], turns: int) -> Iterator[str]:
    reasons = Counter(r.event.reason for r in records if isinstance(r.event, RunEnded))
    if set(reasons) != {"completed"}:
        yield f"its runs ended as {dict(reasons)}"
    answers = sum(isinstance(r.event, ModelResponded) for r in records)
    if answers < turns:
        yield f"it has {answers} turns instead of {turns}"


def _inputs(records: list[Record], acked: list[str]) -> Iterator[str]:
    accepted = {r.event.key: r.event.input for r in records if isinstance(r.event, InputAccepted)}
    taken = Counter(n for r in records if isinstance(r.event, RunStarted | ModelCalled) for n in r.event.inputs)
    for key in acked:
        if key not in accepted:
            yield f"the acknowledged input {key} is lost"
        elif taken[accepted[key]] != 1:
            yield f"the input {key} was taken {taken[accepted[key]]} times"


def _deeds(records: list[Record], deeds: list[Deed]) -> Iterator[str]:
    intents = Counter((r.event.call, r.event.attempt) for r in records if isinstance(r.event, CallStarted))
    starts = Counter((deed.tool, deed.call, deed.attempt) for deed in deeds if deed.what == "start")
    for (name, call, attempt), count in starts.items():
        if count > intents[call, attempt]:
            yield f"{name} {call}, attempt {attempt}, started {count} times on {intents[call, attempt]} intents"
    mails = Counter(deed.item for deed in deeds if deed.tool == "mail" and deed.what == "start")
    yield from (f"the mail {item} started {count} times" for item, count in mails.items() if count > 1)
    keys: dict[str, set[str]] = {}
    for deed in deeds:
        if deed.tool == "charge" and deed.what == "effect":
            keys.setdefault(deed.item, set()).add(deed.key)
    yield from (f"{item} was charged under {len(found)} keys" for item, found in keys.items() if len(found) > 1)


def _stale(appends: list[Append]) -> Iterator[str]:
    """Drivers' appends, in the order of the log, never go back to an older epoch."""
    last: dict[str, int] = {}
    for append in sorted(appends, key=lambda append: (append.session, append.expect)):
        if append.epoch < last.get(append.session, 0):
            yield f"session {append.session}: an append under the stale epoch {append.epoch} at {append.expect}"
        last[append.session] = append.epoch
