"""perdure worker drives what others send, says how it is, and drains when it is told to end."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, Runtime
from perdure.cli.working import Plain
from perdure.events import CallChecked
from perdure.testing import ScriptedModel
from tests.cli.command import Command
from tests.runtime.scenes import check_log, seen, soon, until

CODE = '''
import asyncio, os, pathlib
from perdure import Agent, ToolContext, tool
from perdure.testing import ScriptedModel, call

@tool(effect="idempotent")
async def wait(seconds: float) -> str:
    """Waits."""
    await asyncio.sleep(seconds)
    return "waited"

def answer(request):
    return [call("wait", seconds=0.5)] if len(request.messages) == 1 else "done"

clerk = Agent(name="clerk", model=ScriptedModel(answer), tools=[wait])

@tool(effect="idempotent", queue="gpu")
async def render(seconds: float) -> str:
    """Renders."""
    with open("ledger.txt", "a") as ledger:
        print(os.getpid(), file=ledger)
    await asyncio.sleep(seconds)
    return "rendered"

def paint(request):
    turn = sum(type(message).__name__ == "AssistantMessage" for message in request.messages)
    return ([call("render", seconds=3600)], [call("render", seconds=0), call("wait", seconds=0)], "painted")[turn]

painter = Agent(name="painter", model=ScriptedModel(paint), tools=[wait, render])
@tool(effect="idempotent")
async def tally(seconds: float, ctx: ToolContext) -> str:
    """Counts who works."""
    mine = pathlib.Path(f"works-{ctx.tenant}-{ctx.session}")
    mine.touch()
    with open("ledger.txt", "a") as ledger:
        print(ctx.tenant, len(list(pathlib.Path().glob(f"works-{ctx.tenant}-*"))), os.getpid(), file=ledger)
    await asyncio.sleep(seconds)
    mine.unlink()
    return "counted"

counter = Agent(
    name="counter",
    model=ScriptedModel(lambda request: [call("tally", seconds=0.2)] if len(request.messages) == 1 else "done"),
    tools=[tally],
)
teller = Agent(name="teller", model=ScriptedModel(answer), tools=[wait])
'''
SILENT = ScriptedModel(lambda request: "")
CLERK = Agent(name="clerk", model=SILENT)
PAINTER = Agent(name="painter", model=SILENT)
COUNTER = Agent(name="counter", model=SILENT)
TELLER = Agent(name="teller", model=SILENT)


class Workers(Command):
    """Those that a test started end with it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        self.started.append(super().start(*arguments, **options))
        return self.started[-1]


@pytest.fixture
def perdure(tmp_path: Path) -> Iterator[Workers]:
    (tmp_path / "agents.py").write_text(CODE)
    workers = Workers(tmp_path)
    yield workers
    for worker in workers.started:
        if worker.poll() is None:
            worker.kill()
            worker.communicate()


def started(perdure: Command, *options: str) -> tuple[subprocess.Popen[str], Any]:
    worker = perdure.start("worker", "--store", "sqlite:w.db", "--json", *options)
    assert worker.stdout is not None
    return worker, json.loads(worker.stdout.readline())


