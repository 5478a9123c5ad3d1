"""The questions to the tables.

Rule 1: values reach SQLite as bound parameters only. Rule 2: rows are fetched before they are looked at: an
error that keeps a cursor alive would keep its old view of the store alive too. Rule 3: a record whose
digest does not fit is never handed out, and neither is a log with a gap.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from perdure.core.codec import decode_event
from perdure.core.errors import StoreError
from perdure.ports import Record, SessionPage, SessionQuery, SessionRow, Worker
from perdure.stores import terms
from perdure.stores.sqlite_file import Connection
from perdure.stores.sqlite_owners import Owners

_TABLE = "FROM sessions"
_COLUMNS = (
    "SELECT no, uid, tenant, id, agent, status, head, epoch, owner, metadata, created_at, updated_at, summary"
    f" {_TABLE} WHERE deleted = 0"
)
_CHAIN = (
    "WITH RECURSIVE chain (depth, no, uid, head, base, base_seq) AS ("
    " SELECT 0, no, uid, head, base, base_seq FROM sessions WHERE uid = ? AND deleted = 0"
    " UNION ALL SELECT depth + 1, s.no, s.uid, s.head, s.base, s.base_seq"
    " FROM chain JOIN sessions s ON s.no = chain.base)"
)


def get(connection: Connection, session: str) -> SessionRow | None:
    return _first(connection.execute(f"{_COLUMNS} AND uid = ?", (session,)).fetchall())


def find(connection: Connection, tenant: str, id: str) -> SessionRow | None:
    return _first(connection.execute(f"{_COLUMNS} AND tenant = ? AND id = ?", (tenant, id)).fetchall())


def workers(connection: Connection, owners: Owners) -> list[Worker]:
    sql = "SELECT owner, count(*) FROM sessions WHERE owner IS NOT NULL GROUP BY owner"
    held = {owner: int(count) for owner, count in connection.execute(sql).fetchall()}
    living = sorted(owners.living().items())
    return [Worker(owner, held.get(owner, 0), terms.decode_about(about)) for owner, about in living]


def page(connection: Connection, query: SessionQuery, before: int | None) -> SessionPage:
    rare = [name for name in ("watches", "triggers", "pending") if getattr(query, name)]
    conditions = {
        " AND no < ?": before,
        " AND tenant = ?": query.tenant,
        " AND agent = ?": query.agent,
        " AND status = ?": query.status,
    }
    # Few sessions have what is rare; but the table is in order already, and SQLite would rather read all of it.
    table = f"FROM sessions INDEXED BY sessions_{rare[0]}" if rare else _TABLE
    sql = _COLUMNS.replace(_TABLE, table) + "".join(
        condition for condition, value in conditions.items() if value is not None
    )
    values: list[str | int] = [value for value in conditions.values() if value is not None]
    for item in query.metadata.items():
        sql += " AND no IN (SELECT no FROM metadata WHERE key = ? AND value = ?)"
        values += item
    for column in rare:
        sql += f" AND {column} IS NOT NULL"
    rows = connection.execute(f"{sql} ORDER BY no DESC LIMIT ?", (*values, query.limit + 1)).fetchall()
    shown = rows[: query.limit]
    cursor = terms.encode_cursor(shown[-1][0]) if len(rows) > len(shown) else None
    return SessionPage(tuple(map(_session_row, shown)), cursor)


def read(connection: Connection, session: str, after: int, limit: int | None) -> list[Record]:
    segments = connection.execute(
        f"{_CHAIN} SELECT no, uid, head, base_seq FROM chain ORDER BY depth", (session,)
    ).fetchall()
    parts: list[list[Record]] = []
    if not segments:
        raise terms.unknown(session)
    end: int = segments[0][2] if limit is None else min(segments[0][2], after + max(limit, 0))
    for no, uid, _, start in segments:
        first = max(after, start)
        if first < end:
            parts.append(list(_records(connection, session, (no, uid), first, end)))
        end = min(end, start)
    return [record for part in reversed(parts) for record in part]


def _records(connection: Connection, session: str, place: tuple[int, str], after: int, end: int) -> Iterator[Record]:
    no, uid = place
    key = uid.encode()
    rows = connection.execute(
        "SELECT seq, at, run, digest, payload FROM records WHERE no = ? AND seq > ? AND seq <= ? ORDER BY seq",
        (no, after, end),
    ).fetchall()
    expected = after
    for seq, at, run, kept, payload in rows:
        expected += 1
        if seq != expected or kept != terms.digest(key, seq, at, run, payload):
            break
        yield Record(session, seq, at / 1_000_000, run, decode_event(payload))
    else:
        if expected == end:
            return
        expected += 1
    raise StoreError(f"Record {expected} of session {uid!r} is damaged; restore the store from a backup.")


def load_artifact(connection: Connection, session: str, name: str) -> bytes:
    data = connection.execute(
        f"{_CHAIN} SELECT data FROM chain JOIN artifacts USING (no) WHERE digest = ? ORDER BY depth LIMIT 1",
        (session, name),
    ).get
    if data is None:
        raise terms.unknown_artifact(session, name)
    return data


def read_draft(connection: Connection, session: str) -> Sequence[bytes]:
    no = connection.execute("SELECT no FROM sessions WHERE uid = ? AND deleted = 0", (session,)).get
    if no is None:
        raise terms.unknown(session)
    rows = connection.execute("SELECT chunk FROM drafts WHERE no = ? ORDER BY id", (no,)).fetchall()
    return tuple(chunk for (chunk,) in rows)


def _first(rows: list[tuple[Any, ...]]) -> SessionRow | None:
    return _session_row(rows[0]) if rows else None


def _session_row(row: tuple[Any, ...]) -> SessionRow:
    _, uid, tenant, id, agent, status, head, epoch, owner, metadata, created_at, updated_at, summary = row
    return SessionRow(
        uid,
        tenant,
        id,
        agent,
        status,
        head,
        epoch,
        owner,
        terms.decode_metadata(metadata),
        created_at / 1_000_000,
        updated_at / 1_000_000,
        terms.decode_summary(summary),
    )
