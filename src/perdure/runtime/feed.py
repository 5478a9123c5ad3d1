"""Live fan-out of records and deltas.

Rule 1: at most `limit` items wait for a consumer; a slow or vanished one never slows a run. Rule 2: a record is never
lost: a consumer that overflowed is told up to where it has to read the log again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from weakref import ref

import msgspec

from perdure.core.deltas import Delta
from perdure.ports import Record

LIMIT = 1000


class Lagged(msgspec.Struct, frozen=True):
    """The consumer overflowed: read the log up to `head`; `deltas` are gone."""

    head: int
    deltas: int


class Shown(msgspec.Struct, frozen=True, gc=False):
    """A delta, and the head of the log when it was published: behind a later record it is stale."""

    head: int
    delta: Delta


class Consumer:
    """One reader's bounded queue."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: list[Record | Shown] = []
        self._lagged: Lagged | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False

    def push(self, item: Record | Shown) -> None:
        if len(self._items) >= self._limit:
            self._overflow()
        self._items.append(item)
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)

    def close(self) -> None:
        self._closed = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self) -> Sequence[Record | Shown | Lagged]:
        """All that has come, in order, as soon as there is anything; nothing once closed and empty."""
        while not self._items and self._lagged is None:
            if self._closed:
                return ()
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        items, self._items = self._items, []
        if self._lagged is None:
            return items
        lagged, self._lagged = self._lagged, None
        return [lagged, *items]

    def _overflow(self) -> None:
        lagged = self._lagged or Lagged(0, 0)
        records = [item for item in self._items if isinstance(item, Record)]
        head = records[-1].seq if records else lagged.head
        self._lagged = Lagged(head, lagged.deltas + len(self._items) - len(records))
        self._items = []


class Feed:
    """The consumers of one session; forgotten with the last reference to them. `watched` is true while it has any."""

    __slots__ = ("__weakref__", "is_closed", "watched")

    def __init__(self) -> None:
        self.watched: tuple[ref[Consumer], ...] = ()
        self.is_closed = False

    def subscribe(self, limit: int = LIMIT) -> Consumer:
        consumer = Consumer(limit)
        if self.is_closed:
            consumer.close()
        self.watched = (*self.watched, ref(consumer, self._forget))
        return consumer

    def publish(self, records: Sequence[Record]) -> None:
        for consumer in self._consumers():
            for record in records:
                consumer.push(record)

    def show(self, head: int, delta: Delta) -> None:
        """Call it only if `watched`: what nobody reads is not even wrapped."""
        shown = Shown(head, delta)
        for find in self.watched:
            consumer = find()
            if consumer is not None:
                consumer.push(shown)

    def close(self) -> None:
        self.is_closed = True
        for consumer in self._consumers():
            consumer.close()

    def _consumers(self) -> list[Consumer]:
        return [consumer for find in self.watched if (consumer := find()) is not None]

    def _forget(self, gone: ref[Consumer]) -> None:
        self.watched = tuple(find for find in self.watched if find is not gone)
