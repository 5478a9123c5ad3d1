"""crash_sweep: a scenario killed at every fault point, picked up again, and handed over for judgement.

A scenario is `async def scenario(store)`: it opens a Runtime on the store and works to the end from wherever the log stands (ids and keys
make it repeatable). Each trial runs in a folder of its own, which is also its current directory: a ledger belongs there.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import msgspec

from perdure.core.errors import PerdureError
from perdure.ports import Store
from perdure.testing.faults import FaultPoints, crash_at

Scenario: TypeAlias = Callable[[Store], Awaitable[None]]
OpenStore: TypeAlias = Callable[[Path], Store]

TRIAL_SECONDS = 60.0


class Crash(msgspec.Struct, frozen=True):
    """One trial: where it was killed, and the folder in which its ledger and its store are."""

    point: int
    name: str
    folder: Path
    resumed: int


class SweepFailed(PerdureError, AssertionError):
    """The scenario did not come to its end after a crash."""


async def crash_sweep(
    scenario: Scenario,
    *,
    open_store: OpenStore | None = None,
    sample: int | None = None,
    seed: int = 0,
    folder: Path | None = None,
) -> AsyncIterator[Crash]:
    """Every fault point of the scenario, or a seeded sample of them, each followed by a run to the end."""
    open_store = open_store or open_sqlite
    with tempfile.TemporaryDirectory(dir=folder) as root:
        names = count_points(scenario, Path(root) / "count", open_store)
        for point in choose(len(names), sample, seed):
            trial = Path(root) / f"point-{point}"
            trial.mkdir()
            run_killed(scenario, trial, open_store, FaultPoints(point))
            resumed = run_to_end(scenario, trial, open_store, f"point {point} ({names[point - 1]})")
            yield Crash(point, names[point - 1], trial, resumed)


def open_sqlite(folder: Path) -> Store:
    from perdure.stores.sqlite import SqliteStore

    return SqliteStore(folder / "sweep.db")


def choose(count: int, sample: int | None, seed: int) -> Sequence[int]:
    points = range(1, count + 1)
    if sample is None or sample >= count:
        return points
    return sorted(random.Random(seed).sample(points, sample))


def count_points(scenario: Scenario, folder: Path, open_store: OpenStore) -> list[str]:
    """The names of the fault points that an undisturbed run passes."""
    folder.mkdir()
    points = FaultPoints()

    def work() -> None:
        asyncio.run(_run(scenario, crash_at(open_store(folder), points)))
        (folder / "points.json").write_text(json.dumps(points.names))

    status = in_child(folder, work)
    if status != 0:
        raise SweepFailed(f"The scenario fails without any crash:\n{_trace(folder)}")
    return json.loads((folder / "points.json").read_text())


def run_killed(
    scenario: Scenario, folder: Path, open_store: OpenStore, points: FaultPoints, after: float | None = None
) -> int:
    """Runs the scenario until it kills itself at a point, or until it is killed after some seconds."""
    return in_child(
        folder, lambda: asyncio.run(_run(scenario, crash_at(open_store(folder), points))), kill_after=after
    )


def run_to_end(scenario: Scenario, folder: Path, open_store: OpenStore, what: str) -> int:
    """Picks the scenario up in a new process; it has to come to its end."""
    status = in_child(folder, lambda: asyncio.run(_run(scenario, open_store(folder))))
    if status != 0:
        raise SweepFailed(f"The scenario did not end after a crash at {what}:\n{_trace(folder)}")
    return status


async def _run(scenario: Scenario, store: Store) -> None:
    await scenario(store)


def in_child(folder: Path, work: Callable[[], None], kill_after: float | None = None) -> int:
    """Runs `work` in a forked process with `folder` as its current directory; its exit status."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.chdir(folder)
            status = _work_in_thread(folder, work)
        finally:
            os._exit(status)
    with _killed_after(pid, TRIAL_SECONDS if kill_after is None else kill_after):
        _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def _work_in_thread(folder: Path, work: Callable[[], None]) -> int:
    """A fresh thread has no running loop, whatever the parent was doing when it forked."""
    failed: list[bool] = []

    def guarded() -> None:
        try:
            work()
        except BaseException:  # noqa: BLE001 - the parent reads the trace from the folder
            failed.append(True)
            (folder / "trace.txt").write_text(traceback.format_exc())

    thread = threading.Thread(target=guarded)
    thread.start()
    thread.join()
    return 1 if failed else 0


@contextmanager
def _killed_after(pid: int, seconds: float) -> Generator[None]:
    timer = threading.Timer(seconds, os.kill, (pid, signal.SIGKILL))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _trace(folder: Path) -> str:
    trace = folder / "trace.txt"
    return trace.read_text() if trace.exists() else "no trace: it was killed or ran out of time"
