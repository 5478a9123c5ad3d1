"""One parent with a thousand sub-agents, fifty at once: CPU per child, and memory while they come and go.

Run: .venv/bin/python -m benchmarks.children [children]; scripted models of one turn each, so that all of it is ours.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

from perdure import Agent, Runtime
from perdure.testing import ScriptedModel, call

CHILDREN = 1000
AT_ONCE = 50


def resident() -> float:
    """Megabytes of this process now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def family(children: int, seen: list[float]) -> Agent[str]:
    """A boss that gives all tasks at once; every hundredth worker notes how much memory there is."""
    count = 0

    def work(request: object) -> str:
        nonlocal count
        count += 1
        if count % 100 == 0:
            seen.append(resident())
        return "done"

    worker = Agent(name="worker", instructions="You work.", model=ScriptedModel(work))
    tasks = [call("worker", input=f"item {number}") for number in range(children)]
    boss = ScriptedModel([tasks, "All is done."])
    return Agent(name="boss", instructions="You give work.", model=boss, tools=[worker], concurrency=AT_ONCE)


async def measure(store: str, children: int) -> tuple[float, list[float]]:
    """CPU per child in milliseconds, and the memory along the way."""
    seen: list[float] = []
    boss = family(children, seen)
    async with Runtime(store, agents=[boss]) as runtime:
        session = await runtime.open(boss, id="boss")
        before = time.process_time()
        result = await session.run("go")
        spent = time.process_time() - before
        assert result.output == "All is done."
    return spent / children * 1000, seen


def main() -> None:
    children = int(sys.argv[1]) if len(sys.argv) > 1 else CHILDREN
    with tempfile.TemporaryDirectory() as folder:
        for name, store in (("memory", "memory:"), ("SQLite", f"sqlite:{folder}/children.db")):
            cpu, seen = asyncio.run(measure(store, children))
            memory = f"{seen[0]:.0f} MB after 100 children, {seen[-1]:.0f} after all" if seen else ""
            print(f"{name:7} {children} children, {AT_ONCE} at once: {cpu:.2f} ms CPU per child; {memory}")


if __name__ == "__main__":
    main()
