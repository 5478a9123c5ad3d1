"""The system's clock, and waiting on any clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from perdure.ports import Clock, Timer


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
