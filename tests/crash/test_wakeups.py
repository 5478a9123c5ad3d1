"""No wake-up is lost: every acknowledged command is acted on, whatever happens in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from perdure import Agent, Record, Runtime, StoreError
from perdure.events import Noted
from perdure.ports import Store
from perdure.runtime.clock import SystemClock
from perdure.runtime.log import Change, SessionLog
from perdure.stores.memory import MemoryStore
from perdure.testing import ManualClock, ScriptedModel
from tests.crash.interleaving import run_interleaving

Property = Callable[[str, object], None]

INTERLEAVINGS = 10_000
SAMPLED = 1_000
BLOCK = 250


def _interleave(seeds: range, record_property: Property) -> None:
    for seed in seeds:
        assert run_interleaving(seed) == [], f"seed {seed}"
    record_property("figure: interleavings", len(seeds))


@pytest.mark.sweep
@pytest.mark.parametrize("first", range(0, INTERLEAVINGS, BLOCK))
def test_interleavings(first: int, record_property: Property) -> None:
    _interleave(range(first, first + BLOCK), record_property)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SAMPLED, BLOCK))
def test_sampled_interleavings(first: int, record_property: Property) -> None:
    _interleave(range(100_000 + first, 100_000 + first + BLOCK), record_property)


class SlowReads(MemoryStore):
    """Reads that are answered late: `gate` is opened by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()

    async def read(self, session: str, *, after: int = 0, limit: int | None = None) -> list[Record]:
        records = await super().read(session, after=after, limit=limit)
        await self.gate.wait()
        return records


class FailingReads(MemoryStore):
    is_out = False
    pause: asyncio.Event | None = None

    async def read(self, session: str, *, after: int = 0, limit: int | None = None) -> list[Record]:
        if self.pause is not None:
            await self.pause.wait()
        if self.is_out:
            raise StoreError("out of order")
        return await super().read(session, after=after, limit=limit)


async def _open_session(store: Store) -> str:
    agent = Agent(name="a", model=ScriptedModel([]))
    async with Runtime(store, agents=[agent], engine=None) as runtime:
        return (await runtime.open(agent, id="s")).uid


async def _note(log: SessionLog) -> None:
    change = Change(log.state)
    change.add((Noted("news"),))
    await log.append(change)


async def test_news_that_come_during_a_refresh_are_heard() -> None:
    store = SlowReads()
    await store.open()
    uid = await _open_session(store)
    here, elsewhere = (SessionLog(uid, store, SystemClock()) for _ in range(2))
    await here.load()
    await elsewhere.load()
    here.attach()
    store.gate.clear()
    looking = asyncio.create_task(here.refresh())
    await asyncio.sleep(0)
    await _note(elsewhere)
    await asyncio.sleep(0)
    store.gate.set()
    await looking
    await asyncio.wait_for(here.until(lambda state: state.seq == elsewhere.state.seq), 5)


async def test_news_that_come_during_a_failing_refresh_are_heard() -> None:
    store, clock = FailingReads(), ManualClock()
    await store.open()
    uid = await _open_session(store)
    here, elsewhere = (SessionLog(uid, store, clock) for _ in range(2))
    await here.load()
    await elsewhere.load()
    here.attach()
    store.is_out, store.pause = True, asyncio.Event()
    looking = asyncio.create_task(here.refresh())
    await asyncio.sleep(0)
    await _note(elsewhere)
    await asyncio.sleep(0)
    store.pause.set()
    with pytest.raises(StoreError):
        await looking
    store.is_out = False
    await clock.advance(2)
    assert here.state.seq == elsewhere.state.seq


async def test_news_survive_an_outage() -> None:
    store, clock = FailingReads(), ManualClock()
    await store.open()
    uid = await _open_session(store)
    here, elsewhere = (SessionLog(uid, store, clock) for _ in range(2))
    await here.load()
    await elsewhere.load()
    here.attach()
    store.is_out = True
    await _note(elsewhere)
    await clock.advance(10)
    assert here.state.seq < elsewhere.state.seq
    store.is_out = False
    await clock.advance(2)
    assert here.state.seq == elsewhere.state.seq


async def test_a_committed_append_does_not_fail_because_of_the_news_behind_it() -> None:
    """It would be appended once more."""
    store, clock = FailingReads(), ManualClock()
    await store.open()
    uid = await _open_session(store)
    here, elsewhere = (SessionLog(uid, store, clock) for _ in range(2))
    await here.load()
    await elsewhere.load()
    here.attach()
    here._notified(here.state.seq + 2)
    store.is_out = True
    await _note(here)
    await clock.advance(2)
    store.is_out = False
    assert [type(record.event) for record in await store.read(uid)].count(Noted) == 1
