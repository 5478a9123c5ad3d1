"""crash_sweep as a user meets it: a tiny agent, one argument, and a ledger in the crash's folder."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure import Agent, Runtime, ToolContext, tool
from perdure.ports import Store
from perdure.stores.sqlite import SqliteStore
from perdure.testing import FaultPoints, ScriptedModel, call, crash_at, crash_sweep, fault_point
from perdure.testing.children import KILLED, in_child
from perdure.testing.sweep import SweepFailed


@tool(effect="idempotent")
async def pay(order: str, ctx: ToolContext) -> str:
    """Pay an order."""
    with open("ledger.txt", "a") as ledger:
        ledger.write(f"{ctx.idempotency_key} {order}\n")
    fault_point("paid")
    return "paid"


def make_clerk() -> Agent:
    return Agent(name="clerk", model=ScriptedModel([[call("pay", order="7")], "Done."]), tools=[pay])


async def scenario(store: Store) -> None:
    clerk = make_clerk()
    async with Runtime(store, agents=[clerk]) as runtime:
        session = await runtime.open(clerk, id="order-7")
        result = await session.run("Bill order 7", key="bill")
        assert result.output == "Done."


def lines_in(folder: Path) -> list[str]:
    return (folder / "ledger.txt").read_text().splitlines()


async def test_every_crash_is_survived() -> None:
    names: list[str] = []
    paid: list[int] = []
    async for crash in crash_sweep(scenario):
        lines = lines_in(crash.folder)
        assert len(set(lines)) == 1, crash
        assert crash.point == len(names) + 1
        names.append(crash.name)
        paid.append(len(lines))
    assert len(names) > 20
    for moment in ("before", "after"):
        assert f"{moment} InputAccepted" in names
        assert f"{moment} ModelResponded CallChecked CallStarted" in names
        assert f"{moment} CallEnded ModelCalled" in names
        assert f"{moment} ModelResponded RunEnded" in names
    assert names.count("inside a commit") >= 5
    # The tool ran again where it was not known whether it had: under the same key, so nobody paid twice.
    assert paid[names.index("paid")] == 2
    assert paid[0] == paid[-1] == 1


async def test_a_sample_is_spread_over_the_whole_scenario() -> None:
    points = [crash.point async for crash in crash_sweep(scenario, sample=3, seed=1)]
    assert points == sorted(points)
    assert points[0] < 12 < points[-1]
    assert len(points) >= 2


async def test_the_store_may_be_chosen() -> None:
    folders = [
        (crash.folder / "mine.db").exists()
        async for crash in crash_sweep(scenario, open_store=lambda folder: SqliteStore(folder / "mine.db"), sample=2)
    ]
    assert folders
    assert all(folders)


async def test_a_scenario_that_fails_by_itself_is_shown() -> None:
    async def fails(store: Store) -> None:
        raise RuntimeError("my own fault")

    with pytest.raises(SweepFailed, match="my own fault"):
        async for _ in crash_sweep(fails):
            pass


async def test_a_scenario_that_cannot_be_repeated_is_shown() -> None:
    async def once_only(store: Store) -> None:
        with open("lock", "x"):
            await scenario(store)

    with pytest.raises(SweepFailed, match=r"killed before at point 1\n(.|\n)*FileExistsError"):
        async for _ in crash_sweep(once_only):
            pass


async def test_crash_at_kills_the_process_at_the_point(tmp_path: Path) -> None:
    def live() -> None:
        asyncio.run(scenario(crash_at(SqliteStore(tmp_path / "store.db"), 5)))

    assert await in_child(tmp_path, live) == KILLED


def test_a_fault_point_is_free_outside_of_a_sweep() -> None:
    fault_point("nobody counts")


def test_points_are_counted_by_name() -> None:
    points = FaultPoints()
    points.reach("a")
    points.reach("b")
    assert points.names == ["a", "b"]


@pytest.fixture(autouse=True)
def _stay_here() -> Iterator[None]:
    """A trial's current directory is its own: this process keeps the one it has."""
    before = os.getcwd()
    yield
    assert os.getcwd() == before
