"""What every engine must do, as checks that any test runner can call.

An engine passes if `await check_engine(make_engine)` reports no failure; a runner of parametrized tests goes over
CHECKS. What becomes of the sessions of processes that die is for a test with processes.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from secrets import token_hex

from perdure.ports import Engine
from perdure.testing.store_contract import Report
from perdure.testing.store_samples import expect

MakeEngine = Callable[[], Engine]
"""Gives an engine that has not been started, on the system's clock, with nothing under way."""

Check = Callable[[MakeEngine], Awaitable[None]]

PATIENCE = 20.0
GRACE = 5.0
HOSTILE = ("'", "\u202e\U0001f600", "a b", "%_*?[", '{"x": 1}', "x" * 200)


class Sheet:
    """The work of a process, without any session behind it: it says what there is to do and writes down what was."""

    def __init__(self, *queues: str) -> None:
        self.owner = f"contract-{token_hex(4)}"
        self.queues: Sequence[str] = queues
        self.due: set[str] = set()
        self.began: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.under_way: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.gates: dict[str, asyncio.Event] = {}
        self.fails: set[str] = set()
        self.priorities: Counter[str] = Counter()

    async def drive(self, session: str) -> None:
        self.began[session] += 1
        self.under_way[session] += 1
        self.most[session] = max(self.most[session], self.under_way[session])
        try:
            if session in self.fails:
                raise RuntimeError("this unit fails")
            if session in self.gates:
                await self.gates[session].wait()
            await asyncio.sleep(0)
            self.due.discard(session)
            self.ended[session] += 1
        finally:
            self.under_way[session] -= 1

    async def sweep(self, queues: Sequence[str] | None) -> Sequence[str]:
        return sorted(self.due) if queues is None or set(queues) & set(self.queues) else ()

    def priority(self, session: str) -> int:
        return self.priorities[session]

    def watch(self, notify: Callable[[], None]) -> Callable[[], None]:
        return lambda: None

    async def living(self) -> Sequence[str]:
        return [self.owner]


@asynccontextmanager
async def _started(make_engine: MakeEngine, sheet: Sheet) -> AsyncGenerator[Engine]:
    engine = make_engine()
    await engine.start(sheet)
    try:
        yield engine
    finally:
        for gate in sheet.gates.values():
            gate.set()
        await engine.drain(GRACE)


