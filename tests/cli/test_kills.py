"""`kill -9` of `perdure run` at random times, then `perdure resume` until the session has ended.

A ledger outside of the store is checked: nothing is lost, and only idempotent calls are repeated, under their own key.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from perdure import Runtime
from perdure.core.events import CallEnded, CallStarted, Event, RunEnded, RunResumed
from tests.cli.agents import JOBS
from tests.cli.command import TIMEOUT, Command, agent

RUN = ("run", "Do all jobs", *agent("busy"), "--session", "s", "--key", "jobs", "--json")
RESUME = ("resume", "s", *agent("busy"), "--json")
AT_ONCE = 3
MAX_RESUMES = 6


class Moment(NamedTuple):
    """When to kill: so many bytes of output are there, and a little later. A busy machine shifts no such moment."""

    written: int
    later: float


def kill_and_resume(folder: Path, moment: Moment) -> bool:
    """One trial; whether the kill met work under way."""
    folder.mkdir()
    perdure = Command(folder)
    kill_at(perdure, moment)
    for _ in range(MAX_RESUMES):
        if go_on(perdure):
            break
    else:
        raise AssertionError(f"killed at {moment}, it has not ended after {MAX_RESUMES} resumes")
    events = asyncio.run(read_log(folder))
    check_log(events)
    check_ledger(perdure.ledger(), events)
    return any(isinstance(event, RunResumed) for event in events)


def kill_at(perdure: Command, moment: Moment) -> None:
    output = perdure.folder / "output"
    with output.open("w") as file:
        started = perdure.start(*RUN, stdout=file)
    deadline = time.monotonic() + TIMEOUT
    while output.stat().st_size < moment.written and started.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    time.sleep(moment.later)
    started.kill()
    started.communicate(timeout=TIMEOUT)


async def read_log(folder: Path) -> list[Event]:
    async with beside(folder) as runtime:
        session = await runtime.session("s")
        return [record.event for record in await session.records()]


def go_on(perdure: Command) -> bool:
    """One resume, and the decisions that it leaves; True when there is nothing more to do."""
    resumed = perdure.start(*RESUME)
    _, said = resumed.communicate(timeout=TIMEOUT)
    assert "Traceback" not in said, said
    match resumed.returncode:
        case 0:
            return True
        case 3:
            asyncio.run(decide(perdure))
            return False
        case 2 if "its last run is completed" in said:
            return True
        case 2 if "There is no s" in said or "it has had no input yet" in said:
            # Killed before the input was accepted: nothing is promised yet, and the same command is the way to go.
            perdure(*RUN)
            return True
        case code:
            raise AssertionError(f"perdure resume ended with {code}: {said}")


async def decide(perdure: Command) -> None:
    """A person looks whether the letter was posted."""
    async with beside(perdure.folder) as runtime:
        for item in await runtime.pending():
            assert (item.kind, item.tool) == ("unknown", "post")
            is_posted = f"post {item.arguments['job']}" in perdure.ledger()
            await runtime.decide(item.id, "answer" if is_posted else "retry", value="posted" if is_posted else None)


def beside(folder: Path) -> Runtime:
    return Runtime(f"sqlite:{folder / 'data' / 'perdure' / 'perdure.db'}", engine=None)


def check_log(events: list[Event]) -> None:
    (end,) = (event for event in events if isinstance(event, RunEnded))
    assert end.reason == "completed"
    ended = Counter(event.call for event in events if isinstance(event, CallEnded))
    assert ended == Counter(range(1, 2 * JOBS + 1)), "every call has one outcome"


def check_ledger(ledger: list[str], events: list[Event]) -> None:
    posted = Counter(line for line in ledger if line.startswith("post "))
    assert posted == Counter(f"post {job}" for job in range(JOBS)), "each letter once"
    paid = Counter(tuple(line.split()[1:]) for line in ledger if line.startswith("pay "))
    assert sorted(int(job) for job, _ in paid) == list(range(JOBS)), "each job is paid, and under one key"
    assert len({key for _, key in paid}) == JOBS, "each under a key of its own"
    starts = Counter(event.key for event in events if isinstance(event, CallStarted))
    for (_, key), times in paid.items():
        assert times <= starts[key], "nothing is done without an intent in the log"


def sweep(folder: Path, seed: int, kills: int, record: Callable[[str, object], None]) -> None:
    output = Command(folder)(*RUN)
    chance = random.Random(seed)
    moments = [Moment(round(chance.uniform(-0.1, 1.0) * len(output)), chance.uniform(0, 0.01)) for _ in range(kills)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        met = sum(pool.map(kill_and_resume, (folder / f"trial-{number}" for number in range(kills)), moments))
    record("figure: kills of perdure run", kills)
    record("figure: kills of perdure run that met work under way", met)
    assert met >= kills / 3, "the kills came too early or too late to mean anything"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_kills_at_random_times(tmp_path: Path, seed: int, record_property: Callable[[str, object], None]) -> None:
    sweep(tmp_path, seed, 5, record_property)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(10, 15))
def test_many_kills_at_random_times(tmp_path: Path, seed: int, record_property: Callable[[str, object], None]) -> None:
    sweep(tmp_path, seed, 10, record_property)
