"""What `perdure bench` measures: a turn is one model answer and one tool call, durable where the store is."""

from __future__ import annotations

import asyncio
import time

from perdure.core.specs import Limits
from perdure.runtime.agent import Agent
from perdure.runtime.tools import tool
from perdure.testing.replies import call
from perdure.testing.scripted import ScriptedModel
from perdure.wiring import Runtime


@tool(effect="idempotent")
async def work(step: int) -> int:
    """Do a piece of work."""
    return step


async def cpu_per_turn(url: str, sessions: int, turns: int) -> float:
    """CPU seconds per turn, all threads counted, with so many sessions at once."""
    script = [[call("work", step=step)] for step in range(turns - 1)]
    agent = Agent(name="bench", model=ScriptedModel([*script, "done"]), tools=[work], limits=Limits(turns=None))
    async with Runtime(url, agents=[agent]) as runtime:
        opened = [await runtime.open(agent, id=f"s{number}") for number in range(sessions)]
        started = time.process_time()
        await asyncio.gather(*(session.run("go") for session in opened))
        return (time.process_time() - started) / (sessions * turns)
