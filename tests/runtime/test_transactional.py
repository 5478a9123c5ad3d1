"""Transactional tools: what they write and their outcome are committed together, or neither is."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec.structs import replace

from perdure import Agent, Policy, Runtime, ToolContext, ToolError, UsageError, tool
from perdure.events import CallEnded, CallStarted
from perdure.plugins import Hooks, ResultMoment
from perdure.stores import sqlite_transaction
from perdure.stores.postgres import PostgresStore
from perdure.stores.postgres_link import load_driver
from perdure.stores.sqlite import SqliteStore
from perdure.testing import ScriptedModel, call
from perdure.tools import Transaction
from tests.postgres import OwnServer, new_schema
from tests.runtime.scenes import events, soon, told, until

Query = Callable[[str], Coroutine[Any, Any, list[Any]]]


class Place:
    """A store, and a way to look into its database, or to write to it, from outside."""

    def __init__(self, store: Any, query: Query) -> None:
        self.store = store
        self.query = query


@pytest.fixture(params=["sqlite", "postgres"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """With a table `paid (item, cents)`."""
    if request.param == "sqlite":
        path = tmp_path / "store.db"

        async def look(sql: str) -> list[Any]:
            # Not with Python's own SQLite: two of them in one process break each other's locks.
            connection = apsw.Connection(str(path))
            try:
                return connection.execute(sql).fetchall()
            finally:
                connection.close()

        here = Place(SqliteStore(path), look)
        await here.store.open()
        await here.store.close()
    else:
        url, schema = request.getfixturevalue("postgres"), new_schema()
        url = f"{url}&search_path={schema}_own"

        async def ask(sql: str) -> list[Any]:
            connection = await load_driver().connect(url)
            try:
                return [tuple(row) for row in await connection.fetch(sql)]
            finally:
                await connection.close()

        here = Place(PostgresStore(url, schema=schema), ask)
        await ask(f"CREATE SCHEMA {schema}_own")
    await here.query("CREATE TABLE paid (item TEXT, cents INTEGER)")
    return here


PAID = "SELECT item, cents FROM paid ORDER BY item"


@tool
def pay(item: str, cents: int, tx: Transaction, ctx: ToolContext) -> str:
    """Pay."""
    tx.execute("INSERT INTO paid VALUES ($1, $2)", item, cents)
    if cents < 0:
        raise ToolError("nothing to pay")
    if cents == 0:
        raise RuntimeError("out of order")
    [(count,)] = tx.execute("SELECT count(*) FROM paid")
    return f"{item} is number {count}"


def agent_of(*turns: Any, tools: Any = (pay,), **options: Any) -> Agent:
    return Agent(name="clerk", model=ScriptedModel([*turns, "Done."]), tools=list(tools), **options)


async def test_writes_and_outcome_are_one_commit(place: Place) -> None:
    agent = agent_of([call("pay", item="a", cents=1)], [call("pay", item="b", cents=2)])
    async with Runtime(place.store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="s")
        assert (await soon(session.run("go"))).output == "Done."
        assert await told(session) == [("pay", "ok", "a is number 1"), ("pay", "ok", "b is number 2")]
        assert [event.effect for event in await events(session, CallStarted)] == ["transactional"] * 2
    assert await place.query(PAID) == [("a", 1), ("b", 2)]


async def test_calls_of_one_turn_each_have_their_transaction(place: Place) -> None:
    agent = agent_of([call("pay", item=str(number), cents=number + 1) for number in range(12)])
    async with Runtime(place.store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="s")
        await soon(session.run("go"))
        assert {end.outcome for end in await events(session, CallEnded)} == {"ok"}
    assert sorted(cents for _, cents in await place.query(PAID)) == list(range(1, 13))


async def test_a_failure_takes_back_what_was_written_and_is_no_doubt(place: Place) -> None:
    agent = agent_of([call("pay", item="a", cents=-1), call("pay", item="b", cents=0), call("pay", item="c", cents=3)])
    async with Runtime(place.store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="s")
        await soon(session.run("go"))
        ends = {end.call: (end.outcome, end.in_doubt) for end in await events(session, CallEnded)}
        assert ends == {1: ("error", False), 2: ("error", False), 3: ("ok", False)}
    assert await place.query(PAID) == [("c", 3)]


async def test_an_outcome_that_middleware_makes_an_error_takes_back_the_writes(place: Place) -> None:
    async def refuse(action: Any, perform: Any) -> Any:
        event = await perform(action)
        return replace(event, outcome="error") if isinstance(event, CallEnded) else event

    agent = agent_of([call("pay", item="a", cents=1)])
    async with Runtime(place.store, agents=[agent], middleware=[refuse]) as runtime:
        session = await runtime.open(agent, id="s")
        await soon(session.run("go"))
        assert [end.outcome for end in await events(session, CallEnded)] == ["error"]
    assert await place.query(PAID) == []


async def test_it_passes_the_same_gate(place: Place) -> None:
    agent = agent_of([call("pay", item="a", cents=1)], policy=Policy(deny=["pay"]))
    async with Runtime(place.store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="s")
        await soon(session.run("go"))
        assert [outcome for _, outcome, _ in await told(session)] == ["denied"]
    assert await place.query(PAID) == []


async def test_what_others_changed_meanwhile_runs_it_again(place: Place) -> None:
    """On SQLite between the body and its commit; PostgreSQL has locks for that, so there it runs once."""
    seen: list[int] = []
    is_sqlite = isinstance(place.store, SqliteStore)

    @tool
    def count(tx: Transaction) -> str:
        [(rows,)] = tx.execute("SELECT count(*) FROM paid")
        tx.execute("INSERT INTO paid VALUES ('own', $1)", rows)
        seen.append(rows)
        return str(rows)

    async def meddle(moment: ResultMoment) -> None:
        if len(seen) == 1 and is_sqlite:
            await place.query("INSERT INTO paid VALUES ('theirs', 0)")

    agent = agent_of([call("count")], tools=[count])
    async with Runtime(place.store, agents=[agent], hooks=[Hooks(after_tool=meddle)]) as runtime:
        session = await runtime.open(agent, id="s")
        await soon(session.run("go"))
        assert await told(session) == [("count", "ok", "1" if is_sqlite else "0")]
        assert seen == ([0, 1] if is_sqlite else [0])
        assert len(await events(session, CallStarted)) == 1


async def test_a_cancel_takes_back_what_was_written(place: Place) -> None:
    started, end = threading.Event(), threading.Event()

    @tool
    def hold(tx: Transaction, ctx: ToolContext) -> str:
        tx.execute("INSERT INTO paid VALUES ('held', 1)")
        started.set()
        end.wait(20)
        return "held"

    agent = agent_of([call("hold")], tools=[hold])
    async with Runtime(place.store, agents=[agent], grace=0.1) as runtime:
        session = await runtime.open(agent, id="s")
        run = await session.start("go")
        await until(started.is_set)
        if isinstance(place.store, SqliteStore):
            # Its writer is busy with the tool: the cancel is written when that is over.
            asyncio.get_running_loop().call_later(0.2, end.set)
        await session.cancel()
        result = await soon(_settled(run))
        end.set()
        [ended] = await events(session, CallEnded)
        assert result.reason == "cancelled"
        if ended.outcome != "ok":
            assert (ended.outcome, ended.in_doubt) == ("cancelled", False)
    assert await place.query(PAID) == ([("held", 1)] if ended.outcome == "ok" else [])


async def _settled(run: Any) -> Any:
    return await run


async def test_async_tools_are_for_postgresql(place: Place) -> None:
    @tool(effect="transactional")
    async def put(item: str, tx: Transaction) -> str:
        await tx.execute("INSERT INTO paid VALUES ($1, 1)", item)
        return str(await tx.execute("SELECT item FROM paid"))

    agent = agent_of([call("put", item="a")], tools=[put])
    runtime = Runtime(place.store, agents=[agent])
    if isinstance(place.store, SqliteStore):
        with pytest.raises(UsageError, match=r"^On SQLite a transactional tool .* make 'put' no async one\.$"):
            await runtime.__aenter__()
        return
    async with runtime:
        session = await runtime.open(agent, id="s")
        await soon(session.run("go"))
        assert await told(session) == [("put", "ok", "[('a',)]")]
    assert await place.query(PAID) == [("a", 1)]


async def test_memory_has_no_transactions() -> None:
    agent = agent_of([call("pay", item="a", cents=1)])
    with pytest.raises(UsageError, match=r"^Tool 'pay' takes a Transaction, and this store has none; take "):
        await Runtime("memory:", agents=[agent]).__aenter__()


def test_the_parameter_makes_the_effect() -> None:
    assert pay.spec.effect == "transactional"
    assert set(pay.spec.parameters["properties"]) == {"item", "cents"}

    @tool(effect="transactional")
    def bare() -> str:
        return ""

    @tool(effect="read")
    def wrong(tx: Transaction) -> str:
        return ""

    @tool
    def twice(tx: Transaction, other: Transaction) -> str:
        return ""

    for made, said in ((bare, "add a parameter of that type"), (wrong, "not 'read'"), (twice, "second Transaction")):
        with pytest.raises(UsageError, match=said):
            _ = made.spec


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM records",
        "UPDATE sessions SET epoch = 9",
        "COMMIT",
        "DROP TABLE records",
        "PRAGMA user_version = 9",
        "CREATE TRIGGER t AFTER INSERT ON records BEGIN SELECT 1; END",
        "CREATE TEMP TRIGGER t AFTER INSERT ON records BEGIN SELECT 1; END",
        "CREATE INDEX mine ON records (seq)",
        "CREATE UNIQUE INDEX mine ON Sessions (agent)",
        "DROP INDEX sessions_wake",
        "ALTER TABLE records RENAME TO gone",
        "ALTER TABLE records RENAME COLUMN seq TO gone",
        "ALTER TABLE drafts ADD COLUMN mine TEXT",
        "ALTER TABLE sessions DROP COLUMN priority",
        "CREATE TEMP TABLE Records (no, seq)",
        "CREATE TEMP VIEW records AS SELECT 1",
        "CREATE TABLE IF NOT EXISTS records (no)",
        "CREATE TEMP TABLE mine (no); ALTER TABLE mine RENAME TO records",
    ],
)
async def test_on_sqlite_the_log_is_out_of_reach(sql: str, tmp_path: Path) -> None:
    @tool
    def meddle(tx: Transaction) -> str:
        tx.execute(sql)
        return "done"

    agent = agent_of([call("meddle")], tools=[meddle])
    async with Runtime(SqliteStore(tmp_path / "s.db"), agents=[agent]) as runtime:
        session = await runtime.open(agent, id="s")
        assert (await soon(session.run("go"))).output == "Done."
        [(_, outcome, text)] = await told(session)
        assert outcome == "error"
        assert "not authorized" in text


async def test_on_sqlite_a_trigger_of_the_store_is_not_dropped(tmp_path: Path) -> None:
    path = tmp_path / "s.db"

    @tool
    def meddle(tx: Transaction) -> str:
        tx.execute("DROP TRIGGER audit")
        return "done"

    agent = agent_of([call("meddle")], tools=[meddle])
    async with Runtime(SqliteStore(path), agents=[agent]):
        pass
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TRIGGER audit AFTER DELETE ON records BEGIN SELECT 1; END")
    connection.close()
    async with Runtime(SqliteStore(path), agents=[agent]) as runtime:
        session = await runtime.open(agent, id="s")
        await soon(session.run("go"))
        [(_, outcome, text)] = await told(session)
        assert (outcome, "not authorized" in text) == ("error", True)


async def test_on_sqlite_tables_of_ones_own_are_changed_as_one_likes(tmp_path: Path) -> None:
    @tool
    def arrange(tx: Transaction) -> int:
        for sql in (
            "CREATE TABLE mine (records TEXT, wake REAL)",
            "CREATE INDEX mine_wake ON mine (wake)",
            "CREATE TRIGGER counted AFTER INSERT ON mine BEGIN UPDATE mine SET wake = 1; END",
            "INSERT INTO mine (records) VALUES ('a')",
            "UPDATE mine SET records = 'b'",
            "ALTER TABLE mine ADD COLUMN more TEXT",
            "DROP TRIGGER counted",
            "DROP INDEX mine_wake",
            "ALTER TABLE mine RENAME TO others",
        ):
            tx.execute(sql)
        return len(tx.execute("SELECT * FROM others WHERE records = 'b' AND wake = 1"))

    agent = agent_of([call("arrange")], tools=[arrange])
    async with Runtime(SqliteStore(tmp_path / "s.db"), agents=[agent]) as runtime:
        session = await runtime.open(agent, id="s")
        assert (await soon(session.run("go"))).output == "Done."
        [(_, outcome, text)] = await told(session)
        assert (outcome, text) == ("ok", "1")


async def test_on_sqlite_it_is_capped_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_transaction, "SECONDS", 0.05)

    @tool
    def dawdle(tx: Transaction) -> str:
        tx.execute("WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n")
        return "done"

    agent = agent_of([call("dawdle")], tools=[dawdle])
    async with Runtime(SqliteStore(tmp_path / "s.db"), agents=[agent]) as runtime:
        session = await runtime.open(agent, id="s")
        assert (await soon(session.run("go"))).output == "Done."
        [(_, outcome, text)] = await told(session)
        assert outcome == "error"
        assert "a transaction on SQLite may take" in text


async def test_a_server_that_crashes_under_a_transaction_runs_it_again() -> None:
    server, runs = OwnServer(), 0
    try:
        asking = await load_driver().connect(server.url)
        await asking.execute("CREATE TABLE paid (item TEXT, cents INTEGER)")
        await asking.close()

        @tool
        async def put(tx: Transaction) -> str:
            nonlocal runs
            runs += 1
            await tx.execute("INSERT INTO paid VALUES ('a', $1)", runs)
            if runs == 1:
                await server.crash()
                await server.start()
            return "put"

        agent = agent_of([call("put")], tools=[put])
        async with Runtime(PostgresStore(server.url), agents=[agent]) as runtime:
            session = await runtime.open(agent, id="s")
            assert (await asyncio.wait_for(session.run("go"), 60)).output == "Done."
            assert await told(session) == [("put", "ok", "put")]
        asking = await load_driver().connect(server.url)
        assert [tuple(row) for row in await asking.fetch("SELECT * FROM paid")] == [("a", 2)]
        await asking.close()
    finally:
        server.stop()
