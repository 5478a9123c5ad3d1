"""The local engine: drives in this process, and finds by itself what a submission missed or a dead process left."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from perdure.core.errors import StoreError
from perdure.ports import Clock, Timer

SWEEP_EVERY = 0.5

_logger = logging.getLogger("perdure")


class LocalEngine:
    """One task per session that is driven here."""

    def __init__(self, clock: Clock, sweep_every: float = SWEEP_EVERY) -> None:
        self._clock = clock
        self._sweep_every = sweep_every
        self._drive: Callable[[str], Awaitable[None]] | None = None
        self._sweep: Callable[[], Awaitable[Sequence[str]]] | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()
        self._sweeping: asyncio.Task[None] | None = None
        self._timer: Timer | None = None

    async def start(
        self, drive: Callable[[str], Awaitable[None]], sweep: Callable[[], Awaitable[Sequence[str]]]
    ) -> None:
        self._drive = drive
        self._sweep = sweep
        await self._sweep_once()
        self._schedule()

    def submit(self, session: str) -> None:
        if self._drive is None:
            return
        if session in self._tasks:
            self._again.add(session)
        else:
            self._tasks[session] = asyncio.get_running_loop().create_task(self._work(session, self._drive))

    async def drain(self, grace: float) -> None:
        self._drive = None
        if self._timer is not None:
            self._timer.cancel()
        if self._sweeping is not None:
            self._sweeping.cancel()
        tasks = list(self._tasks.values())
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=grace)
            for task in late:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self, session: str, drive: Callable[[str], Awaitable[None]]) -> None:
        try:
            while True:
                self._again.discard(session)
                await drive(session)
                if session not in self._again or self._drive is None:
                    return
        except Exception:
            # The session stays runnable; the sweep tries again, and its neighbours go on.
            _logger.exception("driving session %s failed", session)
        finally:
            self._again.discard(session)
            del self._tasks[session]

    def _schedule(self) -> None:
        self._timer = self._clock.call_later(self._sweep_every, self._start_sweep)

    def _start_sweep(self) -> None:
        self._sweeping = asyncio.get_running_loop().create_task(self._sweep_and_schedule())

    async def _sweep_and_schedule(self) -> None:
        await self._sweep_once()
        if self._drive is not None:
            self._schedule()

    async def _sweep_once(self) -> None:
        assert self._sweep is not None
        try:
            found = await self._sweep()
        except StoreError as error:
            _logger.warning("the sweep for runnable sessions failed: %s", error)
            return
        for session in found:
            self.submit(session)
