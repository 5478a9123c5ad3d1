"""Quotas that processes share through PostgreSQL: who hears what, and who may try when."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta

import asyncpg
import pytest

from perdure.stores import postgres_quotas
from perdure.stores.postgres import PostgresStore
from tests.postgres import new_schema
from tests.runtime.scenes import soon, until

Heard = list[tuple[str, float | None]]


@asynccontextmanager
async def stores(postgres: str, many: int, **options: object) -> AsyncIterator[list[PostgresStore]]:
    schema = new_schema()
    async with AsyncExitStack() as stack:
        made = [PostgresStore(postgres, schema=schema, **options) for _ in range(many)]  # type: ignore[arg-type]
        for number, store in enumerate(made):
            await store.open()
            stack.push_async_callback(store.close)
            await store.join(f"w{number}")
        yield made


def ear(store: PostgresStore) -> Heard:
    heard: Heard = []
    store.follow_quotas(lambda quota, seconds: heard.append((quota, seconds)))
    return heard


async def test_all_hear_that_it_is_shut_and_one_tries_when_the_time_is_over(postgres: str) -> None:
    async with stores(postgres, 2) as (a, b):
        heard = ear(b)
        await a.shut_quota("q", 60.0)
        await a.shut_quota("q", 0.5)
        await until(lambda: heard)
        assert all(quota == "q" and seconds is not None and 59 < seconds <= 60 for quota, seconds in heard)
        wait = await b.enter_quota("q")
        assert wait is not None
        assert 59 < wait <= 60
        await let_time_pass(a)
        assert [await a.enter_quota("q"), await a.enter_quota("other")] == [0.0, None]
        wait = await b.enter_quota("q")
        assert wait is not None
        assert 4 < wait <= 5, "somebody is at it"


async def test_each_that_gets_through_brings_two_more_and_as_many_as_there_are_processes_open_it(postgres: str) -> None:
    async with stores(postgres, 2) as (a, b):
        heard = ear(b)
        await a.shut_quota("q", 60.0)
        # Until it listens it hears only of what is shut.
        await until(lambda: heard)
        await let_time_pass(a)
        assert await a.enter_quota("q") == 0
        await a.answer_quota("q", passed=True)
        await until(lambda: ("q", 0.0) in heard)
        assert [await b.enter_quota("q"), await a.enter_quota("q")] == [0, 0]
        assert await a.enter_quota("q") != 0, "two, and no more"
        await b.answer_quota("q", passed=False)
        assert await a.enter_quota("q") == 0, "what came to nothing is another's"
        await a.answer_quota("q", passed=True)
        await until(lambda: ("q", None) in heard)
        assert await b.enter_quota("q") is None


async def test_who_was_let_in_before_it_was_shut_again_has_no_say(postgres: str) -> None:
    async with stores(postgres, 1) as (a,):
        await a.shut_quota("q", 60.0)
        await let_time_pass(a)
        assert await a.enter_quota("q") == 0
        await a.shut_quota("q", 60.0)
        await a.answer_quota("q", passed=True)
        assert await a.enter_quota("q")


async def test_who_tries_and_never_answers_is_not_waited_for(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_quotas, "PATIENCE", timedelta(milliseconds=100))
    async with stores(postgres, 2) as (a, b):
        await a.shut_quota("q", 60.0)
        await let_time_pass(a)
        assert await a.enter_quota("q") == 0

        async def asked() -> None:
            while await b.enter_quota("q") != 0:
                pass

        await soon(asked())


async def test_who_comes_late_or_did_not_listen_hears_of_it_all_the_same(postgres: str) -> None:
    async with stores(postgres, 1, deltas=False) as (a,):
        await a.shut_quota("q", 60.0)
        for late in (
            PostgresStore(postgres, schema=a.schema),
            PostgresStore(postgres, schema=a.schema, pooled=True, poll=0.01),
        ):
            await late.open()
            try:
                heard = ear(late)
                await until(lambda heard=heard: heard)
                assert heard[0][0] == "q"
            finally:
                await late.close()


async def test_a_row_that_nobody_cared_for_is_forgotten(postgres: str) -> None:
    async with stores(postgres, 1) as (a,):
        await a.shut_quota("q", 60.0)
        await let_time_pass(a, "1 hour")
        assert await a.enter_quota("q") is None


async def test_it_can_be_switched_off(postgres: str) -> None:
    async with stores(postgres, 1, quotas=False) as (a,):
        heard = ear(a)
        await a.shut_quota("q", 60.0)
        await a.answer_quota("q", passed=True)
        assert await a.enter_quota("q") is None
        assert heard == []


async def let_time_pass(store: PostgresStore, more: str = "1 second") -> None:
    """As if the quota had been shut so much earlier: the database's clock cannot be turned."""
    connection = await asyncpg.connect(store.url)
    try:
        await connection.execute(f"UPDATE {store.schema}.quotas SET shut_until = now() - $1::text::interval", more)
    finally:
        await connection.close()
