"""The keys that all sessions of a tenant share: the log of one more session per tenant, which nobody ever drives.

Rule 1: they change through its events alone. Rule 2: what one call or hook changes counts once, however often it is
repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from perdure.core.accept import accept
from perdure.core.commands import ChangeState
from perdure.core.errors import Conflict
from perdure.core.events import Event
from perdure.core.state import SessionState
from perdure.runtime.log import SessionLog
from perdure.runtime.wishes import Wishes

SHARED = "perdure.shared"
"""The id and the agent of such a session."""
MAX_TRIES = 1000


class SharedState:
    """One tenant's, as this process sees it."""

    def __init__(self, log: SessionLog) -> None:
        self.log = log
        self._lock = asyncio.Lock()
        self._asked = 0
        self._looked = 0

    async def refresh(self) -> None:
        """Whatever was committed before, in whatever process, is seen from now on; those who wait share one look."""
        self._asked += 1
        asked = self._asked
        async with self._lock:
            if self._looked < asked:
                looked = self._asked
                await self.log.refresh()
                self._looked = looked

    def state(self) -> SessionState:
        return self.log.state

    async def change(self, wishes: Wishes, *, by: str, origin: str) -> None:
        """Commits the changes; a ValueError names an exclusive key that another session was faster with."""

        def decide(state: SessionState) -> Iterable[Event]:
            if state.origins.get(origin) is not None:
                return ()
            return accept(state, ChangeState(wishes.settled_shared(state), by, origin))

        for _ in range(MAX_TRIES):
            try:
                await self.log.propose(decide)
                return
            except Conflict:
                await self.log.refresh()
        raise Conflict("The shared state changes faster than this change could be placed; try again.")
