"""What is DBOS's own: what it is told, and what it cannot have."""

from __future__ import annotations

import asyncio
import json
import threading
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest
from dbos import DBOS

from perdure import Agent, Runtime, StoreError, UsageError
from perdure.engines import dbos
from perdure.engines.dbos import DbosEngine
from perdure.runtime import lookout
from perdure.runtime.clock import SystemClock
from perdure.stores.postgres import PostgresStore
from perdure.testing import ScriptedModel
from perdure.testing.engine_contract import Sheet
from tests.postgres import new_schema
from tests.runtime.scenes import soon


async def test_a_unit_is_a_uid_and_nothing_else(postgres: str) -> None:
    schema = new_schema()
    agent = Agent(name="clerk", model=ScriptedModel(lambda request: "a secret answer"))
    async with Runtime(PostgresStore(postgres, schema=schema), agents=[agent], engine="dbos") as runtime:
        session = await runtime.open(agent, id="order-7")
        assert (await soon(session.run("a secret question"))).output == "a secret answer"
        [worker] = await runtime.workers()
        assert (worker.owner, worker.about["engine"]) == (runtime.owner, "dbos")
    connection = await asyncpg.connect(postgres)
    try:
        units = await connection.fetch(
            "SELECT i.inputs, queue_name, application_version"
            f" FROM {schema}_dbos.workflow_status JOIN {schema}_dbos.workflow_input i USING (workflow_uuid)"
        )
        written = [json.loads(unit["inputs"]) for unit in units]
        assert written
        assert all(unit == {"args": [session.uid], "kwargs": {}} for unit in written)
        assert {(unit["queue_name"], unit["application_version"]) for unit in units} == {("perdure:clerk", "perdure-1")}
    finally:
        await connection.close()


async def test_a_quiet_queue_is_polled_seldom_and_what_comes_then_does_not_wait_for_it(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookout, "QUIET_AFTER", 0.2)
    agent = Agent(name="clerk", model=ScriptedModel(lambda request: "done"))
    store = PostgresStore(postgres, schema=new_schema())
    engine = DbosEngine(postgres, SystemClock(), schema=f"{store.schema}_dbos", poll=0.05)
    connection = await asyncpg.connect(postgres)

    async def polled(every: float) -> None:
        sql = f"SELECT polling_interval_sec FROM {store.schema}_dbos.queues WHERE name = 'perdure:clerk'"
        while await connection.fetchval(sql) != every:
            await asyncio.sleep(0.01)

    try:
        async with Runtime(store, agents=[agent], engine=engine) as runtime:
            await soon(polled(lookout.QUIET_POLL))
            monkeypatch.setattr(lookout, "QUIET_AFTER", 1000.0)
            session = await runtime.open(agent)
            assert (await soon(session.run("go"))).output == "done"
            await soon(polled(0.05))
    finally:
        await connection.close()


@pytest.mark.parametrize(("pages", "left"), [(20, 0), (2, 3)])
async def test_finished_units_are_removed_page_by_page(
    postgres: str, monkeypatch: pytest.MonkeyPatch, pages: int, left: int
) -> None:
    monkeypatch.setattr(dbos, "PAGE", 2)
    monkeypatch.setattr(dbos, "PAGES", pages)
    monkeypatch.setattr(dbos, "KEPT_FOR", timedelta(hours=-1))
    sheet, schema = Sheet("clerk"), f"{new_schema()}_dbos"
    engine = DbosEngine(postgres, SystemClock(), schema=schema, poll=0.05)
    await engine.start(sheet)

    def ended() -> int:
        return len(DBOS.list_workflows(name=dbos.UNIT, status="SUCCESS", load_input=False, load_output=False))

    async def all_ended() -> None:
        while await asyncio.to_thread(ended) < 7:
            await asyncio.sleep(0.01)

    try:
        for number in range(7):
            engine.submit(f"session-{number}", "clerk")
        await soon(all_ended())
        await asyncio.to_thread(dbos._forget)
        assert await asyncio.to_thread(ended) == left
    finally:
        await engine.drain(0)


async def test_nothing_is_taken_from_a_queue_while_dbos_ends(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be lost on DBOS's closed loop, and found by the sweep only."""
    destroy, taking = DBOS.destroy, list[list[str]]()

    def threads() -> list[str]:
        # DBOS has a queue of its own, on which nothing of ours ever is.
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("queue-worker-perdure:")]

    def destroyed() -> None:
        taking.append(threads())
        destroy()

    monkeypatch.setattr(DBOS, "destroy", destroyed)
    engine = DbosEngine(postgres, SystemClock(), schema=f"{new_schema()}_dbos", poll=5.0)
    await engine.start(Sheet("clerk"))
    while not threads():
        await asyncio.sleep(0.01)
    await soon(engine.drain(1.0))
    assert taking == [[]]


async def test_a_process_with_dbos_of_its_own_is_told_so(tmp_path: Path, postgres: str) -> None:
    DBOS(config={"name": "host-app", "system_database_url": f"sqlite:///{tmp_path / 'host.sqlite'}"})
    try:
        with pytest.raises(UsageError, match="DBOS runs in this process already"):
            await DbosEngine(postgres, SystemClock()).start(Sheet("clerk"))
    finally:
        DBOS.destroy()


async def test_no_database_is_one_sentence() -> None:
    with pytest.raises(StoreError, match=r"^DBOS cannot start \(.*\); it needs a PostgreSQL"):
        await DbosEngine("postgresql://localhost:1/x", SystemClock()).start(Sheet("clerk"))


async def test_it_needs_postgresql() -> None:
    with pytest.raises(UsageError, match="needs PostgreSQL"):
        async with Runtime("memory:", engine="dbos"):
            pass
