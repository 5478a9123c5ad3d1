"""Who is alive: one row per owner, with the database's own time of its last heartbeat.

Rule: the database's clock alone counts; machines need not agree on the time.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta

from perdure.core.errors import StoreError
from perdure.ports import Worker
from perdure.stores import terms
from perdure.stores.postgres_link import Link
from perdure.stores.postgres_names import kept, meant

_BEAT = (
    "INSERT INTO @schema.owners (owner, about, beat_at)"
    " SELECT o, a, now() FROM unnest($1::text[], $2::bytea[]) AS t (o, a)"
    " ON CONFLICT (owner) DO UPDATE SET beat_at = now()"
)
_WORKERS = (
    "SELECT owner, about, (SELECT count(*) FROM @schema.sessions s WHERE md5(s.owner) = md5(o.owner)"
    " AND s.owner = o.owner) AS held FROM @schema.owners o WHERE beat_at > now() - $1::interval"
)


class Owners:
    """Those that joined through this store, and who else is living."""

    def __init__(self, link: Link, *, beat: float, dead_after: float) -> None:
        self._link = link
        self._beat_every = beat
        self.dead_after = timedelta(seconds=dead_after)
        self._own: dict[str, bytes] = {}
        self._task: asyncio.Task[None] | None = None

    def __contains__(self, owner: str) -> bool:
        return owner in self._own

    async def join(self, owner: str, about: bytes) -> None:
        await self._beat({owner: about})
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
            with suppress(asyncio.CancelledError):
                await task
        for owner in list(self._own):
            with suppress(StoreError):
                await self.leave(owner)

    async def _keep_beating(self) -> None:
        while True:
            await asyncio.sleep(self._beat_every)
            with suppress(StoreError):  # out of order for a while: the others go by the last beat
                await self._beat(dict(self._own))

    async def _beat(self, owners: dict[str, bytes]) -> None:
        names, about = [kept(owner) for owner in owners], list(owners.values())
        await self._link.ask(lambda connection: connection.execute(self._link.sql(_BEAT), names, about), tries=1)
