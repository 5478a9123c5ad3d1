"""A store in PostgreSQL, which any number of processes on any machines share.

Rule 1: an append is one round trip and one transaction, durable when it returns. Rule 2: an append whose fate is not
known is sent again, byte for byte: it is there once, or it is refused, whichever of the two came through. Rule 3: no
connection is held during anybody's work.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.core.codec import decode_event, encode_json
from perdure.core.errors import PerdureError, StoreError
from perdure.core.messages import JSON
from perdure.ports import Batch, Claim, Record, SessionPage, SessionQuery, SessionRow, Worker
from perdure.stores import terms
from perdure.stores.postgres_link import Link, check_schema
from perdure.stores.postgres_names import kept, key, meant
from perdure.stores.postgres_owners import Owners
from perdure.stores.postgres_watch import Watch

if TYPE_CHECKING:
    from asyncpg import Connection

_APPEND = "SELECT @schema.append($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)"
_OPEN = (
    "SELECT @schema.open_session($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)"
)
_COLUMNS = (
    "SELECT no, uid, tenant, id, agent, status, head, epoch, owner, metadata, created_at, updated_at, summary"
    " FROM @schema.sessions WHERE NOT deleted"
)
_CHAIN = (
    "WITH RECURSIVE chain (depth, no, uid, head, base, base_seq) AS ("
    " SELECT 0, no, uid, head, base, base_seq FROM @schema.sessions WHERE uid_key = $1 AND NOT deleted"
    " UNION ALL SELECT depth + 1, s.no, s.uid, s.head, s.base, s.base_seq"
    " FROM chain JOIN @schema.sessions s ON s.no = chain.base)"
)
_LIVING = "EXISTS (SELECT FROM @schema.owners o WHERE o.owner = s.owner AND o.beat_at > now() - {}::interval)"


_CLAIM = (
    "WITH found AS (SELECT no, owner AS last, owner <> $2 AND NOT "
    + _LIVING.format("$4")
    + " AS died FROM @schema.sessions s WHERE uid_key = $1 AND NOT deleted FOR UPDATE)"
    " UPDATE @schema.sessions s SET epoch = epoch + 1, owner = $2 FROM found WHERE s.no = found.no"
    " AND ($3 OR last IS NULL OR last = $2 OR died) RETURNING epoch, head, CASE WHEN died THEN last END AS last"
)


class _Open(msgspec.Struct, frozen=True):
    """The parts of a store that is open."""

    pid: int
    link: Link
    owners: Owners
    watch: Watch


class PostgresStore:
    """`pooled`: the address leads through a transaction pooler; then `direct` is one for LISTEN, or it polls."""

    def __init__(
        self,
        url: str,
        *,
        schema: str = "perdure",
        direct: str | None = None,
        pooled: bool = False,
        connections: int = 10,
        timeout: float = 10.0,
        poll: float = 0.2,
        beat: float = 2.0,
        dead_after: float = 6.0,
    ) -> None:
        check_schema(schema)
        self.url = url
        self.schema = schema
        self._direct = direct if pooled else direct or url
        self._pooled = pooled
        self._connections = connections
        self._timeout = timeout
        self._poll = poll
        self._beat = beat
        self._dead_after = dead_after
        self._parts: _Open | None = None
        self._opened = 0
        self._turn = asyncio.Lock()
        self._busy: set[asyncio.Future[Any]] = set()

    async def open(self) -> None:
        async with self._turn:
            if self._parts is None:
                link = Link(
                    self.url,
                    schema=self.schema,
                    connections=self._connections,
                    timeout=self._timeout,
                    pooled=self._pooled,
                )
                await link.open()
                owners = Owners(link, beat=self._beat, dead_after=self._dead_after)
                self._parts = _Open(os.getpid(), link, owners, Watch(link, self._direct, poll=self._poll))
            self._use()
            self._opened += 1

    async def close(self) -> None:
        async with self._turn:
            if self._parts is None:
                return
            parts = self._use()
            self._opened -= 1
            if self._opened == 0:
                self._parts = None
                if self._busy:
                    await asyncio.wait(self._busy)
                await parts.watch.close()
                await parts.owners.close()
                await parts.link.close()

    def _use(self) -> _Open:
        parts = self._parts
        if parts is None:
            raise terms.not_open()
        if parts.pid != os.getpid():
            raise terms.forked()
        return parts

    async def _ask(self, method: str, sql: str, *values: object, tries: int = 3) -> Any:
        """One statement, that may be sent twice; whoever closes the store waits for it."""
        link = self._use().link

        async def question(connection: Connection) -> Any:
            return await getattr(connection, method)(link.sql(sql), *values)

        asked = asyncio.ensure_future(link.ask(question, tries=tries))
        self._busy.add(asked)
        asked.add_done_callback(self._busy.discard)
        return await asyncio.shield(asked)

    # Facts

    async def append(self, batch: Batch) -> None:
        parts = self._use()
        terms.checked(batch)
        times = [terms.micros(entry.at) for entry in batch.entries]
        sql, values = (_OPEN, _opening_values(batch, times)) if batch.opening else (_APPEND, _values(batch, times))
        said = await self._ask("fetchval", sql, *values, tries=4)
        head = batch.expect + len(times)
        if said and not await self._holds(batch, said, values):
            raise _refusal(batch, said)
        parts.watch.tell(key(batch.session), head)

    async def _holds(self, batch: Batch, said: str, values: tuple[object, ...]) -> bool:
        """Whether it was refused because the first of two sendings, whose answer got lost, has come through."""
        if not (said.startswith("moved") or said == "taken"):
            return False
        digests = values[6]
        sql = (
            "SELECT array_agg(digest ORDER BY seq) FROM @schema.records JOIN @schema.sessions s USING (no)"
            " WHERE s.uid_key = $1 AND NOT s.deleted AND seq > $2 AND seq <= $3"
        )
        until = batch.expect + len(batch.entries)
        return await self._ask("fetchval", sql, key(batch.session), batch.expect, until) == digests

    async def read(self, session: str, *, after: int = 0, limit: int | None = None) -> list[Record]:
        self._check(session)
        segments = await self._ask(
            "fetch", f"{_CHAIN} SELECT no, uid, head, base_seq FROM chain ORDER BY depth", key(session)
        )
        if not segments:
            raise terms.unknown(session)
        head = segments[0]["head"]
        end = head if limit is None else min(head, after + max(limit, 0))
        parts: list[list[Record]] = []
        for segment in segments:
            first = max(after, segment["base_seq"])
            if first < end:
                parts.append(await self._records(session, segment, first, end))
            end = min(end, segment["base_seq"])
        return [record for part in reversed(parts) for record in part]

    async def _records(self, session: str, segment: Any, after: int, end: int) -> list[Record]:
        rows = await self._ask(
            "fetch",
            "SELECT seq, at, run, digest, payload FROM @schema.records WHERE no = $1 AND seq > $2 AND seq <= $3"
            " ORDER BY seq",
            segment["no"],
            after,
            end,
        )
        uid = meant(segment["uid"])
        name = uid.encode()
        records: list[Record] = []
        for expected, (seq, at, run, digest, payload) in enumerate(rows, after + 1):
            if seq != expected or digest != terms.digest(name, seq, at, run, payload):
                raise _damaged(expected, uid)
            records.append(Record(session, seq, at / 1_000_000, run, decode_event(payload)))
        if len(records) != end - after:
            raise _damaged(after + len(records) + 1, uid)
        return records

    def watch(self, session: str | None, notify: Callable[[int], None]) -> Callable[[], None]:
        parts = self._use()
        terms.check_text(session or "")
        return parts.watch.add(session, notify)

    # Sessions

    async def find(self, tenant: str, id: str) -> SessionRow | None:
        self._check(tenant, id)
        row = await self._ask("fetchrow", f"{_COLUMNS} AND id_key = $1", key(tenant, id))
        return _session_row(row) if row else None

    async def get(self, session: str) -> SessionRow | None:
        self._check(session)
        row = await self._ask("fetchrow", f"{_COLUMNS} AND uid_key = $1", key(session))
        return _session_row(row) if row else None

    async def list(self, query: SessionQuery) -> SessionPage:
        self._use()
        terms.check_query(query)
        sql, values = _COLUMNS, list[object]()

        def add(condition: str, value: object) -> None:
            nonlocal sql
            values.append(value)
            sql += f" AND {condition.format(f'${len(values)}')}"

        if query.cursor is not None:
            add("no < {}", terms.decode_cursor(query.cursor))
        if query.tenant is not None:
            add("md5(tenant) = md5({0}) AND tenant = {0}", kept(query.tenant))
        if query.agent is not None:
            add("agent = {}", kept(query.agent))
        if query.status is not None:
            add("status = {}", query.status)
        for name, value in query.metadata.items():
            add("no IN (SELECT no FROM @schema.metadata WHERE item = {})", key(name, value))
        if query.pending:
            sql += " AND pending IS NOT NULL"
        values.append(query.limit + 1)
        rows = await self._ask("fetch", f"{sql} ORDER BY no DESC LIMIT ${len(values)}", *values)
        shown = rows[: query.limit]
        cursor = terms.encode_cursor(shown[-1]["no"]) if len(rows) > len(shown) else None
        return SessionPage(tuple(map(_session_row, shown)), cursor)

    async def delete(self, session: str) -> None:
        owners = self._use().owners
        self._check(session)
        said = await self._ask(
            "fetchval", "SELECT @schema.delete_session($1, $2)", key(session), owners.dead_after, tries=1
        )
        if said:
            raise terms.driven(session) if said == "driven" else terms.unknown(session)

    # Ownership

    async def join(self, owner: str, about: dict[str, JSON] | None = None) -> None:
        owners = self._use().owners
        terms.check_text(owner)
        await owners.join(owner, terms.encode_about(about))

    async def leave(self, owner: str) -> None:
        self._check(owner)
        await self._use().owners.leave(owner)

    async def owners(self) -> Sequence[str]:
        return await self._use().owners.living()

    async def workers(self) -> Sequence[Worker]:
        return await self._use().owners.workers()

    async def claim(self, session: str, owner: str, *, force: bool = False) -> Claim | None:
        owners = self._use().owners
        if owner not in owners:
            raise terms.not_joined(owner)
        self._check(session)
        row = await self._ask(
            "fetchrow",
            _CLAIM,
            key(session),
            kept(owner),
            force,
            owners.dead_after,
        )
        if row is not None:
            return Claim(row["epoch"], row["head"], None if row["last"] is None else meant(row["last"]))
        await self._require(session)
        return None

    async def release(self, session: str, *, epoch: int, head: int) -> bool:
        self._check(session)
        row = await self._ask(
            "fetchrow",
            "UPDATE @schema.sessions SET owner = NULL WHERE uid_key = $1 AND NOT deleted AND epoch = $2 AND head = $3"
            " RETURNING no",
            key(session),
            epoch,
            head,
        )
        if row is None and await self._require(session) != epoch:
            raise terms.stale(session)
        return row is not None

    async def _require(self, session: str) -> int:
        """The epoch of a session that has to be there."""
        sql = "SELECT epoch FROM @schema.sessions WHERE uid_key = $1 AND NOT deleted"
        epoch = await self._ask("fetchval", sql, key(session))
        if epoch is None:
            raise terms.unknown(session)
        return epoch

    async def runnable(self, agents: Sequence[str], *, now: float, limit: int = 100) -> Sequence[str]:
        owners = self._use().owners
        self._check(*agents)
        rows = await self._ask(
            "fetch",
            "SELECT uid FROM @schema.sessions s WHERE wake IS NOT NULL AND wake <= $1 AND agent = ANY($2)"
            f" AND (owner IS NULL OR NOT {_LIVING.format('$3')})"
            " ORDER BY CASE wake WHEN 0 THEN updated_at ELSE wake END, no LIMIT $4",
            terms.micros(now),
            [kept(agent) for agent in agents],
            owners.dead_after,
            max(limit, 0),
        )
        return [meant(row["uid"]) for row in rows]

    # Slots beside the log

    async def save_artifact(self, session: str, digest: str, data: bytes) -> None:
        self._check(session, digest)
        saved = await self._ask(
            "fetchval",
            "WITH s AS (SELECT no FROM @schema.sessions WHERE uid_key = $1 AND NOT deleted),"
            " saved AS (INSERT INTO @schema.artifacts (no, digest, data) SELECT no, $2, $3 FROM s"
            " ON CONFLICT DO NOTHING) SELECT no FROM s",
            key(session),
            key(digest),
            data,
        )
        if saved is None:
            raise terms.unknown(session)

    async def load_artifact(self, session: str, digest: str) -> bytes:
        self._check(session, digest)
        data = await self._ask(
            "fetchval",
            f"{_CHAIN} SELECT data FROM chain JOIN @schema.artifacts USING (no) WHERE digest = $2"
            " ORDER BY depth LIMIT 1",
            key(session),
            key(digest),
        )
        if data is None:
            raise terms.unknown_artifact(session, digest)
        return data

    async def append_draft(self, session: str, chunk: bytes, *, epoch: int) -> None:
        self._check(session)
        saved = await self._ask(
            "fetchval",
            "INSERT INTO @schema.drafts (no, chunk) SELECT no, $2 FROM @schema.sessions"
            " WHERE uid_key = $1 AND NOT deleted AND epoch = $3 RETURNING no",
            key(session),
            chunk,
            epoch,
            tries=1,
        )
        if saved is None:
            await self._require(session)
            raise terms.stale(session)

    async def read_draft(self, session: str) -> Sequence[bytes]:
        self._check(session)
        await self._require(session)
        rows = await self._ask(
            "fetch",
            "SELECT chunk FROM @schema.drafts WHERE no = (SELECT no FROM @schema.sessions WHERE uid_key = $1"
            " AND NOT deleted) ORDER BY id",
            key(session),
        )
        return tuple(row["chunk"] for row in rows)

    def _check(self, *texts: str) -> None:
        self._use()
        for text in texts:
            terms.check_text(text)


def _values(batch: Batch, times: Sequence[int]) -> tuple[object, ...]:
    return (*_facts(batch, times, batch.epoch), batch.drops_draft)


def _facts(batch: Batch, times: Sequence[int], epoch: int | None) -> tuple[object, ...]:
    uid, summary = batch.session.encode(), batch.summary
    numbered = list(enumerate(zip(batch.entries, times, strict=True), batch.expect + 1))
    return (
        key(batch.session),
        kept(batch.session),
        batch.expect,
        epoch,
        list(times),
        [entry.run for entry in batch.entries],
        [terms.digest(uid, seq, at, entry.run, entry.payload) for seq, (entry, at) in numbered],
        [entry.payload for entry in batch.entries],
        kept(summary.agent),
        summary.status,
        terms.wake_of(summary),
        len(summary.pending) or None,
        terms.encode_summary(summary),
    )


def _opening_values(batch: Batch, times: Sequence[int]) -> tuple[object, ...]:
    opening = batch.opening
    assert opening is not None
    return (
        *_facts(batch, times, opening.epoch),
        key(opening.tenant, opening.id),
        kept(opening.tenant),
        kept(opening.id),
        encode_json(opening.metadata),
        [key(name, value) for name, value in opening.metadata.items()],
        None if opening.base is None else key(opening.base),
    )


def _refusal(batch: Batch, said: str) -> PerdureError:
    what, _, head = said.partition(" ")
    opening = batch.opening
    match said if opening else what:
        case "stale":
            return terms.stale(batch.session)
        case "moved":
            return terms.moved(batch.session, batch.expect, int(head))
        case "taken":
            return terms.taken(batch.session)
        case "id taken" if opening:
            return terms.id_taken(opening.tenant, opening.id)
        case "no base" if opening:
            return terms.unknown(opening.base or "")
        case short if opening and short.startswith("short"):
            return terms.short_base(opening.base or "", batch.expect, int(head))
        case _:
            return terms.unknown(batch.session)


def _damaged(seq: int, uid: str) -> StoreError:
    return StoreError(f"Record {seq} of session {uid!r} is damaged; restore the store from a backup.")


def _session_row(row: Any) -> SessionRow:
    return SessionRow(
        meant(row["uid"]),
        meant(row["tenant"]),
        meant(row["id"]),
        meant(row["agent"]),
        row["status"],
        row["head"],
        row["epoch"],
        None if row["owner"] is None else meant(row["owner"]),
        terms.decode_metadata(row["metadata"]),
        row["created_at"] / 1_000_000,
        row["updated_at"] / 1_000_000,
        terms.decode_summary(row["summary"]),
    )
