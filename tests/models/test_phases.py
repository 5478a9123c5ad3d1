"""Deadlines: however many exchanges there are, each is told when its own time is up, and one timer does it."""

from __future__ import annotations

import asyncio
import time

import pytest

from perdure.models.deadlines import Deadlines
from perdure.models.phases import Phases, Watch


async def wait(watch: Watch, seconds: float, *, for_ever: bool = True) -> float:
    """How long it took until it was told, or let go."""
    loop, began = asyncio.get_running_loop(), time.monotonic()
    try:
        with Phases(Deadlines(connect=0.001, first_byte=seconds), watch, loop):
            await (loop.create_future() if for_ever else asyncio.sleep(0))
    except TimeoutError:
        return time.monotonic() - began
    return 0.0


@pytest.mark.parametrize("order", [(0.1, 0.2, 0.4), (0.4, 0.2, 0.1), (0.2, 0.1, 0.4)])
async def test_each_wait_ends_at_its_own_time(order: tuple[float, ...]) -> None:
    watch, told = Watch(asyncio.get_running_loop()), list[float]()

    async def follow(seconds: float) -> None:
        # Never early; a busy machine may be late.
        assert await wait(watch, seconds) >= seconds - 0.001
        told.append(seconds)

    async with asyncio.timeout(10.0):
        await asyncio.gather(*map(follow, order), wait(watch, 0.15, for_ever=False))
    assert told == sorted(order)


async def test_waits_that_end_in_time_cost_no_timer_each(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    watch, timers = Watch(loop), list[float]()
    call_at = loop.call_at

    def counted(when: float, *rest: object) -> asyncio.TimerHandle:
        timers.append(when)
        return call_at(when, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "call_at", counted)
    for _ in range(100):
        await wait(watch, 60.0, for_ever=False)
    assert len(timers) == 1
    watch.close()


async def test_a_wait_that_nobody_ended_is_told_after_others_came_and_went() -> None:
    watch = Watch(asyncio.get_running_loop())
    long = asyncio.ensure_future(wait(watch, 0.3))
    await asyncio.sleep(0)
    for _ in range(20):
        await wait(watch, 0.06, for_ever=False)
        await asyncio.sleep(0.005)
    assert await asyncio.wait_for(long, 5.0) >= 0.299
