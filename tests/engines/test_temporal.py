"""What is Temporal's own: a namespace that is not there, and a queue that it refuses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

from perdure import Runtime, UsageError
from perdure.engines.temporal import TemporalEngine
from perdure.runtime.clock import SystemClock
from perdure.testing.engine_contract import Sheet
from tests.engines.temporal_server import TemporalServer
from tests.runtime.scenes import soon, until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TemporalServer]:
    server = TemporalServer(tmp_path_factory.mktemp("temporal"))
    asyncio.run(server.start())
    yield server
    server.kill()


async def test_a_namespace_that_is_not_there_is_one_sentence(server: TemporalServer) -> None:
    said = f"^Temporal at {server.address} has no namespace 'TYPO'; make it there, or name another one.$"
    with pytest.raises(UsageError, match=said):
        async with Runtime("memory:", engine=f"temporal://{server.address}/TYPO"):
            pass


async def test_no_server_is_one_sentence() -> None:
    with pytest.raises(UsageError, match="^Temporal does not answer at 127.0.0.1:1 "):
        await TemporalEngine("127.0.0.1:1", SystemClock()).start(Sheet("clerk"))


async def test_a_queue_that_temporal_refuses_is_said_and_its_sessions_are_driven_all_the_same(
    server: TemporalServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.runtime.lookout.LOOK_EVERY", 0.1)
    too_long = "q" * 1100
    sheet = Sheet(too_long)
    engine = TemporalEngine(server.address, SystemClock())

    def warnings() -> list[str]:
        return [r.getMessage() for r in caplog.records if (r.name, r.levelno) == ("perdure", logging.WARNING)]

    await engine.start(sheet)
    try:
        await until(lambda: any("Temporal's worker of the queue" in warning for warning in warnings()))
        sheet.due.add("session")
        await until(lambda: sheet.ended["session"])
    finally:
        await soon(engine.drain(0))
    assert len([warning for warning in warnings() if too_long in warning]) == 1
