"""A transactional tool, killed everywhere: its rows are there exactly once, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from perdure import Agent, Runtime, ToolContext, tool
from perdure.ports import Store
from perdure.testing import ScriptedModel, call, crash_sweep, fault_point
from perdure.tools import Transaction
from tests.crash.on_postgres import ask, opener

Record = Callable[[str, object], None]

CALLS = 5
SAMPLED = 25


@tool
def book(item: int, tx: Transaction, ctx: ToolContext) -> str:
    """Books an item, and what all of them come to."""
    fault_point("before book starts")
    [(total,)] = tx.execute("SELECT coalesce(sum(item), 0) FROM booked")
    tx.execute("INSERT INTO booked VALUES ($1, $2)", item, total)
    fault_point("book has written")
    return str(total)


def answer(request: Any) -> Any:
    """Two calls at once, then one after the other."""
    turns = len(request.messages) // 2
    if turns == 0:
        return [call("book", item=1), call("book", item=2)]
    return [call("book", item=turns + 2)] if turns < CALLS - 1 else "Done."


AGENT = Agent(name="clerk", model=ScriptedModel(answer), tools=[book])


async def scenario(store: Store) -> None:
    async with Runtime(store, agents=[AGENT]) as runtime:
        session = await runtime.open(AGENT, id="order")
        assert (await session.run("go", key="go")).output == "Done."


async def on_sqlite(store: Store) -> None:
    await store.open()
    connection = apsw.Connection("sweep.db")
    connection.execute("CREATE TABLE IF NOT EXISTS booked (item INTEGER, total INTEGER)")
    connection.close()
    await scenario(store)
    await store.close()


async def on_postgres(store: Store) -> None:
    await store.open()
    await ask(Path(), "CREATE TABLE IF NOT EXISTS booked (item INTEGER, total INTEGER)")
    await scenario(store)
    await store.close()


def check(booked: list[tuple[int, int]]) -> None:
    """Each item once, and every total is the sum of what was booked before it."""
    items = [item for item, _ in booked]
    assert sorted(items) == list(range(1, CALLS + 1))
    assert [total for _, total in booked] == [sum(items[:at]) for at in range(CALLS)]


@pytest.mark.slow
async def test_exactly_once_on_sqlite(record_property: Record) -> None:
    trials = 0
    async for crash in crash_sweep(on_sqlite):
        connection = apsw.Connection(str(crash.folder / "sweep.db"))
        try:
            check(connection.execute("SELECT item, total FROM booked ORDER BY rowid").fetchall())
        finally:
            connection.close()
        trials += 1
    assert trials > 30
    record_property("figure: points killed at around transactional tools", trials)


@pytest.mark.sweep
async def test_exactly_once_on_postgres(postgres: str, record_property: Record) -> None:
    await _on_postgres(postgres, None, record_property)


@pytest.mark.slow
async def test_a_sample_on_postgres(postgres: str, record_property: Record) -> None:
    await _on_postgres(postgres, SAMPLED, record_property)


async def _on_postgres(postgres: str, sample: int | None, record_property: Record) -> None:
    trials = 0
    async for crash in crash_sweep(on_postgres, open_store=opener(postgres), sample=sample):
        # Transactions there do not wait for each other, so totals are no test.
        assert sorted(await ask(crash.folder, "SELECT item FROM booked")) == [(item + 1,) for item in range(CALLS)]
        trials += 1
    assert trials > 15
    record_property("figure: points killed at around transactional tools on PostgreSQL", trials)
