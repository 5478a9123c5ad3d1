"""Quotas that processes share: a row while one is used up, and a notice to all when something about it changes.

Rule: nobody asks about a quota of which no process was told to wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

from perdure.core.errors import StoreError
from perdure.ports import HeardQuota
from perdure.stores.postgres_link import Link

PATIENCE = timedelta(seconds=5)
"""For whoever tries first and says nothing: it may be dead, or have got through to a long answer."""


class Quotas:
    """Who wants to hear of quotas here, and what is asked about them."""

    def __init__(self, link: Link, dead_after: Callable[[], timedelta]) -> None:
        self._link = link
        self._dead_after = dead_after
        self._followers: list[HeardQuota] = []

    def follow(self, heard: HeardQuota) -> Callable[[], None]:
        self._followers.append(heard)
        return lambda: self._followers.remove(heard) if heard in self._followers else None

    def heard(self, payload: str) -> None:
        """What came over the channel: a quota, and for how long it is shut, or that it is open."""
        quota, _, words = payload[1:].partition(" ")
        for heard in (*self._followers,):
            heard(quota, None if words == "open" else float(words))

    async def look(self) -> None:
        """What was said while nobody listened."""
        if not self._followers:
            return
        sql = self._link.sql(
            "SELECT quota, extract(epoch FROM shut_until - clock_timestamp())::float8 AS seconds FROM @schema.quotas"
            " WHERE shut_until > clock_timestamp()"
        )
        with suppress(StoreError):
            for row in await self._link.ask(lambda connection: connection.fetch(sql), tries=1):
                for heard in (*self._followers,):
                    heard(row["quota"], row["seconds"])

    async def shut(self, quota: str, seconds: float) -> None:
        await self._ask("SELECT @schema.shut_quota($1, $2)", quota, seconds)

    async def enter(self, quota: str) -> float | None:
        return await self._ask("SELECT @schema.enter_quota($1, $2)", quota, PATIENCE)

    async def answer(self, quota: str, *, passed: bool) -> None:
        await self._ask("SELECT @schema.answer_quota($1, $2, $3)", quota, passed, self._dead_after())

    async def _ask(self, sql: str, *values: object) -> float | None:
        asking = self._link.ask(lambda connection: connection.fetchval(self._link.sql(sql), *values), tries=1)
        return await asyncio.shield(asyncio.ensure_future(asking))
