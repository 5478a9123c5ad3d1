"""crash_sweep: a scenario killed at every fault point, picked up by a new process, and handed over for judgement.

Rule 1: every life of a scenario is a forked process of its own, so a kill is a real SIGKILL. Rule 2: a trial has a
folder of its own, which is also the current directory of its processes.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from itertools import count
from pathlib import Path
from typing import TypeAlias

import msgspec

from perdure.core.errors import PerdureError
from perdure.ports import Store
from perdure.testing.children import KILLED, in_child
from perdure.testing.faults import FaultPoints, crash_at

Scenario: TypeAlias = Callable[[Store], Awaitable[None]]
OpenStore: TypeAlias = Callable[[Path], Store]

_MEMORY = Path("/dev/shm")


class Crash(msgspec.Struct, frozen=True):
    """One trial: where its process was killed, and the folder in which the store and whatever the tools wrote are."""

    point: int
    name: str
    folder: Path


class SweepFailed(PerdureError, AssertionError):
    """The scenario fails by itself, or does not come to its end after a crash."""


async def crash_sweep(
    scenario: Scenario,
    *,
    open_store: OpenStore | None = None,
    sample: int | None = None,
    seed: int = 0,
    folder: Path | None = None,
) -> AsyncIterator[Crash]:
    """Kills the scenario at every point, or at a seeded sample of them, each time followed by a run to its end.

        async def scenario(store: Store) -> None:
            async with Runtime(store, agents=[clerk]) as runtime:
                session = await runtime.open(clerk, id="order-7")
                await session.run("Bill order 7", key="bill")

        async for crash in crash_sweep(scenario):
            assert payments_in(crash.folder / "ledger.txt") == ["order-7"]

    A scenario works to its end from wherever the log stands: ids and keys make it repeatable. It runs in the
    crash's folder, so a tool may write to open("ledger.txt", "a"). The points are before, inside and after every
    append, and every fault_point() that a tool passes.
    """
    with tempfile.TemporaryDirectory(dir=folder or memory_folder(), prefix="perdure-sweep-") as root:
        first = Trial(scenario, Path(root) / "undisturbed", open_store)
        total = len(await first.count_points())
        for point in choose_points(total, sample, seed):
            trial = Trial(scenario, Path(root) / f"point-{point}", open_store)
            name = await trial.kill_at(point)
            if name is not None:
                await trial.finish()
                yield Crash(point, name, trial.folder)
            elif point > total:
                return
            shutil.rmtree(trial.folder)


def memory_folder() -> Path | None:
    """SIGKILL leaves what was written alone, so a folder in memory is as good as a disk, and an fsync costs nothing."""
    return _MEMORY if os.access(_MEMORY, os.W_OK) else None


def choose_points(total: int, sample: int | None, seed: int) -> Iterator[int]:
    """One point from each of `sample` equal stretches; or all of them, and on until a life passes fewer than that.

    How many there are differs a little from life to life: completions that are ready at once share an append.
    """
    if sample is None or sample >= total:
        yield from count(1)
        return
    chance = random.Random(seed)
    for stretch in range(sample):
        yield chance.randint(stretch * total // sample + 1, (stretch + 1) * total // sample)


class Trial:
    """One folder, in which a scenario lives, is killed and lives again."""

    def __init__(self, scenario: Scenario, folder: Path, open_store: OpenStore | None = None) -> None:
        self.folder = folder
        self.deaths: list[str] = []
        self._scenario = scenario
        self._open_store = open_store or open_sqlite
        folder.mkdir(parents=True)

    async def count_points(self) -> list[str]:
        """The names of the points that an undisturbed life passes."""
        points = FaultPoints()
        file = self.folder / "points.json"

        def work() -> None:
            self._live(points)
            file.write_text(json.dumps(points.names))

        status = await in_child(self.folder, work)
        if status != 0:
            raise SweepFailed(f"The scenario fails without any crash:\n{self._trace()}")
        return json.loads(file.read_text())

    async def kill_at(self, point: int) -> str | None:
        """Lets the scenario live until it kills itself at the point; the point's name, or None if it ended before."""
        epitaph = self.folder / "epitaph.txt"
        epitaph.unlink(missing_ok=True)
        status = await in_child(self.folder, lambda: self._live(FaultPoints(point, epitaph)))
        if not self._is_killed(status, f"point {point}"):
            return None
        if not epitaph.exists():
            raise SweepFailed(f"The scenario neither ends nor reaches point {point}; it was given up.")
        return epitaph.read_text()

    async def kill_after(self, seconds: float) -> bool:
        """Kills the scenario from outside after some time; False if it ended before."""
        status = await in_child(self.folder, lambda: self._live(None), kill_after=seconds)
        return self._is_killed(status, f"{seconds:.4f} s")

    async def finish(self) -> None:
        """Lets the scenario live once more; now it has to come to its end."""
        status = await in_child(self.folder, lambda: self._live(None))
        if status != 0:
            raise SweepFailed(f"The scenario did not come to its end:\n{self._trace()}")

    def _live(self, points: FaultPoints | None) -> None:
        store = self._open_store(self.folder)
        asyncio.run(_run(self._scenario, store if points is None else crash_at(store, points)))

    def _is_killed(self, status: int, where: str) -> bool:
        if status not in (0, KILLED):
            raise SweepFailed(f"The scenario fails before it is killed at {where}:\n{self._trace()}")
        if status == KILLED:
            self.deaths.append(where)
        return status == KILLED

    def _trace(self) -> str:
        trace = self.folder / "trace.txt"
        story = trace.read_text() if trace.exists() else "no trace: it was killed, or ran out of time"
        return f"killed before at {', '.join(self.deaths) or 'no point'}\n{story}"


def open_sqlite(folder: Path) -> Store:
    from perdure.stores.sqlite import SqliteStore

    return SqliteStore(folder / "sweep.db")


async def _run(scenario: Scenario, store: Store) -> None:
    await scenario(store)
