"""What sessions cost on PostgreSQL: memory of those that are driven and of those that wait, connections, disk and WAL.

Run: .venv/bin/python -m benchmarks.capacity [postgresql://…]; without an address it starts the server of the wheel.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from secrets import token_hex, token_urlsafe
from traceback import print_exc
from typing import Any

from benchmarks.footprint import resident_mb
from perdure import Agent, Limits, Runtime, TextDelta, tool
from perdure.core.deltas import ModelDelta
from perdure.core.messages import Text, ToolCall, ToolMessage, Usage
from perdure.ports import ModelRequest, ModelResponse
from perdure.stores.postgres import PostgresStore
from perdure.stores.postgres_link import load_driver

DRIVEN, WAITING, TURNS = 500, 1_000, 200


class Paced:
    """Calls `echo` so many times with so many bytes, then holds its last answer back until `go`."""

    name = "paced"

    def __init__(self, turns: int, size: int, go: asyncio.Event, tool: str = "echo") -> None:
        self.turns, self.size, self.go, self.tool = turns, size, go, tool
        self.holding = 0

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta | ModelResponse]:
        done = sum(isinstance(message, ToolMessage) for message in request.messages)
        if done < self.turns:
            # Text that cannot be compressed: half of it in the call, half of it in the result.
            words = f"{done} {token_urlsafe(self.size * 3 // 8)}"
            yield ModelResponse((ToolCall(0, self.tool, f'{{"text":"{words}"}}', id=f"c{done}"),))
            return
        self.holding += 1
        yield TextDelta("so ")
        await self.go.wait()
        yield ModelResponse((Text("done"),))

    def cost(self, usage: Usage) -> float | None:
        return None


@tool(effect="idempotent")
async def echo(text: str) -> str:
    """Says it again."""
    return text


@tool(effect="idempotent", ask=True)
async def pay(text: str) -> str:
    """Asks first."""
    return text


def agent_of(model: Paced) -> Agent[Any]:
    return Agent(name="bench", model=model, tools=[echo, pay], limits=Limits(turns=None))


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(2_400):
        if condition():
            return
        await asyncio.sleep(0.05)
    raise TimeoutError("it did not come")


async def ask(url: str, sql: str, *values: object) -> Any:
    connection = await load_driver().connect(url)
    try:
        return await connection.fetchval(sql, *values)
    finally:
        await connection.close()


async def driven(url: str, schema: str, turns: int, size: int) -> str:
    """Memory of a process for sessions that are all in the middle of an answer, after so many turns each."""
    model = Paced(turns, size, asyncio.Event())
    agent = agent_of(model)
    async with Runtime(PostgresStore(url, schema=schema), agents=[agent]) as runtime:
        session = await runtime.open(agent, id="warm")
        run = await session.start("go")
        await until(lambda: model.holding == 1)
        gc.collect()
        before = resident_mb()
        runs = [await (await runtime.open(agent, id=f"s{n}")).start("go") for n in range(DRIVEN)]
        await until(lambda: model.holding == DRIVEN + 1)
        gc.collect()
        held = resident_mb() - before
        sql = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        connections = await ask(url, sql)
        model.go.set()
        await asyncio.gather(*map(_ended, [run, *runs]))
    return (
        f"{DRIVEN} sessions driven at once, each after {turns} turns of {size:,} bytes: {before:.0f} MB before,"
        f" {held / DRIVEN * 1e3:.0f} KB each, {connections} connections"
    )


async def _ended(run: Awaitable[Any]) -> None:
    await run


async def waiting(url: str, schema: str) -> str:
    """Memory of a worker that has driven many sessions until they wait for somebody."""
    agent = agent_of(Paced(1, 100, asyncio.Event(), "pay"))
    async with (
        Runtime(PostgresStore(url, schema=schema), agents=[agent]) as runtime,
        Runtime(PostgresStore(url, schema=schema), agents=[agent], engine=None) as asking,
    ):
        await (await asking.open(agent, id="warm")).run("go")
        gc.collect()
        before = resident_mb()

        async def send(number: int) -> None:
            session = await asking.open(agent, id=f"s{number}")
            assert (await session.run("go")).reason == "waiting"

        grown: list[str] = []
        for first in range(0, 2 * WAITING, 200):
            await asyncio.gather(*(send(first + number) for number in range(200)))
            if (first + 200) % WAITING == 0:
                gc.collect()
                grown.append(f"{resident_mb() - before:.1f} MB more after {first + 200:,}")
        del runtime
    return f"sessions that wait, in who drove and sent them: {', '.join(grown)}"


async def disk(url: str, schema: str, size: int) -> str:
    """Bytes of a turn in the tables with their indexes, and in the write-ahead log."""
    go = asyncio.Event()
    go.set()
    agent = agent_of(Paced(TURNS, size, go))
    sizes = "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace"
    sizes += " WHERE nspname = $1 AND relkind = 'r'"
    async with Runtime(PostgresStore(url, schema=schema), agents=[agent]) as runtime:
        await (await runtime.open(agent, id="warm")).run("go")
        before = int(await ask(url, sizes, schema))
        lsn = await ask(url, "SELECT pg_current_wal_lsn()::text")
        sessions = [await runtime.open(agent, id=f"s{n}") for n in range(10)]
        await asyncio.gather(*(session.run("go") for session in sessions))
        grown = int(await ask(url, sizes, schema)) - before
        logged = int(await ask(url, "SELECT pg_current_wal_lsn() - $1::text::pg_lsn", lsn))
    turns = TURNS * len(sessions)
    return f"a turn of {size:,} bytes: {grown / turns:,.0f} bytes in tables and indexes, {logged / turns:,.0f} of WAL"


def apart(work: Callable[[], Awaitable[str]]) -> None:
    """In a process of its own: memory that another part has used would hide what it takes."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            print(asyncio.run(_said(work)), flush=True)
            os._exit(0)
        except BaseException:
            print_exc()
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    if status:
        sys.exit("a part of it failed")


async def _said(work: Callable[[], Awaitable[str]]) -> str:
    return await work()


def main(url: str) -> None:
    def schema() -> str:
        return f"bench_{token_hex(4)}"

    apart(lambda: driven(url, schema(), 0, 0))
    apart(lambda: driven(url, schema(), 20, 1_000))
    apart(lambda: waiting(url, schema()))
    for size in (100, 4_000):
        apart(lambda size=size: disk(url, schema(), size))
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        from tests.postgres import start_postgres

        main(start_postgres(f"bench-{os.getpid()}"))
