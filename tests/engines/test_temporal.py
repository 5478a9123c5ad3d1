"""What is Temporal's own: a namespace that is not there, and a worker that ends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from temporalio.client import Client

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
    with pytest.raises(
        UsageError, match=r"^Temporal does not answer at 127\.0\.0\.1:1; start it first, or mend the address\.$"
    ):
        await TemporalEngine("127.0.0.1:1", SystemClock()).start(Sheet("clerk"))


async def test_a_worker_of_temporals_that_ends_is_said_and_its_sessions_are_driven_all_the_same(
    server: TemporalServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def namespace_gone_since(engine: TemporalEngine, owner: str) -> Client:
        return await Client.connect(server.address, namespace="GONE", identity=owner)

    monkeypatch.setattr("perdure.runtime.lookout.LOOK_EVERY", 0.1)
    monkeypatch.setattr(TemporalEngine, "_connect", namespace_gone_since)
    sheet = Sheet("clerk")
    engine = TemporalEngine(server.address, SystemClock())

    def warnings() -> list[str]:
        said = "Temporal's worker of the queue clerk has ended, start this process again: "
        return [record.getMessage() for record in caplog.records if record.getMessage().startswith(said)]

    await engine.start(sheet)
    try:
        await until(warnings)
        sheet.due.add("session")
        await until(lambda: sheet.ended["session"])
    finally:
        await soon(engine.drain(0))
    assert len(warnings()) == 1
    assert "GONE" in warnings()[0]
    assert {(record.name, record.levelname) for record in caplog.records} == {("perdure", "WARNING")}
