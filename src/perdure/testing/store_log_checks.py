"""The part of the store contract about logs: order, conflicts, epochs, following, hostile payloads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from perdure.core.codec import decode_event, encode_event
from perdure.core.errors import Conflict, NotFound, StaleEpoch, StoreError, TooNew, UsageError
from perdure.core.messages import JSON
from perdure.core.views import Summary
from perdure.ports import Batch, Entry, Opening, Record, SessionQuery, Store
from perdure.testing.store_samples import (
    IDLE,
    START,
    Beside,
    MakeStore,
    append_somewhere,
    batch,
    data_of,
    entry,
    expect,
    first,
    note,
    refused,
    within,
)


async def check_order(make_store: MakeStore, beside: Beside = None) -> None:
    """Records come back as they went in, numbered 1, 2, 3 … without gap, in pages if asked for."""
    async with make_store() as store:
        await store.append(first("s", 1, 2))
        later = Batch("s", 2, (entry(note(3), at=START + 0.000001, run=7), entry(note(4))), IDLE)
        await store.append(later)
        await store.append(batch("s", 4, 5))
        records = await store.read("s")
        expect([record.seq for record in records] == [1, 2, 3, 4, 5], "seq is 1, 2, 3 … without gap")
        expect(data_of(records) == [1, 2, 3, 4, 5], "records are read in the order of their appends")
        third = Record("s", 3, START + 0.000001, 7, note(3))
        expect(records[2] == third, f"a record keeps its session, time, run and event ({records[2]})")
        expect(data_of(await store.read("s", after=3)) == [4, 5], "`after` is exclusive")
        expect(data_of(await store.read("s", after=1, limit=2)) == [2, 3], "`limit` cuts a page")
        expect(await store.read("s", after=5) == [], "behind the head there is nothing")
        expect(await store.read("s", limit=0) == [], "a page of nothing is empty")
        row = await store.get("s")
        expect(row is not None and row.head == 5, "the row's head is the last seq")
        await refused(NotFound, store.read("nobody"), "an unknown session cannot be read")


async def check_conflict(make_store: MakeStore, beside: Beside = None) -> None:
    """An append made for another head, or for a taken name, writes nothing at all."""
    async with make_store() as store:
        await store.append(first("s", 1, 2, tenant="acme"))
        for head in (0, 1, 3, 99):
            await refused(Conflict, store.append(batch("s", head, "no")), f"head 2 is not {head}")
        await refused(Conflict, store.append(first("s", "no")), "a uid is given once")
        same = Batch("t", 0, (entry(note()),), IDLE, opening=Opening("acme", "s", {}))
        await refused(Conflict, store.append(same), "an id is given once in a tenant")
        ahead = Batch("t", 3, (entry(note()),), IDLE, opening=Opening("acme", "t", {}))
        await refused(Conflict, store.append(ahead), "a new session starts at 0")
        await refused(NotFound, store.append(batch("nobody", 0, "no")), "an unknown session needs an opening")
        await refused(UsageError, store.append(batch("s", 2)), "an append of nothing is a mistake")
        expect(data_of(await store.read("s")) == [1, 2], "a refused append leaves no record behind")
        expect(await store.get("t") is None, "a refused append leaves no session behind")
        await store.append(first("t", 1, tenant="other"))
        expect(await store.find("acme", "t") is None, "tenants do not see each other's ids")
        expect(await store.find("other", "t") == await store.get("t"), "a session is found by tenant and id")
        await store.append(batch("s", 2, 3))
        expect(data_of(await store.read("s")) == [1, 2, 3], "the right head is accepted after refusals")


async def check_stale_epoch(make_store: MakeStore, beside: Beside = None) -> None:
    """Whoever was overtaken writes nothing more; commands, which have no epoch, go on."""
    async with make_store() as store:
        await store.append(first("s", 1))
        await store.join("old")
        await store.join("new")
        old = await store.claim("s", "old")
        new = await store.claim("s", "new", force=True)
        expect(old is not None and new is not None and new.epoch > old.epoch, "a claim raises the epoch")
        stale, fresh = (old.epoch, new.epoch) if old and new else (0, 0)
        await refused(StaleEpoch, store.append(batch("s", 1, "no", epoch=stale)), "a stale epoch appends nothing")
        await refused(StaleEpoch, store.append(batch("s", 0, "no", epoch=stale)), "stale comes before conflict")
        await refused(StaleEpoch, store.append_draft("s", b"no", epoch=stale), "a stale epoch drafts nothing")
        await refused(StaleEpoch, store.release("s", epoch=stale, head=1), "a stale epoch releases nothing")
        await refused(StaleEpoch, store.append(batch("s", 1, "no", epoch=fresh + 1)), "no epoch is skipped")
        await store.append(batch("s", 1, 2))
        await store.append(batch("s", 2, 3, epoch=fresh))
        expect(data_of(await store.read("s")) == [1, 2, 3], "commands and the present driver append")
        expect(await store.read_draft("s") == (), "a refused draft is not kept")


async def check_concurrent_appenders(make_store: MakeStore, beside: Beside = None) -> None:
    """Many appenders, on one session and on many, lose nothing and repeat nothing."""
    async with make_store() as store, _second(store, beside) as other:
        await store.append(first("shared", "start"))

        async def append(number: int) -> None:
            own = f"own-{number}"
            await store.append(first(own, 0))
            for count in range(1, 6):
                await append_somewhere(store if number % 2 else other, "shared", [number, count])
                await store.append(batch(own, count, count))

        await within(60, asyncio.gather(*map(append, range(16))), "appenders finish")
        records = await store.read("shared")
        expect([record.seq for record in records] == list(range(1, 82)), "seq has no gap under concurrency")
        for number in range(16):
            mine = [item for item in data_of(records)[1:] if item[0] == number]
            expect(mine == [[number, count] for count in range(1, 6)], "each appender's facts are there in order")
            own = data_of(await other.read(f"own-{number}"))
            expect(own == [0, 1, 2, 3, 4, 5], "sessions do not mix")


async def check_follow(make_store: MakeStore, beside: Beside = None) -> None:
    """Who watches and reads sees every record once, in order, whoever appends and however fast."""
    async with make_store() as store, _second(store, beside) as other:
        await store.append(first("s", 0))
        await store.append(first("quiet", 0))
        seen: list[JSON] = []
        moved = asyncio.Event()
        everything = asyncio.Event()
        ends = [store.watch("s", lambda head: moved.set()), store.watch(None, lambda head: everything.set())]

        async def follow() -> None:
            last = 0
            while len(seen) < 41:
                moved.clear()
                for record in await store.read("s", after=last, limit=7):
                    expect(record.seq == last + 1, "following has no gap and no repeat")
                    last = record.seq
                    seen.extend(data_of([record]))
                    moved.set()
                await moved.wait()

        async def append(number: int) -> None:
            for count in range(10):
                await append_somewhere(other if number % 2 else store, "s", [number, count])

        await within(60, asyncio.gather(follow(), *map(append, range(4))), "a follower gets everything")
        expect(len({str(item) for item in seen}) == 41, "a follower gets everything once")
        await within(10, everything.wait(), "who watches all sessions is told of any")
        for end in ends:
            end()
        moved.clear()
        await store.append(batch("quiet", 1, 1))
        await append_somewhere(store, "s", "unseen")
        await asyncio.sleep(0)
        expect(not moved.is_set(), "who ended watching is not told any more")


async def check_watch_tells_the_head(make_store: MakeStore, beside: Beside = None) -> None:
    """A watcher is told the head of its own session, and one watcher's failure is not another's."""
    async with make_store() as store, _second(store, beside) as other:
        await store.append(first("s", 0))
        told: asyncio.Queue[int] = asyncio.Queue()
        ends = [store.watch("s", told.put_nowait), store.watch("never opened", told.put_nowait)]
        for number, appender in enumerate((store, other, store), 1):
            await appender.append(batch("s", number, number))
            while await within(10, told.get(), "an append is told to who watches") <= number:
                pass
        for end in ends:
            end()
            end()


async def check_hostile_payloads(make_store: MakeStore, beside: Beside = None) -> None:
    """What the codec writes comes back byte for byte; what it refuses never reaches a store."""
    deep: JSON = []
    for _ in range(100_000):
        deep = [deep]
    async with make_store() as store:
        await store.append(first("s", "start"))
        for value in (deep, 10**5000, {1: 2, b"x": 3}, object()):
            try:
                encode_event(note(value))
            except UsageError:
                continue
            raise AssertionError("broken: the codec refuses what JSON cannot say")
        values: list[JSON] = [
            {"nan": float("nan"), "infinity": float("-inf")},
            "lone \ud800 surrogate",
            {"\udfff": ["\ud83d"]},
            "NUL \x00 \u2028 \U0001f600 '\"; DROP TABLE records; --",
            [2**63 - 1, -(2**63), 1e308, 5e-324, -0.0],
            {"": {"": ""}},
            "x" * 10_000_000,
        ]
        payloads = [encode_event(note(value)) for value in values]
        payloads.append(b'{"type":"Noted","kind":"check","data":{"a":1,"a":2},"kind":"twice"}')
        await store.append(Batch("s", 1, tuple(Entry(START, 0, payload) for payload in payloads), IDLE))
        records = await store.read("s", after=1)
        expect(
            [record.event for record in records] == [decode_event(payload) for payload in payloads],
            "payloads come back as they went in",
        )
        for payload in (b"", b"not json", b"\xff\x00", b"[" * 100_000, b"1" * 5000):
            uid = f"raw-{payload[:9]!r}"
            await store.append(Batch(uid, 0, (Entry(START, 0, payload),), IDLE, opening=Opening("", uid, {})))
            await refused(StoreError, store.read(uid), "bytes that are no event are refused when they are read")
        newer = Entry(START, 0, b'{"type":"Unheard"}')
        await store.append(Batch("newer", 0, (newer,), IDLE, opening=Opening("", "newer", {})))
        await refused(TooNew, store.read("newer"), "what a newer version wrote is refused as such")


async def check_hostile_values(make_store: MakeStore, beside: Beside = None) -> None:
    """Times and names that some store could not keep are refused by all of them, and write nothing."""
    async with make_store() as store:
        await store.append(first("s", 1))
        for at in (float("nan"), float("inf"), -1e300):
            late = Batch("s", 1, (entry(note()), entry(note(), at=at)), IDLE)
            await refused(UsageError, store.append(late), f"{at} is no time")
            sleepy = batch("s", 1, 2, summary=Summary("clerk", wake_at=at))
            await refused(UsageError, store.append(sleepy), f"{at} is no time to wake")
        for bad in (
            first("\ud800", 1),
            first("a", 1, tenant="\udc00"),
            first("b", 1, metadata={"\ud800": "x"}),
        ):
            await refused(UsageError, store.append(bad), "a lone surrogate is no name")
        agent = batch("s", 1, 2, summary=Summary("\ud800"))
        await refused(UsageError, store.append(agent), "a lone surrogate is no agent")
        expect(data_of(await store.read("s")) == [1], "what is refused writes nothing")
        for asked in (
            store.get("\ud800"),
            store.find("\ud800", "x"),
            store.read("\ud800"),
            store.delete("\ud800"),
            store.list(SessionQuery(metadata={"k": "\ud800"})),
            store.runnable(["\ud800"], now=0),
            store.load_artifact("s", "\ud800"),
        ):
            await refused(UsageError, asked, "nor is it a name to ask for")

        async def watch() -> object:
            return store.watch("\ud800", lambda head: None)

        await refused(UsageError, watch(), "nor one to watch")


async def check_closed(make_store: MakeStore, beside: Beside = None) -> None:
    """A closed store says so; what was acknowledged before is there when it is opened again."""
    async with make_store() as store:
        waiting = [asyncio.ensure_future(store.append(first(f"s{number}", number))) for number in range(20)]
        await asyncio.sleep(0)
        await store.close()
        await asyncio.gather(*waiting)
        await refused(UsageError, store.append(first("late", 1)), "a closed store takes nothing")
        await refused(UsageError, store.read("s1"), "a closed store gives nothing")
        await store.close()
        await store.open()
        await store.open()
        await store.close()
        for number in range(20):
            expect(data_of(await store.read(f"s{number}")) == [number], "what was acknowledged is there")
        await store.append(batch("s1", 1, "more"))


@asynccontextmanager
async def _second(store: Store, beside: Beside) -> AsyncGenerator[Store]:
    """Another object on the same data where there can be one, else the same."""
    if beside is None:
        yield store
    else:
        async with beside(store) as other:
            yield other