async def _until(condition: Callable[[], object], promise: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        expect(time.monotonic() < deadline, f"{promise} (waited {PATIENCE} s)")
        await asyncio.sleep(0.01)


async def check_submit(make_engine: MakeEngine) -> None:
    """What is submitted is driven, whatever it is called; a queue that is not served here is left to others."""
    sheet = Sheet("clerk", "tell er'")
    async with _started(make_engine, sheet) as engine:
        for session in HOSTILE:
            engine.submit(session, "clerk")
        engine.submit("other", "tell er'")
        await _until(lambda: set(sheet.ended) == {*HOSTILE, "other"}, "everything submitted is driven")


async def check_again(make_engine: MakeEngine) -> None:
    """What is submitted while it is driven is looked at once more, and never by two at a time."""
    sheet = Sheet("clerk")
    sheet.gates["s"] = asyncio.Event()
    async with _started(make_engine, sheet) as engine:
        engine.submit("s", "clerk")
        await _until(lambda: sheet.began["s"] == 1, "it is driven")
        for _ in range(5):
            engine.submit("s", "clerk")
        engine.submit("t", "clerk")
        await _until(lambda: sheet.ended["t"], "one session does not hold up another")
        expect(sheet.began["s"] == 1, "a session that is driven is not driven by a second one")
        sheet.gates.pop("s").set()
        await _until(lambda: sheet.ended["s"] >= 2, "what came while it was driven is not lost")
        expect(sheet.most["s"] == 1, "a session is driven once at a time")


async def check_sweep(make_engine: MakeEngine) -> None:
    """What nobody submitted is found: at the start, and at any time later."""
    sheet = Sheet("clerk")
    sheet.due.add("left")
    async with _started(make_engine, sheet):
        await _until(lambda: sheet.ended["left"], "what was there before the start is found")
        sheet.due.add("missed")
        await _until(lambda: sheet.ended["missed"], "what was missed is found")


async def check_failure(make_engine: MakeEngine) -> None:
    """A unit that fails harms no other, and is tried again for as long as it has work."""
    sheet = Sheet("clerk")
    sheet.fails.add("bad")
    sheet.due.add("bad")
    async with _started(make_engine, sheet) as engine:
        engine.submit("bad", "clerk")
        engine.submit("good", "clerk")
        await _until(lambda: sheet.ended["good"], "its neighbours go on")
        await _until(lambda: sheet.began["bad"] >= 2, "it is tried again")
        sheet.fails.clear()
        await _until(lambda: sheet.ended["bad"], "and again until it works")


async def check_wake(make_engine: MakeEngine) -> None:
    """A session is driven when its time has come, and not before."""
    sheet = Sheet("clerk")
    async with _started(make_engine, sheet) as engine:
        engine.wake("later", "clerk", time.time() + 3600)
        engine.wake("soon", "clerk", time.time() + 0.3)
        engine.wake("gone", "clerk", time.time() + 0.3)
        engine.cancel("gone")
        engine.wake("past", "clerk", time.time() - 5)
        await _until(lambda: sheet.ended["soon"] and sheet.ended["past"], "it is woken at its time")
        expect(not sheet.began["later"], "and not before")
        expect(not sheet.began["gone"], "and not at all if it is gone")


async def check_cancel(make_engine: MakeEngine) -> None:
    """What is under way for a session that is gone is broken off."""
    sheet = Sheet("clerk")
    sheet.gates["s"] = asyncio.Event()
    async with _started(make_engine, sheet) as engine:
        engine.submit("s", "clerk")
        await _until(lambda: sheet.under_way["s"], "it is driven")
        engine.cancel("s")
        engine.cancel("nobody")
        await _until(lambda: not sheet.under_way["s"], "it is broken off")
        expect(not sheet.ended["s"], "and did not end by itself")
        sheet.gates.pop("s")
        sheet.due.add("s")
        engine.submit("s", "clerk")
        await _until(lambda: sheet.ended["s"], "and may come back")


async def check_drain(make_engine: MakeEngine) -> None:
    """What is under way may end within the grace; nothing new is begun, and nothing is left running."""
    sheet = Sheet("clerk")
    for name in ("quick", "slow"):
        sheet.gates[name] = asyncio.Event()
    async with _started(make_engine, sheet) as engine:
        engine.submit("quick", "clerk")
        engine.submit("slow", "clerk")
        await _until(lambda: len(+sheet.under_way) == 2, "both are driven")
        draining = asyncio.ensure_future(engine.drain(1.0))
        await asyncio.sleep(0)
        engine.submit("late", "clerk")
        sheet.due.add("late")
        sheet.gates["quick"].set()
        await asyncio.wait_for(draining, PATIENCE)
        expect(sheet.ended["quick"] == 1, "what ends in time has ended")
        expect(not sheet.ended["slow"] and not +sheet.under_way, "what does not is broken off")
        expect(not sheet.began["late"], "and nothing new was begun")


CHECKS: dict[str, Check] = {
    "submit": check_submit,
    "again": check_again,
    "sweep": check_sweep,
    "failure": check_failure,
    "wake": check_wake,
    "cancel": check_cancel,
    "drain": check_drain,
}


async def check_engine(make_engine: MakeEngine) -> Report:
    """Runs every check on a new engine."""
    passed: list[str] = []
    failed: dict[str, str] = {}
    for name, check in CHECKS.items():
        try:
            await check(make_engine)
            passed.append(name)
        except Exception as error:  # noqa: BLE001 - the engine under test may raise anything
            failed[name] = f"{type(error).__name__}: {error}"
    return Report(tuple(passed), failed)
