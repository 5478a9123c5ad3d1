"""A store in this process's memory: for tests, and for work that need not outlive the process.

Rule 1: nothing awaits, so every method is one atomic step of the loop. Rule 2: it keeps bytes and decodes
on reading, so that what comes back is what a store on disk would give. Rule 3: a base is kept until the
last fork that reads it goes.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import msgspec

from perdure.core.capacity import Capacity
from perdure.core.codec import decode_event
from perdure.core.messages import JSON
from perdure.core.views import Summary
from perdure.ports import Batch, Claim, Opening, Record, SessionPage, SessionQuery, SessionRow, Worker
from perdure.stores import terms
from perdure.stores.shares import Shares, in_turn

Line = tuple[int, int, bytes]
"""A record as it is kept: time in microseconds, run, payload."""

Watchers = dict[object, Callable[[int], None]]


class _Log(msgspec.Struct):
    """One session. `lines` are its own records, from `start` + 1 on; what is before them is its base's."""

    no: int
    uid: str
    opening: Opening
    base: _Log | None
    start: int
    summary: Summary
    wake: int | None
    created: int
    updated: int
    lines: list[Line] = []
    epoch: int = 0
    owner: str | None = None
    deleted: bool = False
    forks: int = 0
    artifacts: dict[str, bytes] = {}
    draft: list[bytes] = []

    @property
    def head(self) -> int:
        return self.start + len(self.lines)


