"""Admission: whether another session may get work while many wait already.

Rule 1: what is refused was not written; what was accepted before is never refused. Rule 2: the store is asked at most a
few times a second, however many inputs come.
"""

from __future__ import annotations

from perdure.core.capacity import Capacity
from perdure.core.errors import Busy
from perdure.core.state import SessionState, has_due_input
from perdure.ports import Clock, Store
from perdure.runtime.log import SessionLog

REMEMBERED = 0.2
"""Seconds: so long a count holds."""
RETRY_AFTER = 2.0
"""Seconds: within that every worker has looked for work."""
MOST_REMEMBERED = 10_000


class Admission:
    """One process's door: counts are remembered by tenant, and those of all tenants under None."""

    def __init__(self, store: Store, clock: Clock, capacity: Capacity) -> None:
        self._store = store
        self._clock = clock
        self._most = (capacity.waiting, capacity.waiting_per_tenant)
        self._counts: dict[str | None, tuple[float, int, int]] = {}

    async def check(self, log: SessionLog, key: str | None) -> None:
        """Raises Busy if an input would wake a session that rests while too many wait."""
        if self._most == (None, None) or not _would_wake(log.state, key):
            return
        tenant = log.state.tenant
        for most, whose in zip(self._most, (None, tenant), strict=True):
            if most is None or await self._count(whose, most) < most:
                continue
            await log.refresh()
            if _would_wake(log.state, key):
                of = f" of tenant {tenant!r}" if whose is not None and tenant else ""
                raise Busy(
                    f"{most} sessions{of} wait already, so this input was not taken; try again in {RETRY_AFTER:g} s.",
                    retry_after=RETRY_AFTER,
                )
            return

    async def _count(self, tenant: str | None, most: int) -> int:
        """How many wait. What was let in since they were counted may wait or be driven: then they are counted again."""
        now = self._clock.monotonic()
        until, count, since = self._counts.get(tenant, (now, 0, 0))
        if until <= now or count < most <= count + since:
            if len(self._counts) >= MOST_REMEMBERED:
                self._counts.clear()
            count = await self._store.count_waiting(tenant, now=self._clock.now(), limit=most)
            until, since = self._clock.monotonic() + REMEMBERED, 0
        self._counts[tenant] = until, count, since + 1
        return count


def _would_wake(state: SessionState, key: str | None) -> bool:
    is_known = key is not None and state.keys.get(key) is not None
    return state.run is None and not has_due_input(state) and not is_known
