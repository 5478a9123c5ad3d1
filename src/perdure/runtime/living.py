"""Sessions that live on their own: whether they rest, and waiting until they rest or wake, whoever drives them."""

from __future__ import annotations

from collections.abc import Callable

from perdure.core.errors import UsageError
from perdure.core.state import SessionState
from perdure.core.views import Status, summarise
from perdure.ports import Clock
from perdure.runtime.clock import within
from perdure.runtime.log import SessionLog


def is_idle(state: SessionState) -> bool:
    """No run is open and none is due; inputs of a later time may wait."""
    return summarise(state).status == "idle"


def turns_of(state: SessionState) -> int:
    """The turns of all runs, the open one included."""
    return sum(ended.turns for ended in state.ended) + (state.run.turn if state.run else 0)


async def wait_idle(log: SessionLog, clock: Clock, seconds: float | None) -> bool:
    """Until there is nothing that the session could do by itself; whether it is idle then."""
    seen: list[Status] = []

    def rests(state: SessionState) -> bool:
        seen.append(summarise(state).status)
        return seen[-1] != "running"

    return await _until(log, clock, seconds, rests) and seen[-1] == "idle"


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
    if seconds is not None and (isinstance(seconds, bool) or not seconds >= 0):
        raise UsageError(f"A time-out of {seconds!r} makes no sense; give seconds, at least 0, or None.")
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


async def _awaited(log: SessionLog, predicate: Callable[[SessionState], bool]) -> None:
    await log.until(predicate)
