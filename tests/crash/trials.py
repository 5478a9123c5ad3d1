"""Trials of the big scenario: killed, finished, judged."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random
from time import monotonic

import msgspec

from perdure.testing.sweep import OpenStore, Scenario, Trial
from tests.crash.check import check_death, check_trial
from tests.crash.scenario import scenario

RECOVERY = 40
"""How many points the next life passes, about, until it has caught up."""


class Survived(msgspec.Struct, frozen=True):
    """A trial that came to its end: where it was killed, and what is broken."""

    deaths: list[str]
    broken: list[str]


async def kill_at(
    folder: Path, point: int, life: Scenario = scenario, open_store: OpenStore | None = None
) -> Survived | None:
    """None if the life ended before it came to the point."""
    trial = Trial(life, folder / f"point-{point}", open_store)
    name = await trial.kill_at(point)
    if name is None:
        shutil.rmtree(trial.folder)
        return None
    return await _judge(trial, [f"point {point}: {name}"], check_death(trial.folder))


async def kill_twice(folder: Path, point: int, seed: int, open_store: OpenStore | None = None) -> Survived | None:
    """Kills the next life too, while it picks up what the first one left."""
    trial = Trial(scenario, folder / f"point-{point}", open_store)
    first = await trial.kill_at(point)
    if first is None:
        shutil.rmtree(trial.folder)
        return None
    broken = check_death(trial.folder)
    again = Random(seed).randint(1, RECOVERY)
    second = await trial.kill_at(again)
    broken += check_death(trial.folder)
    return await _judge(trial, [f"point {point}: {first}", f"then point {again}: {second}"], broken)


async def kill_at_random(folder: Path, seed: int, seconds: float, open_store: OpenStore | None = None) -> Survived:
    """One to three kills at random moments of a life that takes about so many seconds."""
    chance = Random(seed)
    trial = Trial(scenario, folder / f"seed-{seed}", open_store)
    broken: list[str] = []
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        if await trial.kill_after(chance.uniform(0, seconds)):
            broken += check_death(trial.folder)
    while not trial.deaths:
        # It was quicker than expected: take a new session, and shorter times.
        shutil.rmtree(trial.folder)
        seconds /= 2
        trial = Trial(scenario, trial.folder, open_store)
        if await trial.kill_after(chance.uniform(0, seconds)):
            broken += check_death(trial.folder)
    return await _judge(trial, [f"seed {seed}: {death}" for death in trial.deaths], broken)


async def count_points(folder: Path, open_store: OpenStore | None = None) -> int:
    trial = Trial(scenario, folder / "counted", open_store)
    names = await trial.count_points()
    shutil.rmtree(trial.folder)
    return len(names)


async def measure_life(folder: Path, open_store: OpenStore | None = None) -> float:
    """How long an undisturbed life takes here and now; it has to be without fault."""
    trial = Trial(scenario, folder / "undisturbed", open_store)
    began = monotonic()
    await trial.finish()
    took = monotonic() - began
    assert (await _judge(trial, [], [])).broken == []
    return took


async def _judge(trial: Trial, deaths: list[str], broken: list[str]) -> Survived:
    await trial.finish()
    broken = broken + check_trial(trial.folder)
    if not broken:
        shutil.rmtree(trial.folder)
    return Survived(deaths, broken)
