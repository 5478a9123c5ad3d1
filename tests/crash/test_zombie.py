"""A stopped driver that was overtaken and wakes up again appends nothing more, and its tools stop."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from perdure import Agent, Runtime, ToolContext, tool
from perdure.stores.memory import MemoryStore
from perdure.testing import ScriptedModel, call
from tests.crash.ledger import read_lines
from tests.crash.zombie import APPENDS, Appended, overtake_a_zombie

Record = Callable[[str, object], None]

VARIANTS = ("naps", "alone", "naps thread", "alone thread", "naps beat")
"""With naps, the zombie has something to append when it wakes up; alone, it only has a tool that never ends.

With beat, nobody claims by force: its heart has stopped."""

TRIALS = 100
SAMPLED = 10


async def _overtake(seeds: range, arena: Path, record_property: Record) -> None:
    refused = 0
    for seed in seeds:
        variant = VARIANTS[seed % len(VARIANTS)]
        folder = arena / f"seed-{seed}"
        delay = Random(seed).uniform(0, 0.03)
        assert await overtake_a_zombie(folder, variant, delay) == [], f"seed {seed}, {variant}"
        refused += any(not append.taken for append in read_lines(folder / APPENDS, Appended))
        shutil.rmtree(folder)
    record_property("figure: zombies", len(seeds))
    record_property("figure: zombies whose append was refused", refused)


@pytest.mark.sweep
@pytest.mark.parametrize("first", range(0, TRIALS, 10))
async def test_zombies(first: int, arena: Path, record_property: Record) -> None:
    await _overtake(range(first, first + 10), arena, record_property)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SAMPLED, 5))
async def test_sampled_zombies(first: int, arena: Path, record_property: Record) -> None:
    await _overtake(range(1000 + first, 1000 + first + 5), arena, record_property)


async def test_a_fork_of_a_resumed_session_counts_its_own_epochs() -> None:
    """The epochs in the past that it shares are its parent's: they must not make its first driver look overtaken."""
    started = asyncio.Event()

    @tool(effect="read")
    async def hold(ctx: ToolContext) -> str:
        """Ends at the third attempt."""
        started.set()
        if ctx.attempt < 3:
            await ctx.wait_cancelled()
        return "held"

    agent = Agent(name="a", model=ScriptedModel([[call("hold")], "Done.", "Again."]), tools=[hold])
    store = MemoryStore()
    await store.open()
    for _ in range(2):
        started.clear()
        async with Runtime(store, agents=[agent], grace=0) as runtime:
            await (await runtime.open(agent, id="s")).start("go", key="go")
            await asyncio.wait_for(started.wait(), 10)
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="s")
        assert (await session.run("go", key="go")).output == "Done."
        assert session.state.epoch == 3
        fork = await session.fork()
        result = await asyncio.wait_for(fork.run("once more"), 10)
        assert result.output == "Again."
