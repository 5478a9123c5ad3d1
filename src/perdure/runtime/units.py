"""Units: the sessions that one process drives now. One task for each; what is asked meanwhile is looked at once more.

Rule 1: a unit that fails harms no other, and rests for a while, longer each time, unless it is asked for. Rule 2: no
more units at once than agreed; of the others, who has waited longest comes first, where priority counts as waiting.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from perdure.core.errors import StoreError
from perdure.core.queues import LEVEL
from perdure.ports import Clock, Timer

HORIZON = 60.0
"""Seconds: what is due later than that is left to the sweep."""

SHORTEST_REST, LONGEST_REST = 0.4, 6.4
"""Seconds; together with a heartbeat that fails to come, still less than a dead process may take."""

_logger = logging.getLogger("perdure")


class Units:
    """`concurrency`: at most so many sessions at once; None, as many as there are. `priority`: that of a session."""

    def __init__(
        self,
        clock: Clock,
        drive: Callable[[str], Awaitable[None]],
        concurrency: int | None = None,
        priority: Callable[[str], int] = lambda session: 0,
    ) -> None:
        self._clock = clock
        self._drive = drive
        self._concurrency = concurrency
        self._priority = priority
        self._ranks: dict[str, tuple[int, float]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._alarms: dict[str, Timer] = {}
        self._resting: dict[str, tuple[float, float]] = {}
        self._closed = False

    @property
    def is_full(self) -> bool:
        return self._concurrency is not None and len(self._tasks) >= self._concurrency

    def is_resting(self, session: str) -> bool:
        """Whether it has just failed: one that cannot be read here, say, because a newer version wrote it."""
        return session in self._resting and self._clock.monotonic() < self._resting[session][0]

    def is_under_way(self, session: str) -> bool:
        return session in self._tasks

    def begin(self, session: str) -> asyncio.Future[None]:
        """Drives the session here; done when nothing of it is left to do here."""
        if (alarm := self._alarms.pop(session, None)) is not None:
            alarm.cancel()
        if session in self._tasks:
            self._again.add(session)
            return self._tasks[session]
        if session in self._waiting:
            return self._waiting[session]
        if self.is_full or self._closed:
            left = asyncio.get_running_loop().create_future()
            if self._closed:
                left.set_result(None)
            else:
                self._waiting[session] = left
                self._ranks[session] = 1, self._clock.monotonic() - LEVEL * self._priority(session)
            return left
        return self._start(session)

    def begin_beside(self, most: int | None, session: str) -> None:
        """Begins it if fewer than so many are under way: what an engine's queue holds has its own room."""
        is_known = session in self._tasks or session in self._waiting or self.is_resting(session)
        if not is_known and (most is None or len(self._tasks) < most):
            self.begin(session)

    def order(self, sessions: Sequence[str]) -> None:
        """Those that wait begin in this order, before those that came since; who was in the last one and is not in this
        one has been taken by others, or will be found again.
        """
        wanted = dict(zip(sessions, range(len(sessions)), strict=True))
        for session, (came_since, _) in list(self._ranks.items()):
            if session in wanted:
                self._ranks[session] = 0, wanted[session]
            elif not came_since:
                del self._ranks[session]
                self._waiting.pop(session).cancel()

    def begin_at(self, at: float, session: str, begin: Callable[[], object]) -> None:
        """Calls `begin` at this time, unless the session is begun before."""
        if (alarm := self._alarms.pop(session, None)) is not None:
            alarm.cancel()
        left = at - self._clock.now()
        if left <= HORIZON and not self._closed:
            self._alarms[session] = self._clock.call_later(max(0.0, left), partial(self._ring, session, begin))

    def cancel(self, session: str) -> None:
        if (alarm := self._alarms.pop(session, None)) is not None:
            alarm.cancel()
        self._ranks.pop(session, None)
        if (waiting := self._waiting.pop(session, None)) is not None:
            waiting.cancel()
        if (task := self._tasks.get(session)) is not None:
            task.cancel()

    async def drain(self, grace: float) -> None:
        """Begins nothing more; what has not ended after `grace` seconds is broken off."""
        self._closed = True
        for alarm in self._alarms.values():
            alarm.cancel()
        for waiting in self._waiting.values():
            waiting.cancel()
        self._alarms.clear()
        self._waiting.clear()
        self._ranks.clear()
        tasks = list(self._tasks.values())
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=grace)
            for task in late:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, session: str) -> asyncio.Task[None]:
        task = self._tasks[session] = asyncio.get_running_loop().create_task(self._work(session))
        return task

    async def _work(self, session: str) -> None:
        try:
            while True:
                self._again.discard(session)
                await self._drive(session)
                self._resting.pop(session, None)
                if session not in self._again or self._closed:
                    return
        except StoreError as error:
            self._rest(session)
            _logger.warning("driving session %s failed: %s", session, error)
        except Exception:
            # The session stays runnable; the sweep tries again, and its neighbours go on.
            self._rest(session)
            _logger.exception("driving session %s failed", session)
        finally:
            self._again.discard(session)
            del self._tasks[session]
            self._start_next()

    def _rest(self, session: str) -> None:
        _, pause = self._resting.get(session, (0.0, SHORTEST_REST))
        self._resting[session] = self._clock.monotonic() + pause, min(2 * pause, LONGEST_REST)

    def _start_next(self) -> None:
        while self._waiting and not (self.is_full or self._closed):
            session = min(self._waiting, key=self._ranks.__getitem__)
            waiting = self._waiting.pop(session)
            del self._ranks[session]
            task = self._start(session)
            task.add_done_callback(lambda _, waiting=waiting: None if waiting.done() else waiting.set_result(None))

    def _ring(self, session: str, begin: Callable[[], object]) -> None:
        self._alarms.pop(session, None)
        begin()
