"""What is Restate's own: what it is told, who shares its work, and what happens without it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web
from hypothesis import given
from hypothesis import strategies as st

from perdure import Agent, Runtime, UsageError
from perdure.engines import restate as engines
from perdure.engines.restate import RestateEngine, restate_engine
from perdure.runtime.clock import SystemClock
from perdure.testing import ScriptedModel
from perdure.testing.engine_contract import Sheet
from tests.core.strategies import often
from tests.engines.restate_server import RestateServer, free_port
from tests.engines.trial import CLERK, PERDURE
from tests.runtime.scenes import soon, until


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestateServer]:
    server = RestateServer(tmp_path_factory.mktemp("restate"))
    asyncio.run(server.start())
    yield server
    server.kill()


@pytest.fixture
async def own(tmp_path: Path) -> AsyncIterator[RestateServer]:
    """One that may be killed."""
    server = RestateServer(tmp_path)
    await server.start()
    yield server
    server.kill()


def engine_at(server: RestateServer, serve: str | None = None, prefix: str = "perdure", **more: Any) -> RestateEngine:
    return RestateEngine(
        SystemClock(), server.ingress, admin=server.admin, serve=serve or server.serve, prefix=prefix, **more
    )


async def invocations(server: RestateServer, service: str) -> list[Any]:
    """What Restate has in hand for a queue."""
    query = {"query": f"SELECT id, status FROM sys_invocation WHERE target_service_name = '{service}'"}
    headers = {"accept": "application/json"}
    async with (
        ClientSession() as client,
        client.post(f"http://{server.admin}/query", json=query, headers=headers) as response,
    ):
        assert response.status == 200
        found = await response.json()
        return list(found["rows"])


class Ear:
    """Stands before Restate's ingress and writes down what it is asked."""

    def __init__(self, server: RestateServer) -> None:
        self.heard: list[tuple[str, bytes]] = []
        self._server = server
        self.address = f"127.0.0.1:{free_port()}"

    async def __aenter__(self) -> Ear:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._pass_on)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        host, _, port = self.address.partition(":")
        await web.TCPSite(self._runner, host, int(port)).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _pass_on(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.heard.append((request.path, body))
        headers = {"content-type": "application/json"}
        async with (
            ClientSession() as client,
            client.post(f"http://{self._server.ingress}{request.path}", data=body, headers=headers) as response,
        ):
            return web.Response(status=response.status, body=await response.read(), content_type="application/json")


async def test_a_unit_is_a_uid_and_nothing_else(shared: RestateServer, tmp_path: Path) -> None:
    agent = Agent(name="a clerk", model=ScriptedModel(lambda request: "a secret answer"))
    async with Ear(shared) as ear:
        address = f"restate://{ear.address}?admin={shared.admin}&serve=127.0.0.1:{free_port()}&prefix=told"
        async with Runtime(f"sqlite:{tmp_path / 'x.db'}", agents=[agent], engine=address) as runtime:
            session = await runtime.open(agent, id="order-7")
            assert (await soon(session.run("a secret question"))).output == "a secret answer"
            [worker] = await runtime.workers()
            assert (worker.owner, worker.about["engine"]) == (runtime.owner, "restate")
    assert ear.heard
    assert {(path, json.loads(body)) for path, body in ear.heard} == {("/told.a.20clerk/drive/send", session.uid)}


async def test_workers_at_one_address_share_the_work(shared: RestateServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request has a connection of its own, so that it may come to any of them."""
    monkeypatch.setattr(engines, "PATIENCE", 1000.0)
    serve, sheets = f"127.0.0.1:{free_port()}", [Sheet("clerk") for _ in range(4)]
    workers = [engine_at(shared, serve, "crew") for _ in sheets]
    for worker, sheet in zip(workers, sheets, strict=True):
        await worker.start(sheet)
    for number in range(60):
        workers[0].submit(f"s{number}", "clerk")
        await until(lambda: sum(len(sheet.ended) for sheet in sheets) > number)  # noqa: B023
    for worker in workers:
        await worker.drain(1.0)
    assert all(sheet.ended for sheet in sheets)


async def test_what_restate_does_not_deliver_is_driven_by_whoever_finds_it(
    own: RestateServer, caplog: pytest.LogCaptureFixture
) -> None:
    sheet = Sheet("clerk")
    engine = engine_at(own)
    await engine.start(sheet)
    own.kill()
    sheet.due.add("left")
    await until(lambda: sheet.ended["left"])
    await engine.drain(1.0)
    assert "Restate does not answer" in caplog.text


async def test_a_restate_that_has_forgotten_everything_is_told_again(
    own: RestateServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "PATIENCE", 1000.0)
    sheet = Sheet("clerk")
    engine = engine_at(own)
    await engine.start(sheet)
    own.kill()
    (tmp_path / "restate").rename(tmp_path / "lost")
    await own.start()
    sheet.due.add("s")
    await until(lambda: sheet.ended["s"])
    await engine.drain(1.0)


async def test_a_full_worker_takes_no_more_than_it_may(shared: RestateServer) -> None:
    most = 0

    class Counted(Sheet):
        async def drive(self, session: str) -> None:
            nonlocal most
            most = max(most, sum(self.under_way.values()) + 1)
            await super().drive(session)

    sheet = Counted("clerk")
    # Units that end at once may come one by one; held, as many are under way as the worker takes.
    gate = asyncio.Event()
    sheet.gates = {f"s{number}": gate for number in range(20)}
    engine = engine_at(shared, f"127.0.0.1:{free_port()}", "full", concurrency=2)
    await engine.start(sheet)
    for number in range(20):
        engine.submit(f"s{number}", "clerk")
    await until(lambda: most == 2)
    await asyncio.sleep(0.3)
    gate.set()
    await until(lambda: len(sheet.ended) == 20)
    await engine.drain(1.0)
    assert most == 2


async def test_a_drive_may_last_longer_than_an_invocation(
    shared: RestateServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An invocation that lasted as long would be aborted and given to somebody else."""
    monkeypatch.setattr(engines, "HUNG_AFTER", timedelta(seconds=0.2))
    monkeypatch.setattr(engines, "HELD_FOR", 0.05)
    sheet = Sheet("clerk")
    sheet.gates["long"] = asyncio.Event()
    engine = engine_at(shared, f"127.0.0.1:{free_port()}", "long")
    await engine.start(sheet)
    engine.submit("long", "clerk")
    engine.wake("later", "clerk", time.time() + 2.0)
    await until(lambda: sheet.ended["later"])
    left = await invocations(shared, "long.clerk")
    assert (sheet.began["long"], sheet.under_way["long"], left) == (1, 1, [])
    sheet.gates["long"].set()
    await until(lambda: sheet.ended["long"])
    await engine.drain(1.0)


@pytest.mark.slow
async def test_a_worker_is_drained_by_sigterm(shared: RestateServer, tmp_path: Path) -> None:
    """Although the SDK would like to have the signal for itself, from the first request on."""
    store = f"sqlite:{tmp_path / 'x.db'}"
    address = f"restate://{shared.ingress}?admin={shared.admin}&serve=127.0.0.1:{free_port()}&prefix=term"
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(Path(__file__).parents[2])]),
    }
    command = [PERDURE, "worker", "--store", store, "-a", CLERK, "--engine", address, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, text=True) as worker:
        try:
            assert worker.stdout is not None
            assert json.loads(await asyncio.to_thread(worker.stdout.readline))["state"] == "ready"
            clerk = Agent(name="clerk", model=ScriptedModel([]))
            async with Runtime(store, agents=[clerk], engine=None) as runtime:
                session = await runtime.open(clerk, id="s")
                assert (await soon(session.run("work 0"))).output == "done 1"
            worker.send_signal(signal.SIGTERM)
            said, complaints = await asyncio.to_thread(worker.communicate, None, 20)
        finally:
            worker.kill()
    assert [json.loads(line)["state"] for line in said.splitlines()][-2:] == ["draining", "ended"]
    assert (worker.returncode, complaints) == (0, "")


