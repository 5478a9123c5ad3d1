"""CPU per turn (one model answer, one tool call), flatness and bytes on disk, beside a hand-written loop.

Run: .venv/bin/python -m benchmarks.turns [--turns N]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from perdure import Agent, Limits, Runtime, tool
from perdure.core.deltas import ModelDelta
from perdure.core.messages import Text, ToolCall, Usage
from perdure.ports import ModelRequest, ModelResponse


@tool(effect="idempotent")
async def work(text: str) -> str:
    """Do a piece of work."""
    return text


class LoopModel:
    """Asks for one call per turn until its turns are used up; as light as a model can be."""

    name = "loop"

    def __init__(self, turns: int, payload: str = "x", marks: list[float] | None = None) -> None:
        self.turns = turns
        self.payload = payload
        self.marks = marks
        self.answered = 0

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta | ModelResponse]:
        if self.marks is not None:
            self.marks.append(time.process_time())
        self.answered += 1
        usage = Usage(input=100, output=10)
        if self.answered < self.turns:
            arguments = f'{{"text":"{self.answered} {self.payload}"}}'
            yield ModelResponse((ToolCall(0, "work", arguments, "c"),), usage=usage)
        else:
            self.answered = 0
            yield ModelResponse((Text("done"),), usage=usage)

    def cost(self, usage: Usage) -> float | None:
        return None


def agent_for(model: LoopModel, name: str = "bench") -> Agent[str]:
    return Agent(name=name, model=model, tools=[work], limits=Limits(turns=None))


async def run_sessions(url: str, sessions: int, turns: int, payload: str = "x") -> float:
    """CPU seconds per turn with so many sessions at once."""
    agents = [agent_for(LoopModel(turns, payload), f"bench-{n}") for n in range(sessions)]
    async with Runtime(url, agents=agents) as runtime:
        opened = [await runtime.open(agent, id=agent.name) for agent in agents]
        await asyncio.gather(*(session.run("warm up") for session in opened))
        started = time.process_time()
        results = await asyncio.gather(*(session.run("go") for session in opened))
        spent = time.process_time() - started
        assert all(result.reason == "completed" and result.turns == turns for result in results)
    return spent / (sessions * turns)


async def by_hand(turns: int) -> float:
    """The same work without a runtime: ask, call, append to a list."""
    model = LoopModel(turns)
    history: list[object] = []
    started = time.process_time()
    for _ in range(turns):
        async for item in model.stream(ModelRequest("loop", "", history)):
            if isinstance(item, ModelResponse):
                history.append(item)
                calls = [part for part in item.parts if isinstance(part, ToolCall)]
                history += [await work(**json.loads(part.arguments)) for part in calls]
    return (time.process_time() - started) / turns


async def flatness(url: str, turns: int) -> tuple[float, float]:
    """CPU per turn over the first and the last hundred turns of one long run."""
    marks: list[float] = []
    model = LoopModel(turns, marks=marks)
    agent = agent_for(model)
    async with Runtime(url, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="long")
        await session.run("go")
    # The very first turns pay for imports and caches.
    return (marks[120] - marks[20]) / 100, (marks[-1] - marks[-101]) / 100


async def bytes_on_disk(folder: Path, turns: int) -> float:
    """File size after a checkpoint, over the bytes of the encoded events, at 4 KB a turn."""
    import apsw

    path = folder / "size.db"
    model = LoopModel(turns, payload="x" * 1900)
    agent = agent_for(model)
    async with Runtime(f"sqlite:{path}", agents=[agent]) as runtime:
        session = await runtime.open(agent, id="size")
        await session.run("go")
    connection = apsw.Connection(str(path))
    connection.pragma("wal_checkpoint", "TRUNCATE")
    encoded = connection.execute("SELECT sum(length(payload)) FROM records").get
    connection.close()
    return path.stat().st_size / encoded


async def median(measure: Callable[[], Awaitable[float]], times: int = 3) -> float:
    return sorted([await measure() for _ in range(times)])[times // 2]


async def main(turns: int) -> None:
    folder = Path(tempfile.mkdtemp(dir=os.environ.get("PERDURE_BENCH_DIR")))
    fresh = (f"sqlite:{folder}/{n}.db" for n in range(1000))
    hand = await median(lambda: by_hand(turns))
    memory = await median(lambda: run_sessions("memory:", 1, turns))
    alone = await median(lambda: run_sessions(next(fresh), 1, turns))
    crowd = await median(lambda: run_sessions(next(fresh), 100, max(20, turns // 20)))
    print(f"by hand             {hand * 1e3:7.4f} ms CPU a turn")
    for name, value, limit in (
        ("memory", memory, 0.15),
        ("sqlite, alone", alone, 0.8),
        ("sqlite, 100 at once", crowd, 0.25),
    ):
        print(f"{name:19} {value * 1e3:7.4f} ms CPU a turn ({value / hand:5.1f} x by hand; limit {limit})")
    for name, url in (("memory", "memory:"), ("sqlite", next(fresh))):
        first, last = await flatness(url, 5000)
        print(
            f"flat, {name:13} first {first * 1e3:.4f}, last hundred of 5,000 {last * 1e3:.4f} ms: {last / first:.2f} x"
        )
    print(f"bytes on disk       {await bytes_on_disk(folder, 500):.2f} x the encoded events at 4 KB a turn")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=400)
    asyncio.run(main(parser.parse_args().turns))
