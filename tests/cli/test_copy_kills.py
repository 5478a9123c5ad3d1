"""perdure store copy, killed again and again on the way to PostgreSQL and back: the same sessions, byte for byte."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from random import Random

import pytest

from perdure.ports import SessionQuery, Store
from perdure.runtime.upkeep import rows_of
from perdure.stores.postgres_address import at_address
from perdure.stores.sqlite import SqliteStore
from tests.cli.command import Command
from tests.postgres import new_schema
from tests.runtime.test_upkeep import digests, fill_many, opened

KILLS = 4


async def count(store: Store) -> int:
    cursor, found = None, 0
    while True:
        page = await store.list(SessionQuery(limit=1_000, cursor=cursor))
        found, cursor = found + len(page.rows), page.cursor
        if cursor is None:
            return found


async def copy_with_kills(perdure: Command, source: str, target: str, there: Store, many: int) -> tuple[int, float]:
    """Kills the copy at places that chance gives, then lets it finish; how often it was killed, and seconds of it."""
    killed = 0
    for place in sorted(Random(7).sample(range(1, many), KILLS)):
        process = perdure.start("store", "copy", source, target)
        deadline = time.monotonic() + 100
        while process.poll() is None and time.monotonic() < deadline and await count(there) < place:
            await asyncio.sleep(0.01)
        if process.poll() is None:
            process.kill()
            killed += 1
        await asyncio.to_thread(process.communicate)
    began = time.monotonic()
    [line] = perdure("store", "copy", source, target, "--json").splitlines()
    done = json.loads(line)
    assert done["not_copied"] == 0
    assert done["copied"] + done["there_already"] == many
    assert done["there_already"] > 0
    return killed, time.monotonic() - began


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("many", [100, pytest.param(1_000, marks=pytest.mark.sweep)])
async def test_a_copy_that_is_killed_goes_on(
    many: int, perdure: Command, postgres: str, tmp_path: Path, record_property: pytest.RecordProperty
) -> None:
    address = f"{postgres}&schema={new_schema()}"
    async with opened(SqliteStore(tmp_path / "a.db")) as store:
        await fill_many(store, many)
        before = await digests(store)
    async with opened(at_address(address)) as there:
        killed, seconds = await copy_with_kills(perdure, "sqlite:a.db", address, there, many)
        assert await digests(there) == before
        records = sum(row.head for row in await rows_of(there))
    async with opened(SqliteStore(tmp_path / "b.db")) as back:
        again, seconds_back = await copy_with_kills(perdure, address, "sqlite:b.db", back, many)
        assert await digests(back) == before
    assert killed
    assert again
    assert "nothing wrong" in perdure("store", "check", "--store", "sqlite:b.db")
    print(f"{many} sessions, {records} records, {killed} + {again} kills; then {seconds:.1f} and {seconds_back:.1f} s")
    record_property("figure: copies of stores killed and resumed", killed + again)
