"""The system's clock, and waiting on any clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from perdure.ports import Clock, Timer

T = TypeVar("T")


class SystemClock:
    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(seconds, callback)


async def sleep(clock: Clock, seconds: float) -> None:
    """A cancellable wait on this clock."""
    waiter = asyncio.get_running_loop().create_future()
    timer = clock.call_later(seconds, lambda: None if waiter.done() else waiter.set_result(None))
    try:
        await waiter
    finally:
        timer.cancel()


async def within(
    clock: Clock, seconds: float, work: Coroutine[Any, Any, T], give_back: Callable[[T], None] = lambda _: None
) -> T:
    """The result of the work; TimeoutError, and the work broken off, if it takes longer.

    A result that comes in the moment in which the caller is cancelled is given back: it may hold something.
    """
    task, own = asyncio.ensure_future(work), asyncio.current_task()
    asked = own.cancelling() if own is not None else 0
    late = False

    def give_up() -> None:
        nonlocal late
        late = True
        task.cancel()

    timer = clock.call_later(seconds, give_up)
    try:
        return await task
    except asyncio.CancelledError:
        if task.done() and not task.cancelled() and task.exception() is None:
            give_back(task.result())
        task.cancel()
        # Who cancels us in the moment in which the time is up means us.
        if late and task.cancelled() and (own is None or own.cancelling() == asked):
            raise TimeoutError from None
        raise
    finally:
        timer.cancel()
