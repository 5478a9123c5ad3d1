"""Waiting on a clock, in the moments in which two things happen at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from perdure.ports import Timer
from perdure.runtime.clock import SystemClock, within


class Held(SystemClock):
    """Its timers go off when the test says so."""

    ring: Callable[[], None]

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        self.ring = callback
        return super().call_later(3600, callback)


@pytest.mark.parametrize("cancelled_first", [True, False])
async def test_a_cancellation_in_the_moment_in_which_the_time_is_up_is_not_lost(cancelled_first: bool) -> None:
    clock = Held()
    waiting = asyncio.ensure_future(within(clock, 1.0, asyncio.Event().wait()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for step in (waiting.cancel, clock.ring) if cancelled_first else (clock.ring, waiting.cancel):
        step()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_what_takes_too_long_is_broken_off() -> None:
    clock = Held()
    waiting = asyncio.ensure_future(within(clock, 1.0, asyncio.Event().wait()))
    await asyncio.sleep(0)
    clock.ring()
    with pytest.raises(TimeoutError):
        await waiting
