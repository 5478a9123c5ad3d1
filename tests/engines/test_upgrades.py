"""Workers of two versions side by side, and a schema that grows under a worker."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import pytest

from perdure import Runtime, Session, StoreError
from perdure.stores.postgres import PostgresStore
from tests.crash.ledger import read_lines
from tests.engines import older
from tests.engines.clerks import DEEDS, Deed, clerk
from tests.engines.temporal_server import TemporalServer
from tests.engines.trial import CLERK, PERDURE
from tests.postgres import OwnServer

ROOT = Path(__file__).parents[2]
OLDER = [sys.executable, "-m", "tests.engines.older"]
PATIENCE = 60.0


@asynccontextmanager
async def working(
    folder: Path, store: str, engine: str, program: list[str], log: str, agent: str = CLERK
) -> AsyncIterator[dict[str, Any]]:
    """A worker as a process; what it said when it was ready."""
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(ROOT))))
    env = {**os.environ, "PERDURE_TRIAL": str(folder), "PERDURE_TRIAL_PAUSE": "0.02", "PYTHONPATH": path}
    command = [*program, "worker", "--store", store, "--engine", engine, "-a", agent, "--json", "--grace", "0"]
    with (folder / log).open("w") as said:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, env=env, cwd=ROOT, text=True)
        assert process.stdout is not None
        try:
            line = await asyncio.wait_for(asyncio.to_thread(process.stdout.readline), PATIENCE)
            ready = json.loads(line or "{}")
            assert ready.get("state") == "ready", (line, (folder / log).read_text())
            yield ready
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


async def told(condition: Callable[[], object]) -> None:
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "it did not come"
        await asyncio.sleep(0.05)


async def charged(*sessions: Session[Any]) -> None:
    runs = (session.run("charge", key="charge") for session in sessions)
    ended = await asyncio.wait_for(asyncio.gather(*runs), PATIENCE)
    assert [result.output for result in ended] == ["charged"] * len(sessions)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", "dbos", pytest.param("temporal", marks=pytest.mark.sweep)])
async def test_workers_of_two_versions_side_by_side(engine: str, tmp_path: Path, server: OwnServer) -> None:
    behind = None
    if engine == "temporal":
        behind = TemporalServer(tmp_path)
        await behind.start()
        engine = f"temporal://{behind.address}"
    try:
        await side_by_side(engine, tmp_path, server)
    finally:
        if behind is not None:
            behind.kill()


async def side_by_side(engine: str, folder: Path, server: OwnServer) -> None:
    def left() -> list[str]:
        return [line for line in (folder / "old.log").read_text().splitlines() if "is left to newer workers" in line]

    async with (
        Runtime(PostgresStore(server.url), agents=[clerk], engine=None) as runtime,
        working(folder, server.url, engine, OLDER, "old.log"),
    ):
        await charged(await runtime.open(clerk, id="first"))
        tomorrow = await runtime.open(clerk, id="tomorrow")
        await tomorrow.rename("a fact that the older one does not know")
        await tomorrow.start("charge", key="charge")
        await told(left)
        await charged(await runtime.open(clerk, id="second"))
        await told_in_a_sentence(server.url)
        row = await runtime._host.world.store.get(tomorrow.uid)
        assert row is not None
        assert (row.epoch, row.owner) == (0, None), "nobody has claimed it"
        async with working(folder, server.url, engine, [PERDURE], "new.log") as newer:
            await charged(tomorrow)
            await charged(*[await runtime.open(clerk, id=f"both-{number}") for number in range(6)])
            versions = {str(worker.about["version"]) for worker in await runtime.workers()}
            assert len(versions) == 2
            assert older.VERSION in versions
            shown = await asyncio.to_thread(ask, "workers", "--store", server.url)
            assert "Workers of 2 versions" in shown
    assert len(left()) == 1
    deeds = read_lines(folder / DEEDS, Deed)
    assert {deed.worker for deed in deeds if deed.session == tomorrow.id} == {newer["pid"]}
    assert not [line for line in (folder / "new.log").read_text().splitlines() if "failed" in line]


async def told_in_a_sentence(store: str) -> None:
    """What the older version shows of it."""
    command = [*OLDER, "sessions", "show", "tomorrow", "--store", store]
    shown = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE)
    assert shown.returncode != 0
    assert shown.stdout == ""
    [sentence] = shown.stderr.splitlines()
    assert sentence.endswith("a newer version of Perdure may have written it: upgrade.")
    command = [*OLDER, "sessions", "list", "--store", store]
    listed = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE
    )
    assert "tomorrow" in listed.stdout


def ask(*words: str) -> str:
    command = [PERDURE, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE).stdout


POSTGRES_TOMORROW = """
ALTER TABLE perdure.sessions ADD COLUMN mood TEXT NOT NULL DEFAULT 'good';
ALTER TABLE perdure.records ADD COLUMN mood TEXT;
ALTER TABLE perdure.owners ADD COLUMN mood TEXT NOT NULL DEFAULT 'good';
CREATE TABLE perdure.moods (no BIGINT);
CREATE INDEX sessions_mood ON perdure.sessions (mood);
DO $do$
DECLARE v_source TEXT;
BEGIN
    -- The same function, with another body; and one with a parameter more, which callers of the old one may leave out.
    SELECT pg_get_functiondef(oid) INTO v_source FROM pg_proc
        WHERE proname = 'open_session' AND pronamespace = 'perdure'::regnamespace;
    EXECUTE replace(v_source, 'INSERT INTO perdure.metadata', 'INSERT INTO  perdure.metadata');
    SELECT pg_get_functiondef(oid) INTO v_source FROM pg_proc
        WHERE proname = 'append' AND pronamespace = 'perdure'::regnamespace;
    EXECUTE 'DROP FUNCTION perdure.append';
    EXECUTE replace(v_source, 'p_priority integer)', 'p_priority integer, p_mood TEXT DEFAULT ''good'')');
