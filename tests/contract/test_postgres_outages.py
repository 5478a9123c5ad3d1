"""PostgreSQL is out of order for a while, or says something unheard of: who lives keeps its sessions, and all go on."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest

from perdure.core.errors import StoreError, UsageError
from perdure.stores import postgres_deltas
from perdure.stores.postgres import PostgresStore
from perdure.stores.postgres_deltas import WANTED_FOR, DeltaLines
from perdure.stores.postgres_health import examine
from perdure.stores.postgres_link import Link, load_driver
from perdure.stores.postgres_owners import Outages
from perdure.testing.store_samples import batch, first
from tests.postgres import OwnServer, new_schema, opened
from tests.runtime.scenes import soon, until


class Hand:
    """A clock that a test moves."""

    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def outages() -> tuple[Outages, Hand]:
    hand = Hand()
    return Outages(beat=2.0, dead_after=6.0, clock=hand), hand


def test_whoever_beats_in_time_waits_no_longer() -> None:
    found, hand = outages()
    assert found.dead_after == timedelta(seconds=6)
    for _ in range(10):
        found.beaten()
        hand.now += 2.5
        assert found.dead_after == timedelta(seconds=6)


def test_an_outage_makes_nobody_dead() -> None:
    found, hand = outages()
    found.beaten()
    hand.now += 60
    assert found.dead_after == timedelta(seconds=66)
    found.beaten()
    for _ in range(4):
        hand.now += 1.9
        found.beaten()
        assert found.dead_after == timedelta(seconds=66)
    hand.now += 1
    assert found.dead_after == timedelta(seconds=6)


def test_an_outage_soon_after_another_is_the_same() -> None:
    found, hand = outages()
    found.beaten()
    hand.now += 60
    found.beaten()
    hand.now += 20
    assert found.dead_after == timedelta(seconds=86)
    found.beaten()
    assert found.dead_after == timedelta(seconds=86)
    for _ in range(5):
        hand.now += 2
        found.beaten()
    hand.now += 30
    assert found.dead_after == timedelta(seconds=36)


async def test_the_living_keep_their_sessions_through_an_outage_and_the_dead_do_not(server: OwnServer) -> None:
    def store(**options: float) -> PostgresStore:
        return PostgresStore(server.url, timeout=2.0, dead_after=1.5, **options)  # type: ignore[arg-type]

    # The first beats too rarely to be there first when the server comes back, and the last never again.
    async with opened(store(beat=0.7)) as living, opened(store(beat=0.5)) as other, opened(store(beat=600)) as dead:
        for one, owner, session in ((living, "living", "s"), (dead, "dead", "t"), (other, "other", "u")):
            await one.append(first(session, 1))
            await one.join(owner)
            assert await one.claim(session, owner)
        await server.crash()
        await asyncio.sleep(2.5)  # what is tested is that time goes by
        await server.start()
        assert await soon(_when_it_can(other, "s")) is None
        deadline = asyncio.get_running_loop().time() + 20
        while not await _when_it_can(other, "t"):
            assert await _when_it_can(other, "s") is None
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.1)
        assert await _when_it_can(other, "s") is None


async def _when_it_can(store: PostgresStore, session: str) -> Any:
    while True:
        try:
            return await store.claim(session, "other")
        except StoreError as error:
            assert error.retry_after
            await asyncio.sleep(0.01)


async def test_a_claim_that_is_tried_again_knows_of_the_outage_between(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema, hand = new_schema(), Hand()
    async with (
        opened(PostgresStore(postgres, schema=schema, beat=600)) as living,
        opened(PostgresStore(postgres, schema=schema, beat=600)) as other,
    ):
        monkeypatch.setattr(other._use().owners, "_outages", Outages(beat=2.0, dead_after=6.0, clock=hand))
        await living.append(first("s", 1))
        await living.join("living")
        await other.join("other")
        assert await living.claim("s", "living")
        link = other._use().link
        await link.ask(lambda it: it.execute(f"UPDATE {schema}.owners SET beat_at = beat_at - interval '50 seconds'"))
        real = link._once

        async def out_of_order(question: Any) -> Any:
            hand.now += 60
            monkeypatch.setattr(link, "_once", real)
            raise StoreError("Not now.", retry_after=1.0)

        monkeypatch.setattr(link, "_once", out_of_order)
        assert await other.claim("s", "other") is None
        monkeypatch.setattr(other._use().owners, "_outages", Outages(beat=2.0, dead_after=6.0, clock=hand))
        assert await other.claim("s", "other")


async def test_a_row_of_long_ago_is_forgotten(postgres: str) -> None:
    async with opened(PostgresStore(postgres, schema=new_schema(), beat=600)) as store:
        await store.join("old")
        await store.join("young")
        connection = await load_driver().connect(postgres)
        try:
            beat = f"UPDATE {store.schema}.owners SET beat_at = now() - $2::interval WHERE owner = $1"
            await connection.execute(beat, "old", timedelta(hours=25))
            await connection.execute(beat, "young", timedelta(hours=23))
            await store.join("new")
            rows = await connection.fetch(f"SELECT owner FROM {store.schema}.owners ORDER BY owner")
        finally:
            await connection.close()
        assert [row["owner"] for row in rows] == ["new", "young"]


async def test_a_server_of_the_wrong_kind_is_an_error_with_a_time(postgres: str) -> None:
    url = f"{postgres}&target_session_attrs=standby"
    with pytest.raises(StoreError, match=r"^PostgreSQL cannot serve this now") as caught:
        await PostgresStore(url, timeout=2.0).open()
    assert caught.value.retry_after
    async with opened(PostgresStore(postgres, schema=new_schema(), pooled=True, direct=url)) as store:
        assert (await examine(store)).listens is False
        store.url = url
        with pytest.raises(StoreError, match=r"^PostgreSQL cannot serve this now"):
            await examine(store)


async def test_a_heartbeat_goes_on_whatever_happens(
    postgres: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(PostgresStore(postgres, schema=new_schema(), beat=0.01)) as store:
        await store.join("w")
        beats = _break_once(monkeypatch, store._use().owners, "_beat")
        await until(lambda: len(beats) > 2)
    assert "A heartbeat failed and comes again: RuntimeError: unheard of" in caplog.text


@pytest.mark.parametrize("pooled", [False, True])
async def test_following_goes_on_whatever_happens(
    pooled: bool, postgres: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    schema = new_schema()
    async with (
        opened(PostgresStore(postgres, schema=schema, pooled=pooled, poll=0.05)) as here,
        opened(PostgresStore(postgres, schema=schema)) as there,
    ):
        looks = _break_once(monkeypatch, here._use().watch, "_look")
        await there.append(first("s", 1))
        heads: list[int] = []
        here.watch("s", heads.append)
        await until(lambda: len(looks) > 1)
        await there.append(batch("s", 1, 2))
        await until(lambda: 2 in heads)
    assert "Following PostgreSQL failed and goes on: RuntimeError: unheard of" in caplog.text


def _break_once(monkeypatch: pytest.MonkeyPatch, part: Any, name: str) -> list[object]:
    """The next time it fails as nobody expects; the list has an item for each time."""
    real, times = getattr(part, name), list[object]()

    async def broken(*arguments: Any) -> Any:
        times.append(arguments)
        if len(times) == 1:
            raise RuntimeError("unheard of")
        return await real(*arguments)

    monkeypatch.setattr(part, name, broken)
    return times


async def test_a_cut_connection_is_noticed_at_once(postgres: str) -> None:
    schema = new_schema()
    async with AsyncExitStack() as stack:
        here = await stack.enter_async_context(opened(PostgresStore(postgres, schema=schema)))
        there = await stack.enter_async_context(opened(PostgresStore(postgres, schema=schema)))
        await there.append(first("s", 1))
        heads: list[int] = []
        here.watch("s", heads.append)
        await until(lambda: heads)
        connection = await load_driver().connect(postgres)
        stack.push_async_callback(connection.close)
        listening = f"FROM pg_stat_activity WHERE query LIKE 'LISTEN%{schema}%' AND pid <> pg_backend_pid()"
        async with asyncio.timeout(5):  # what is watched is looked up once before it listens
            while await connection.fetchval(f"SELECT count(pg_terminate_backend(pid)) {listening}") != 1:
                await asyncio.sleep(0.01)
        await there.append(batch("s", 1, 2))
        async with asyncio.timeout(5):
            while 2 not in heads:
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("direct", ["postgresql://u:se@xyz:et@localhost:5432/x", "postgresql://u:p@localhost:secret/x"])
async def test_a_direct_address_that_cannot_be_read_is_refused(direct: str, postgres: str) -> None:
    store = PostgresStore(postgres, schema=new_schema(), pooled=True, direct=direct)
    with pytest.raises(UsageError, match=r"^The store's direct address cannot be read; write postgresql://") as caught:
        await store.open()
    assert not any(part in str(caught.value) for part in ("secret", "xyz"))


async def test_a_direct_server_that_is_away_may_come_back(postgres: str) -> None:
    direct = "postgresql://localhost:1/x"
    async with opened(PostgresStore(postgres, schema=new_schema(), pooled=True, direct=direct)) as store:
        await store.append(first("s", 1))


async def test_all_is_closed_whatever_a_task_died_of(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = new_schema()
    store = PostgresStore(postgres, schema=schema)
    await store.open()
    await store.join("w")
    parts = store._use()

    async def die() -> None:
        raise ValueError("dead")

    for part in (parts.watch, parts.lines):
        monkeypatch.setattr(part, "_task", asyncio.ensure_future(die()))
    await asyncio.sleep(0)
    await store.close()
    async with opened(PostgresStore(postgres, schema=schema)) as again:
        assert await again.owners() == []
    with pytest.raises(StoreError, match="closed"):
        await parts.link.borrow()


async def test_what_was_asked_long_ago_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    class Loop:
        now = 1_000.0

        def time(self) -> float:
            return self.now

    loop = Loop()
    monkeypatch.setattr(postgres_deltas.asyncio, "get_running_loop", lambda: loop)
    lines = DeltaLines(Link("", schema="s", connections=1, timeout=1.0, pooled=False))
    for number in range(1_000):
        loop.now += WANTED_FOR / 100
        lines.heard(f"?elsewhere {number:04x}")
        assert len(lines._asked_at) <= 202
    assert bytes.fromhex(f"{999:04x}") in lines._asked_at
