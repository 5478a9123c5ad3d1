"""Engines: CPU per session that is driven, beside the local engine's; the time of an answer; CPU while nothing happens.

Run: .venv/bin/python -m benchmarks.engines [NAME …]; servers that engines need are started, those that are not there
left out. A session is driven by one run with an empty model on PostgreSQL, by the process that submitted it.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from perdure import Agent, Runtime
from perdure.stores.postgres import PostgresStore
from perdure.testing import ScriptedModel
from tests.engines import restate_server, temporal_server
from tests.postgres import new_schema, start_postgres

ENGINES = ("local", "dbos", "temporal", "restate")
SESSIONS, AT_ONCE, ROUNDS, ANSWERS, IDLE = 200, 50, 3, 20, 20.0
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_of(pid: int) -> float:
    """Seconds that another process has used; nothing, if there is none."""
    if not pid:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


class Meter:
    """CPU of this process and of the engine's server, for so many of something."""

    def __init__(self, server: int) -> None:
        self._server = server
        self._own, self._theirs = time.process_time(), cpu_of(server)

    def read(self, count: float) -> tuple[float, float]:
        return (time.process_time() - self._own) / count, (cpu_of(self._server) - self._theirs) / count


async def measure(engine: str, url: str, server: int) -> dict[str, Any]:
    agent = Agent(name="clerk", model=ScriptedModel(lambda request: "done"))
    async with Runtime(PostgresStore(url, schema=new_schema()), agents=[agent], engine=engine) as runtime:

        async def drive(name: str, count: int) -> None:
            room = asyncio.Semaphore(AT_ONCE)

            async def one(number: int) -> None:
                async with room:
                    session = await runtime.open(agent, id=f"{name}-{number}")
                    assert (await session.run("go")).output == "done"

            await asyncio.gather(*(one(number) for number in range(count)))

        await drive("warm", AT_ONCE)
        rounds: list[tuple[float, float]] = []
        for number in range(ROUNDS):
            meter = Meter(server)
            await drive(f"round-{number}", SESSIONS)
            rounds.append(meter.read(SESSIONS))
        answers: list[float] = []
        for number in range(ANSWERS):
            session = await runtime.open(agent, id=f"answer-{number}")
            began = time.monotonic()
            await session.run("go")
            answers.append(time.monotonic() - began)
        await asyncio.sleep(2)
        meter = Meter(server)
        await asyncio.sleep(IDLE)
        idle = meter.read(IDLE)
    return {"driven": min(rounds), "answer": median(answers), "slowest": max(answers), "idle": idle}


async def prepare(name: str, folder: Path, stack: AsyncExitStack) -> tuple[str, int] | None:
    """The engine's address, and its server's process, if it needs one."""
    servers: dict[str, Any] = {"temporal": temporal_server, "restate": restate_server}
    if name not in servers:
        return name, 0
    if servers[name].binary() is None:
        return None
    made = {"temporal": temporal_server.TemporalServer, "restate": restate_server.RestateServer}[name](folder)
    stack.callback(made.kill)
    await made.start()
    return (f"temporal://{made.address}" if name == "temporal" else made.address), made.pid


async def main(names: tuple[str, ...]) -> None:
    url, own = start_postgres(f"bench-{os.getpid()}"), 0.0
    for name in names:
        with TemporaryDirectory() as folder:
            async with AsyncExitStack() as stack:
                place = await prepare(name, Path(folder), stack)
                if place is None:
                    print(f"{name:9} its server is not here")
                    continue
                # DBOS is one to a process, and so is a fair figure.
                command = [sys.executable, "-m", "benchmarks.engines", "--one", place[0], url, str(place[1])]
                said = await asyncio.to_thread(subprocess.check_output, command)
        found = json.loads(said.splitlines()[-1])
        (cpu, theirs), (idle, idle_theirs) = found["driven"], found["idle"]
        own = cpu if name == "local" else own
        more = (cpu - own) * 1e3
        print(
            f"{name:9} {cpu * 1e3:5.1f} ms CPU a session driven ({more:+.1f}; the server {theirs * 1e3:.1f}),"
            f" answer {found['answer'] * 1e3:.0f} ms (slowest {found['slowest'] * 1e3:.0f}),"
            f" idle {idle * 100:.2f} % of a core (the server {idle_theirs * 100:.2f} %)"
        )
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        _, _, address, store, pid = sys.argv
        print(json.dumps(asyncio.run(measure(address, store, int(pid)))))
    else:
        chosen = tuple(sys.argv[1:])
        asyncio.run(main(("local", *(name for name in chosen if name != "local")) if chosen else ENGINES))
