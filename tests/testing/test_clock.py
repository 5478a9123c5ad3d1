"""ManualClock: timers fire in their order, tasks go on, and nothing waits for real."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from perdure.core.errors import UsageError
from perdure.runtime.clock import sleep
from perdure.testing.clock import MAX_FIRED, START, ManualClock

DAY = 86_400.0


def test_time_stands_still() -> None:
    clock = ManualClock()
    assert (clock.now(), clock.monotonic()) == (START, 0.0)
    assert ManualClock(5.0).now() == 5.0


def test_both_times_move_together() -> None:
    clock = ManualClock()
    clock.skip(30)
    assert (clock.now(), clock.monotonic()) == (START + 30, 30.0)


def test_timers_fire_in_the_order_of_their_time() -> None:
    clock = ManualClock()
    fired: list[tuple[str, float]] = []

    def note(name: str) -> Callable[[], None]:
        return lambda: fired.append((name, clock.monotonic()))

    for name, seconds in (("c", 3), ("a", 1), ("b", 2), ("a2", 1), ("late", 9)):
        clock.call_later(seconds, note(name))
    clock.skip(5)
    assert fired == [("a", 1), ("a2", 1), ("b", 2), ("c", 3)]
    assert clock.monotonic() == 5
    clock.skip(4)
    assert fired[-1] == ("late", 9)


def test_a_timer_fires_at_its_time_and_not_before() -> None:
    clock = ManualClock()
    fired: list[float] = []
    clock.call_later(10, lambda: fired.append(clock.now()))
    clock.skip(9.99)
    assert fired == []
    clock.skip(0.01)
    assert fired == [START + 10]


def test_a_timer_of_the_past_fires_at_the_next_move() -> None:
    clock = ManualClock()
    fired: list[float] = []
    clock.call_later(-5, lambda: fired.append(clock.monotonic()))
    assert fired == []
    clock.skip(0)
    assert fired == [0.0]


def test_timers_that_timers_set_fire_in_their_turn() -> None:
    clock = ManualClock()
    fired: list[tuple[str, float]] = []

    def outer() -> None:
        fired.append(("outer", clock.monotonic()))
        clock.call_later(1, lambda: fired.append(("inner", clock.monotonic())))

    clock.call_later(1, outer)
    clock.call_later(3, lambda: fired.append(("last", clock.monotonic())))
    clock.skip(DAY)
    assert fired == [("outer", 1), ("inner", 2), ("last", 3)]


def test_a_cancelled_timer_does_not_fire() -> None:
    clock = ManualClock()
    fired: list[int] = []
    timer = clock.call_later(1, lambda: fired.append(1))
    other = clock.call_later(2, lambda: fired.append(2))
    clock.call_later(1, lambda: other.cancel())
    timer.cancel()
    timer.cancel()
    clock.skip(5)
    assert fired == []


def test_cancelling_a_timer_that_fired_does_nothing() -> None:
    clock = ManualClock()
    timer = clock.call_later(1, lambda: None)
    clock.skip(1)
    timer.cancel()
    clock.skip(1)


def test_wall_time_is_set_apart() -> None:
    clock = ManualClock()
    fired: list[int] = []
    clock.call_later(10, lambda: fired.append(1))
    clock.set(START + 30 * DAY)
    assert (clock.now(), clock.monotonic(), fired) == (START + 30 * DAY, 0.0, [])
    clock.set(START - DAY)
    clock.skip(10)
    assert (clock.now(), clock.monotonic(), fired) == (START - DAY + 10, 10.0, [1])
    clock.set(START)
    assert (clock.now(), clock.monotonic()) == (START, 10.0)


def test_time_does_not_run_backwards() -> None:
    with pytest.raises(UsageError, match="backwards"):
        ManualClock().skip(-1)


async def test_tasks_go_on_after_each_timer() -> None:
    clock = ManualClock()
    seen: list[tuple[str, float]] = []

    async def work(name: str, seconds: float) -> None:
        for _ in range(3):
            await sleep(clock, seconds)
            seen.append((name, clock.monotonic()))

    tasks = [asyncio.create_task(work("slow", 20)), asyncio.create_task(work("quick", 8))]
    await clock.advance(60)
    assert seen == [("quick", 8), ("quick", 16), ("slow", 20), ("quick", 24), ("slow", 40), ("slow", 60)]
    await asyncio.gather(*tasks)


async def test_a_task_started_just_before_is_seen() -> None:
    clock = ManualClock()
    task = asyncio.create_task(sleep(clock, 30 * DAY))
    await clock.advance(30 * DAY)
    assert task.done()
    await task


async def test_a_cancelled_sleep_leaves_no_timer_that_fires() -> None:
    clock = ManualClock()
    task = asyncio.create_task(sleep(clock, 10))
    await clock.advance(1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await clock.advance(20)
    assert task.cancelled()


async def test_a_chain_of_awaits_goes_on_within_one_move() -> None:
    clock = ManualClock()
    done: list[int] = []

    async def hop(depth: int) -> None:
        if depth:
            await asyncio.create_task(hop(depth - 1))
        else:
            await sleep(clock, 1)

    async def work() -> None:
        await hop(6)
        done.append(1)

    task = asyncio.create_task(work())
    await clock.advance(1)
    assert done == [1]
    await task


@pytest.mark.parametrize("interval", [2.0, 0.0])
async def test_a_timer_that_keeps_setting_itself_does_not_hold_up_a_jump(interval: float) -> None:
    clock = ManualClock()
    beats: list[float] = []
    fired: list[float] = []

    def beat() -> None:
        beats.append(clock.monotonic())
        clock.call_later(interval, beat)

    beat()
    clock.call_later(20 * DAY, lambda: fired.append(clock.monotonic()))
    await clock.advance(30 * DAY)
    assert clock.monotonic() == 30 * DAY
    assert fired == [30 * DAY]
    assert beats == sorted(beats)
    assert MAX_FIRED < len(beats) <= MAX_FIRED + 3
    await clock.advance(1)


def test_what_a_timer_raises_is_seen() -> None:
    clock = ManualClock()

    def fail() -> None:
        raise ZeroDivisionError

    clock.call_later(1, fail)
    with pytest.raises(ZeroDivisionError):
        clock.skip(1)
