"""Lookout: finds the sessions that have work and that nobody submitted, for engines with queues elsewhere.

Rule 1: others submit by writing alone, so whatever is written is looked at soon. Rule 2: what was found before most
likely stands in its queue: it is submitted again, but less and less often. Rule 3: what its queue has not brought about
for a while is begun here, if there is room: the queue may be slow or out of order, or give it again and again to an
older worker that cannot read it. Rule 4: where nothing has happened for a while, an engine that polls does so less
often, and what comes then is begun here at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from perdure.core.errors import PerdureError
from perdure.ports import Clock, Work
from perdure.runtime.clock import sleep, within

LOOK_EVERY = 2.0
REST = 0.25
"""Seconds between two looks, however much is written."""
LONGEST_PAUSE = 4.0
BESIDE_WITHIN = 5.0
PATIENCE = 3.0
"""Seconds: what is found for so long is begun here."""
QUIET_AFTER = 15.0
QUIET_POLL = 5.0
"""Seconds between two polls of a queue while it is quiet."""
DIRECT_FOR = 50.0
"""Seconds after that: DBOS makes its pauses shorter by a tenth at a time."""

_logger = logging.getLogger("perdure")


class Unavailable(Exception):
    """The engine could not do it now; it is tried again."""


class Lookout:
    """`beside` is done at every look that nobody asked for; `begin` drives a session here, past its queue.

    That is for what is still found after `patience` seconds. `pace` is for engines that poll: told when it becomes
    quiet, and when that is over.
    """

    def __init__(
        self,
        clock: Clock,
        work: Work,
        submit: Callable[[str, str], None],
        beside: Callable[[], Coroutine[Any, Any, None]],
        begin: Callable[[str], object],
        pace: Callable[[bool], Awaitable[None]] | None = None,
        patience: float = PATIENCE,
    ) -> None:
        self._clock = clock
        self._work = work
        self._submit = submit
        self._beside = beside
        self._begin = begin
        self._pace = pace
        self._heard_at = clock.monotonic()
        self._is_quiet = False
        self._direct_until = 0.0
        self._patience = patience
        self._news = asyncio.Event()
        self._found: dict[str, tuple[float, float, float]] = {}

    async def keep(self, queues: Sequence[str]) -> None:
        """Looks until it is cancelled."""
        end = self._work.watch(self._news.set)
        due = 0.0
        try:
            while True:
                if self._news.is_set():
                    self._news.clear()
                    self._heard_at = self._clock.monotonic()
                await self._try(self._sweep(queues))
                if self._clock.monotonic() >= due:
                    due = self._clock.monotonic() + LOOK_EVERY
                    await self._try(within(self._clock, BESIDE_WITHIN, self._beside()))
                await self._try(self._keep_pace())
                await sleep(self._clock, REST)
                with suppress(TimeoutError):
                    await within(self._clock, max(0.0, due - self._clock.monotonic()), self._news.wait())
        finally:
            end()

    async def _try(self, work: Awaitable[object]) -> None:
        """Whatever goes wrong with one part, the others are done, and the next look comes."""
        try:
            await work
        except TimeoutError:
            _logger.warning("the engine did not answer in time")
        except (PerdureError, Unavailable) as error:
            _logger.warning("looking for sessions to drive failed: %s", error)
        except Exception:
            # A lookout that has ended would find nothing any more, and nobody would notice.
            _logger.exception("looking for sessions to drive failed")

    async def _sweep(self, queues: Sequence[str]) -> None:
        now, found = self._clock.monotonic(), dict[str, tuple[float, float, float]]()
        is_direct = self._is_quiet or now < self._direct_until
        for queue in queues:
            for session in await self._work.sweep([queue]):
                since, due, pause = self._found.get(session, (now, now, REST))
                if is_direct or now - since >= self._patience:
                    self._begin(session)
                if now >= due:
                    self._submit(session, queue)
                    due, pause = now + pause, min(2 * pause, LONGEST_PAUSE)
                found[session] = since, due, pause
        self._found = found
        if found:
            self._heard_at = now

    async def _keep_pace(self) -> None:
        is_quiet = self._clock.monotonic() - self._heard_at > QUIET_AFTER
        if self._pace is not None and is_quiet != self._is_quiet:
            await self._pace(is_quiet)
            self._is_quiet = is_quiet
            self._direct_until = self._clock.monotonic() + DIRECT_FOR
