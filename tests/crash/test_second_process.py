"""A second process that lists, sends, decides and stops beside a living driver never disturbs it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

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
