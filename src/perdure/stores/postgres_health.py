"""What a PostgreSQL store finds when it looks at itself: versions, whether LISTEN works, how long a commit takes."""

from __future__ import annotations

import asyncio
import time
from secrets import token_hex
from statistics import median
from typing import Any

import msgspec

from perdure.stores.postgres import PostgresStore
from perdure.stores.postgres_link import failures, load_driver, told

HEARD_WITHIN = 5.0
COMMITS = 5


class Health(msgspec.Struct, frozen=True):
    """`listens`: what was notified was heard, None where the store polls; `is_safe`: commits reach the disk."""

    server: str
    schema_version: int
    listens: bool | None
    is_safe: bool
    connections: int
    most_connections: int
    commit_seconds: float


async def examine(store: PostgresStore) -> Health:
    """Looks at an open store, over a connection of its own."""
    driver = load_driver()
    try:
        connection = await driver.connect(store.url, timeout=10.0, command_timeout=10.0)
        try:
            return Health(
                await connection.fetchval("SHOW server_version"),
                await connection.fetchval(f"SELECT max(version) FROM {store.schema}.migrations"),
                None if store.direct is None else await _listens(driver, connection, store.direct),
                await _is_safe(connection),
                await connection.fetchval(
                    "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
                ),
                int(await connection.fetchval("SHOW max_connections")),
                await _time_commit(connection),
            )
        finally:
            connection.terminate()
    except failures() as error:
        raise told(error) from error


async def _listens(driver: Any, connection: Any, direct: str) -> bool:
    channel, heard = f"perdure_{token_hex(4)}", asyncio.Event()

    def hear(*_: object) -> None:
        heard.set()

    try:
        listening = await driver.connect(direct, timeout=10.0, command_timeout=10.0)
    except failures():
        return False
    try:
        await listening.add_listener(channel, hear)
        await connection.execute("SELECT pg_notify($1, '')", channel)
        await asyncio.wait_for(heard.wait(), HEARD_WITHIN)
        return True
    except TimeoutError:
        return False
    finally:
        listening.terminate()


async def _is_safe(connection: Any) -> bool:
    settings = [await connection.fetchval(f"SHOW {name}") for name in ("fsync", "synchronous_commit")]
    return settings[0] == "on" and settings[1] != "off"


async def _time_commit(connection: Any) -> float:
    """The middle one of a few: what is written reaches the disk, and no table."""
    taken: list[float] = []
    for _ in range(COMMITS):
        began = time.perf_counter()
        await connection.execute("SELECT pg_logical_emit_message(true, 'perdure', 'doctor')")
        taken.append(time.perf_counter() - began)
    return median(taken)
