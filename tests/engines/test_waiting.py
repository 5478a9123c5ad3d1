"""Ten thousand sessions that wait cost nothing: they are not looked at, and the worker's CPU stays under a percent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest

from benchmarks.waiting import prepare, wait
from perdure.runtime.clock import SystemClock
from perdure.stores.postgres import PostgresStore
from tests.postgres import OwnServer

SESSIONS = 10_000


@pytest.mark.slow
async def test_a_look_for_work_does_not_read_what_waits(server: OwnServer) -> None:
    await prepare(server.url, 600)
    store, asked = PostgresStore(server.url), list[tuple[str, tuple[object, ...]]]()
    await store.open()
    ask = store._ask

    async def heard(method: str, sql: str, *values: object, tries: int = 3) -> Any:
        asked.append((sql, values))
        return await ask(method, sql, *values, tries=tries)

    store._ask = heard  # type: ignore[method-assign]
    try:
        assert await store.runnable(["clerk"], now=SystemClock().now()) == []
    finally:
        await store.close()
    connection = await asyncpg.connect(server.url)
    try:
        await connection.execute("VACUUM ANALYZE perdure.sessions")
        assert await connection.fetchval("SELECT count(*) FROM perdure.sessions WHERE wake IS NOT NULL") > 300
        for sql, values in asked:
            explain = f"EXPLAIN (ANALYZE, FORMAT JSON) {sql.replace('@schema', 'perdure')}"
            [found] = json.loads(await connection.fetchval(explain, *values))
            assert sum(map(rows_of, nodes(found["Plan"]))) < 10, found
    finally:
        await connection.close()


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from nodes(below)


def rows_of(node: dict[str, Any]) -> float:
    """What it read, and what of it was of no use."""
    read = node["Actual Rows"] if "Relation Name" in node else 0
    return (read + node.get("Rows Removed by Filter", 0)) * node.get("Actual Loops", 1)


@pytest.mark.sweep
@pytest.mark.timeout(400)
@pytest.mark.parametrize("engine", ["sqlite", "local", "dbos", "temporal"])
async def test_ten_thousand_that_wait_cost_less_than_a_percent_of_a_core(engine: str) -> None:
    worker, _ = await wait(engine, SESSIONS, 60.0)
    assert worker < 0.01
