"""User code that is asked something: what it answers, within its time.

Rule: it runs in the task that asks, so that its own time-outs and tasks are what it thinks they are. What does not wait
for anything costs no timer. What is late is cancelled, and what will not end either is cut off where it waits: whoever
asked goes on in any case.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import suppress
from types import CoroutineType, coroutine
from typing import Any

from perdure.ports import Clock, Timer
from perdure.runtime.desk import describe

ANSWERED_WITHIN = 30.0
"""Seconds, for user code that has no time-out of its own."""
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


async def finished(clock: Clock, seconds: float, rest: Rest) -> Any:
    """What comes of it; Unanswered if it raises or is late."""
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    late = _Late(clock, seconds, task)
    try:
        return await _stepped(rest.steps, rest.awaited, late)
    except asyncio.CancelledError:
        if late.is_late and task.uncancel() <= before:
            raise Unanswered(late.reason) from None
        if task.cancelling() > before:
            raise
        raise Unanswered(BY_ITSELF) from None
    except (Exception, SystemExit) as error:
        raise Unanswered(describe(error)) from error


async def answered(clock: Clock, ask: Callable[[], Any], seconds: float = ANSWERED_WITHIN) -> Any:
    """What a function, async or not, answers; whatever it raises by itself is raised, Unanswered if it is late."""
    answer = begun(ask())
    return await finished(clock, seconds, answer) if type(answer) is Rest else answer


class _Late:
    """The timer of one answer; armed only when the answer has to be waited for. `wait` is what it waits for now."""

    __slots__ = ("_clock", "_seconds", "_task", "_timer", "is_late", "is_over", "wait")

    def __init__(self, clock: Clock, seconds: float, task: asyncio.Task[Any]) -> None:
        self._clock = clock
        self._seconds = seconds
        self._task = task
        self._timer: Timer | None = None
        self.is_late = False
        self.is_over = False
        self.wait: _Wait | None = None

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
        self._timer = self._clock.call_later(GRACE, self._cut_off)

    def _cut_off(self) -> None:
        self.is_over = True
        if self.wait is not None:
            self.wait.let_go()


class _Wait(asyncio.Future[None]):
    """Ends with what is awaited, and is cancelled through it; but who waits can be let go before."""

    def __init__(self, awaited: asyncio.Future[Any]) -> None:
        super().__init__(loop=awaited.get_loop())
        self._awaited = awaited
        awaited.add_done_callback(self.let_go)

    def cancel(self, msg: Any | None = None) -> bool:
        return not self.done() and self._awaited.cancel(msg)

    def let_go(self, _: object = None) -> None:
        if not self.done():
            self._awaited.remove_done_callback(self.let_go)
            self.set_result(None)


@coroutine
def _stepped(steps: Generator[Any, Any, Any], awaited: Any, late: _Late) -> Generator[Any, Any, Any]:
    """The rest of an awaitable behind its first step, in the task that awaits this."""
    late.arm()
    try:
        while True:
            try:
                if getattr(awaited, "_asyncio_future_blocking", False):
                    # As a task does that takes a future over from a coroutine.
                    awaited._asyncio_future_blocking = False
                    late.wait = _Wait(awaited)
                    sent = yield from late.wait
                else:
                    sent = yield awaited
                if late.is_over:
                    raise asyncio.CancelledError
            except BaseException as error:
                if late.is_over:
                    with suppress(Exception, SystemExit, asyncio.CancelledError):
                        steps.close()
                    raise
                awaited = steps.throw(error)
            else:
                awaited = steps.send(sent)
    except StopIteration as end:
        return end.value
    finally:
        late.disarm()
        late.wait = None
