"""User code that is asked something: what it answers, within its time.

Rule: it runs in the task that asks, so that its own time-outs and tasks are what it thinks they are. What does not wait
for anything costs no timer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from types import CoroutineType, coroutine
from typing import Any

from perdure.ports import Clock, Timer
from perdure.runtime.desk import describe

GRACE = 2.0
"""Seconds that late code has to end, once it is told."""
BY_ITSELF = "it cancelled itself"


class Unanswered(Exception):
    """It raised, or took too long."""


class Rest:
    """An awaitable behind its first step, which has to be waited for."""

    __slots__ = ("awaited", "steps")

    def __init__(self, steps: Generator[Any, Any, Any], awaited: Any) -> None:
        self.steps = steps
        self.awaited = awaited


def is_awaitable(answer: object) -> bool:
    return type(answer) is CoroutineType or hasattr(answer, "__await__")


def begun(answer: Any) -> Any:
    """The answer itself, what an awaitable came to at once, or the Rest of it; Unanswered if it raised."""
    if not is_awaitable(answer):
        return answer
    steps = answer.__await__()
    try:
        return Rest(steps, next(steps))
    except StopIteration as end:
        return end.value
    except (Exception, SystemExit) as error:
        raise Unanswered(describe(error)) from error
    except asyncio.CancelledError:
        raise Unanswered(BY_ITSELF) from None


async def finished(clock: Clock, seconds: float, rest: Rest, give_up: Callable[[str], None] | None = None) -> Any:
    """What comes of it; Unanswered if it raises or is late.

    `give_up` is called with the reason where it is late and will not end either: whoever waits is to wait no more.
    """
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    late = _Late(clock, seconds, task, give_up)
    try:
        try:
            return await _stepped(rest.steps, rest.awaited, late)
        finally:
            if late.is_left:
                # It ended after all, but nobody waits any more: nothing may follow from it.
                raise asyncio.CancelledError
    except asyncio.CancelledError:
        if late.is_left:
            raise
        if late.is_late and task.uncancel() <= before:
            raise Unanswered(late.reason) from None
        if task.cancelling() > before:
            raise
        raise Unanswered(BY_ITSELF) from None
    except (Exception, SystemExit) as error:
        raise Unanswered(describe(error)) from error


class _Late:
    """The timer of one answer; armed only when the answer has to be waited for."""

    __slots__ = ("_clock", "_give_up", "_seconds", "_task", "_timer", "is_late", "is_left")

    def __init__(
        self, clock: Clock, seconds: float, task: asyncio.Task[Any], give_up: Callable[[str], None] | None
    ) -> None:
        self._clock = clock
        self._seconds = seconds
        self._task = task
        self._give_up = give_up
        self._timer: Timer | None = None
        self.is_late = False
        self.is_left = False

    @property
    def reason(self) -> str:
        return f"it took longer than {self._seconds:g} s"

    def arm(self) -> None:
        self._timer = self._clock.call_later(self._seconds, self._tell)

    def disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _tell(self) -> None:
        self.is_late = True
        self._task.cancel()
        if self._give_up is not None:
            self._timer = self._clock.call_later(GRACE, self._leave)

    def _leave(self) -> None:
        self.is_left = True
        if self._give_up is not None:
            self._give_up(self.reason)


@coroutine
def _stepped(steps: Generator[Any, Any, Any], awaited: Any, late: _Late) -> Generator[Any, Any, Any]:
    """The rest of an awaitable behind its first step, in the task that awaits this."""
    late.arm()
    try:
        while True:
            try:
                sent = yield awaited
            except BaseException as error:  # noqa: BLE001 - handed on to where it belongs
                awaited = steps.throw(error)
            else:
                awaited = steps.send(sent)
    except StopIteration as end:
        return end.value
    finally:
        late.disarm()
