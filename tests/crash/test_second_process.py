"""A second process that lists, sends, decides and stops beside a living driver never disturbs it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from perdure import Agent, Runtime, ToolContext, tool
from perdure.stores.memory import MemoryStore
from perdure.testing import ScriptedModel, call
from tests.crash.visitor import visit_a_driver

Record = Callable[[str, object], None]

TRIALS = 100
SAMPLED = 10


async def _visit(seeds: range, arena: Path, record_property: Record) -> None:
    for seed in seeds:
        assert await visit_a_driver(arena / f"seed-{seed}", seed) == [], f"seed {seed}"
        shutil.rmtree(arena / f"seed-{seed}")
    record_property("figure: visits of a second process", len(seeds))


@pytest.mark.sweep
@pytest.mark.parametrize("first", range(0, TRIALS, 10))
async def test_visits(first: int, arena: Path, record_property: Record) -> None:
    await _visit(range(first, first + 10), arena, record_property)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SAMPLED, 5))
async def test_sampled_visits(first: int, arena: Path, record_property: Record) -> None:
    await _visit(range(1000 + first, 1000 + first + 5), arena, record_property)


async def test_a_cancel_that_comes_while_the_driver_leaves_is_obeyed() -> None:
    """Otherwise it would have to wait for the driver's grace, and then for another process."""
    started = asyncio.Event()

    @tool(effect="read")
    async def hold(ctx: ToolContext) -> str:
        """Goes on until it is cancelled."""
        started.set()
        await ctx.wait_cancelled()
        return "held"

    agent = Agent(name="a", model=ScriptedModel([[call("hold")], "Done."]), tools=[hold])
    store = MemoryStore()
    await store.open()
    driver = Runtime(store, agents=[agent], grace=60)
    async with Runtime(store, agents=[agent], engine=None) as visitor, driver:
        await (await driver.open(agent, id="s")).start("go")
        await asyncio.wait_for(started.wait(), 10)
        leaving = asyncio.create_task(driver.__aexit__())
        await asyncio.sleep(0)
        session = await visitor.session("s")
        await session.cancel()
        await asyncio.wait_for(leaving, 20)
        await session.history()
        assert [run.reason for run in session.state.ended] == ["cancelled"]
