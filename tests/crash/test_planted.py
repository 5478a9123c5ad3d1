"""The sweep has teeth: bugs that are planted on purpose are caught by the same trials and the same judge."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from perdure.testing.sweep import OpenStore, Scenario, choose_points
from tests.crash.plants import open_hasty, with_blind_rerun, without_intent
from tests.crash.scenario import scenario
from tests.crash.trials import kill_at
from tests.crash.zombie import EpochlessStore, overtake_a_zombie

POINTS = 1000
TRIALS = 120

PLANTED: dict[str, tuple[Scenario, OpenStore | None, str]] = {
    "no intent": (without_intent, None, r"call \d+ attempt \d+ started \d+ times on \d+ intents"),
    "blind re-run": (with_blind_rerun, None, r"the once call \d+ started 2 times with 0 retries"),
    "ack before commit": (scenario, open_hasty, r"the acknowledged \w+ .* is lost"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
async def test_a_planted_bug_is_caught(name: str, arena: Path) -> None:
    life, open_store, expected = PLANTED[name]
    seen: list[str] = []
    for point in choose_points(POINTS, TRIALS, seed=3):
        survived = await kill_at(arena, point, life, open_store)
        broken = survived.broken if survived else []
        if any(re.match(expected, line) for line in broken):
            return
        seen += broken
    pytest.fail(f"not caught in {TRIALS} trials; seen: {Counter(line[:60] for line in seen)}")


@pytest.mark.slow
async def test_no_epoch_check_is_caught(arena: Path) -> None:
    broken = await overtake_a_zombie(arena / "zombie", "naps", 0.0, EpochlessStore, patience=1.0)
    assert any(line.startswith("the zombie appends after the heir") for line in broken), broken
