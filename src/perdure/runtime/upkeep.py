"""The care of whole stores: sessions copied from one to another, and whether what a store holds can be true.

Rule 1: a session is copied as it is exported and imported, and read back. Rule 2: a copy that was interrupted goes on
where it was: what is there already is not written again. Rule 3: what is being driven is left alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence

import msgspec

from perdure.core.codec import digest_of, encode_event
from perdure.core.errors import Conflict, NotFound, PerdureError, StoreError
from perdure.core.events import (
    CallEnded,
    CallStarted,
    Event,
    ModelResponded,
    RunEnded,
    RunResumed,
    RunStarted,
    SessionOpened,
)
from perdure.core.fold import fold
from perdure.core.state import SessionState
from perdure.core.transcript import transcript, unpaired
from perdure.core.views import summarise
from perdure.ports import Clock, Entry, Record, SessionQuery, SessionRow, Store
from perdure.runtime.log import SessionLog
from perdure.runtime.transfer import Exported, artifacts_named, import_exported, take_out

PAGE = 500


class Copied(msgspec.Struct, frozen=True):
    """What became of one session: `wrong` is empty if both stores now hold the same."""

    row: SessionRow
    records: int = 0
    wrote: bool = False
    wrong: str = ""


class Finding(msgspec.Struct, frozen=True):
    """What is wrong with a session."""

    row: SessionRow
    wrong: str


async def rows_of(store: Store, tenant: str | None = None) -> list[SessionRow]:
    """All sessions, those of sub-agents and shared state too; oldest first."""
    rows: list[SessionRow] = []
    query = SessionQuery(tenant=tenant, limit=PAGE)
    while True:
        page = await store.list(query)
        rows += page.rows
        if page.cursor is None:
            return rows[::-1]
        query = SessionQuery(tenant=tenant, cursor=page.cursor, limit=PAGE)


async def copy_sessions(
    source: Store, target: Store, clock: Clock, rows: Sequence[SessionRow]
) -> AsyncIterator[Copied]:
    for row in rows:
        try:
            yield await _copy(source, target, clock, row)
        except (Conflict, NotFound, StoreError) as error:
            if isinstance(error, StoreError) and error.retry_after is not None:
                raise
            yield Copied(row, wrong=str(error))


async def _copy(source: Store, target: Store, clock: Clock, row: SessionRow) -> Copied:
    if row.owner is not None and row.owner in await source.owners():
        raise Conflict("It is being driven; stop what drives it and copy once more.")
    exported = await take_out(source, row.uid)
    wrote = await _put(target, clock, exported)
    there = await target.read(row.uid)
    if digest_log(there) != digest_log(exported.records):
        raise StoreError("The copy differs from what was copied; look at both with perdure store check.")
    for digest, data in exported.artifacts.items():
        if await target.load_artifact(row.uid, digest) != data:
            raise StoreError(f"The copy of its artifact {digest} differs; look with perdure store check.")
    return Copied(row, len(there), wrote)


async def _put(target: Store, clock: Clock, exported: Exported) -> bool:
    """Writes what the target does not have yet of a session; whether that was anything."""
    uid = exported.header.uid
    row = await target.get(uid)
    if row is None or row.head == len(exported.entries):
        await import_exported(target, clock, exported, None, None)
        return row is None
    before = [(record.at, record.run, encode_event(record.event)) for record in await target.read(uid)]
    if before != [(entry.at, entry.run, entry.payload) for entry in exported.entries[: len(before)]]:
        raise Conflict("The target has another session under its uid; copy into an empty store.")
    for digest, data in exported.artifacts.items():
        await target.save_artifact(uid, digest, data)
    tail: tuple[Entry, ...] = exported.entries[len(before) :]
    state = fold(list(exported.events))
    await SessionLog(uid, target, clock).adopt(tail, state, None, behind=len(before))
    return True


def digest_log(records: Iterable[Record]) -> str:
    """Over all that a record says, in order."""
    return digest_of(
        *(f"{record.seq} {record.at!r} {record.run} {encode_event(record.event).decode()}" for record in records)
    )


async def check_session(store: Store, row: SessionRow) -> list[Finding]:
    """Whether the log is whole, lawful and what its row says it is; reading it checks seqs and digests."""
    try:
        records = await store.read(row.uid)
    except PerdureError as error:
        return [Finding(row, str(error))]
    events = [record.event for record in records]
    state = fold(events)
    wrong = [*_wrong_row(row, state, len(records)), *_wrong_epochs(row, events), *_wrong_pairs(state, events)]
    for digest in {digest: None for event in events for digest in artifacts_named(event)}:
        try:
            if digest_of(await store.load_artifact(row.uid, digest)) != digest:
                wrong.append(f"the artifact {digest} is damaged")
        except NotFound:
            wrong.append(f"the artifact {digest} is missing")
    return [Finding(row, found) for found in wrong]


def _wrong_row(row: SessionRow, state: SessionState, records: int) -> Iterator[str]:
    if row.head != records:
        yield f"its row says {row.head} records, its log has {records}"
    elif row.summary != summarise(state):
        yield "its row says something else than its log about what is to be done"
    if (state.uid, state.id, state.tenant) != (row.uid, row.id, row.tenant):
        yield f"its log is that of session {state.id!r}"


def _wrong_epochs(row: SessionRow, events: Sequence[Event]) -> Iterator[str]:
    # What a fork shares was resumed under the epochs of another session.
    first = max((at for at, event in enumerate(events) if isinstance(event, SessionOpened)), default=0)
    epochs = [event.epoch for event in events[first:] if isinstance(event, RunResumed)]
    if max(epochs, default=0) > row.epoch:
        yield f"its log was resumed under epoch {max(epochs)}, its row is at {row.epoch}"
    if epochs != sorted(set(epochs)):
        yield f"its epochs go back: {epochs}"


def _wrong_pairs(state: SessionState, events: Sequence[Event]) -> Iterator[str]:
    """Every call has one outcome and every run one end, except what is still open."""
    asked = {call.call for event in events if isinstance(event, ModelResponded) for call in event.message.calls}
    started = {event.call for event in events if isinstance(event, CallStarted)}
    ended = Counter(event.call for event in events if isinstance(event, CallEnded))
    runs = Counter(event.run for event in events if isinstance(event, RunStarted))
    ends = Counter(event.run for event in events if isinstance(event, RunEnded))
    yield from (f"call {call} has {count} outcomes" for call, count in sorted(ended.items()) if count > 1)
    yield from (f"call {call} was started, but never asked for" for call in sorted(started - asked))
    yield from (f"run {run} ends {count} times" for run, count in sorted(ends.items()) if count > runs[run])
    if state.run is None:
        yield from (f"call {call} has no outcome" for call in sorted(asked - ended.keys()))
        yield from (f"call {call} has no result behind it" for call in unpaired(transcript(state)))
