"""A family of agents, three deep and four wide, killed around every append and in every tool: nothing lost or twice."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.testing.sweep import Trial, choose_points
from tests.crash.family import RESTARTS, check_death, check_family, scenario, waiting

Record = Callable[[str, object], None]

BLOCKS = 20
SAMPLED_POINTS = 24
SAMPLED_BLOCKS = 4


async def survives(arena: Path, point: int) -> bool | None:
    """Whether all promises were kept; None if the life was over before it came to the point."""
    trial = Trial(scenario, arena / f"point-{point}")
    name = await trial.kill_at(point)
    if name is None:
        shutil.rmtree(trial.folder)
        return None
    broken = check_death(trial.folder)
    await trial.finish()
    broken += check_family(trial.folder)
    assert broken == [], f"point {point}: {name}"
    shutil.rmtree(trial.folder)
    return True


@pytest.mark.sweep
@pytest.mark.timeout(900)
@pytest.mark.parametrize("block", range(BLOCKS))
async def test_every_point(block: int, arena: Path, record_property: Record) -> None:
    trials = 0
    while await survives(arena, block + 1 + trials * BLOCKS):
        trials += 1
    assert trials >= 10
    record_property("figure: points a family of agents was killed at", trials)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(SAMPLED_BLOCKS))
async def test_sampled_points(block: int, arena: Path, record_property: Record) -> None:
    counted = Trial(scenario, arena / "counted")
    total = len(await counted.count_points())
    assert check_family(counted.folder) == []
    shutil.rmtree(counted.folder)
    points = [*choose_points(total, SAMPLED_POINTS, seed=7)][block::SAMPLED_BLOCKS]
    for point in points:
        while await survives(arena, point) is None:
            point -= 20
    record_property("figure: points a family of agents was killed at", len(points))


@pytest.mark.slow
async def test_approvals_far_below_survive_ten_restarts(arena: Path) -> None:
    trial = Trial(waiting, arena / "waiting")
    for _ in range(RESTARTS):
        assert await trial.kill_after(60)
    await trial.finish()
    assert check_death(trial.folder) == []
    assert check_family(trial.folder, stories=1) == []
    waited = (trial.folder / "died.txt").read_text().splitlines()
    assert len(waited) == RESTARTS
    assert len(set(waited)) == 1, "the same approvals, each time"
    assert len(waited[0].split()) == 3
    shutil.rmtree(trial.folder)
