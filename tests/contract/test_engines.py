"""Engines keep the engine contract."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from secrets import token_hex

import pytest

from perdure.engines.dbos import DbosEngine
from perdure.engines.restate import RestateEngine
from perdure.engines.temporal import TemporalEngine
from perdure.ports import Engine
from perdure.runtime.clock import SystemClock
from perdure.runtime.local import LocalEngine
from perdure.testing import ManualClock
from perdure.testing.engine_contract import CHECKS, Sheet, check_engine, check_submit
from tests.engines.restate_server import RestateServer, free_port
from tests.engines.temporal_server import TemporalServer
from tests.postgres import new_schema


def local() -> Engine:
    return LocalEngine(SystemClock(), sweep_every=0.05)


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
async def test_local(check: Callable[..., object]) -> None:
    await check(local)


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
async def test_dbos(check: Callable[..., object], postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.runtime.lookout.LOOK_EVERY", 0.1)
    schema = f"{new_schema()}_dbos"
    await check(lambda: DbosEngine(postgres, SystemClock(), schema=schema, poll=0.05))


@pytest.fixture(scope="module")
def temporal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = TemporalServer(tmp_path_factory.mktemp("temporal"))
    asyncio.run(server.start())
    yield server.address
    server.kill()


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
async def test_temporal(check: Callable[..., object], temporal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.runtime.lookout.LOOK_EVERY", 0.1)
    prefix = token_hex(4)
    await check(lambda: TemporalEngine(temporal, SystemClock(), prefix=prefix))


@pytest.fixture(scope="module")
def restate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestateServer]:
    server = RestateServer(tmp_path_factory.mktemp("restate"))
    asyncio.run(server.start())
    yield server
    server.kill()


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
async def test_restate(check: Callable[..., object], restate: RestateServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.runtime.lookout.LOOK_EVERY", 0.1)
    serve = f"127.0.0.1:{free_port()}"
    clock, prefix = SystemClock(), f"t{token_hex(4)}"
    await check(lambda: RestateEngine(clock, restate.ingress, admin=restate.admin, serve=serve, prefix=prefix))


class Deaf(LocalEngine):
    """Drops what it is told, and never looks by itself."""

    def submit(self, session: str, queue: str) -> None:
        pass

    async def _sweep(self) -> None:
        pass


async def test_the_contract_finds_an_engine_that_drives_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.testing.engine_contract.PATIENCE", 0.1)
    report = await check_engine(lambda: Deaf(SystemClock()))
    assert {"submit", "again", "sweep", "failure", "cancel", "drain"} <= set(report.failed)


async def test_concurrency_holds_and_nothing_is_forgotten() -> None:
    most = 0

    class Counted(Sheet):
        async def drive(self, session: str) -> None:
            nonlocal most
            most = max(most, sum(self.under_way.values()) + 1)
            await super().drive(session)

    sheet = Counted("clerk")
    await check_submit(lambda: LocalEngine(SystemClock(), concurrency=1))
    engine = LocalEngine(SystemClock(), sweep_every=0.01, concurrency=2)
    await engine.start(sheet)
    for number in range(20):
        engine.submit(f"s{number}", "clerk")
    while len(sheet.ended) < 20:
        await asyncio.sleep(0)
    await engine.drain(1.0)
    assert most == 2


async def test_what_fails_again_and_again_is_tried_less_often_unless_it_is_asked_for() -> None:
    clock, sheet = ManualClock(), Sheet("clerk")
    sheet.fails.add("unreadable")
    sheet.due.add("unreadable")
    engine = LocalEngine(clock, sweep_every=0.1)
    await engine.start(sheet)
    await clock.advance(60.0)
    assert 10 <= sheet.began["unreadable"] <= 20
    began = sheet.began["unreadable"]
    engine.submit("unreadable", "clerk")
    await clock.advance(0)
    assert sheet.began["unreadable"] == began + 1
    await engine.drain(0)


async def test_only_its_queues_are_served() -> None:
    sheet = Sheet("clerk", "gpu")
    engine = LocalEngine(SystemClock(), queues=["gpu"])
    await engine.start(sheet)
    engine.submit("a", "clerk")
    engine.submit("b", "gpu")
    while not sheet.ended["b"]:
        await asyncio.sleep(0)
    await engine.drain(1.0)
    assert not sheet.began["a"]


async def test_what_waits_for_room_here_and_was_taken_by_others_is_not_begun() -> None:
    clock, sheet = ManualClock(), Sheet("clerk")
    sheet.due |= {"a", "b", "c"}
    sheet.gates["a"] = asyncio.Event()
    engine = LocalEngine(clock, sweep_every=0.1, concurrency=1)
    await engine.start(sheet)
    await clock.advance(0.1)
    engine.submit("d", "clerk")
    sheet.due.discard("b")
    await clock.advance(0.2)
    sheet.gates.pop("a").set()
    await clock.advance(0.2)
    await engine.drain(1.0)
    assert list(sheet.began) == ["a", "c", "d"]


async def test_priority_comes_first_where_there_is_no_room() -> None:
    sheet = Sheet("clerk")
    sheet.priorities.update({"high": 2, "higher": 3, "low": -1})
    sheet.gates["first"] = asyncio.Event()
    engine = LocalEngine(ManualClock(), sweep_every=3600.0, concurrency=1)
    await engine.start(sheet)
    for session in ("first", "low", "usual", "high", "usual 2", "higher"):
        engine.submit(session, "clerk")
    sheet.gates.pop("first").set()
    while len(sheet.ended) < 6:
        await asyncio.sleep(0)
    await engine.drain(1.0)
    assert list(sheet.began) == ["first", "higher", "high", "usual", "usual 2", "low"]
