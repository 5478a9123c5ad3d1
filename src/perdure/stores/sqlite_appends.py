"""How facts get into the tables, inside the writer's transaction.

Rule 1: an append that is refused has changed nothing, so its neighbours in the transaction may go on. Rule
2: an append is one conditional update of the session's row; only if that hit are its records written.
"""

from __future__ import annotations

import msgspec

from perdure.core.codec import encode_json
from perdure.core.views import Summary
from perdure.ports import Batch, Opening
from perdure.stores import terms
from perdure.stores.sqlite_file import Connection

Row = tuple[int, int, int, int, bytes, bytes]
"""A record as it is kept: session number, seq, time, run, digest, payload."""

_CACHED_SESSIONS = 10_000

_ADVANCE = (
    "UPDATE sessions SET head = ?, updated_at = ?"
    " WHERE no = ? AND head = ? AND epoch = ifnull(?, epoch) AND deleted = 0"
)
_ADVANCE_SUMMARY = (
    "UPDATE sessions SET head = ?, updated_at = ?,"
    " agent = ?, status = ?, wake = ?, pending = ?, triggers = ?, watches = ?, queue = ?, priority = ?, summary = ?"
    " WHERE no = ? AND head = ? AND epoch = ifnull(?, epoch) AND deleted = 0"
)
_INSERT_SESSION = (
    "INSERT INTO sessions (uid, tenant, id, epoch, head, base, base_seq, created_at, updated_at,"
    " agent, status, wake, pending, triggers, watches, queue, priority, summary, metadata)"
    f" VALUES ({', '.join('?' * 19)})"
)
_INSERT_RECORD = "INSERT INTO records (no, seq, at, run, digest, payload) VALUES (?, ?, ?, ?, ?, ?)"


class _Known(msgspec.Struct):
    """A session's number, and the summary that its row holds for as long as its head is `head`."""

    no: int
    head: int = -1
    summary: Summary | None = None


class Appends:
    """Appends on one connection; what it remembers must be forgotten when a transaction fails."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._cursor = connection.cursor()
        self._known: dict[str, _Known] = {}
        self._rows: list[Row] = []

    def append(self, batch: Batch) -> None:
        times = terms.times_of(batch)
        opening = batch.opening
        no = self._insert(batch, opening, times) if opening else self._advance(batch, times[-1])
        self._rows += _rows(batch, no, times)
        if batch.drops_draft:
            self._cursor.execute("DELETE FROM drafts WHERE no = ?", (no,))

    def flush(self) -> None:
        """Writes the records that the appends have gathered."""
        if self._rows:
            self._cursor.executemany(_INSERT_RECORD, self._rows)
            self._rows.clear()

    def forget(self) -> None:
        self._known.clear()
        self._rows.clear()

    def holds(self, batch: Batch) -> bool:
        """Whether an append is there although its commit was said to have failed."""
        no = self._cursor.execute("SELECT no FROM sessions WHERE uid = ? AND deleted = 0", (batch.session,)).get
        found = self._cursor.execute(
            "SELECT no, seq, at, run, digest, payload FROM records WHERE no = ? AND seq > ? ORDER BY seq LIMIT ?",
            (no, batch.expect, len(batch.entries)),
        ).fetchall()
        return found == _rows(batch, no, terms.times_of(batch))

    def _advance(self, batch: Batch, at: int) -> int:
        known = self._known.get(batch.session)
        if known is not None and self._update(known, batch, at):
            return known.no
        row = self._cursor.execute(
            "SELECT no, head, epoch FROM sessions WHERE uid = ? AND deleted = 0", (batch.session,)
        ).get
        if row is None:
            raise terms.unknown(batch.session)
        no, head, epoch = row
        if batch.epoch is not None and batch.epoch != epoch:
            raise terms.stale(batch.session)
        if head != batch.expect:
            raise terms.moved(batch.session, batch.expect, head)
        self._update(self._remember(batch.session, _Known(no)), batch, at)
        return no

    def _update(self, known: _Known, batch: Batch, at: int) -> bool:
        head = batch.expect + len(batch.entries)
        summary = batch.summary
        where = (known.no, batch.expect, batch.epoch)
        if known.head == batch.expect and known.summary == summary:
            self._cursor.execute(_ADVANCE, (head, at, *where))
        else:
            self._cursor.execute(_ADVANCE_SUMMARY, (head, at, *_columns(summary), *where))
        if not self._connection.changes():
            return False
        known.head = head
        known.summary = summary
        return True

    def _insert(self, batch: Batch, opening: Opening, times: list[int]) -> int:
        execute = self._cursor.execute
        if execute("SELECT 1 FROM sessions WHERE uid = ?", (batch.session,)).get:
            raise terms.taken(batch.session)
        named = "SELECT 1 FROM sessions WHERE tenant = ? AND id = ? AND deleted = 0"
        if execute(named, (opening.tenant, opening.id)).get:
            raise terms.id_taken(opening.tenant, opening.id)
        base = self._base(opening.base, batch.expect)
        head = batch.expect + len(times)
        names = (batch.session, opening.tenant, opening.id, opening.epoch)
        past = (head, base, batch.expect, times[0], times[-1])
        execute(_INSERT_SESSION, (*names, *past, *_columns(batch.summary), encode_json(opening.metadata)))
        no = self._connection.last_insert_rowid()
        self._cursor.executemany(
            "INSERT INTO metadata (key, value, no) VALUES (?, ?, ?)",
            [(key, value, no) for key, value in opening.metadata.items()],
        )
        self._remember(batch.session, _Known(no, head, batch.summary))
        return no

    def _base(self, base: str | None, expect: int) -> int | None:
        if base is None:
            return None
        row = self._cursor.execute("SELECT no, head FROM sessions WHERE uid = ? AND deleted = 0", (base,)).get
        if row is None:
            raise terms.unknown(base)
        no, head = row
        if expect > head:
            raise terms.short_base(base, expect, head)
        return no

    def _remember(self, session: str, known: _Known) -> _Known:
        if len(self._known) >= _CACHED_SESSIONS:
            self._known.clear()
        self._known[session] = known
        return known


def _columns(summary: Summary) -> tuple[str | int | bytes | None, ...]:
    counts = (len(summary.pending) or None, summary.triggers or None, summary.watches or None)
    place = (summary.queue or None, summary.priority)
    return summary.agent, summary.status, terms.wake_of(summary), *counts, *place, terms.encode_summary(summary)


def _rows(batch: Batch, no: int, times: list[int]) -> list[Row]:
    uid = batch.session.encode()
    return [
        (no, seq, at, entry.run, terms.digest(uid, seq, at, entry.run, entry.payload), entry.payload)
        for seq, (entry, at) in enumerate(zip(batch.entries, times, strict=True), batch.expect + 1)
    ]
