"""The deadlines of an exchange: which one is next, and who is told when it is over."""

from __future__ import annotations

import asyncio

from perdure.core.errors import ModelError
from perdure.models.deadlines import Deadlines


class Watch:
    """The waits of a loop's exchanges. All have one timer, because deadlines come to nothing nearly always."""

    __slots__ = ("_loop", "_timer", "_waits")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._waits: set[Phases] = set()

    def add(self, wait: Phases) -> None:
        self._waits.add(wait)
        # The timer is never later than the first deadline; one that is too early costs a look.
        if self._timer is None or wait.until < self._timer.when():
            self._set_timer(wait.until)

    def discard(self, wait: Phases) -> None:
        self._waits.discard(wait)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self, at: float) -> None:
        self.close()
        self._timer = self._loop.call_at(at, self._look)

    def _look(self) -> None:
        assert self._timer is not None
        # A loop's timers may ring a moment early.
        now = max(self._loop.time(), self._timer.when())
        self._timer = None
        for wait in [wait for wait in self._waits if wait.until <= now]:
            self._waits.discard(wait)
            wait.ring()
        if self._waits:
            self._set_timer(min(wait.until for wait in self._waits))


class Phases:
    """Which deadline is the next one. Whoever waits inside it waits no longer: then it is a TimeoutError.

    It does what asyncio.timeout_at does, with one object for all the waits of an exchange and without coroutines.
    """

    __slots__ = (
        "_cancelling",
        "_first",
        "_is_late",
        "_loop",
        "_task",
        "_total",
        "_watch",
        "connect",
        "deadlines",
        "has_begun",
        "until",
    )

    def __init__(self, deadlines: Deadlines, watch: Watch, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        self._loop = loop
        self._watch = watch
        self.deadlines = deadlines
        self.has_begun = False
        self.connect = min(deadlines.connect, deadlines.first_byte, deadlines.total)
        # Whoever is still connecting when both times are up has not been let in.
        self._first = now + max(deadlines.first_byte, self.connect + 0.05)
        self._total = now + deadlines.total

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._cancelling, self._is_late = task, task.cancelling(), False
        phase = self._loop.time() + self.deadlines.idle if self.has_begun else self._first
        self.until = min(phase, self._total)
        self._watch.add(self)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._watch.discard(self)
        # Somebody else may have cancelled the task as well: that counts.
        if self._is_late and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def ring(self) -> None:
        self._is_late = True
        self._task.cancel()

    def late(self, where: str) -> ModelError:
        """The time is up: what was waited for, and how long."""
        kind = "idle" if self.has_begun else "first_byte"
        if self._loop.time() >= self._total:
            return ModelError(f"The answer of {where} took more than {self.deadlines.total:g} s in total.", kind=kind)
        if self.has_begun:
            return ModelError(f"{where} fell silent for {self.deadlines.idle:g} s in its answer.", kind=kind)
        return ModelError(f"{where} did not begin to answer within {self.deadlines.first_byte:g} s.", kind=kind)
