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


@tool(effect="read")
async def hold(ctx: ToolContext[asyncio.Event, object]) -> str:
    """Goes on until it is cancelled; the deps are told when it starts."""
    ctx.deps.set()
    await ctx.wait_cancelled()
    return "held"


def make_holder() -> Agent:
    return Agent(name="a", model=ScriptedModel([[call("hold")]] * 2), tools=[hold])


async def test_a_cancel_that_comes_while_the_driver_leaves_is_obeyed() -> None:
    """Otherwise it would have to wait for the driver's grace, and then for another process."""
    agent, store, started = make_holder(), MemoryStore(), asyncio.Event()
    await store.open()
    driver = Runtime(store, agents=[agent], deps=started, grace=60)
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


async def test_a_cancel_is_not_lost_on_a_visitor_who_saw_the_run_before() -> None:
    """In its eyes the session is being cancelled already; but that was another run."""
    agent, store, started = make_holder(), MemoryStore(), asyncio.Event()
    await store.open()
    async with (
        Runtime(store, agents=[agent], engine=None) as visitor,
        Runtime(store, agents=[agent], deps=started) as driver,
    ):
        session = await driver.open(agent, id="s")
        visited = await visitor.session("s")
        for text in ("one", "two"):
            started.clear()
            run = await session.start(text)
            await asyncio.wait_for(started.wait(), 10)
            await visited.cancel()
            assert (await asyncio.wait_for(run, 10)).reason == "cancelled"
