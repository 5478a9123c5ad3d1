"""Following a session: the past from the store, then the live feed; records never have a gap."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

from perdure.core.deltas import Delta, DeltasDropped
from perdure.ports import Record, Store
from perdure.runtime.feed import Lagged, Shown
from perdure.runtime.log import SessionLog

PAGE = 500


async def follow(log: SessionLog, store: Store, after: int) -> AsyncGenerator[Record | Delta]:
    """Every record after `after`, and deltas as they come, until the session is closed here."""
    consumer = log.feed.subscribe()
    log.attach()
    if log.ear is not None:
        log.ear.follow(1)
    try:
        await log.refresh()
        seq = after
        async for record in _read(log, store, seq, log.state.seq):
            seq = record.seq
            yield record
        while items := await consumer.take():
            for item in items:
                match item:
                    case Shown():
                        if item.head >= seq:
                            yield item.delta
                    case Record():
                        async for record in _read(log, store, seq, item.seq - 1):
                            yield record
                        if item.seq > seq:
                            seq = item.seq
                            yield item
                    case Lagged(head=head, deltas=deltas):
                        async for record in _read(log, store, seq, head):
                            seq = record.seq
                            yield record
                        if deltas:
                            yield DeltasDropped(deltas)
    finally:
        if log.ear is not None:
            log.ear.follow(-1)
        log.detach()


async def _read(log: SessionLog, store: Store, after: int, head: int) -> AsyncIterator[Record]:
    while after < head:
        for record in await store.read(log.uid, after=after, limit=min(PAGE, head - after)):
            after = record.seq
            yield record