END $do$;
INSERT INTO perdure.migrations SELECT max(version) + 1 FROM perdure.migrations;
"""
SQLITE_TOMORROW = """
BEGIN IMMEDIATE;
ALTER TABLE sessions ADD COLUMN mood TEXT NOT NULL DEFAULT 'good';
ALTER TABLE records ADD COLUMN mood TEXT;
CREATE TABLE moods (no INTEGER PRIMARY KEY);
CREATE INDEX sessions_mood ON sessions (mood);
PRAGMA user_version = 99;
COMMIT;
"""


@pytest.mark.slow
async def test_tables_that_grow_under_a_worker_do_not_disturb_it_on_postgresql(
    tmp_path: Path, server: OwnServer
) -> None:
    async with (
        Runtime(PostgresStore(server.url), agents=[clerk], engine=None) as runtime,
        working(tmp_path, server.url, "local", [PERDURE], "worker.log"),
    ):
        before = [await runtime.open(clerk, id=f"before-{number}") for number in range(4)]
        await charged(*before)
        under_way = await runtime.open(clerk, id="under-way")
        await under_way.start("work 40", key="work")
        connection = await asyncpg.connect(server.url)
        try:
            await connection.execute(POSTGRES_TOMORROW)
            assert await connection.fetchval("SELECT count(*) FROM pg_proc WHERE proname = 'append'") == 1
        finally:
            await connection.close()
        await asyncio.wait_for(under_way.run("work 40", key="work"), PATIENCE)
        await charged(*[await runtime.open(clerk, id=f"after-{number}") for number in range(4)])
        assert len([row async for row in runtime.sessions()]) == 9
    assert (tmp_path / "worker.log").read_text() == ""
    with pytest.raises(StoreError, match=r"newer version of Perdure .*; upgrade Perdure\.$"):
        await PostgresStore(server.url).open()


@pytest.mark.slow
async def test_tables_that_grow_under_a_worker_do_not_disturb_it_on_sqlite(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'x.db'}"
    async with (
        Runtime(store, agents=[clerk], engine=None) as runtime,
        working(tmp_path, store, "local", [PERDURE], "worker.log"),
    ):
        await charged(await runtime.open(clerk, id="before"))
        under_way = await runtime.open(clerk, id="under-way")
        await under_way.start("work 40", key="work")
        connection = apsw.Connection(str(tmp_path / "x.db"))
        connection.set_busy_timeout(5000)
        connection.execute(SQLITE_TOMORROW)
        connection.close()
        await asyncio.wait_for(under_way.run("work 40", key="work"), PATIENCE)
        await charged(*[await runtime.open(clerk, id=f"after-{number}") for number in range(4)])
    assert (tmp_path / "worker.log").read_text() == ""
    with pytest.raises(StoreError, match=r"newer version of Perdure .*; upgrade Perdure\.$"):
        async with Runtime(store, agents=[clerk]):
            pass
