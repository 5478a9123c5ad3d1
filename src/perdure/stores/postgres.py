"""A store in PostgreSQL, which any number of processes on any machines share.

Rule 1: an append is one round trip and one transaction, durable when it returns. Rule 2: an append whose fate is not
known is sent again, byte for byte: it is there once, or it is refused, whichever of the two came through. Rule 3: no
connection is held during anybody's work.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import msgspec

from perdure.core.capacity import Capacity
from perdure.core.codec import decode_event
from perdure.core.errors import StoreError, UsageError
from perdure.core.messages import JSON
from perdure.ports import Batch, Claim, HeardQuota, Record, SessionPage, SessionQuery, SessionRow, Worker
from perdure.stores import terms
from perdure.stores.places import Places
from perdure.stores.postgres_artifacts import CHAIN, Artifacts
from perdure.stores.postgres_batch import append_values, opening_values, refusal
from perdure.stores.postgres_deltas import DeltaLines
from perdure.stores.postgres_groups import Groups, statement
from perdure.stores.postgres_link import Connection, Link, check_schema
from perdure.stores.postgres_names import kept, key, meant
from perdure.stores.postgres_owners import Owners
from perdure.stores.postgres_quotas import Quotas
from perdure.stores.postgres_transaction import PostgresTransaction
from perdure.stores.postgres_watch import Watch
from perdure.stores.postgres_work import CLAIM_WITHIN, LIVING, Due, cap_values, count_waiting, runnable

_OPEN = (
    "SELECT @schema.open_session($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19,"
    " $20, $21, $22, $23)"
)
_COLUMNS = (
    "SELECT no, uid, tenant, id, agent, status, head, epoch, owner, metadata, created_at, updated_at, summary"
    " FROM @schema.sessions WHERE NOT deleted"
)
KEPT_FREE = 2
"""So many connections are never held by tools in transactions."""

_CLAIM = (
    "WITH found AS (SELECT no, owner AS last, owner <> $2 AND NOT "
    + LIVING.format("$4")
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
    lines: DeltaLines
    quotas: Quotas
    room: asyncio.Semaphore
    artifacts: Artifacts
    groups: Groups


class PostgresStore:
    """`pooled`: the address leads through a transaction pooler; then `direct` is one for LISTEN, or it polls.

    `deltas`: pieces of answers go to whoever follows from another process. `quotas`: who is told to wait by a provider
    tells all. `artifacts`: where those lie that are longer than `artifacts_inside` bytes, as file:///… or s3://…;
    without it all are in the database.
    """

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
        deltas: bool = True,
        quotas: bool = True,
        artifacts: str | None = None,
        artifacts_inside: int = 1_000_000,
        beat: float = 2.0,
        dead_after: float = 6.0,
    ) -> None:
        check_schema(schema)
        self.url = url
        self.schema = schema
        self.direct = direct if pooled else direct or url
        self._pooled = pooled
        self._connections = connections
        self._timeout = timeout
        self._poll = poll
        self._places = None if artifacts is None else Places(artifacts)
        self._inside = artifacts_inside
        self._deltas = deltas and self.direct is not None
        self._quotas = quotas
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
                await link.open(self.direct)
                owners = Owners(link, beat=self._beat, dead_after=self._dead_after)
                lines = DeltaLines(link)
                artifacts = Artifacts(link, self._places, self._inside)
                room = asyncio.Semaphore(max(1, self._connections - KEPT_FREE))
                groups = Groups(link, self._busy)
                quotas = Quotas(link, lambda: owners.dead_after)
                lines_to = {"?": lines.heard, "~": lines.heard, "!": quotas.heard}
                watch = Watch(link, self.direct, poll=self._poll, others=lines_to, missed=quotas.look)
                self._parts = _Open(os.getpid(), link, owners, watch, lines, quotas, room, artifacts, groups)
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
                async with AsyncExitStack() as closing:  # the last first, and each whatever the others do
                    for part in (parts.link, parts.owners, parts.watch, parts.lines):
                        closing.push_async_callback(part.close)

    def _use(self) -> _Open:
        parts = self._parts
        if parts is None:
            raise terms.not_open()
        if parts.pid != os.getpid():
            raise terms.forked()
        return parts

    async def _ask(self, method: str, sql: str, *values: object, tries: int = 3) -> Any:
        """One statement, that may be sent twice; whoever closes the store waits for it.

        A value that is a function is asked anew each time.
        """
        link = self._use().link

        async def question(connection: Connection) -> Any:
            now = [value() if callable(value) else value for value in values]
            return await getattr(connection, method)(link.sql(sql), *now)

        asked = asyncio.ensure_future(link.ask(question, tries=tries))
        self._busy.add(asked)
        asked.add_done_callback(self._busy.discard)
        return await asyncio.shield(asked)

    # Facts

    async def append(self, batch: Batch) -> None:
        parts = self._use()
        terms.checked(batch)
        times = terms.times_of(batch)
        if batch.opening:
            values = opening_values(batch, times)
            said = await self._ask("fetchval", _OPEN, *values, tries=4)
        else:
            values = append_values(batch, times)
            said = await parts.groups.append(values)
        head = batch.expect + len(times)
        if said and not await self._holds(batch, said, values):
            raise refusal(batch, said)
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
            "fetch", f"{CHAIN} SELECT no, uid, head, base_seq FROM chain ORDER BY depth", key(session)
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

    def check_tool(self, name: str, *, is_async: bool) -> None:
        if self._connections <= KEPT_FREE:
            raise UsageError(f"Tool {name!r} holds a connection while it runs; give the store more than {KEPT_FREE}.")

    def begin(self) -> PostgresTransaction:
        parts = self._use()
        return PostgresTransaction(parts.link, parts.room, parts.link.sql(statement(1)), parts.watch.tell)

    def watch(self, session: str | None, notify: Callable[[int], None]) -> Callable[[], None]:
        parts = self._use()
        terms.check_text(session or "")
        return parts.watch.add(session, notify)

    def follow_deltas(self, session: str, heard: Callable[[bytes], None]) -> Callable[[], None]:
        lines = self._use().lines
        return lines.follow(session, heard) if self._deltas else _nothing

    def serve_deltas(self, session: str, wanted: Callable[[], None]) -> Callable[[], None]:
        lines = self._use().lines
        return lines.serve(session, wanted) if self._deltas else _nothing

    async def send_deltas(self, session: str, piece: bytes) -> None:
        if self._parts is not None:
            await self._parts.lines.send(session, piece)

    def follow_quotas(self, heard: HeardQuota) -> Callable[[], None]:
        parts = self._use()
        if not self._quotas:
            return _nothing
        parts.watch.start()
        return parts.quotas.follow(heard)

    async def shut_quota(self, quota: str, seconds: float) -> None:
        if self._quotas:
            await self._use().quotas.shut(quota, seconds)

    async def enter_quota(self, quota: str) -> float | None:
        return await self._use().quotas.enter(quota) if self._quotas else None

    async def answer_quota(self, quota: str, *, passed: bool) -> None:
        if self._quotas:
            await self._use().quotas.answer(quota, passed=passed)

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
        for column in ("pending", "triggers", "watches"):
            sql += f" AND {column} IS NOT NULL" if getattr(query, column) else ""
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
        await self._use().artifacts.remove_gone()

    # Ownership

    async def join(self, owner: str, about: dict[str, JSON] | None = None) -> None:
        parts = self._use()
        terms.check_text(owner)
        await parts.owners.join(owner, terms.encode_about(about))
        if self._deltas:
            # Whoever drives has to know beforehand who follows from elsewhere.
            parts.watch.start()

    async def leave(self, owner: str) -> None:
        self._check(owner)
        await self._use().owners.leave(owner)

    async def owners(self) -> Sequence[str]:
        return await self._use().owners.living()

    async def workers(self) -> Sequence[Worker]:
        return await self._use().owners.workers()

    async def claim(
        self, session: str, owner: str, *, force: bool = False, capacity: Capacity | None = None
    ) -> Claim | None:
        owners = self._use().owners
        if owner not in owners:
            raise terms.not_joined(owner)
        self._check(session)
        name, me = key(session), kept(owner)

        def dead_after() -> timedelta:  # a second try may come after an outage
            return owners.dead_after

        if capacity and capacity.caps and not force:
            row = await self._ask("fetchrow", CLAIM_WITHIN, name, me, dead_after, *cap_values(capacity))
        else:
            row = await self._ask("fetchrow", _CLAIM, name, me, force, dead_after)
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

    async def runnable(
        self,
        queues: Sequence[str] | None,
        *,
        agents: Sequence[str] | None = None,
        now: float,
        limit: int = 100,
        capacity: Capacity | None = None,
    ) -> Sequence[str]:
        self._check(*(queues or ()), *(agents or ()))
        due = Due(terms.micros(now), self._use().owners.dead_after, queues, agents)
        return await runnable(self._ask, due, limit, capacity)

    async def count_waiting(self, tenant: str | None, *, now: float, limit: int) -> int:
        self._check(tenant or "")
        due = Due(terms.micros(now), self._use().owners.dead_after)
        return await count_waiting(self._ask, due, tenant, limit)

    # Slots beside the log

    async def save_artifact(self, session: str, digest: str, data: bytes) -> None:
        self._check(session, digest)
        await self._use().artifacts.save(session, digest, data)

    async def load_artifact(self, session: str, digest: str) -> bytes:
        self._check(session, digest)
        return await self._use().artifacts.load(session, digest)

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


def _nothing() -> None: ...


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
