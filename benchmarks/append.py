"""`Store.append`: calls a second and CPU for each, alone and with 100 appenders at once.

Run: .venv/bin/python -m benchmarks.append; CPU counts all threads of the process.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

from perdure.core.codec import encode_event
from perdure.core.events import Noted
from perdure.core.views import Summary
from perdure.ports import Batch, Entry, Opening, Store
from perdure.stores.memory import MemoryStore
from perdure.stores.sqlite import SqliteStore

PAYLOAD = encode_event(Noted("bench", {"text": "x" * 60}))
SUMMARY = Summary("bench", "running", True)


def batch(uid: str, expect: int, entries: int = 1) -> Batch:
    opening = None if expect else Opening("", uid, {})
    return Batch(uid, expect, (Entry(1_731_668_400.5, 1, PAYLOAD),) * entries, SUMMARY, opening=opening)


async def appender(store: Store, uid: str, appends: int) -> None:
    for head in range(1, appends + 1):
        await store.append(batch(uid, head))


async def measure(name: str, store: Store, appenders: int, appends: int) -> None:
    await store.open()
    uids = [f"session-{number}" for number in range(appenders)]
    await asyncio.gather(*(store.append(batch(uid, 0)) for uid in uids))
    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(appender(store, uid, appends) for uid in uids))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    await store.close()
    total = appenders * appends
    print(
        f"{name:7} {appenders:4} appenders: {total / wall:9,.0f} appends/s,"
        f" {cpu / total * 1000:.4f} ms CPU and {wall / total * 1000:.4f} ms each"
    )


async def main() -> None:
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as folder:
        await measure("memory", MemoryStore(), 1, 20_000)
        await measure("memory", MemoryStore(), 100, 500)
        await measure("sqlite", SqliteStore(Path(folder) / "alone.db"), 1, 2_000)
        await measure("sqlite", SqliteStore(Path(folder) / "many.db"), 100, 300)


if __name__ == "__main__":
    asyncio.run(main())
