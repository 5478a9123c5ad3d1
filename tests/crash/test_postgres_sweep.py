"""The same session on PostgreSQL, killed around and inside every append and every tool: the same zeros."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.testing.sweep import choose_points
from tests.crash.on_postgres import opener
from tests.crash.trials import count_points, kill_at, kill_at_random, kill_twice, measure_life

Record = Callable[[str, object], None]

BLOCKS = 50
SAMPLED_POINTS = 16
SAMPLED_BLOCKS = 2
DOUBLE_KILLS = 100
DOUBLE_BLOCKS = 10
RANDOM_KILLS = 300
SAMPLED_KILLS = 8


@pytest.mark.sweep
@pytest.mark.parametrize("block", range(BLOCKS))
async def test_every_point(block: int, arena: Path, postgres: str, record_property: Record) -> None:
    trials = 0
    while survived := await kill_at(arena, block + 1 + trials * BLOCKS, open_store=opener(postgres)):
        assert survived.broken == [], survived.deaths
        trials += 1
    assert trials >= 20
    record_property("figure: points killed at on PostgreSQL, one per trial", trials)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(SAMPLED_BLOCKS))
async def test_sampled_points(block: int, arena: Path, postgres: str, record_property: Record) -> None:
    total = await count_points(arena, opener(postgres))
    points = [*choose_points(total, SAMPLED_POINTS, seed=7)][block::SAMPLED_BLOCKS]
    trials = 0
    for point in points:
        survived = await kill_at(arena, point, open_store=opener(postgres))
        if survived is not None:
            assert survived.broken == [], survived.deaths
            trials += 1
    assert trials
    record_property("figure: points killed at on PostgreSQL, one per trial", trials)


@pytest.mark.sweep
@pytest.mark.parametrize("block", range(DOUBLE_BLOCKS))
async def test_kills_during_recovery(block: int, arena: Path, postgres: str, record_property: Record) -> None:
    total = await count_points(arena, opener(postgres))
    trials = 0
    for point in [*choose_points(total, DOUBLE_KILLS, seed=11)][block::DOUBLE_BLOCKS]:
        survived = await kill_twice(arena, point, seed=point, open_store=opener(postgres))
        if survived is not None:
            assert survived.broken == [], survived.deaths
            trials += 1
    record_property("figure: points killed at twice on PostgreSQL, the second time during recovery", trials)


async def _kill_at_random(seeds: range, arena: Path, postgres: str, record_property: Record) -> None:
    seconds = await measure_life(arena, opener(postgres))
    kills = 0
    for seed in seeds:
        survived = await kill_at_random(arena, seed, seconds, opener(postgres))
        assert survived.broken == [], survived.deaths
        kills += len(survived.deaths)
    record_property("figure: trials with random kills on PostgreSQL", len(seeds))
    record_property("figure: random kills on PostgreSQL", kills)


@pytest.mark.sweep
@pytest.mark.parametrize("first", range(0, RANDOM_KILLS, 10))
async def test_random_kills(first: int, arena: Path, postgres: str, record_property: Record) -> None:
    await _kill_at_random(range(first, first + 10), arena, postgres, record_property)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SAMPLED_KILLS, 4))
async def test_sampled_kills(first: int, arena: Path, postgres: str, record_property: Record) -> None:
    await _kill_at_random(range(1000 + first, 1000 + first + 4), arena, postgres, record_property)
