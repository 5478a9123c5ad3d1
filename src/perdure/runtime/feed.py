"""Live fan-out of records and deltas.

Rule 1: a consumer holds at most `limit` items; a slow or vanished one never slows a run. Rule 2: a record is never
lost: a consumer that overflowed is told up to where it has to read the log again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from weakref import WeakSet

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
        self._items: deque[Record | Shown] = deque()
        self._lagged: Lagged | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False

    def push(self, item: Record | Shown) -> None:
        if len(self._items) >= self._limit:
            self._overflow()
        self._items.append(item)
        self._wake()

    def close(self) -> None:
        self._closed = True
        self._wake()

    async def get(self) -> Record | Shown | Lagged | None:
        """The next item in order; None once closed and empty."""
        while True:
            if self._lagged is not None:
                lagged, self._lagged = self._lagged, None
                return lagged
            if self._items:
                return self._items.popleft()
            if self._closed:
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def _overflow(self) -> None:
        lagged = self._lagged or Lagged(0, 0)
        records = [item for item in self._items if isinstance(item, Record)]
        head = records[-1].seq if records else lagged.head
        self._lagged = Lagged(head, lagged.deltas + len(self._items) - len(records))
        self._items.clear()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Feed:
    """The consumers of one session; forgotten with the last reference to them."""

    def __init__(self) -> None:
        self._consumers: WeakSet[Consumer] = WeakSet()

    @property
    def watched(self) -> bool:
        return bool(self._consumers)

    def subscribe(self, limit: int = LIMIT) -> Consumer:
        consumer = Consumer(limit)
        self._consumers.add(consumer)
        return consumer

    def publish(self, records: Sequence[Record]) -> None:
        for consumer in self._consumers:
            for record in records:
                consumer.push(record)

    def show(self, head: int, delta: Delta) -> None:
        """Call it only if `watched`: what nobody reads is not even wrapped."""
        shown = Shown(head, delta)
        for consumer in self._consumers:
            consumer.push(shown)

    def close(self) -> None:
        for consumer in self._consumers:
            consumer.close()
