"""Others: the processes or Runtimes that share a quota with this one, as the gate of that quota sees them.

Rule 1: nothing is asked of them while nobody was told to wait. Rule 2: where they cannot be asked, this process goes on
alone, as if there were nobody else; no call waits for the store, and none fails because of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol

from perdure.core.errors import StoreError
from perdure.ports import Clock, SharesQuota
from perdure.runtime.clock import within

ANSWERS_WITHIN = 2.0
"""Seconds: after that they count as not there."""


class SharedGate(Protocol):
    """What the others may do to a gate."""

    @property
    def opens_in(self) -> float: ...

    @property
    def is_wanted(self) -> bool:
        """Somebody stands in line, and the time has come."""
        ...

    def shut_by_others(self, seconds: float) -> None: ...

    def wait_for_others(self, seconds: float) -> None: ...

    def let_in(self) -> None:
        """One more tries, by agreement."""
        ...

    def go_alone(self) -> None:
        """Nobody else has a say any more, until it is shut again."""
        ...

    def grow(self) -> None:
        """A try got through, and nobody else has a say: two more."""
        ...


class Others:
    """Those who share one quota."""

    def __init__(self, store: SharesQuota, clock: Clock, quota: str, gate: SharedGate) -> None:
        self._store = store
        self._clock = clock
        self._quota = quota
        self._gate = gate
        self._asking: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def hear(self, seconds: float | None) -> None:
        if seconds is None:
            if not self._gate.opens_in:  # else it was shut again, and that has not got around yet
                self._gate.go_alone()
        elif seconds > 0:
            self._gate.shut_by_others(seconds)
        else:
            self.ask()

    def tell_shut(self, seconds: float) -> None:
        self._spawn(self._tell(self._store.shut_quota(self._quota, seconds)))

    def tell_nothing(self) -> None:
        """A try that was agreed on has come to nothing."""
        self._spawn(self._tell(self._store.answer_quota(self._quota, passed=False)))

    def tell_passed(self) -> None:
        self._spawn(self._tell_passed())

    def ask(self) -> None:
        """Whether one more may try; the gate hears of it."""
        if self._gate.is_wanted and (self._asking is None or self._asking.done()):
            self._asking = self._spawn(self._ask())

    def close(self) -> None:
        for task in (*self._tasks,):
            task.cancel()

    async def _ask(self) -> None:
        while self._gate.is_wanted:
            try:
                wait = await within(self._clock, ANSWERS_WITHIN, self._store.enter_quota(self._quota))
            except (StoreError, TimeoutError):
                wait = None
            if wait is None:
                self._gate.go_alone()
                return
            if wait > 0:
                self._gate.wait_for_others(wait)
                return
            self._gate.let_in()

    async def _tell_passed(self) -> None:
        if await self._tell(self._store.answer_quota(self._quota, passed=True)):
            self.ask()
        else:
            self._gate.grow()

    async def _tell(self, telling: Coroutine[Any, Any, None]) -> bool:
        try:
            await within(self._clock, ANSWERS_WITHIN, telling)
        except (StoreError, TimeoutError):
            return False
        return True

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