async def test_no_restate_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "START_PATIENCE", 0.0)
    engine = RestateEngine(SystemClock(), admin="127.0.0.1:1", serve=f"127.0.0.1:{free_port()}")
    with pytest.raises(UsageError, match=r"^Restate does not answer at 127\.0\.0\.1:1; start Restate first"):
        await engine.start(Sheet("clerk"))


async def test_a_worker_that_restate_cannot_reach_is_told_so(
    shared: RestateServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "START_PATIENCE", 0.0)
    engine = engine_at(shared, f"127.0.0.1:{free_port()}", reach=f"http://127.0.0.1:{free_port()}")
    with pytest.raises(UsageError, match=r"^Restate refuses .*; start Restate first, or mend the address\.$"):
        await engine.start(Sheet("clerk"))


async def test_a_port_that_is_taken_is_one_sentence() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=rf"cannot be called by Restate at 127\.0\.0\.1:{port}: .*in use"):
            await RestateEngine(SystemClock(), serve=f"127.0.0.1:{port}").start(Sheet("clerk"))


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("h:1?speed=2", "speed= is unknown; there are admin, serve, reach, prefix"),
        ("h:1?serve=nowhere", "'nowhere' is no address to serve at"),
        ("h:1?serve=0.0.0.0:9180", "add reach=URL"),
        ("h:1?prefix=7", "a letter first"),
    ],
)
def test_a_wrong_address_is_one_sentence(address: str, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        restate_engine(address, SystemClock(), None, None)


@often
@given(st.lists(st.text(min_size=1), min_size=2, max_size=2, unique=True))
def test_queues_have_names_that_restate_takes_and_no_two_the_same(queues: list[str]) -> None:
    one, other = (engines._name(queue) for queue in queues)
    assert one != other
    assert re.fullmatch(r"([a-zA-Z]|_[a-zA-Z0-9])[a-zA-Z0-9._-]*", f"perdure.{one}")
