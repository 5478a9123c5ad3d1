"""Two to ten deciders race for one approval, some killed before, in or after their commit: one decision, one effect."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perdure.testing.sweep import memory_folder
from tests.proof.race_trial import race_processes, race_tasks

Record = Callable[[str, object], None]

RACES = 1000
SAMPLED = 60
BLOCK = 20
SAMPLED_BLOCK = 10


@pytest.fixture
def arena() -> Iterator[Path]:
    """A folder in memory, in which every race has one of its own."""
    with tempfile.TemporaryDirectory(dir=memory_folder(), prefix="perdure-races-") as folder:
        yield Path(folder)


async def _race(seeds: range, arena: Path, record_property: Record) -> None:
    """Two of five races are between processes of which some are killed."""
    figures: Counter[str] = Counter()
    for seed in seeds:
        has_kills = seed % 5 < 2
        race = await (race_processes if has_kills else race_tasks)(arena / f"seed-{seed}", seed)
        assert race.broken == [], f"seed {seed}: {race.plans}"
        shutil.rmtree(arena / f"seed-{seed}")
        figures["races of deciders"] += 1
        figures["races of deciders with SIGKILL"] += has_kills
        figures["races in which everybody died, and the approval still waited"] += race.was_open
        figures["late deciders who were told who decided"] += race.refused
        for death in race.deaths:
            figures[f"deciders killed {death}"] += 1
    assert figures["races of deciders with SIGKILL"] * 3 >= len(seeds)
    for name, count in figures.items():
        record_property(f"figure: {name}", count)


@pytest.mark.sweep
@pytest.mark.parametrize("first", range(0, RACES, BLOCK))
async def test_races(first: int, arena: Path, record_property: Record) -> None:
    await _race(range(first, first + BLOCK), arena, record_property)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SAMPLED, SAMPLED_BLOCK))
async def test_sampled_races(first: int, arena: Path, record_property: Record) -> None:
    await _race(range(10_000 + first, 10_000 + first + SAMPLED_BLOCK), arena, record_property)
