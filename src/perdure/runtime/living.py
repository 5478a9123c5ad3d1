"""Sessions that live on their own: whether they rest, and waiting until they rest or wake, whoever drives them."""

from __future__ import annotations

from collections.abc import Callable

from perdure.core.errors import UsageError
from perdure.core.state import SessionState
from perdure.core.views import summarise
from perdure.ports import Clock
from perdure.runtime.clock import within
from perdure.runtime.family import until_still
from perdure.runtime.log import SessionLog
from perdure.runtime.post import Sessions


def is_idle(state: SessionState) -> bool:
    """No run is open and none is due; inputs of a later time may wait."""
    return summarise(state).status == "idle"


def turns_of(state: SessionState) -> int:
    """The turns of all runs, the open one included."""
    return sum(ended.turns for ended in state.ended) + (state.run.turn if state.run else 0)


async def wait_idle(sessions: Sessions, log: SessionLog, clock: Clock, seconds: float | None) -> bool:
    """Until there is nothing that the session, and those below it, could do by themselves; whether it is idle then."""
    _check(seconds)
    seen: list[bool] = []

    def rests(state: SessionState) -> bool:
        seen.append(is_idle(state))
        return seen[-1]

    await log.refresh()
    if rests(log.state) or seconds == 0:
        return seen[-1]
    try:
        waiting = until_still(sessions, log, rests)
        await (waiting if seconds is None else within(clock, seconds, waiting))
    except TimeoutError:
        return False
    return seen[-1]


async def wait_wakeup(log: SessionLog, clock: Clock, seconds: float | None) -> bool:
    """Until the session has work; a run that comes and goes between two looks counts too."""
    await log.refresh()
    seen = _progress(log.state)
    return await _until(
        log, clock, seconds, lambda state: summarise(state).status == "running" or _progress(state) != seen
    )


def _progress(state: SessionState) -> tuple[int, int, int]:
    return state.runs, len(state.ended), state.run.turn if state.run else 0


async def _until(
    log: SessionLog, clock: Clock, seconds: float | None, predicate: Callable[[SessionState], bool]
) -> bool:
    """Whether it held before the time was over; also if another process brings it about."""
    _check(seconds)
    log.attach()
    try:
        await log.refresh()
        if predicate(log.state):
            return True
        if seconds == 0:
            return False
        if seconds is None:
            await log.until(predicate)
        else:
            await within(clock, seconds, _awaited(log, predicate))
        return True
    except TimeoutError:
        return False
    finally:
        log.detach()


def _check(seconds: float | None) -> None:
    if seconds is not None and (isinstance(seconds, bool) or not seconds >= 0):
        raise UsageError(f"A time-out of {seconds!r} makes no sense; give seconds, at least 0, or None.")


async def _awaited(log: SessionLog, predicate: Callable[[SessionState], bool]) -> None:
    await log.until(predicate)
