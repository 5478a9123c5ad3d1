"""Small sessions, batches and sayings for the store contract."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

from perdure.core.codec import encode_event
from perdure.core.errors import Conflict, PerdureError
from perdure.core.events import Event, Noted
from perdure.core.messages import JSON
from perdure.core.views import Summary
from perdure.ports import Batch, Entry, Opening, Record, Store

MakeStore = Callable[[], AbstractAsyncContextManager[Store]]
"""Gives a new and empty store, open; closes it afterwards."""

Beside = Callable[[Store], AbstractAsyncContextManager[Store]] | None
"""Opens a second store object on the data of the first, as another process would; None if that cannot be."""

Check = Callable[[MakeStore, Beside], Awaitable[None]]

T = TypeVar("T")

IDLE = Summary("clerk")
READY = Summary("clerk", "running", runnable=True)
START = 1_731_668_400.25


def expect(holds: bool, promise: str) -> None:
    if not holds:
        raise AssertionError(f"broken: {promise}")


async def refused(kind: type[PerdureError], attempt: Awaitable[object], promise: str) -> None:
    """The attempt must raise exactly this kind, with a sentence."""
    try:
        await attempt
    except PerdureError as error:
        said = str(error)
        expect(type(error) is kind, f"{promise} (it raised {type(error).__name__}: {said})")
        expect(said.endswith(".") and "\n" not in said, f"an error is one sentence ({said!r})")
    else:
        raise AssertionError(f"broken: {promise} (nothing was raised)")


def note(data: JSON = None) -> Noted:
    return Noted("check", data)


def entry(event: Event, *, at: float = START, run: int = 0) -> Entry:
    return Entry(at, run, encode_event(event))


def batch(session: str, head: int, *data: JSON, summary: Summary = IDLE, epoch: int | None = None) -> Batch:
    """Notes to append behind `head`, one for each piece of data."""
    return Batch(session, head, tuple(entry(note(item)) for item in data), summary, epoch=epoch)


def first(
    session: str,
    *data: JSON,
    tenant: str = "",
    summary: Summary = IDLE,
    metadata: dict[str, str] | None = None,
    base: tuple[str, int] | None = None,
    at: float = START,
) -> Batch:
    """The append that makes a session with its uid as id; `base` is a fork's parent and what they share."""
    parent, shared = base or (None, 0)
    opening = Opening(tenant, session, metadata or {}, parent)
    return Batch(session, shared, tuple(entry(note(item), at=at) for item in data), summary, opening=opening)


def data_of(records: Sequence[Record]) -> list[JSON]:
    return [record.event.data for record in records if isinstance(record.event, Noted)]


async def append_somewhere(store: Store, session: str, data: JSON) -> None:
    """Appends behind whatever the head is, as a command would."""
    for _ in range(1000):
        row = await store.get(session)
        expect(row is not None, "a session that was appended to is there")
        try:
            return await store.append(batch(session, row.head if row else 0, data))
        except Conflict:
            continue
    raise AssertionError("broken: of several appenders one gets through each time")


async def within(seconds: float, work: Awaitable[T], promise: str) -> T:
    try:
        return await asyncio.wait_for(work, seconds)
    except TimeoutError:
        raise AssertionError(f"broken: {promise} (waited {seconds} s)") from None
