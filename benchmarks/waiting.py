"""What it costs that sessions wait: CPU of a worker, and of PostgreSQL, while nothing happens.

Half of the sessions wait for an approval, half for next week. Run: .venv/bin/python -m benchmarks.waiting [SESSIONS]
[SECONDS] [ENGINE …]; engines are sqlite (the local one on a file), local, dbos and temporal; a name with + has nothing
that waits, for comparison: local+.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from time import time

from msgspec.structs import replace

from perdure import Agent, Runtime, tool
from perdure.core.codec import encode_event
from perdure.core.events import SessionOpened
from perdure.core.specs import At
from perdure.core.state import SessionState
from perdure.core.views import summarise
from perdure.ports import Batch, Entry, Opening, Record, Store
from perdure.testing import ScriptedModel, call
from perdure.wiring import resolve_store
from tests.engines.temporal_server import TemporalServer
from tests.postgres import OwnServer

ROOT = Path(__file__).parents[1]
AT_ONCE = 20
SETTLED_AFTER = 65.0
"""Seconds: for its first minute DBOS looks for schedules every second."""
WEEK = 7 * 86_400.0
TICKS = os.sysconf("SC_CLK_TCK")


@tool(ask=True)
async def pay(cents: int) -> str:
    """Pays."""
    return f"paid {cents}"


clerk = Agent(name="clerk", model=ScriptedModel(lambda request: [call("pay", cents=5)]), tools=[pay])


async def prepare(url: str, sessions: int) -> None:
    """Two sessions that wait, and so many that have the same past."""
    store = resolve_store(url)
    async with Runtime(store, agents=[clerk]) as runtime:
        asking = await runtime.open(clerk)
        assert (await asking.run("pay")).reason == "waiting"
        later = await runtime.open(clerk)
        await later.set_trigger("next-week", At(time() + WEEK), "go")
        for past in (asking, later):
            records = await past.records()
            made = 0
            while made < sessions // 2:
                more = min(AT_ONCE, sessions // 2 - made)
                await asyncio.gather(*(copy(store, past.state, records) for _ in range(more)))
                made += more


async def copy(store: Store, state: SessionState, records: Sequence[Record]) -> None:
    uid = token_hex(10)
    opened, *others = (record.event for record in records)
    assert isinstance(opened, SessionOpened)
    events = [replace(opened, uid=uid, id=uid), *others]
    entries = tuple(
        Entry(record.at, record.run, encode_event(event)) for record, event in zip(records, events, strict=True)
    )
    await store.append(Batch(uid, 0, entries, summarise(state), opening=Opening("", uid, {})))


def cpu_of(pid: int, *, with_children: bool = False) -> float:
    """Seconds of CPU that a process has used; with those of its children, also of those that have ended."""
    used = sum(map(int, _stat(pid)[11 : 15 if with_children else 13])) / TICKS
    if with_children:
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdecimal() and int(_stat(int(entry.name))[1]) == pid:
                    used += cpu_of(int(entry.name))
    return used


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


async def measure(url: str, engine: str, seconds: float, server: Path | None) -> tuple[float, float]:
    """Shares of a core: the worker's, and PostgreSQL's."""
    command = [str(Path(sys.executable).parent / "perdure"), "worker", "--store", url, "--engine", engine]
    command += ["-a", f"{Path(__file__)}:clerk", "--json"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
    assert process.stdout is not None
    try:
        line = await asyncio.to_thread(process.stdout.readline)
        assert '"ready"' in line, line
        await asyncio.sleep(SETTLED_AFTER)
        master = int((server / "postmaster.pid").read_text().split()[0]) if server else None
        before = cpu_of(process.pid), cpu_of(master, with_children=True) if master else 0.0
        await asyncio.sleep(seconds)
        after = cpu_of(process.pid), cpu_of(master, with_children=True) if master else 0.0
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    return (after[0] - before[0]) / seconds, (after[1] - before[1]) / seconds


async def wait(engine: str, sessions: int, seconds: float) -> tuple[float, float]:
    with TemporaryDirectory() as folder:
        server = None if engine == "sqlite" else OwnServer()
        behind = TemporalServer(Path(folder)) if engine == "temporal" else None
        try:
            if behind is not None:
                await behind.start()
            url = server.url if server else f"sqlite:{folder}/waiting.db"
            await prepare(url, sessions)
            how = {"sqlite": "local", "temporal": f"temporal://{behind.address if behind else ''}"}
            return await measure(url, how.get(engine, engine), seconds, server._server.pgdata if server else None)
        finally:
            if behind is not None:
                behind.kill()
            if server is not None:
                server.stop()


async def main(sessions: int, seconds: float, engines: list[str]) -> None:
    for name in engines:
        worker, store = await wait(name.rstrip("+"), 0 if name.endswith("+") else sessions, seconds)
        beside = "" if name.startswith("sqlite") else f", PostgreSQL {store:.2%}"
        print(f"{name}: worker {worker:.2%} of a core{beside} (load {os.getloadavg()[0]:.1f})", flush=True)


if __name__ == "__main__":
    given = sys.argv[1:]
    wanted = given[2:] or ["sqlite", "local", "dbos", "temporal"]
    asyncio.run(main(int(given[0]) if given else 10_000, float(given[1]) if len(given) > 1 else 60.0, wanted))
