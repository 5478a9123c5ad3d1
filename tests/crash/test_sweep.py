"""A session of 50 turns, killed around and inside every append and every tool: nothing lost, nothing twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.testing.sweep import choose_points
from tests.crash.trials import count_points, kill_at, kill_at_random, kill_twice, measure_life

Record = Callable[[str, object], None]

BLOCKS = 50
SAMPLED_POINTS = 150
SAMPLED_BLOCKS = 10
DOUBLE_KILLS = 200
DOUBLE_BLOCKS = 10
RANDOM_KILLS = 500
SAMPLED_KILLS = 50


@pytest.mark.sweep
@pytest.mark.parametrize("block", range(BLOCKS))
async def test_every_point(block: int, arena: Path, record_property: Record) -> None:
    """Every fiftieth point, until a life is over before it comes to the next."""
    trials = 0
    while survived := await kill_at(arena, block + 1 + trials * BLOCKS):
        assert survived.broken == [], survived.deaths
        trials += 1
    assert trials >= 20
    record_property("figure: points killed at, one per trial", trials)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(SAMPLED_BLOCKS))
async def test_sampled_points(block: int, arena: Path, record_property: Record) -> None:
    total = await count_points(arena)
    points = [*choose_points(total, SAMPLED_POINTS, seed=7)][block::SAMPLED_BLOCKS]
    for point in points:
        survived = await kill_at(arena, point)
        while survived is None:
            # Lives differ a little in length; this one was over before it came to one of the last points.
            point -= 20
            survived = await kill_at(arena, point)
        assert survived.broken == [], survived.deaths
    record_property("figure: points killed at, one per trial", len(points))


@pytest.mark.sweep
@pytest.mark.parametrize("block", range(DOUBLE_BLOCKS))
async def test_kills_during_recovery(block: int, arena: Path, record_property: Record) -> None:
    total = await count_points(arena)
    trials = 0
    for point in [*choose_points(total, DOUBLE_KILLS, seed=11)][block::DOUBLE_BLOCKS]:
        survived = await kill_twice(arena, point, seed=point)
        if survived is not None:
            assert survived.broken == [], survived.deaths
            trials += 1
    record_property("figure: points killed at twice, the second time during recovery", trials)


async def _kill_at_random(seeds: range, arena: Path, record_property: Record) -> None:
    seconds = await measure_life(arena)
    kills = 0
    for seed in seeds:
        survived = await kill_at_random(arena, seed, seconds)
        assert survived.broken == [], survived.deaths
        kills += len(survived.deaths)
    record_property("figure: trials with random kills", len(seeds))
    record_property("figure: random kills", kills)


@pytest.mark.sweep
@pytest.mark.parametrize("first", range(0, RANDOM_KILLS, 20))
async def test_random_kills(first: int, arena: Path, record_property: Record) -> None:
    await _kill_at_random(range(first, first + 20), arena, record_property)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SAMPLED_KILLS, 10))
async def test_sampled_kills(first: int, arena: Path, record_property: Record) -> None:
    await _kill_at_random(range(1000 + first, 1000 + first + 10), arena, record_property)
