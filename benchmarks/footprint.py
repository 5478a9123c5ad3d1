"""What it costs to import, to keep sessions open and to pick a long one up.

Run: .venv/bin/python -m benchmarks.footprint
"""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.turns import LoopModel, agent_for
from perdure import Runtime

IMPORT = """
import time
started = time.process_time()
import perdure
spent = time.process_time() - started
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(spent, int(peak.split()[1]) / 1024)
"""

IDLE = """
import asyncio, sys
from benchmarks.footprint import idle_sessions
print(asyncio.run(idle_sessions(sys.argv[1], 1000)))
"""


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def in_new_process(code: str, *arguments: str) -> str:
    """What the code prints; memory that this process has used before would hide what it takes."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def import_cost() -> tuple[float, float]:
    """CPU seconds and megabytes of `import perdure` in a new process, the best of five."""
    runs = [in_new_process(IMPORT) for _ in range(5)]
    seconds, megabytes = zip(*(map(float, run.split()) for run in runs), strict=True)
    return min(seconds), min(megabytes)


async def idle_sessions(url: str, count: int) -> float:
    """Megabytes that so many open sessions with one finished run each add to the process."""
    agent = agent_for(LoopModel(2))
    async with Runtime(url, agents=[agent]) as runtime:
        first = await runtime.open(agent, id="warm")
        await first.run("go")
        gc.collect()
        before = resident_mb()
        held = [await runtime.open(agent, id=f"s{n}") for n in range(count)]
        for session in held:
            await session.run("go")
        gc.collect()
        return resident_mb() - before


async def resume_cost(folder: Path, turns: int) -> float:
    """CPU seconds to open a session of so many turns in a fresh runtime and run one more turn."""
    path = f"sqlite:{folder}/resume.db"
    long = agent_for(LoopModel(turns))
    async with Runtime(path, agents=[long]) as runtime:
        await (await runtime.open(long, id="long")).run("go")
    best = float("inf")
    for _ in range(5):
        one = agent_for(LoopModel(1))
        async with Runtime(path, agents=[one]) as runtime:
            gc.collect()
            started = time.process_time()
            session = await runtime.open(one, id="long")
            await session.run("once more")
            best = min(best, time.process_time() - started)
    return best


async def main() -> None:
    seconds, megabytes = import_cost()
    print(f"import perdure        {seconds:.3f} s CPU, {megabytes:.0f} MB (limits 0.15, 30)")
    with tempfile.TemporaryDirectory() as folder:
        for name, url in (("memory", "memory:"), ("sqlite", f"sqlite:{folder}/idle.db")):
            print(f"1,000 idle, {name:9} {float(in_new_process(IDLE, url)):.1f} MB (limit 30)")
        cost = await resume_cost(Path(folder), 400)
        print(f"resume 400 turns + 1  {cost * 1e3:.1f} ms CPU (limit 20)")


if __name__ == "__main__":
    asyncio.run(main())
