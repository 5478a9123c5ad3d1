"""Whole stores: copied with the same digests, also after an interruption; checked for every kind of damage."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from perdure import Agent, Runtime, ToolContext, tool
from perdure.core.codec import encode_event
from perdure.core.events import CallEnded, RunResumed
from perdure.core.views import Summary
from perdure.ports import Batch, Entry, Store
from perdure.runtime.clock import SystemClock
from perdure.runtime.transfer import import_exported, take_out
from perdure.runtime.upkeep import check_session, copy_sessions, digest_log, rows_of
from perdure.stores.memory import MemoryStore
from perdure.stores.postgres import PostgresStore
from perdure.stores.sqlite import SqliteStore
from perdure.testing import ScriptedModel, call
from tests.postgres import new_schema


@asynccontextmanager
async def opened(store: Any) -> AsyncIterator[Any]:
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@tool(effect="read")
def look(item: str, ctx: ToolContext) -> str:
    """In the first session the last one is too long for the log."""
    return "x" * (80_000 if item == "3" and ctx.session == "s0" else 10)


async def fill(store: Store, sessions: int = 3) -> None:
    """Sessions with calls, an artifact, a fork, metadata and a tenant each of its own."""

    def answer(request: Any) -> Any:
        turns = len(request.messages) // 2
        return "Done." if turns > 3 else [call("look", item=str(turns))]

    agent = Agent(name="clerk", model=ScriptedModel(answer), tools=[look])
    async with Runtime(store, agents=[agent]) as runtime:
        for number in range(sessions):
            session = await runtime.open(
                agent, id=f"s{number}", tenant=f"t{number}", data={"n": number}, metadata={"order": str(number)}
            )
            await session.run("go", key="go")
        await session.fork(id="forked")


async def digests(store: Store) -> dict[str, str]:
    return {row.uid: digest_log(await store.read(row.uid)) for row in await rows_of(store)}


async def copied(source: Store, target: Store, stop_after: int | None = None) -> list[Any]:
    done: list[Any] = []
    async for one in copy_sessions(source, target, SystemClock(), await rows_of(source)):
        done.append(one)
        if len(done) == stop_after:
            break
    return done


async def test_a_copy_has_the_same_digests_there_and_back(postgres: str, tmp_path: Path) -> None:
    async with (
        opened(SqliteStore(tmp_path / "a.db")) as source,
        opened(PostgresStore(postgres, schema=new_schema())) as target,
        opened(SqliteStore(tmp_path / "b.db")) as back,
    ):
        await fill(source)
        assert [one.wrong for one in await copied(source, target)] == [""] * 4
        assert [one.wrong for one in await copied(target, back)] == [""] * 4
        assert await digests(source) == await digests(target) == await digests(back)
        for row, there in zip(await rows_of(source), await rows_of(back), strict=True):
            kept = ("uid", "id", "tenant", "agent", "status", "head", "metadata", "summary", "updated_at")
            assert [getattr(row, name) for name in kept] == [getattr(there, name) for name in kept]
        assert [finding for row in await rows_of(back) for finding in await check_session(back, row)] == []


async def fill_many(store: Store, sessions: int) -> None:
    """So many sessions: most of them copies of one."""
    await fill(store)
    exported = await take_out(store, (await rows_of(store))[1].uid)
    for number in range(sessions - 4):
        await import_exported(store, SystemClock(), exported, f"copy-{number}", None)


@pytest.mark.parametrize("many", [100, pytest.param(1_000, marks=pytest.mark.sweep)])
async def test_many_sessions_interrupted_and_resumed(many: int, postgres: str, tmp_path: Path) -> None:
    async with (
        opened(SqliteStore(tmp_path / "a.db")) as source,
        opened(PostgresStore(postgres, schema=new_schema())) as target,
    ):
        await fill_many(source, many)
        interrupted = many // 3
        assert len(await copied(source, target, stop_after=interrupted)) == interrupted
        done = await copied(source, target)
        assert [one.wrong for one in done] == [""] * many
        assert sum(one.wrote for one in done) == many - interrupted
        assert await digests(source) == await digests(target)


async def test_a_session_that_has_grown_is_copied_on(tmp_path: Path) -> None:
    async with opened(SqliteStore(tmp_path / "a.db")) as source, opened(SqliteStore(tmp_path / "b.db")) as target:
        await fill(source)
        await copied(source, target)
        agent = Agent(name="clerk", model=ScriptedModel(["More."]), tools=[look])
        async with Runtime(source, agents=[agent]) as runtime:
            await (await runtime.session("s1", tenant="t1")).run("more")
        assert [one.wrote for one in await copied(source, target)] == [False, True, False, False]
        assert await digests(source) == await digests(target)


async def test_what_is_driven_or_another_is_left_out(tmp_path: Path) -> None:
    async with opened(SqliteStore(tmp_path / "a.db")) as source, opened(SqliteStore(tmp_path / "b.db")) as target:
        await fill(source)
        driven, *_, forked = await rows_of(source)
        await source.join("somebody")
        await source.claim(driven.uid, "somebody")
        exported = await take_out(source, forked.uid)
        await import_exported(target, SystemClock(), exported, forked.id, None)
        wrong = {one.row.id: one.wrong for one in await copied(source, target) if one.wrong}
        assert set(wrong) == {driven.id, forked.id}
        assert wrong[driven.id].startswith("It is being driven; ")
        assert wrong[forked.id].startswith("There is a session 'forked' already; ")


def _lose_a_record(database: apsw.Connection) -> None:
    database.execute("DELETE FROM records WHERE seq = 5")


def _change_a_record(database: apsw.Connection) -> None:
    database.execute("UPDATE records SET run = 7 WHERE seq = 5")


def _change_the_row(database: apsw.Connection) -> None:
    database.execute("UPDATE sessions SET status = 'running', summary = (SELECT summary FROM sessions LIMIT 1)")
    database.execute("UPDATE sessions SET summary = replace(CAST(summary AS TEXT), 'clerk', 'other')")


def _damage_an_artifact(database: apsw.Connection) -> None:
    database.execute("UPDATE artifacts SET data = x'00'")


def _lose_an_artifact(database: apsw.Connection) -> None:
    database.execute("DELETE FROM artifacts")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_lose_a_record, "Record 5 of session"),
        (_change_a_record, "Record 5 of session"),
        (_change_the_row, "its row says something else"),
        (_damage_an_artifact, "is damaged"),
        (_lose_an_artifact, "is missing"),
    ],
)
async def test_damage_is_found(damage: Callable[[apsw.Connection], None], said: str, tmp_path: Path) -> None:
    async with opened(SqliteStore(tmp_path / "a.db")) as store:
        await fill(store, 1)
        database = apsw.Connection(str(tmp_path / "a.db"))
        damage(database)
        database.close()
        findings = [finding.wrong for row in await rows_of(store) for finding in await check_session(store, row)]
        assert findings
        assert all(said in wrong for wrong in findings), findings


async def test_unlawful_logs_are_found() -> None:
    async with opened(MemoryStore()) as store:
        await fill(store, 1)
        row = (await rows_of(store))[0]
        events = (CallEnded(1, "ok"), RunResumed(9), RunResumed(8))
        entries = tuple(Entry(0.0, 1, encode_event(event)) for event in events)
        await store.append(Batch(row.uid, row.head, entries, Summary("clerk")))
        row = await store.get(row.uid)
        assert row is not None
        wrong = [finding.wrong for finding in await check_session(store, row)]
        assert "call 1 has 2 outcomes" in wrong
        assert f"its log was resumed under epoch 9, its row is at {row.epoch}" in wrong
        assert "its epochs go back: [9, 8]" in wrong
