"""What hooks and middleware that do nothing cost a turn (one model answer, one tool call) in CPU, on the memory store.

Run: .venv/bin/python -m benchmarks.hooks [--turns N] [--rounds N]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import time
from collections.abc import Callable
from typing import Any

from benchmarks.turns import LoopModel, work
from perdure import Agent, Limits, Runtime
from perdure.plugins import Hooks
from perdure.runtime.hooks import PHASES

LIMIT = 30.0
"""Microseconds a turn, for ten hooks that do nothing."""


def nothing(moment: Any) -> None:
    return None


async def nothing_async(moment: Any) -> None:
    return None


async def pass_on(action: Any, perform: Any) -> Any:
    return await perform(action)


TEN = ("turn_start", "before_model", "after_model", "tool_gate", "before_tool", "after_tool", "turn_end")
"""The phases of a turn; with three of them twice they are ten functions."""


def ten_functions(function: Callable[[Any], Any]) -> list[Hooks]:
    again = ("before_model", "before_tool", "after_tool")
    return [Hooks(**dict.fromkeys(TEN, function)), Hooks(**dict.fromkeys(again, function))]


def ten_everywhere(function: Callable[[Any], Any]) -> list[Hooks]:
    return [Hooks(**dict.fromkeys(PHASES, function)) for _ in range(10)]


CASES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "ten functions, sync": {"hooks": ten_functions(nothing)},
    "ten functions, async": {"hooks": ten_functions(nothing_async)},
    "ten on every phase, sync": {"hooks": ten_everywhere(nothing)},
    "ten on every phase, async": {"hooks": ten_everywhere(nothing_async)},
    "ten middleware": {"middleware": [pass_on] * 10},
    "one middleware": {"middleware": [pass_on]},
}


async def measure(options: dict[str, Any], turns: int) -> float:
    """CPU seconds a turn."""
    agent = Agent(name="bench", model=LoopModel(turns), tools=[work], limits=Limits(turns=None), **options)
    async with Runtime("memory:", agents=[agent]) as runtime:
        session = await runtime.open(agent, id="bench")
        await session.run("warm up")
        gc.collect()
        started = time.process_time()
        result = await session.run("go")
        spent = time.process_time() - started
        assert result.turns == turns, result
    return spent / turns


async def main(turns: int, rounds: int) -> None:
    # In turn, and the best of all rounds: what else the machine does slows all of them down.
    best = dict.fromkeys(CASES, float("inf"))
    for _ in range(rounds):
        for name, options in CASES.items():
            best[name] = min(best[name], await measure(options, turns))
    plain = best["nothing"]
    for name, spent in best.items():
        extra = (spent - plain) * 1e6
        print(f"{name:26} {spent * 1e6:7.1f} us a turn, {extra:+6.1f} us, {spent / plain:4.2f} x (limit +{LIMIT:g} us)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.turns, arguments.rounds))
