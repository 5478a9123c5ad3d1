"""PostgreSQL: CPU of an append, durable turns a second of two processes, and how old a delta is in another process.

Run: .venv/bin/python -m benchmarks.postgres [postgresql://…]; without an address it starts the server of the wheel.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from secrets import token_hex
from typing import Any

from benchmarks.append import measure
from benchmarks.turns import LoopModel, agent_for
from perdure import Agent, Record, Runtime, TextDelta
from perdure.core.deltas import ModelDelta
from perdure.core.messages import Text, Usage
from perdure.events import RunEnded
from perdure.ports import ModelRequest, ModelResponse
from perdure.stores.postgres import PostgresStore

WORKERS, SESSIONS, TURNS = 2, 20, 20
WORDS, PAUSE = 150, 0.02


def store(url: str, schema: str) -> PostgresStore:
    return PostgresStore(url, schema=schema)


async def work(url: str, schema: str, worker: int, times: int) -> None:
    """One process: so many sessions at once, each a run of so many turns, once to warm up and once for the figure."""
    agents = [agent_for(LoopModel(TURNS), f"bench-{worker}-{number}") for number in range(SESSIONS)]
    async with Runtime(store(url, schema), agents=agents) as runtime:
        opened = [await runtime.open(agent, id=agent.name) for agent in agents]
        await asyncio.gather(*(session.run("warm up") for session in opened))
        began = time.monotonic()
        cpu = time.process_time()
        results = await asyncio.gather(*(session.run("go") for session in opened))
        os.write(times, f"{began} {time.monotonic()} {time.process_time() - cpu}\n".encode())
        assert all(result.turns == TURNS for result in results)


class ClockModel:
    """Says what time it is, again and again."""

    name = "clock"

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta | ModelResponse]:
        for _ in range(WORDS):
            yield TextDelta(f"{time.monotonic():.6f} ")
            await asyncio.sleep(PAUSE)
        yield ModelResponse((Text("done"),))

    def cost(self, usage: Usage) -> float | None:
        return None


async def speak(url: str, schema: str, done: int) -> None:
    agent = Agent(name="clock", model=ClockModel())
    async with Runtime(store(url, schema), agents=[agent]):
        await asyncio.get_running_loop().run_in_executor(None, os.read, done, 1)


async def listen(url: str, schema: str) -> list[float]:
    """The ages of what another process said, sorted."""
    agent = Agent(name="clock", model=ClockModel())
    ages: list[float] = []
    async with Runtime(store(url, schema), agents=[agent], engine=None) as runtime:
        session = await runtime.open(agent, id="clock")

        async def read() -> None:
            async for item in session.stream():
                now = time.monotonic()
                if isinstance(item, TextDelta):
                    ages.extend(now - float(word) for word in item.text.split())
                elif isinstance(item, Record) and isinstance(item.event, RunEnded):
                    return

        reading = asyncio.ensure_future(read())
        await asyncio.sleep(5)  # by then the other process has heard that somebody follows
        await session.start("go")
        await reading
    return sorted(ages)


def fork(work: Callable[[], Coroutine[Any, Any, None]]) -> int:
    pid = os.fork()
    if pid == 0:
        asyncio.run(work())
        os._exit(0)
    return pid


def server_seconds(folder: str) -> float:
    """CPU of a server on this machine, with all its processes, those that have ended included."""
    pid = Path(folder, "postmaster.pid").read_text().split()[0]
    living = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sum(_spent(one) for one in living) + _spent(pid, with_children=True)


def _spent(pid: str, *, with_children: bool = False) -> float:
    numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]
    return sum(map(int, numbers if with_children else numbers[:2])) / os.sysconf("SC_CLK_TCK")


def main(url: str, folder: str = "") -> None:
    schema = f"bench_{token_hex(4)}"
    asyncio.run(measure("postgres", store(url, f"{schema}_1"), 1, 1_000))
    asyncio.run(measure("postgres", store(url, f"{schema}_2"), 10, 200))
    reader, writer = os.pipe()
    before = server_seconds(folder) if folder else 0.0
    for pid in [fork(lambda worker=worker: work(url, schema, worker, writer)) for worker in range(WORKERS)]:
        os.waitpid(pid, 0)
    times = [[float(number) for number in line.split()] for line in os.read(reader, 1 << 16).splitlines()]
    seconds = max(end for _, end, _ in times) - min(began for began, *_ in times)
    turns = WORKERS * SESSIONS * TURNS
    print(
        f"{turns:,} durable turns of {WORKERS} processes in {seconds:.2f} s: {turns / seconds:,.0f} a second,", end=" "
    )
    # The server has done the warming up as well.
    theirs = (server_seconds(folder) - before) / 2 if folder else 0.0
    ours = sum(cpu for *_, cpu in times)
    print(f"{ours / turns * 1e3:.2f} ms CPU each in the workers, {theirs / turns * 1e3:.2f} in PostgreSQL")
    reader, writer = os.pipe()
    speaker = fork(lambda: speak(url, schema, reader))
    ages = asyncio.run(listen(url, schema))
    os.write(writer, b".")
    os.waitpid(speaker, 0)
    middle, late = ages[len(ages) // 2] * 1e3, ages[len(ages) * 95 // 100] * 1e3
    print(f"{len(ages)} deltas in another process: p50 {middle:.0f} ms, p95 {late:.0f} ms old")
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        from tests.postgres import start_postgres

        started = start_postgres(f"bench-{os.getpid()}")
        main(started, started.partition("host=")[2])
