"""Bugs planted on purpose, each in the process of a trial alone: the sweep has to find them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from perdure.core import rules
from perdure.core.actions import Action, RunTool
from perdure.core.calls import Call
from perdure.ports import Batch, Claim, Record, Store
from perdure.runtime.drive import Driver
from perdure.runtime.flight import Flight
from perdure.runtime.log import Change
from perdure.stores.sqlite import SqliteStore
from tests.crash.scenario import scenario


async def without_intent(store: Store) -> None:
    """Tools start while the commit of their intent is still under way."""
    plan = Driver._plan

    def plan_and_launch(driver: Driver) -> tuple[Change, list[Flight]]:
        change, starts = plan(driver)
        tools = [flight for flight in starts if isinstance(flight.action, RunTool)]
        for flight in tools:
            driver._launch(flight)
        return change, [flight for flight in starts if flight not in tools]

    Driver._plan = plan_and_launch
    await scenario(store)


async def with_blind_rerun(store: Store) -> None:
    """Whatever was interrupted is simply run again."""

    def run_again(call: Call) -> Action:
        return RunTool(call.ordinal, call.name, call.arguments, call.attempts + 1, call.digest)

    rules._after_crash = run_again
    await scenario(store)


class HastyStore(SqliteStore):
    """Acknowledges an append before it is committed; its own process sees it all the same."""

    _last: asyncio.Future[None] | None = None

    async def append(self, batch: Batch) -> None:
        self._last = asyncio.ensure_future(self._append_later(self._last, batch))

    async def _append_later(self, before: asyncio.Future[None] | None, batch: Batch) -> None:
        if before is not None:
            await before
        await asyncio.sleep(0.002)
        await super().append(batch)

    async def read(self, session: str, *, after: int = 0, limit: int | None = None) -> list[Record]:
        await self._settled()
        return await super().read(session, after=after, limit=limit)

    async def claim(self, session: str, owner: str, *, force: bool = False, capacity: Any = None) -> Claim | None:
        await self._settled()
        return await super().claim(session, owner, force=force, capacity=capacity)

    async def release(self, session: str, *, epoch: int, head: int) -> bool:
        await self._settled()
        return await super().release(session, epoch=epoch, head=head)

    async def _settled(self) -> None:
        if self._last is not None:
            await self._last


def open_hasty(folder: Path) -> Store:
    return HastyStore(folder / "sweep.db")
