"""What fair scheduling costs a store: claims and lists of work with many sessions waiting, with caps and without.

Run: .venv/bin/python -m benchmarks.scheduling [postgresql://…]; without an address it measures SQLite. Milliseconds of
this process's CPU and of the clock, for each question; claims are 8 at a time, as a process asks them.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from secrets import token_hex

from msgspec.structs import replace

from perdure.capacity import Capacity
from perdure.ports import Store
from perdure.stores.postgres import PostgresStore
from perdure.stores.sqlite import SqliteStore
from perdure.testing.store_samples import READY, first

TENANTS, WAITING, TIMES = 20, (1_000, 10_000), 400
NOW = time.time() + 3600
CAPS = Capacity(per_tenant=200, per_agent=1_000)


async def fill(store: Store, start: int, stop: int) -> None:
    for block in range(start, stop, 50):
        await asyncio.gather(
            *(
                store.append(first(f"s{n}", 1, tenant=f"t{n % TENANTS}", summary=replace(READY, priority=n % 3)))
                for n in range(block, block + 50)
            )
        )


async def measure(what: str, ask: Callable[[int], Awaitable[object]], times: int = TIMES) -> None:
    cpu, began = time.process_time(), time.monotonic()
    for block in range(0, times, 8):
        await asyncio.gather(*(ask(number) for number in range(block, block + 8)))
    spent, took = time.process_time() - cpu, time.monotonic() - began
    print(f"  {what:<44} {spent / times * 1000:6.2f} ms CPU {took / times * 1000:7.2f} ms", flush=True)


async def main(url: str | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        schema = f"bench_{token_hex(4)}"
        store: Store = PostgresStore(url, schema=schema) if url else SqliteStore(Path(folder) / "bench.db")
        await store.open()
        await store.join("bench")
        filled = 0
        for waiting in WAITING:
            await fill(store, filled, waiting)
            filled = waiting
            print(f"{waiting:,} sessions wait, {type(store).__name__}")
            await measure("claim", lambda n: store.claim(f"s{n}", "bench"))
            await measure("claim, with caps", lambda n: store.claim(f"s{n}", "bench", capacity=CAPS))
            await store.leave("bench")
            await store.join("bench")
            await measure("what is to be driven", lambda n: store.runnable(["clerk"], now=NOW), 80)
            await measure("the same, with caps", lambda n: store.runnable(["clerk"], now=NOW, capacity=CAPS), 80)
            await measure("how many wait, up to 500", lambda n: store.count_waiting(None, now=NOW, limit=500), 80)
        await store.leave("bench")
        await store.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else None))
