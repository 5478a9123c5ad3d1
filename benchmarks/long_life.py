"""A long life: thousands of turns in one session on SQLite (synchronous FULL), compacted about every 200 of them.

CPU and bytes a turn at the end against the beginning, memory, and how soon another process has picked the session up.

Run: .venv/bin/python -m benchmarks.long_life [--turns N]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator

from benchmarks.footprint import in_new_process, resident_mb
from benchmarks.turns import work
from perdure import Agent, Limits, Runtime
from perdure.core.codec import encode_event
from perdure.core.deltas import ModelDelta
from perdure.core.events import ModelCalled
from perdure.core.messages import Text, ToolCall, Usage
from perdure.core.specs import Window
from perdure.ports import ModelRequest, ModelResponse
from perdure.runtime.compaction import PROMPT

STRETCH = 1_000
"""Turns that are compared."""
WINDOW = 14_000
"""Tokens: at 55 of them a turn it is 80 % full after 200 turns."""

LIVE = """
import asyncio, sys
from benchmarks.long_life import live
asyncio.run(live(sys.argv[1], int(sys.argv[2])))
"""

RESTART = """
import time
began = time.perf_counter()
import asyncio, sys
from benchmarks.long_life import restart
asyncio.run(restart(sys.argv[1], began))
"""


class LifeModel:
    """One call a turn until its turns are used up, and a summary of a few hundred words when it is asked for one."""

    name = "life"

    def __init__(self, turns: int) -> None:
        self.turns = turns
        self.marks: list[float] = []
        self.most_messages = 0

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta | ModelResponse]:
        if request.instructions == PROMPT:
            yield ModelResponse((Text("So far all went well. " * 60),))
            return
        self.marks.append(time.process_time())
        self.most_messages = max(self.most_messages, len(request.messages))
        number = len(self.marks)
        if number < self.turns:
            yield ModelResponse((ToolCall(0, "work", f'{{"text":"{number:06} {"x" * 60}"}}', "c"),))
        else:
            yield ModelResponse((Text("done"),))

    def cost(self, usage: Usage) -> float | None:
        return None


def agent_for(model: LifeModel) -> Agent[str]:
    return Agent(name="life", model=model, tools=[work], limits=Limits(turns=None), window=Window(tokens=WINDOW))


async def live(path: str, turns: int) -> None:
    """The whole life in this process; prints its figures."""
    model = LifeModel(turns)
    agent = agent_for(model)
    async with Runtime(f"sqlite:{path}", agents=[agent]) as runtime:
        session = await runtime.open(agent, id="long")
        before = resident_mb()
        result = await session.run("go")
        assert (result.reason, result.turns) == ("completed", turns), result
        memory = resident_mb()
        assert all(not item.error for item in await session.compactions())
        sizes = await bytes_of_turns(runtime)
        found = {
            "compactions": len(await session.compactions()),
            "most_messages": model.most_messages,
            "records": session.state.seq,
            "cpu": [_a_turn(model.marks, 0), _a_turn(model.marks, turns - STRETCH)],
            "bytes": [sum(sizes[:STRETCH]) / STRETCH, sum(sizes[-STRETCH:]) / STRETCH],
            "memory": [memory - before, memory],
        }
    print(json.dumps(found))


def _a_turn(marks: list[float], start: int) -> float:
    stretch = marks[start : start + STRETCH]
    return (stretch[-1] - stretch[0]) / (len(stretch) - 1)


async def bytes_of_turns(runtime: Runtime) -> list[int]:
    """How many bytes each turn added to the log, compactions included."""
    session = await runtime.session("long")
    sizes: list[int] = []
    after = 0
    while records := await session.records(after=after, limit=1_000):
        for record in records:
            if isinstance(record.event, ModelCalled):
                sizes.append(0)
            if sizes:
                sizes[-1] += len(encode_event(record.event))
        after = records[-1].seq
    return sizes


async def restart(path: str, began: float) -> None:
    """Picks the session up, as a new process would; prints how long that took, and how long with the imports."""
    agent = agent_for(LifeModel(1))
    opened, spent = time.perf_counter(), time.process_time()
    async with Runtime(f"sqlite:{path}", agents=[agent]) as runtime:
        session = await runtime.open(agent, id="long")
        assert session.state.ended[-1].reason == "completed"
        ready = time.perf_counter()
        cpu = time.process_time() - spent
        print(json.dumps({"ready": ready - opened, "cpu": cpu, "all": ready - began, "memory": resident_mb()}))


async def main(turns: int = 10_000) -> None:
    with tempfile.TemporaryDirectory(dir=os.environ.get("PERDURE_BENCH_DIR")) as folder:
        path = f"{folder}/life.db"
        life = json.loads(in_new_process(LIVE, path, str(turns)))
        restarts = [json.loads(in_new_process(RESTART, path)) for _ in range(5)]
        size = os.path.getsize(path)
    # The middle one: the first is slower, as it reads a cold file.
    again = sorted(restarts, key=lambda item: item["ready"])[len(restarts) // 2]
    ratio = {name: life[name][1] / life[name][0] for name in ("cpu", "bytes")}
    print(
        f"long life             {turns:,} turns, {life['records']:,} records, {life['compactions']} compactions,"
        f" at most {life['most_messages']} messages in a request, {size / 1e6:.1f} MB on disk"
    )
    cpu, written = life["cpu"], life["bytes"]
    print(
        f"CPU a turn            {cpu[0] * 1e3:.3f}, at the end {cpu[1] * 1e3:.3f} ms: {ratio['cpu']:.2f} x (limit 1.3)"
    )
    print(f"bytes a turn          {written[0]:.0f}, at the end {written[1]:.0f}: {ratio['bytes']:.2f} x (limit 1.3)")
    print(f"memory                {life['memory'][0]:.1f} MB more, {life['memory'][1]:.0f} MB in all (limit 100)")
    print(
        f"ready after a restart {again['ready'] * 1e3:.0f} ms (limit 500), {again['cpu'] * 1e3:.0f} ms CPU,"
        f" {again['memory']:.0f} MB; with the imports {again['all'] * 1e3:.0f} ms"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=10_000)
    if (given := parser.parse_args().turns) < 2 * STRETCH:
        sys.exit(f"--turns {given}: at least {2 * STRETCH}, or there is nothing to compare.")
    asyncio.run(main(given))
