"""One race: several deciders answer one pending approval at the same moment; some of their processes are killed at it.

Rule 1: what deciders were told and what the tool did is written outside of the store. Rule 2: the parent has nothing of
SQLite open while it forks. Rule 3: a second call waits beside the one raced for, so that the turn stays open.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any, Literal

import msgspec

from perdure import Agent, Conflict, Pending, Record, Runtime, Session, ToolContext, tool
from perdure.core.fold import fold
from perdure.core.views import pending_of
from perdure.events import CallDecided, CallEnded, RunEnded, RunResumed
from perdure.ports import Store
from perdure.stores.sqlite import SqliteStore
from perdure.testing import FaultPoints, ScriptedModel, call, crash_at
from perdure.testing.children import KILLED, in_child
from tests.crash.ledger import LEDGER, Deed, read_lines, write_line
from tests.runtime.scenes import check_log

PATIENCE = 30.0
TOLD = Path("told.jsonl")
RESCUER = 50
LATE = 99

Death = Literal["", "before CallDecided", "inside a commit", "after CallDecided"]
DEATHS: tuple[Death, ...] = ("before CallDecided", "inside a commit", "after CallDecided")


class Plan(msgspec.Struct, frozen=True):
    """What one decider does, and where it dies."""

    number: int
    decision: Literal["approve", "deny", "edit"]
    death: Death = ""

    @property
    def name(self) -> str:
        return f"decider-{self.number}"

    @property
    def cents(self) -> int | None:
        """What is paid if this is the decision; every edit is another one."""
        return {"approve": 990, "edit": 100 + self.number, "deny": None}[self.decision]


class Told(msgspec.Struct, frozen=True):
    """How it went for a decider who lived."""

    number: int
    decided: bool
    words: str = ""


class Race(msgspec.Struct):
    """What came of one race."""

    plans: list[Plan]
    broken: list[str]
    deaths: list[str]
    was_open: bool = False
    refused: int = 0


class DiesAt(FaultPoints):
    """Dies at the first point of a name."""

    def __init__(self, name: str, epitaph: Path) -> None:
        super().__init__(None, epitaph)
        self._name = name

    def reach(self, name: str) -> None:
        if name == self._name:
            self.at = len(self.names) + 1
        super().reach(name)


@tool(ask=True)
async def pay(cents: int, ctx: ToolContext[Path, Any]) -> str:
    """Pay, if somebody approves."""
    write_line(ctx.deps / LEDGER, Deed("effect", "pay", "", ctx.call, ctx.attempt, ctx.idempotency_key, cents))
    return f"paid {cents}"


@tool(ask=True)
async def hold() -> str:
    """Keeps the turn open until somebody denies it."""
    raise AssertionError("nobody approves it")


def make_agent() -> Agent[Any]:
    return Agent(
        name="clerk", model=ScriptedModel([[call("pay", cents=990), call("hold")], "Done."]), tools=[pay, hold]
    )


def make_plans(chance: Random, mode: str) -> list[Plan]:
    """Two to ten deciders; in every mode but "alive" at least one of them is sure to be killed."""
    plans: list[Plan] = []
    for number in range(chance.randint(2, 10)):
        death: Death = ""
        if mode == "mixed":
            death = DEATHS[0] if number == 0 else chance.choice(("", *DEATHS))
        elif mode == "before":
            death = DEATHS[0] if number == 0 or chance.random() < 0.5 else ""
        elif mode != "alive":
            death = {"inside": DEATHS[1], "after": DEATHS[2]}[mode]
        plans.append(Plan(number, chance.choice(("approve", "deny", "edit")), death))
    return plans


# What the parties do


async def wait_open(session: Session[Any]) -> Pending:
    """The approval that is raced for, as soon as both calls wait."""
    deadline = time.monotonic() + PATIENCE
    while len(waiting := await session.pending()) < 2:
        assert time.monotonic() < deadline, "nobody asks"
        await asyncio.sleep(0.002)
    return next(pending for pending in waiting if pending.tool == "pay")


async def until_logged(session: Session[Any], kind: type[Any], **fields: object) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        for record in await session.records():
            if isinstance(record.event, kind) and all(getattr(record.event, n) == v for n, v in fields.items()):
                return
        assert time.monotonic() < deadline, f"{kind.__name__} did not come"
        await asyncio.sleep(0.005)


async def decide(folder: Path, session: Session[Any], pending: str, plan: Plan) -> None:
    more = {"arguments": {"cents": plan.cents}} if plan.decision == "edit" else {}
    try:
        await session.decide(pending, plan.decision, by=plan.name, **more)
    except Conflict as conflict:
        write_line(folder / TOLD, Told(plan.number, False, str(conflict)))
    else:
        write_line(folder / TOLD, Told(plan.number, True))


async def attend(folder: Path, store: Store, plan: Plan, go: Callable[[], Awaitable[object]]) -> None:
    """One decider: looks at what waits, stands ready, and decides when all may."""
    async with Runtime(store, engine=None) as runtime:
        session = await runtime.session("s")
        pending = await wait_open(session)
        await go()
        await decide(folder, session, pending.id, plan)


async def drive(folder: Path, *, stays: bool) -> None:
    """Works until it asks for the decisions; stays until the run has ended, or leaves it to others."""
    async with Runtime(open_store(folder), agents=[agent := make_agent()], deps=folder) as runtime:
        session = await runtime.open(agent, id="s")
        await session.start("go", key="go")
        await wait_open(session)
        (folder / "asked").touch()
        if stays:
            await until_logged(session, RunEnded)


async def finish(folder: Path, *, drives: bool) -> None:
    """What was decided is acted on; whoever comes late is told; then the other call is denied and the run ends."""
    agents = {"agents": [make_agent()], "deps": folder} if drives else {"engine": None}
    async with Runtime(open_store(folder), **agents) as runtime:
        session = await runtime.session("s")
        await until_logged(session, CallEnded, call=1)
        await decide(folder, session, f"{session.uid}-1-1", Plan(LATE, "approve"))
        await session.decide(f"{session.uid}-2-1", "deny", by="closer")
        await until_logged(session, RunEnded)


def open_store(folder: Path) -> SqliteStore:
    return SqliteStore(folder / "race.db")


# The two kinds of race


async def race_processes(folder: Path, seed: int) -> Race:
    """Every decider is a process of its own, and at least one of them is killed with SIGKILL."""
    chance = Random(seed)
    plans = make_plans(chance, chance.choice(("mixed", "before", "inside", "after")))
    stays = chance.random() < 0.5
    folder.mkdir()
    driver = asyncio.create_task(in_child(folder, lambda: asyncio.run(drive(folder, stays=stays))))
    try:
        await _until(lambda: (folder / "asked").exists() or driver.done())
        if not stays:
            assert await driver == 0, _trace(folder)
        deciders = [asyncio.create_task(in_child(folder, _decider(folder, plan))) for plan in plans]
        await _until(lambda: len([*folder.glob("ready-*")]) + sum(task.done() for task in deciders) >= len(plans))
        (folder / "go").touch()
        codes = await asyncio.gather(*deciders)
        race = Race(plans, [], [])
        for plan, code in zip(plans, codes, strict=True):
            epitaph = folder / f"epitaph-{plan.number}"
            if code == KILLED and epitaph.exists():
                race.deaths.append(epitaph.read_text())
            elif code != 0:
                race.broken.append(f"{plan.name} ended with {code}: {_trace(folder)}")
        if not race.deaths:
            race.broken.append("nobody was killed")
        if await _find_open(folder, race):
            rescuer = Plan(RESCUER, "approve")
            plans.append(rescuer)
            assert await in_child(folder, _decider(folder, rescuer)) == 0, _trace(folder)
        assert await in_child(folder, lambda: asyncio.run(finish(folder, drives=not stays))) == 0, _trace(folder)
        assert await driver == 0, _trace(folder)
    finally:
        driver.cancel()
    await _judge(folder, race)
    return race


async def race_tasks(folder: Path, seed: int) -> Race:
    """Every decider has a Runtime and a store of its own, in this process; nobody is killed."""
    chance = Random(seed)
    race = Race(make_plans(chance, "alive"), [], [])
    stays = chance.random() < 0.5
    folder.mkdir()
    go, ready = asyncio.Event(), 0

    async def stand_ready() -> None:
        nonlocal ready
        ready += 1
        await go.wait()

    async with AsyncExitStack() as stack:
        driver = asyncio.create_task(drive(folder, stays=stays))
        stack.callback(driver.cancel)
        await _until(lambda: (folder / "asked").exists() or driver.done())
        if not stays:
            await driver
        deciders = [asyncio.create_task(attend(folder, open_store(folder), plan, stand_ready)) for plan in race.plans]
        await _until(lambda: ready + sum(task.done() for task in deciders) >= len(deciders))
        go.set()
        await asyncio.gather(*deciders)
        await finish(folder, drives=not stays)
        await driver
    await _judge(folder, race)
    return race


def _decider(folder: Path, plan: Plan) -> Callable[[], None]:
    async def stand_ready() -> None:
        (folder / f"ready-{plan.number}").touch()
        await _until((folder / "go").exists)

    def work() -> None:
        store: Store = open_store(folder)
        if plan.death:
            store = crash_at(store, DiesAt(plan.death, folder / f"epitaph-{plan.number}"))
        asyncio.run(attend(folder, store, plan, stand_ready))

    return work


async def _until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        await asyncio.sleep(0.001)


def _trace(folder: Path) -> str:
    trace = folder / "trace.txt"
    return trace.read_text() if trace.exists() else "no trace"


# What must hold


async def read_log(folder: Path) -> list[Record]:
    store = open_store(folder)
    await store.open()
    try:
        row = await store.find("", "s")
        assert row is not None
        return await store.read(row.uid)
    finally:
        await store.close()


async def _find_open(folder: Path, race: Race) -> bool:
    """Whether the approval still waits after the race: only if everybody died before the decision was durable."""
    events = [record.event for record in await read_log(folder)]
    race.was_open = "pay" in {pending.tool for pending in pending_of(fold(events))}
    is_decided = any(isinstance(event, CallDecided) for event in events)
    if race.was_open is is_decided:
        race.broken.append(f"after the race: decided {is_decided}, waiting {race.was_open}")
    if race.was_open and len(race.deaths) < len(race.plans):
        race.broken.append("it still waits although a decider lives")
    return race.was_open


async def _judge(folder: Path, race: Race) -> None:
    records = await read_log(folder)
    check_log(records)
    events = [record.event for record in records]
    decided = [event for event in events if isinstance(event, CallDecided) and event.call == 1]
    if len(decided) != 1:
        race.broken.append(f"there are {len(decided)} decisions: {decided}")
        return
    winner = next(plan for plan in race.plans if plan.name == decided[0].by)
    if winner.decision != decided[0].decision:
        race.broken.append(f"{winner} is in the log as {decided[0]}")
    race.broken += _check_effect(folder, events, winner)
    race.broken += _check_told(folder, race, winner)
    if [event.reason for event in events if isinstance(event, RunEnded)] != ["completed"]:
        race.broken.append("the run has not ended once")
    if any(isinstance(event, RunResumed) for event in events):
        race.broken.append("the driver was disturbed")


def _check_effect(folder: Path, events: list[Any], winner: Plan) -> Iterator[str]:
    paid = [deed.cents for deed in read_lines(folder / LEDGER, Deed)]
    if paid != ([] if winner.cents is None else [winner.cents]):
        yield f"{winner} won, but paid was {paid}"
    outcomes = [event.outcome for event in events if isinstance(event, CallEnded) and event.call == 1]
    if outcomes != ["denied" if winner.cents is None else "ok"]:
        yield f"{winner} won, but the call ended {outcomes}"


def _check_told(folder: Path, race: Race, winner: Plan) -> Iterator[str]:
    told = {line.number: line for line in read_lines(folder / TOLD, Told)}
    dead = {plan.number for plan in race.plans if (folder / f"epitaph-{plan.number}").exists()}
    if set(told) != {plan.number for plan in race.plans} - dead | {LATE}:
        yield f"told were {sorted(told)}, dead are {sorted(dead)}"
    if winner.number in dead and winner.death != "after CallDecided":
        yield f"{winner} was killed before its commit, and is in the log"
    for plan in race.plans:
        if plan.number in dead and plan.death == "after CallDecided" and plan is not winner:
            yield f"{plan} was killed after its commit, and is not in the log"
    for number, line in told.items():
        if line.decided != (number == winner.number):
            yield f"{winner} won, but {line}"
        if not line.decided:
            race.refused += 1
            if f"already decided by {winner.name}: {winner.decision}." not in line.words:
                yield f"{winner} won, but {number} was told: {line.words}"
