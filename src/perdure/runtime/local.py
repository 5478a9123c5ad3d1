"""The local engine: drives in this process, and finds by itself what a submission missed or a dead process left."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

from perdure.core.errors import StoreError
from perdure.ports import Clock, Timer, Work
from perdure.runtime.units import Units

SWEEP_EVERY = 0.5

_logger = logging.getLogger("perdure")


class LocalEngine:
    """Several processes with one each may share a store: whoever claims a session first drives it.

    `queues`: only these are served here; None, those of all agents that are known, and of their tools.
    `any_queue`: it also finds sessions of agents that nobody knew at the start.
    """

    any_queue = True

    def __init__(
        self,
        clock: Clock,
        sweep_every: float = SWEEP_EVERY,
        *,
        concurrency: int | None = None,
        queues: Sequence[str] | None = None,
    ) -> None:
        self._clock = clock
        self._sweep_every = sweep_every
        self.concurrency = concurrency
        self.queues = queues
        self._work: Work | None = None
        self._units: Units | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self._timer: Timer | None = None

    async def start(self, work: Work) -> None:
        self._work = work
        self._units = Units(self._clock, work.drive, self.concurrency, work.priority)
        await self._sweep()
        self._schedule()

    def submit(self, session: str, queue: str) -> None:
        if self._work is not None and self._units is not None and self._serves(queue):
            self._units.begin(session)

    def wake(self, session: str, queue: str, at: float) -> None:
        if self._units is not None and self._serves(queue):
            self._units.begin_at(at, session, partial(self.submit, session, queue))

    def cancel(self, session: str) -> None:
        if self._units is not None:
            self._units.cancel(session)

    async def drain(self, grace: float) -> None:
        self._work = None
        if self._timer is not None:
            self._timer.cancel()
        if self._sweeping is not None:
            self._sweeping.cancel()
        if self._units is not None:
            await self._units.drain(grace)

    def _serves(self, queue: str) -> bool:
        return self.queues is None or queue in self.queues

    def _schedule(self) -> None:
        self._timer = self._clock.call_later(self._sweep_every, self._start_sweep)

    def _start_sweep(self) -> None:
        self._sweeping = asyncio.get_running_loop().create_task(self._sweep_and_schedule())

    async def _sweep_and_schedule(self) -> None:
        try:
            await self._sweep()
        except Exception:
            # Nobody else looks: whatever it was, the next look has to come.
            _logger.exception("the sweep for runnable sessions failed")
        if self._work is not None:
            self._schedule()

    async def _sweep(self) -> None:
        work, units = self._work, self._units
        assert work is not None
        assert units is not None
        try:
            found = await work.sweep(self.queues)
        except StoreError as error:
            _logger.warning("the sweep for runnable sessions failed: %s", error)
            return
        if self._work is not None:
            for session in found:
                if not units.is_resting(session):
                    units.begin(session)
            units.order(found)
