"""PostgreSQL dies under sessions at work, or its answers get lost: nothing is lost or doubled, and nobody hangs."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, Record, Runtime, StoreError, ToolContext, tool
from perdure.events import ModelResponded, RunEnded, RunResumed
from perdure.stores.postgres import PostgresStore
from perdure.stores.postgres_link import load_driver
from perdure.testing import ScriptedModel, call
from perdure.testing.children import in_child
from perdure.testing.store_samples import batch, data_of, first
from tests.crash.ledger import LEDGER, Deed, read_lines, write_line
from tests.postgres import Cutter, OwnServer, new_schema, opened
from tests.runtime.scenes import check_log, collect, until

SESSIONS = 8
TURNS = 20
PATIENCE = 90.0


def make_agent(ledger: Path) -> Agent:
    @tool
    async def work(item: str, ctx: ToolContext) -> str:
        """At most once: a second start would be seen in the ledger."""
        write_line(ledger, Deed("start", "work", f"{ctx.session} {item}", ctx.call, ctx.attempt, ctx.idempotency_key))
        await asyncio.sleep(0.02)
        return item

    def answer(request: Any) -> Any:
        turns = len(request.messages) // 2
        return "Done." if turns >= TURNS else [call("work", item=str(turns))]

    return Agent(name="worker", model=ScriptedModel(answer), tools=[work])


async def test_sessions_outlive_crashes_of_the_server(server: OwnServer, tmp_path: Path) -> None:
    agent = make_agent(tmp_path / "ledger.jsonl")
    async with Runtime(PostgresStore(server.url, timeout=5.0), agents=[agent]) as runtime:
        sessions = [await runtime.open(agent, id=str(number)) for number in range(SESSIONS)]
        followed: list[Any] = []
        following = collect(sessions[0].stream(), followed)
        runs = [asyncio.ensure_future(session.run("go", key="go")) for session in sessions]
        for turns in (3, 10):
            await until(lambda turns=turns: sum(one.state.calls for one in sessions) > turns * SESSIONS)
            await server.crash()
            assert not any(run.done() for run in runs)
            await server.start()
        results = await asyncio.wait_for(asyncio.gather(*runs), PATIENCE)
        assert {result.output for result in results} == {"Done."}
        for session in sessions:
            records = await session.records()
            check_log(records)
            assert sum(isinstance(record.event, ModelResponded) for record in records) == TURNS + 1
            assert not any(isinstance(record.event, RunResumed) for record in records)
        await until(lambda: isinstance(followed[-1], Record) and isinstance(followed[-1].event, RunEnded))
        following.cancel()
        assert [item for item in followed if isinstance(item, Record)] == await sessions[0].records()
    starts = Counter(deed.item for deed in read_lines(tmp_path / "ledger.jsonl", Deed))
    assert len(starts) == SESSIONS * TURNS
    assert set(starts.values()) == {1}


async def test_a_server_that_is_gone_is_an_error_with_a_time(server: OwnServer) -> None:
    async with opened(PostgresStore(server.url, timeout=2.0)) as store:
        await store.append(first("s", 1))
        await server.crash()
        for ask in (store.append(batch("s", 1, 2)), store.read("s"), store.runnable(["clerk"], now=0.0)):
            with pytest.raises(StoreError, match=r"^PostgreSQL cannot serve this now \(.*\); try again\.$") as caught:
                await asyncio.wait_for(ask, PATIENCE)
            assert caught.value.retry_after
        await server.start()
        await store.append(batch("s", 1, 2))
        assert data_of(await store.read("s")) == [1, 2]


async def test_a_server_that_does_not_answer_is_an_error_with_a_time(postgres: str) -> None:
    async with opened(PostgresStore(postgres, schema=new_schema(), timeout=0.5)) as store:
        await store.append(first("s", 1))
        connection = await load_driver().connect(postgres)
        try:
            async with connection.transaction():
                await connection.execute(f"SELECT 1 FROM {store.schema}.sessions FOR UPDATE")
                with pytest.raises(StoreError, match="it did not answer in time") as caught:
                    await asyncio.wait_for(store.append(batch("s", 1, 2)), PATIENCE)
                assert caught.value.retry_after
        finally:
            await connection.close()
        await store.append(batch("s", 1, 2))
        assert data_of(await store.read("s")) == [1, 2]


async def test_a_commit_whose_answer_got_lost_counts_once(postgres: str, tmp_path: Path) -> None:
    async with Cutter(postgres, tmp_path) as cutter, opened(PostgresStore(cutter.url, schema=new_schema())) as store:
        cutter.cuts = 1
        await store.append(first("s", 1))
        assert cutter.cuts == 0
        for number in range(2, 6):
            cutter.cuts = 1
            await store.append(batch("s", number - 1, number))
            assert cutter.cuts == 0
        assert data_of(await store.read("s")) == [1, 2, 3, 4, 5]


async def test_runs_do_not_mind_lost_answers(postgres: str, tmp_path: Path) -> None:
    agent = make_agent(tmp_path / "ledger.jsonl")
    async with (
        Cutter(postgres, tmp_path) as cutter,
        Runtime(PostgresStore(cutter.url, schema=new_schema()), agents=[agent]) as runtime,
    ):
        session = await runtime.open(agent, id="s")
        run = await session.start("go", key="go")
        for calls in range(1, TURNS, 3):
            await until(lambda calls=calls: session.state.calls >= calls)
            cutter.cuts = 1
        result = await asyncio.wait_for(session.run("go", key="go"), PATIENCE)
        assert (result.output, result.run) == ("Done.", run.run)
        check_log(await session.records())
    assert Counter(deed.item for deed in read_lines(tmp_path / "ledger.jsonl", Deed)).most_common(1)[0][1] == 1


async def test_streams_of_two_processes_equal_the_log(postgres: str, tmp_path: Path) -> None:
    """One drives and follows, the other asks and follows."""
    schema = new_schema()
    agent = make_agent(LEDGER)

    async def live(name: str, engine: str | None) -> None:
        async with Runtime(PostgresStore(postgres, schema=schema), agents=[agent], engine=engine) as runtime:
            await asyncio.gather(*(follow(runtime, name, str(number), engine) for number in range(4)))

    async def follow(runtime: Runtime, name: str, id: str, engine: str | None) -> None:
        session = await runtime.open(agent, id=id)
        if engine is None:
            await session.start("go", key="go")
        seqs: list[int] = []
        async for item in session.stream():
            if isinstance(item, Record):
                seqs.append(item.seq)
                if isinstance(item.event, RunEnded):
                    break
        Path(f"{name}-{id}").write_text(repr(seqs))

    processes = [
        in_child(tmp_path, lambda: asyncio.run(live("driving", "local"))),
        in_child(tmp_path, lambda: asyncio.run(live("asking", None))),
    ]
    assert await asyncio.gather(*processes) == [0, 0], (tmp_path / "trace.txt").read_text()
    async with opened(PostgresStore(postgres, schema=schema)) as store:
        for number in range(4):
            row = await store.find("", str(number))
            assert row is not None
            check_log(await store.read(row.uid))
            for name in ("driving", "asking"):
                assert (tmp_path / f"{name}-{number}").read_text() == repr(list(range(1, row.head + 1)))
