"""Who is alive: one row per owner, with the database's own time of its last heartbeat.

Rule 1: the database's clock alone counts; machines need not agree on the time. Rule 2: while nobody could beat, nobody
is dead for that: after an outage the living have time to show themselves.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

from perdure.core.errors import StoreError
from perdure.ports import Worker
from perdure.stores import terms
from perdure.stores.postgres_link import Link
from perdure.stores.postgres_names import kept, meant

_logger = logging.getLogger("perdure")
FORGOTTEN_AFTER = timedelta(days=1)

_BEAT = (
    "INSERT INTO @schema.owners (owner, about, beat_at)"
    " SELECT o, a, now() FROM unnest($1::text[], $2::bytea[]) AS t (o, a)"
    " ON CONFLICT (owner) DO UPDATE SET beat_at = now()"
)
_WORKERS = (
    "SELECT owner, about, (SELECT count(*) FROM @schema.sessions s WHERE md5(s.owner) = md5(o.owner)"
    " AND s.owner = o.owner) AS held FROM @schema.owners o WHERE beat_at > now() - $1::interval"
)


_FORGET = (
    "DELETE FROM @schema.owners WHERE owner IN (SELECT owner FROM @schema.owners WHERE beat_at < now() - $1::interval"
    " FOR UPDATE SKIP LOCKED)"
)


class Outages:
    """How long an owner may be silent before it is dead: longer by the time in which nobody could beat."""

    def __init__(self, *, beat: float, dead_after: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._dead_after = dead_after
        # Others beat up to one beat earlier than we do, so theirs are too old before ours are.
        self._longest_gap = max(dead_after - beat, 2 * beat)
        self._time_to_come_back = dead_after + beat
        self._clock = clock
        self._beaten_at: float | None = None
        self._began_at = 0.0
        self._lasted = 0.0
        self._over_at = 0.0

    @property
    def dead_after(self) -> timedelta:
        now = self._clock()
        lasted = self._lasted if now < self._over_at else 0.0
        if (since := self._silent_since(now)) is not None:
            lasted = now - since
        return timedelta(seconds=self._dead_after + lasted)

    def beaten(self) -> None:
        now = self._clock()
        if (since := self._silent_since(now)) is not None:
            self._began_at, self._lasted = since, now - since
            self._over_at = now + self._time_to_come_back
        self._beaten_at = now

    def _silent_since(self, now: float) -> float | None:
        """When the outage began that has not ended yet; one soon after another is the same."""
        if self._beaten_at is None or now - self._beaten_at <= self._longest_gap:
            return None
        return self._began_at if self._beaten_at < self._over_at else self._beaten_at


class Owners:
    """Those that joined through this store, and who else is living."""

    def __init__(self, link: Link, *, beat: float, dead_after: float) -> None:
        self._link = link
        self._beat_every = beat
        self._outages = Outages(beat=beat, dead_after=dead_after)
        self._own: dict[str, bytes] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def dead_after(self) -> timedelta:
        return self._outages.dead_after

    def __contains__(self, owner: str) -> bool:
        return owner in self._own

    async def join(self, owner: str, about: bytes) -> None:
        await self._beat({owner: about})
        await self._forget()
        self._own.setdefault(owner, about)
        if self._task is None:
            self._task = asyncio.ensure_future(self._keep_beating())

    async def leave(self, owner: str) -> None:
        sql = self._link.sql(
            "WITH gone AS (DELETE FROM @schema.owners WHERE owner = $1)"
            " UPDATE @schema.sessions SET owner = NULL WHERE md5(owner) = md5($1) AND owner = $1"
        )
        await self._link.ask(lambda connection: connection.execute(sql, kept(owner)))
        self._own.pop(owner, None)

    async def living(self) -> list[str]:
        sql = self._link.sql("SELECT owner FROM @schema.owners WHERE beat_at > now() - $1::interval")
        rows = await self._link.ask(lambda connection: connection.fetch(sql, self.dead_after))
        return sorted(meant(row["owner"]) for row in rows)

    async def workers(self) -> list[Worker]:
        sql = self._link.sql(_WORKERS)
        rows = await self._link.ask(lambda connection: connection.fetch(sql, self.dead_after))
        found = [Worker(meant(row["owner"]), row["held"], terms.decode_about(row["about"])) for row in rows]
        return sorted(found, key=lambda worker: worker.owner)

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        for owner in list(self._own):
            with suppress(StoreError):
                await self.leave(owner)

    async def _keep_beating(self) -> None:
        while True:
            await asyncio.sleep(self._beat_every)
            try:
                await self._beat(dict(self._own))
            except StoreError:
                pass  # out of order for a while: the others go by the last beat
            except Exception as error:  # noqa: BLE001 - whoever stops beating loses its sessions
                _logger.warning("A heartbeat failed and comes again: %s: %s", type(error).__name__, error)

    async def _beat(self, owners: dict[str, bytes]) -> None:
        names, about = [kept(owner) for owner in owners], list(owners.values())
        await self._link.ask(lambda connection: connection.execute(self._link.sql(_BEAT), names, about), tries=1)
        self._outages.beaten()

    async def _forget(self) -> None:
        """The rows of those that were killed go, long after anybody could ask for them."""
        sql, since = self._link.sql(_FORGET), max(FORGOTTEN_AFTER, self.dead_after)
        with suppress(StoreError):
            await self._link.ask(lambda connection: connection.execute(sql, since), tries=1)
