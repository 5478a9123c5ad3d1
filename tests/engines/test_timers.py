"""What is due at a time is driven on time, though the process that knew of it is dead: with every engine."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from perdure import Record, Runtime, Session
from perdure.core.events import CallSuspended, RunEnded, RunStarted
from perdure.stores.postgres import PostgresStore
from perdure.triggers import At
from tests.engines.temporal_server import TemporalServer
from tests.engines.test_upgrades import PATIENCE, working
from tests.engines.timely import EXPIRES, punctual
from tests.engines.trial import PERDURE
from tests.postgres import OwnServer

TIMELY = f"{Path(__file__).parent / 'timely.py'}:punctual"
LATEST = 5.0
"""Seconds after its time: the slowest engine looks every 2 s and polls every second, and the machine may be busy."""


async def first(session: Session[str], kind: type) -> Record:
    async for item in session.stream():
        if isinstance(item, Record) and isinstance(item.event, kind):
            return item
    raise AssertionError("the stream ended")


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", "dbos", "temporal"])
async def test_an_expiry_and_a_trigger_come_on_time_though_their_process_is_dead(
    engine: str, tmp_path: Path, server: OwnServer, record_property: pytest.RecordProperty
) -> None:
    behind = None
    if engine == "temporal":
        behind = TemporalServer(tmp_path)
        await behind.start()
        engine = f"temporal://{behind.address}"
    try:
        late = await lateness(engine, tmp_path, server)
    finally:
        if behind is not None:
            behind.kill()
    print(f"{engine}: {late}")
    assert all(-0.01 <= seconds <= LATEST for seconds in late), late


async def lateness(engine: str, folder: Path, server: OwnServer) -> list[float]:
    """How many seconds after its time each came."""
    async with Runtime(PostgresStore(server.url), agents=[punctual], engine=None) as runtime:
        expiring = await runtime.open(punctual, id="expiring")
        triggered = await runtime.open(punctual, id="triggered")
        async with working(folder, server.url, engine, [PERDURE], "first.log", TIMELY):
            await expiring.start("pay")
            asked = await asyncio.wait_for(first(expiring, CallSuspended), PATIENCE)
            due = time.time() + EXPIRES
            await triggered.set_trigger("soon", At(due), "go")
        # The one who asked is dead: killed, with the alarm in its memory.
        async with working(folder, server.url, engine, [PERDURE], "second.log", TIMELY):
            ended = await asyncio.wait_for(first(expiring, RunEnded), PATIENCE)
            started = await asyncio.wait_for(first(triggered, RunStarted), PATIENCE)
    assert isinstance(asked.event, CallSuspended)
    assert isinstance(ended.event, RunEnded)
    assert ended.event.reason == "completed"
    return [ended.at - asked.at - EXPIRES, started.at - due]
