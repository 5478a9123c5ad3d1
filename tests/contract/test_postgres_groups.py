"""Appends that are ready at once share a commit on PostgreSQL; nobody pays for another's batch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from perdure.core.errors import Conflict, NotFound, StaleEpoch
from perdure.stores import postgres_groups
from perdure.stores.postgres import PostgresStore
from perdure.stores.postgres_link import load_driver
from perdure.testing.store_samples import batch, data_of, first
from tests.contract.test_stores import opened
from tests.postgres import Cutter, new_schema

UIDS = [f"session-{number}" for number in range(8)]


@pytest.fixture
async def store(postgres: str) -> AsyncIterator[PostgresStore]:
    async with opened(PostgresStore(postgres, schema=new_schema())) as made:
        assert isinstance(made, PostgresStore)
        await asyncio.gather(*(made.append(first(uid, 0)) for uid in UIDS))
        yield made


async def number(store: PostgresStore, sql: str, *values: object) -> int:
    connection = await load_driver().connect(store.url)
    try:
        return await connection.fetchval(sql, *values)
    finally:
        await connection.close()


async def commits_of(store: PostgresStore, seq: int) -> int:
    """In how many transactions the records of that seq were written."""
    return await number(store, f"SELECT count(DISTINCT xmin::text) FROM {store.schema}.records WHERE seq = $1", seq)


async def deadlocks(store: PostgresStore) -> int:
    return await number(store, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")


async def test_what_is_ready_at_once_is_one_commit(store: PostgresStore) -> None:
    await asyncio.gather(*(store.append(batch(uid, 1, "go")) for uid in UIDS))
    assert await commits_of(store, 1) == len(UIDS)  # sessions are opened one by one
    assert await commits_of(store, 2) == 1
    for uid in UIDS:
        assert data_of(await store.read(uid)) == [0, "go"]


async def test_each_is_refused_on_its_own(store: PostgresStore) -> None:
    await store.join("me")
    claim = await store.claim(UIDS[2], "me")
    assert claim is not None
    said = await asyncio.gather(
        store.append(batch(UIDS[0], 1, "holds")),
        store.append(batch(UIDS[1], 7, "moved")),
        store.append(batch(UIDS[2], 1, "stale", epoch=claim.epoch - 1)),
        store.append(batch("nobody", 1, "unknown")),
        store.append(batch(UIDS[3], 1, "first")),
        store.append(batch(UIDS[3], 1, "second")),
        store.append(batch(UIDS[4], 1, "holds")),
        return_exceptions=True,
    )
    assert [type(one) for one in said] == [type(None), Conflict, StaleEpoch, NotFound, type(None), Conflict, type(None)]
    assert [data_of(await store.read(uid))[1:] for uid in UIDS[:5]] == [["holds"], [], [], ["first"], ["holds"]]


async def test_the_lost_answer_of_a_group_is_found_out(postgres: str, tmp_path: Path) -> None:
    async with (
        Cutter(postgres, tmp_path) as cutter,
        opened(PostgresStore(cutter.url, schema=new_schema())) as store,
    ):
        await asyncio.gather(*(store.append(first(uid, 0)) for uid in UIDS))
        cutter.cuts = 1
        wrong = store.append(batch(UIDS[0], 5, "refused"))
        said = await asyncio.gather(wrong, *(store.append(batch(uid, 1, "go")) for uid in UIDS), return_exceptions=True)
        assert cutter.cuts == 0
        assert [type(one) for one in said] == [Conflict, *[type(None)] * len(UIDS)]
        for uid in UIDS:
            assert data_of(await store.read(uid)) == [0, "go"]


async def test_a_group_that_fails_is_sent_one_by_one(store: PostgresStore) -> None:
    """Here somebody holds one of the rows for longer than a statement may take."""
    connection = await load_driver().connect(store.url)
    impatient = PostgresStore(store.url, schema=store.schema, timeout=1.0)
    try:
        async with opened(impatient), connection.transaction():
            await connection.execute(f"SELECT FROM {store.schema}.sessions WHERE uid = $1 FOR UPDATE", UIDS[3])
            appending = [asyncio.ensure_future(impatient.append(batch(uid, 1, "go"))) for uid in UIDS]
            done, held = await asyncio.wait(appending, timeout=2.5)
            assert len(done) == len(UIDS) - 1
            await connection.execute("ROLLBACK")
            await asyncio.gather(*done, *held)
            await connection.execute("BEGIN")
    finally:
        await connection.close()
    for uid in UIDS:
        assert data_of(await store.read(uid)) == [0, "go"]


async def test_two_processes_with_the_same_sessions_never_lock_each_other_out(store: PostgresStore) -> None:
    before = await deadlocks(store)
    async with opened(PostgresStore(store.url, schema=store.schema)) as other:
        for head in range(1, 21):
            ours = [store.append(batch(uid, head, "ours")) for uid in UIDS]
            theirs = [other.append(batch(uid, head, "theirs")) for uid in reversed(UIDS)]
            said = await asyncio.gather(*ours, *theirs, return_exceptions=True)
            assert {type(one) for one in said} == {type(None), Conflict}
            assert sum(one is None for one in said) == len(UIDS)
    assert await deadlocks(store) == before


async def test_who_does_not_wait_has_appended_all_the_same(store: PostgresStore) -> None:
    beside = PostgresStore(store.url, schema=store.schema)
    await beside.open()
    appending = [asyncio.ensure_future(beside.append(batch(uid, 1, "go"))) for uid in UIDS]
    await asyncio.sleep(0)
    for one in appending:
        one.cancel()
    await beside.close()
    assert [data_of(await store.read(uid)) for uid in UIDS] == [[0, "go"]] * len(UIDS)


async def test_a_group_is_bounded(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_groups, "MOST", 3)
    await asyncio.gather(*(store.append(batch(uid, 1, "go")) for uid in UIDS))
    assert await commits_of(store, 2) == 3
    monkeypatch.setattr(postgres_groups, "MOST_BYTES", 100_000)
    await asyncio.gather(*(store.append(batch(uid, 2, "x" * 60_000)) for uid in UIDS))
    assert await commits_of(store, 3) == 4