class MemoryStore:
    """Several runtimes of one loop may share one; what it holds stays until the object goes."""

    def __init__(self) -> None:
        self._logs: dict[str, _Log] = {}
        self._uids: dict[tuple[str, str], str] = {}
        self._owners: set[str] = set()
        self._about: dict[str, dict[str, JSON]] = {}
        self._watchers: dict[str | None, Watchers] = {}
        self._last_no = 0
        self._opened = 0
        self._pid = 0

    async def open(self) -> None:
        if self._opened == 0:
            self._pid = os.getpid()
        self._opened += 1
        self._check_use()

    async def close(self) -> None:
        if self._opened == 0:
            return
        self._check_use()
        self._opened -= 1
        if self._opened == 0:
            self._owners.clear()
            self._watchers.clear()

    def _check_use(self) -> None:
        if self._opened == 0:
            raise terms.not_open()
        if self._pid != os.getpid():
            raise terms.forked()

    def _log(self, session: str) -> _Log:
        log = self._logs.get(session)
        if log is None or log.deleted:
            terms.check_text(session)
            raise terms.unknown(session)
        return log

    # Facts

    async def append(self, batch: Batch) -> None:
        self._check_use()
        terms.checked(batch)
        first = batch.entries[0].at
        at = terms.micros(first)
        lines = [
            (at if entry.at == first else terms.micros(entry.at), entry.run, entry.payload) for entry in batch.entries
        ]
        wake = terms.wake_of(batch.summary)
        summary = batch.summary
        if summary.pending:
            summary = terms.decode_summary(terms.encode_summary(summary))
        if batch.opening is not None:
            log = self._opened_log(batch, batch.opening, lines[0][0])
        else:
            log = self._log(batch.session)
            if batch.epoch is not None and batch.epoch != log.epoch:
                raise terms.stale(batch.session)
            if log.start + len(log.lines) != batch.expect:
                raise terms.moved(batch.session, batch.expect, log.head)
        log.lines += lines
        log.updated = lines[-1][0]
        log.summary = summary
        log.wake = wake
        if batch.drops_draft:
            log.draft.clear()
        if self._watchers:
            self._notify(log)

    def _opened_log(self, batch: Batch, opening: Opening, at: int) -> _Log:
        key = (opening.tenant, opening.id)
        if batch.session in self._logs:
            raise terms.taken(batch.session)
        if key in self._uids:
            raise terms.id_taken(opening.tenant, opening.id)
        base = None
        if opening.base is not None:
            base = self._log(opening.base)
            if batch.expect > base.head:
                raise terms.short_base(opening.base, batch.expect, base.head)
        self._last_no = no = self._last_no + 1
        log = _Log(no, batch.session, opening, base, batch.expect, batch.summary, None, at, at, epoch=opening.epoch)
        if base is not None:
            base.forks += 1
        self._logs[batch.session] = log
        self._uids[key] = batch.session
        return log

    def _notify(self, log: _Log) -> None:
        if watchers := self._watchers.get(log.uid):
            terms.tell(watchers.values(), log.head)
        if watchers := self._watchers.get(None):
            terms.tell(watchers.values(), 0)

    async def read(self, session: str, *, after: int = 0, limit: int | None = None) -> list[Record]:
        self._check_use()
        log = self._log(session)
        end = log.head if limit is None else min(log.head, after + max(limit, 0))
        return [
            Record(session, seq, at / 1_000_000, run, decode_event(payload))
            for seq, (at, run, payload) in _lines(log, after, end)
        ]

    def watch(self, session: str | None, notify: Callable[[int], None]) -> Callable[[], None]:
        self._check_use()
        terms.check_text(session or "")
        token = object()
        self._watchers.setdefault(session, {})[token] = notify

        def end() -> None:
            watchers = self._watchers.get(session, {})
            watchers.pop(token, None)
            if not watchers:
                self._watchers.pop(session, None)

        return end

    # Sessions

    async def find(self, tenant: str, id: str) -> SessionRow | None:
        self._check_use()
        terms.check_text(tenant)
        terms.check_text(id)
        uid = self._uids.get((tenant, id))
        return None if uid is None else _row(self._logs[uid])

    async def get(self, session: str) -> SessionRow | None:
        self._check_use()
        terms.check_text(session)
        log = self._logs.get(session)
        return None if log is None or log.deleted else _row(log)

    async def list(self, query: SessionQuery) -> SessionPage:
        self._check_use()
        terms.check_query(query)
        before = self._last_no + 1 if query.cursor is None else terms.decode_cursor(query.cursor)
        found: list[_Log] = []
        for log in reversed(self._logs.values()):
            if log.no < before and not log.deleted and _matches(log, query):
                if len(found) == query.limit:
                    return SessionPage(tuple(map(_row, found)), terms.encode_cursor(found[-1].no))
                found.append(log)
        return SessionPage(tuple(map(_row, found)), None)

    async def delete(self, session: str) -> None:
        self._check_use()
        log = self._log(session)
        if log.owner in self._owners:
            raise terms.driven(session)
        del self._uids[log.opening.tenant, log.opening.id]
        log.deleted = True
        log.wake = None
        log.draft.clear()
        self._purge(log)
        self._notify(log)

    def _purge(self, log: _Log) -> None:
        while log.deleted:
            if log.forks:
                return
            del self._logs[log.uid]
            if log.base is None:
                return
            log.base.forks -= 1
            log = log.base

    # Ownership

    async def join(self, owner: str, about: dict[str, JSON] | None = None) -> None:
        self._check_use()
        terms.check_text(owner)
        self._owners.add(owner)
        self._about.setdefault(owner, terms.decode_about(terms.encode_about(about)))

    async def leave(self, owner: str) -> None:
        self._check_use()
        self._owners.discard(owner)
        self._about.pop(owner, None)
        for log in self._logs.values():
            if log.owner == owner:
                log.owner = None

    async def owners(self) -> Sequence[str]:
        self._check_use()
        return sorted(self._owners)

    async def workers(self) -> Sequence[Worker]:
        self._check_use()
        held = Counter(log.owner for log in self._logs.values())
        return [Worker(owner, held[owner], self._about.get(owner, {})) for owner in sorted(self._owners)]

    async def claim(
        self, session: str, owner: str, *, force: bool = False, capacity: Capacity | None = None
    ) -> Claim | None:
        self._check_use()
        if owner not in self._owners:
            raise terms.not_joined(owner)
        log = self._log(session)
        if not force and log.owner != owner and log.owner in self._owners:
            return None
        if capacity and capacity.caps and not self._shares(capacity, log).admits(log.opening.tenant, log.summary.agent):
            return None
        heir_of = None if log.owner == owner or log.owner in self._owners else log.owner
        log.epoch += 1
        log.owner = owner
        return Claim(log.epoch, log.head, heir_of)

    async def release(self, session: str, *, epoch: int, head: int) -> bool:
        self._check_use()
        log = self._log(session)
        if log.epoch != epoch:
            raise terms.stale(session)
        if log.head != head:
            return False
        log.owner = None
        return True

    def _shares(self, capacity: Capacity, but: _Log | None = None) -> Shares:
        driven = [log for log in self._logs.values() if log is not but and log.owner in self._owners]
        return Shares(capacity, [(log.opening.tenant, log.summary.agent, 1) for log in driven])

    async def runnable(
        self,
        queues: Sequence[str] | None,
        *,
        agents: Sequence[str] | None = None,
        now: float,
        limit: int = 100,
        capacity: Capacity | None = None,
    ) -> Sequence[str]:
        self._check_use()
        for name in (*(queues or ()), *(agents or ())):
            terms.check_text(name)
        ready = [
            log
            for log in self._waiting(now)
            if (queues is None or log.summary.served_by in queues) and (agents is None or log.summary.agent in agents)
        ]
        ready.sort(key=lambda log: ((log.wake or log.updated) - log.summary.priority * terms.LEVEL_MICROS, log.no))
        if capacity is None or not capacity.caps:
            return [log.uid for log in ready[: max(limit, 0)]]
        shares = self._shares(capacity)
        named = [(log.uid, log.opening.tenant, log.summary.agent) for log in ready]
        return shares.trim(in_turn([row for row in named if shares.admits(row[1], row[2])], max(limit, 0)))

    async def count_waiting(self, tenant: str | None, *, now: float, limit: int) -> int:
        self._check_use()
        terms.check_text(tenant or "")
        found = [log for log in self._waiting(now) if tenant is None or log.opening.tenant == tenant]
        return min(len(found), max(limit, 0))

    def _waiting(self, now: float) -> list[_Log]:
        due = terms.micros(now)
        ready = [log for log in self._logs.values() if log.wake is not None and log.wake <= due]
        return [log for log in ready if log.owner not in self._owners]

    # Slots beside the log

    async def save_artifact(self, session: str, digest: str, data: bytes) -> None:
        self._check_use()
        terms.check_text(digest)
        self._log(session).artifacts.setdefault(digest, data)

    async def load_artifact(self, session: str, digest: str) -> bytes:
        self._check_use()
        log: _Log | None = self._log(session)
        while log is not None:
            if digest in log.artifacts:
                return log.artifacts[digest]
            log = log.base
        terms.check_text(digest)
        raise terms.unknown_artifact(session, digest)

    async def append_draft(self, session: str, chunk: bytes, *, epoch: int) -> None:
        self._check_use()
        log = self._log(session)
        if log.epoch != epoch:
            raise terms.stale(session)
        log.draft.append(chunk)

    async def read_draft(self, session: str) -> Sequence[bytes]:
        self._check_use()
        return tuple(self._log(session).draft)


def _lines(log: _Log, after: int, end: int) -> Iterator[tuple[int, Line]]:
    if log.base is not None and after < log.start:
        yield from _lines(log.base, after, min(end, log.start))
    first = max(after, log.start)
    yield from enumerate(log.lines[first - log.start : max(end, first) - log.start], first + 1)


def _row(log: _Log) -> SessionRow:
    return SessionRow(
        log.uid,
        log.opening.tenant,
        log.opening.id,
        log.summary.agent,
        log.summary.status,
        log.head,
        log.epoch,
        log.owner,
        dict(log.opening.metadata),
        log.created / 1_000_000,
        log.updated / 1_000_000,
        log.summary,
    )


def _matches(log: _Log, query: SessionQuery) -> bool:
    return (
        (query.tenant is None or log.opening.tenant == query.tenant)
        and (query.agent is None or log.summary.agent == query.agent)
        and (query.status is None or log.summary.status == query.status)
        and (not query.pending or bool(log.summary.pending))
        and (not query.triggers or bool(log.summary.triggers))
        and (not query.watches or bool(log.summary.watches))
        and query.metadata.items() <= log.opening.metadata.items()
    )
