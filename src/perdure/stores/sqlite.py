"""A store in one SQLite file, which several processes of one machine may open at once.

Rule 1: what `append` returned from has been fsynced. Rule 2: one thread writes, others read; the loop never
waits for the file. Rule 3: a store opened before fork() serves only the process that opened it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar, cast

import msgspec

from perdure.core.capacity import Capacity
from perdure.core.errors import UsageError
from perdure.core.messages import JSON
from perdure.ports import Batch, Claim, Record, SessionPage, SessionQuery, SessionRow, Worker
from perdure.stores import sqlite_reads, sqlite_work, sqlite_writes, terms
from perdure.stores.sqlite_file import Connection, SqliteFile
from perdure.stores.sqlite_owners import Owners
from perdure.stores.sqlite_readers import Readers
from perdure.stores.sqlite_transaction import SqliteTransaction
from perdure.stores.sqlite_watch import Watch
from perdure.stores.sqlite_writer import Writer

T = TypeVar("T")


class _Open(msgspec.Struct, frozen=True):
    """The parts of a store that is open."""

    pid: int
    owners: Owners
    watch: Watch
    writer: Writer
    readers: Readers


class SqliteStore:
    """`on_commit`, if set before `open`, is called inside every commit: a fault point for tests."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        busy_timeout: float = 5.0,
        poll: float = 0.1,
        beat: float = 2.0,
        dead_after: float = 6.0,
    ) -> None:
        self.path = path
        self.on_commit: Callable[[], None] | None = None
        self._busy_timeout = busy_timeout
        self._poll = poll
        self._beat = beat
        self._dead_after = dead_after
        self._parts: _Open | None = None
        self._opened = 0
        self._turn = asyncio.Lock()
        self._tools_turn = asyncio.Lock()

    async def open(self) -> None:
        async with self._turn:
            if self._parts is None:
                self._parts = await self._opened_parts()
            self._use()
            self._opened += 1

    async def _opened_parts(self) -> _Open:
        file = SqliteFile(self.path, busy_timeout=self._busy_timeout)
        await asyncio.to_thread(file.prepare)
        owners = Owners(f"{file.path}-owners", dead_after=self._dead_after)
        watch = Watch(file, owners, poll=self._poll, beat=self._beat)
        writer = Writer(file, watch, self.on_commit)
        return _Open(os.getpid(), owners, watch, writer, Readers(file))

    async def close(self) -> None:
        async with self._turn:
            if self._parts is None:
                return
            parts = self._use()
            self._opened -= 1
            if self._opened == 0:
                self._parts = None
                parts.writer.close()
                parts.readers.close()
                await asyncio.to_thread(_end, parts)

    def _use(self) -> _Open:
        parts = self._parts
        if parts is None:
            raise terms.not_open()
        if parts.pid != os.getpid():
            raise terms.forked()
        return parts

    def _write(self, write: Callable[[Connection], T]) -> asyncio.Future[T]:
        return cast("asyncio.Future[T]", self._use().writer.submit(write))

    def _ask(self, question: Callable[[Connection], T]) -> asyncio.Future[T]:
        return self._use().readers.ask(question)

    # Facts

    async def append(self, batch: Batch) -> None:
        parts = self._use()
        terms.checked(batch)
        await parts.writer.submit(batch)

    async def read(self, session: str, *, after: int = 0, limit: int | None = None) -> list[Record]:
        return await self._ask(partial(sqlite_reads.read, session=session, after=after, limit=limit))

    def watch(self, session: str | None, notify: Callable[[int], None]) -> Callable[[], None]:
        parts = self._use()
        terms.check_text(session or "")
        return parts.watch.add(session, notify)

    def check_tool(self, name: str, *, is_async: bool) -> None:
        if is_async:
            raise UsageError(f"On SQLite a transactional tool runs in the writer's thread; make {name!r} no async one.")

    def begin(self) -> SqliteTransaction:
        return SqliteTransaction(self._use().writer, self._tools_turn)

    # Sessions

    async def find(self, tenant: str, id: str) -> SessionRow | None:
        return await self._ask(partial(sqlite_reads.find, tenant=tenant, id=id))

    async def get(self, session: str) -> SessionRow | None:
        return await self._ask(partial(sqlite_reads.get, session=session))

    async def list(self, query: SessionQuery) -> SessionPage:
        self._use()
        terms.check_query(query)
        before = None if query.cursor is None else terms.decode_cursor(query.cursor)
        return await self._ask(partial(sqlite_reads.page, query=query, before=before))

    async def delete(self, session: str) -> None:
        owners = self._use().owners
        await self._write(partial(sqlite_writes.delete, owners=owners, session=session))

    # Ownership

    async def join(self, owner: str, about: dict[str, JSON] | None = None) -> None:
        parts = self._use()
        terms.check_text(owner)
        said = terms.encode_about(about)
        await self._write(partial(sqlite_writes.join, owners=parts.owners, owner=owner, about=said))
        parts.watch.start()

    async def leave(self, owner: str) -> None:
        owners = self._use().owners
        await self._write(partial(sqlite_writes.leave, owners=owners, owner=owner))

    async def owners(self) -> Sequence[str]:
        owners = self._use().owners
        return await self._ask(lambda _: sorted(owners.living()))

    async def workers(self) -> Sequence[Worker]:
        return await self._ask(partial(sqlite_reads.workers, owners=self._use().owners))

    async def claim(
        self, session: str, owner: str, *, force: bool = False, capacity: Capacity | None = None
    ) -> Claim | None:
        owners = self._use().owners
        if owner not in owners:
            raise terms.not_joined(owner)
        claim = partial(sqlite_writes.claim, owners=owners, session=session, owner=owner, force=force)
        return await self._write(partial(claim, capacity=capacity if capacity and capacity.caps else None))

    async def release(self, session: str, *, epoch: int, head: int) -> bool:
        return await self._write(partial(sqlite_writes.release, session=session, epoch=epoch, head=head))

    async def runnable(
        self,
        queues: Sequence[str] | None,
        *,
        agents: Sequence[str] | None = None,
        now: float,
        limit: int = 100,
        capacity: Capacity | None = None,
    ) -> Sequence[str]:
        due = sqlite_work.Due(terms.micros(now), self._use().owners, queues, agents)
        bounded = capacity if capacity and capacity.caps else None
        return await self._ask(partial(sqlite_work.runnable, due=due, limit=max(limit, 0), capacity=bounded))

    async def count_waiting(self, tenant: str | None, *, now: float, limit: int) -> int:
        due = sqlite_work.Due(terms.micros(now), self._use().owners)
        return await self._ask(partial(sqlite_work.count_waiting, due=due, tenant=tenant, limit=max(limit, 0)))

    # Slots beside the log

    async def save_artifact(self, session: str, digest: str, data: bytes) -> None:
        self._use()
        terms.check_text(digest)
        await self._write(partial(sqlite_writes.save_artifact, session=session, digest=digest, data=data))

    async def load_artifact(self, session: str, digest: str) -> bytes:
        return await self._ask(partial(sqlite_reads.load_artifact, session=session, name=digest))

    async def append_draft(self, session: str, chunk: bytes, *, epoch: int) -> None:
        await self._write(partial(sqlite_writes.append_draft, session=session, chunk=chunk, epoch=epoch))

    async def read_draft(self, session: str) -> Sequence[bytes]:
        return await self._ask(partial(sqlite_reads.read_draft, session=session))


def _end(parts: _Open) -> None:
    parts.writer.join()
    parts.readers.join()
    parts.watch.close()
    parts.owners.leave_all()
