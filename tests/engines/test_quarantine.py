"""A session that kills whoever drives it is ended after three deaths, and takes nobody with it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from pathlib import Path

import pytest

from perdure import Runtime
from perdure.core.events import Event, Noted, RunResumed
from perdure.core.state import SessionState
from perdure.events import CallEnded, ModelCalled, RunEnded, RunStarted
from perdure.ports import Batch, Claim
from perdure.runtime.quarantine import MAX_DEATHS, deaths_of, is_suspect
from perdure.stores.memory import MemoryStore
from perdure.testing.store_samples import IDLE, entry, first
from tests.engines.clerks import clerk
from tests.engines.restate_server import RestateServer
from tests.engines.trial import CLERK, PERDURE, events
from tests.postgres import OwnServer

DIED = Noted("driver_died", {"owner": "w", "deaths": 2})


@pytest.mark.parametrize(
    ("log", "deaths"),
    [
        ([], 0),
        ([DIED], 2),
        ([DIED, RunResumed(3), ModelCalled(1)], 2),
        ([DIED, CallEnded(1, "ok")], 0),
        ([DIED, RunStarted(2, (1,))], 0),
        ([CallEnded(1, "ok"), DIED, Noted("other", {"deaths": 7}), Noted("driver_died", "nonsense")], 2),
    ],
)
async def test_the_log_counts_deaths_since_the_session_last_got_anywhere(log: list[Event], deaths: int) -> None:
    store = MemoryStore()
    await store.open()
    await store.append(first("s", 1))
    if log:
        await store.append(Batch("s", 1, tuple(entry(event) for event in log), IDLE))
    state = SessionState(uid="s", seq=1 + len(log))
    assert await deaths_of(store, state) == deaths
    assert not await is_suspect(store, state)  # nothing is under way


async def test_a_claim_names_the_dead_owner() -> None:
    store = MemoryStore()
    await store.open()
    await store.append(first("s", 1))
    await store.join("a")
    await store.join("b")
    await store.claim("s", "a")
    store._owners.discard("a")
    assert await store.claim("s", "b") == Claim(2, 1, "a")
    assert await store.claim("s", "b") == Claim(3, 1)


def work(folder: Path, store: str, engine: str = "local") -> subprocess.Popen[str]:
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), root)))
    env = {**os.environ, "PERDURE_TRIAL": str(folder), "PERDURE_TRIAL_PAUSE": "1.0", "PYTHONPATH": path}
    command = [PERDURE, "worker", "--store", store, "-a", CLERK, "--grace", "0", "--engine", engine]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env, text=True)


async def quarantined(folder: Path, store: str, engine: str, patience: float) -> None:
    """One worker at a time, and another when it died, until everything has ended."""
    deaths = 0
    async with Runtime(store, agents=[clerk], engine=None) as runtime:
        innocent = [await runtime.open(clerk, id=f"innocent-{number}") for number in range(3)]
        bomb = await runtime.open(clerk, id="bomb")
        await bomb.start("explode", key="boom")
        for session in innocent:
            await session.start("charge", key="work")
        worker = work(folder, store, engine)
        deadline = time.monotonic() + patience
        try:
            while True:
                ended = events(await bomb.records(), RunEnded)
                done = [events(await session.records(), RunEnded) for session in innocent]
                if ended and all(done):
                    break
                assert time.monotonic() < deadline, "it goes on and on"
                if worker.poll() is not None:
                    assert worker.returncode == -9
                    deaths += 1
                    worker = work(folder, store, engine)
                await asyncio.sleep(0.05)
        finally:
            worker.kill()
            worker.wait()
        assert deaths == MAX_DEATHS
        assert [(end.reason, end.detail) for end in ended] == [
            ("cancelled", "by quarantine: 3 drivers have died of it")
        ]
        noted = [event for event in events(await bomb.records(), Noted) if event.kind == "quarantined"]
        assert [event.data for event in noted] == [{"deaths": MAX_DEATHS}]
        for session in innocent:
            assert [end.reason for end in events(await session.records(), RunEnded)] == ["completed"]
            assert not [event for event in events(await session.records(), Noted) if event.kind == "quarantined"]


@pytest.mark.slow
async def test_a_session_that_kills_its_workers_is_quarantined_and_harms_no_other(tmp_path: Path) -> None:
    await quarantined(tmp_path, f"sqlite:{tmp_path / 'q.db'}", "local", 60)


@pytest.mark.sweep
@pytest.mark.timeout(300)
@pytest.mark.parametrize("engine", ["local", "dbos", "restate"])
async def test_the_same_on_postgresql(engine: str, tmp_path: Path, server: OwnServer) -> None:
    """Every death takes as long as a heartbeat may fail to come."""
    if engine != "restate":
        await quarantined(tmp_path, server.url, engine, 200)
        return
    behind = RestateServer(tmp_path)
    await behind.start()
    try:
        await quarantined(tmp_path, server.url, behind.address, 200)
    finally:
        behind.kill()
