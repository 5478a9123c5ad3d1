"""A session that two workers pass to each other, killed at every commit: each call in its place, nothing done twice."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Agent, Runtime, ToolContext, tool
from perdure.capacity import Capacity
from perdure.core.transcript import unpaired
from perdure.events import CallEnded, RunEnded
from perdure.ports import Store
from perdure.runtime.clock import SystemClock
from perdure.runtime.local import LocalEngine
from perdure.stores.sqlite import SqliteStore
from perdure.testing import ScriptedModel, call, crash_sweep

GPU = ("render", "print_")


def write(name: str, ctx: ToolContext[Any, Any]) -> str:
    with open("ledger.txt", "a") as ledger:
        print(ctx.deps, name, ctx.call, file=ledger)
    return f"done at {ctx.deps}"


@tool(effect="idempotent")
async def lookup(ctx: ToolContext[Any, Any]) -> str:
    """Looks up."""
    return write("lookup", ctx)


@tool(effect="idempotent", queue="gpu")
async def render(ctx: ToolContext[Any, Any]) -> str:
    """Renders."""
    return write("render", ctx)


@tool(effect="once", on_unknown="tell", queue="gpu")
async def print_(ctx: ToolContext[Any, Any]) -> str:
    """Prints, which cannot be taken back."""
    return write("print_", ctx)


TURNS: list[Any] = [[call("render"), call("lookup"), call("print_")], [call("print_")], "Done."]


def answer(request: Any) -> Any:
    return TURNS[sum(type(message).__name__ == "AssistantMessage" for message in request.messages)]


def worker(store: Store, queue: str) -> Runtime:
    agent = Agent(name="painter", model=ScriptedModel(answer), tools=[lookup, render, print_])
    engine = LocalEngine(SystemClock(), 0.02, queues=[queue])
    return Runtime(store, agents=[agent], engine=engine, deps=queue, capacity=Capacity(per_tenant=1, per_agent=1))


async def scenario(store: Store) -> None:
    async with worker(store, "gpu"), worker(store, "painter") as runtime:
        session = await runtime.open("painter", id="s", priority=3)
        assert (await session.run("go", key="go")).output == "Done."


async def sweep(**options: Any) -> int:
    crashes = 0
    async for crash in crash_sweep(scenario, open_store=lambda folder: SqliteStore(folder / "x.db"), **options):
        crashes += 1
        lines = [line.split() for line in (crash.folder / "ledger.txt").read_text().splitlines()]
        assert all((place == "gpu") == (name in GPU) for place, name, _ in lines), crash.name
        once = [number for _, name, number in lines if name == "print_"]
        assert len(once) == len(set(once)), f"{crash.name}: started twice"
        async with Runtime(SqliteStore(crash.folder / "x.db"), engine=None) as runtime:
            session = await runtime.session("s")
            events = [record.event for record in await session.records()]
            ends = [event.call for event in events if isinstance(event, CallEnded)]
            assert sorted(ends) == [1, 2, 3, 4], crash.name
            assert [end.output for end in events if isinstance(end, RunEnded)] == ["Done."]
            assert unpaired(session.state.history) == []
    return crashes


@pytest.mark.sweep
async def test_every_point(record_property: Any) -> None:
    crashes = await sweep()
    assert crashes > 40
    record_property("figure: crashes of a session that two workers pass on", crashes)


@pytest.mark.slow
async def test_sampled_points(record_property: Any) -> None:
    record_property("figure: crashes of a session that two workers pass on", await sweep(sample=15, seed=8))
