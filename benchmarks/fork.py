"""Forks of a session of 10,000 events on SQLite: time, CPU and bytes of `session.fork()`.

Run: .venv/bin/python -m benchmarks.fork; bytes are those of the file after a WAL checkpoint, over many forks.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import apsw

from perdure import Agent, Runtime
from perdure.core.codec import encode_event
from perdure.core.events import (
    CallChecked,
    CallEnded,
    CallStarted,
    Event,
    InputAccepted,
    ModelCalled,
    ModelResponded,
    RunEnded,
    RunStarted,
    SessionOpened,
)
from perdure.core.fold import evolve
from perdure.core.messages import AssistantMessage, Text, ToolCall, Usage
from perdure.core.state import new_state
from perdure.core.views import summarise
from perdure.ports import Batch, Entry, Opening
from perdure.stores.sqlite import SqliteStore
from perdure.testing import ScriptedModel

EVENTS = 10_000
FORKS = {"at the head": 1000, "in the middle": 100}


def session(events: int) -> list[Event]:
    """Runs of two turns and one call each, until there are so many events."""
    made: list[Event] = [SessionOpened("parent", "parent", "bench")]
    number = 0
    while len(made) < events:
        number += 1
        called = AssistantMessage((ToolCall(number, "look", '{"what":"it"}', f"call_{number}"),))
        made += [
            InputAccepted(number, (Text(f"Look at it, for the {number}th time."),)),
            RunStarted(number, (number,)),
            ModelCalled(1),
            ModelResponded(called, stop="calls", usage=Usage(100, 20)),
            CallChecked(number, "allow", digest="0" * 32),
            CallStarted(number, "read", key="0" * 32),
            CallEnded(number, "ok", (Text("It is fine. " * 8),)),
            ModelCalled(2),
            ModelResponded(AssistantMessage((Text("All is well with it."),)), usage=Usage(150, 10)),
            RunEnded(number, "completed", output="All is well with it."),
        ]
    return made[:events]


async def write(path: Path, events: list[Event]) -> None:
    state, entries = new_state(), list[Entry]()
    for at, event in enumerate(events):
        was = state.run
        state = evolve(state, event)
        run = state.run or was
        entries.append(Entry(1_731_668_400.0 + at, run.run if run else 0, encode_event(event)))
    store = SqliteStore(path)
    await store.open()
    await store.append(Batch("parent", 0, tuple(entries), summarise(state), opening=Opening("", "parent", {})))
    await store.close()


def size(path: Path) -> int:
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.close()
    return path.stat().st_size


async def measure(path: Path, at: int | None, forks: int) -> tuple[float, float, float]:
    """Milliseconds (the median), CPU milliseconds and bytes of one fork."""
    agent = Agent(name="bench", model=ScriptedModel(lambda _: "Done."))
    before = size(path)
    took: list[float] = []
    async with Runtime(f"sqlite:{path}", agents=[agent]) as runtime:
        parent = await runtime.session("parent")
        await parent.fork(at=at)
        cpu = time.process_time()
        for _ in range(forks):
            began = time.perf_counter()
            await parent.fork(at=at)
            took.append((time.perf_counter() - began) * 1e3)
        cpu = (time.process_time() - cpu) * 1e3 / forks
    return median(took), cpu, (size(path) - before) / (forks + 1)


async def main() -> None:
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as folder:
        events = session(EVENTS)
        for name, at in {"at the head": None, "in the middle": EVENTS // 2}.items():
            path = Path(folder) / f"{name.replace(' ', '-')}.db"
            await write(path, events)
            took, cpu, added = await measure(path, at, FORKS[name])
            print(f"fork of {EVENTS:,} events {name:13}: {took:7.2f} ms, {cpu:7.2f} ms CPU, {added:6,.0f} bytes")


if __name__ == "__main__":
    asyncio.run(main())
