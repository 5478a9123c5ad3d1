"""ManualClock: time that stands still until a test moves it.

Rule 1: timers fire in the order of their time, and those that they set fire in their turn. Rule 2: a jump
costs what fires in it, not how far it goes. Rule 3: wall time may be set apart; timers do not follow it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from heapq import heappop, heappush

from perdure.core.errors import UsageError

START = 1_767_225_600.0
"""The first of January 2026, UTC."""

MAX_FIRED = 1_000
ROUNDS = 20


class ManualTimer:
    """A callback that waits for its time; an ended or cancelled one does nothing."""

    __slots__ = ("callback", "due")

    def __init__(self, due: float, callback: Callable[[], None]) -> None:
        self.due = due
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class ManualClock:
    """`await clock.advance(30)` moves it; a timer that keeps setting itself fires a thousand times a move."""

    def __init__(self, start: float = START) -> None:
        self._offset = start
        self._monotonic = 0.0
        self._timers: list[tuple[float, int, ManualTimer]] = []
        self._numbers = 0

    def now(self) -> float:
        return self._offset + self._monotonic

    def monotonic(self) -> float:
        return self._monotonic

    def call_later(self, seconds: float, callback: Callable[[], None]) -> ManualTimer:
        timer = ManualTimer(self._monotonic + max(0.0, seconds), callback)
        self._numbers += 1
        heappush(self._timers, (timer.due, self._numbers, timer))
        return timer

    def set(self, now: float) -> None:
        """Wall time jumps, as when somebody sets the machine's clock; nothing fires."""
        self._offset = now - self._monotonic

    async def advance(self, seconds: float) -> None:
        """Moves time on, timer by timer; after each, tasks that can go on do so, threads aside."""
        await _let_run()
        for _ in self._fire_until(self._target(seconds)):
            await _let_run()
        await _let_run()

    def skip(self, seconds: float) -> None:
        """The same without a loop: only the timers fire."""
        for _ in self._fire_until(self._target(seconds)):
            pass

    def _target(self, seconds: float) -> float:
        if seconds < 0:
            raise UsageError("Time does not run backwards; wall time can be put back with set().")
        return self._monotonic + seconds

    def _fire_next(self, target: float) -> bool:
        while self._timers and self._timers[0][0] <= target:
            _, _, timer = heappop(self._timers)
            if timer.callback is not None:
                self._monotonic = max(self._monotonic, timer.due)
                callback, timer.callback = timer.callback, None
                callback()
                return True
        return False

    def _fire_until(self, target: float) -> Iterator[None]:
        """Stops after each timer. Past the most that may fire, what is late by then comes once more."""
        fired = 0
        while fired < MAX_FIRED and self._fire_next(target):
            fired += 1
            yield
        self._monotonic = target
        late = len(self._timers) if fired == MAX_FIRED else 0
        while late and self._fire_next(target):
            late -= 1
            yield


async def _let_run() -> None:
    for _ in range(ROUNDS):
        await asyncio.sleep(0)
