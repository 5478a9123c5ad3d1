"""What the runtime's tests share: short words for common waits and looks, and the laws that every log keeps."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from perdure import Record, Runtime, Session
from perdure.core.fold import fold
from perdure.core.transcript import transcript, unpaired
from perdure.events import CallEnded, CallStarted, ModelResponded, RunEnded, RunStarted
from perdure.ports import SessionQuery, Store
from perdure.testing import ManualClock
from perdure.wiring import resolve_store

PATIENCE = 20.0
"""How long a test waits for what has to come: far more than it takes, so that a busy machine fails nothing."""

T = TypeVar("T")


async def soon(work: Awaitable[T]) -> T:
    """The result of what must not hang."""
    return await asyncio.wait_for(work, PATIENCE)


async def until(condition: Callable[[], object]) -> None:
    """Waits for a condition that no event tells."""
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "it did not come"
        await asyncio.sleep(0.002)


async def turned(clock: ManualClock, condition: Callable[[], object], step: float = 1.0) -> None:
    """Turns the clock on, step by step, until the condition holds: threads need real time to follow it."""
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "it did not come"
        await clock.advance(step)
        await asyncio.sleep(0.002)


async def seen(session: Session[Any], kind: type[T], count: int = 1, /, **fields: object) -> T:
    """Follows the session until it has this many events of the kind with these fields; the last of them."""

    async def look() -> T:
        left = count
        async for item in session.stream():
            if isinstance(item, Record) and isinstance(item.event, kind):
                if all(getattr(item.event, name) == value for name, value in fields.items()):
                    left -= 1
                if not left:
                    return item.event
        raise AssertionError(f"the stream ended without {kind.__name__}")

    return await soon(look())


def collect(stream: AsyncIterator[T], items: list[T]) -> asyncio.Future[None]:
    """Reads a stream beside the test, which looks at what has come so far."""

    async def read() -> None:
        async for item in stream:
            items.append(item)

    return asyncio.ensure_future(read())


async def events(session: Session[Any], kind: type[T], /, **fields: object) -> list[T]:
    """The session's events of one kind, as the store has them."""
    return [
        record.event
        for record in await session.records()
        if isinstance(record.event, kind)
        and all(getattr(record.event, name) == value for name, value in fields.items())
    ]


async def kinds(session: Session[Any]) -> list[str]:
    return [type(record.event).__name__ for record in await session.records()]


async def told(session: Session[Any]) -> list[tuple[str, str, str]]:
    """What the model was told of its calls, in order: name, outcome, text."""
    return [
        (result.name, result.outcome, " ".join(getattr(part, "text", part.__class__.__name__) for part in result.parts))
        for message in await session.history()
        for result in getattr(message, "results", ())
    ]


async def said(session: Session[Any]) -> list[str]:
    """What users said, in the order in which the model heard it."""
    return [
        " ".join(getattr(part, "text", part.__class__.__name__) for part in message.parts)
        for message in await session.history()
        if type(message).__name__ == "UserMessage"
    ]


async def check_store(store: str | Store) -> None:
    """The laws, for every session of a store that nobody has open."""
    opened = resolve_store(store)
    await opened.open()
    try:
        cursor: str | None = None
        while True:
            page = await opened.list(SessionQuery(cursor=cursor))
            for row in page.rows:
                check_log(await opened.read(row.uid))
            if (cursor := page.cursor) is None:
                return
    finally:
        await opened.close()


def check_log(records: list[Record]) -> None:
    """Seq without gap; every run ended at most once; every started call of an ended run with exactly one outcome."""
    assert [record.seq for record in records] == list(range(1, len(records) + 1))
    log = [record.event for record in records]
    state = fold(log)
    started = [event.run for event in log if isinstance(event, RunStarted)]
    ended = Counter(event.run for event in log if isinstance(event, RunEnded))
    assert started == list(range(1, len(started) + 1))
    assert set(ended.values()) <= {1}, "a run ended twice"
    assert set(started) - set(ended) == ({state.run.run} if state.run else set())
    asked = {call.call for event in log if isinstance(event, ModelResponded) for call in event.message.calls}
    outcomes = Counter(event.call for event in log if isinstance(event, CallEnded))
    assert set(outcomes.values()) <= {1}, "a call ended twice"
    still_open = {call.ordinal for call in state.run.calls if call.status != "ended"} if state.run else set[int]()
    assert asked - set(outcomes) == still_open, "a call has no outcome"
    assert {event.call for event in log if isinstance(event, CallStarted)} <= asked
    if state.run is None:
        assert unpaired(transcript(state)) == []


def crashing(store: str | Store, **options: Any) -> Runtime:
    """A Runtime that leaves without grace: to the log it looks as if the process had died."""
    return Runtime(store, grace=0, **options)