def ended(worker: subprocess.Popen[str], number: int) -> list[Any]:
    worker.send_signal(number)
    out, errors = worker.communicate(timeout=30)
    assert worker.returncode == 0, errors
    assert "Traceback" not in errors
    return [json.loads(line) for line in out.splitlines()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_it_drives_what_others_send_and_drains(perdure: Command, tmp_path: Path, number: int) -> None:
    worker, said = started(perdure, "-a", "agents.py:clerk", "-a", "agents.py:teller", "--concurrency", "4")
    assert said["state"] == "ready"
    assert (said["agents"], said["concurrency"], said["engine"]) == (["clerk", "teller"], 4, "local")
    async with Runtime(f"sqlite:{tmp_path / 'w.db'}", engine=None) as runtime:
        session = await runtime.open(CLERK, id="s")
        assert (await soon(session.run("go"))).output == "done"
        [listed] = perdure.objects("workers", "--store", "sqlite:w.db")
        assert (listed["owner"], listed["sessions"]) == (said["worker"], 0)
        shown = perdure("workers", "--store", "sqlite:w.db")
        assert said["worker"] in shown
        assert "0%" in shown
        run = await (await runtime.open(TELLER, id="t")).start("go")
        states = [line["state"] for line in ended(worker, number)]
        assert states[-2:] == ["draining", "ended"]
        assert "Nobody drives" in perdure("workers", "--store", "sqlite:w.db")
        worker, _ = started(perdure, "-a", "agents.py:teller")
        assert (await soon(run)).output == "done"
        ended(worker, signal.SIGTERM)


async def test_queues_leave_other_agents_to_other_workers(perdure: Command, tmp_path: Path) -> None:
    both = ("-a", "agents.py:clerk", "-a", "agents.py:teller")
    worker, said = started(perdure, *both, "--queues", "teller")
    assert (said["agents"], said["queues"]) == (["clerk", "teller"], ["teller"])
    async with Runtime(f"sqlite:{tmp_path / 'w.db'}", engine=None) as runtime:
        left = await runtime.open(CLERK, id="s")
        run = await left.start("go")
        assert (await soon((await runtime.open(TELLER, id="t")).run("go"))).output == "done"
        await left.history()
        assert left.state.run is None
        ended(worker, signal.SIGTERM)
        worker, _ = started(perdure, *both, "--queues", "clerk")
        assert (await soon(run)).output == "done"
        ended(worker, signal.SIGTERM)


async def test_tools_with_a_queue_run_on_its_workers_alone(perdure: Workers, tmp_path: Path) -> None:
    given = ("-a", "agents.py:painter")
    desk, said = started(perdure, *given, "--queues", "painter")
    assert said["queues"] == ["painter"]
    async with Runtime(f"sqlite:{tmp_path / 'w.db'}", engine=None) as runtime:
        session = await runtime.open(PAINTER, id="s")
        run = await session.start("go")
        await seen(session, CallChecked)
        while "serves the queue gpu" not in perdure("sessions", "show", "s", "--store", "sqlite:w.db"):
            await asyncio.sleep(0.1)
        listed = perdure("sessions", "list", "--store", "sqlite:w.db")
        assert listed.splitlines()[0].split()[:4] == ["session", "status", "agent", "queue"]
        first, _ = started(perdure, *given, "--queues", "gpu")
        await until(perdure.ledger)
        first.kill()
        first.communicate()
        (tmp_path / "agents.py").write_text(
            CODE.replace("seconds=3600", "seconds=0").replace("sleep(seconds)", "sleep(0)")
        )
        second, _ = started(perdure, *given, "--queues", "gpu")
        assert (await soon(run)).output == "painted"
        check_log(await session.records())
    assert perdure.ledger() == [str(first.pid), str(second.pid), str(second.pid)]
    ended(desk, signal.SIGTERM)
    ended(second, signal.SIGTERM)


async def test_a_cap_holds_over_three_workers(perdure: Workers, tmp_path: Path) -> None:
    """Each call leaves a file while it runs, and writes down how many of its tenant there are."""
    workers = [started(perdure, "-a", "agents.py:counter", "--per-tenant", "2")[0] for _ in range(3)]
    async with Runtime(f"sqlite:{tmp_path / 'w.db'}", engine=None) as runtime:
        sessions = [await runtime.open(COUNTER, id=f"{n}", tenant="ab"[n > 12]) for n in range(15)]
        runs = [await session.start("go") for session in sessions]
        assert [(await soon(run)).output for run in runs] == ["done"] * 15
    seen = [line.split() for line in perdure.ledger()]
    assert len(seen) == 15
    assert max(int(count) for _, count, _ in seen) <= 2
    for worker in workers:
        ended(worker, signal.SIGTERM)


def test_what_is_wrong_is_one_sentence(perdure: Command) -> None:
    said = perdure.call("worker", "-a", "agents.py:clerk", "--queues", "nobody", "--store", "sqlite:w.db", code=2)
    assert (
        said.stderr
        == "perdure: --queues nobody: no agent of that name was given, nor has a tool it; take one of clerk.\n"
    )
    said = perdure.call("worker", "-a", "agents.py:clerk", "--engine", "dbos", "--store", "sqlite:w.db", code=2)
    assert said.stderr == "perdure: The engine 'dbos' needs PostgreSQL; name a store like 'postgresql://…'.\n"
    said = perdure.call("worker", "-a", "agents.py:clerk", "--engine", "steam", "--store", "sqlite:w.db", code=2)
    assert "'steam' names no engine" in said.stderr


def test_an_error_is_logged_in_one_line_unless_debug_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        raise ValueError("no such\ncolumn")
    except ValueError:
        record = logging.LogRecord("perdure", logging.ERROR, __file__, 1, "the hook %s failed", ("h",), sys.exc_info())
    formatter = Plain("%(levelname)s %(message)s")
    monkeypatch.delenv("PERDURE_DEBUG", raising=False)
    assert formatter.format(record) == "ERROR the hook h failed: ValueError: no such column"
    monkeypatch.setenv("PERDURE_DEBUG", "1")
    assert formatter.format(record).splitlines()[:2] == [
        "ERROR the hook h failed",
        "Traceback (most recent call last):",
    ]
