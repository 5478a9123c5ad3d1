"""Fault points around every append and in tools: the process that reaches the chosen one kills itself with SIGKILL.

Nothing of this is in the product: a store is wrapped, and a fault point that is off is one look at a variable.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextvars import ContextVar
from pathlib import Path
from threading import Lock
from typing import Any, cast

from perdure.core.codec import decode_event
from perdure.ports import Batch, SharesDeltas, SharesQuota, Store, Transacts

STEPS_INSIDE = 5
"""How often the loop goes round until a store elsewhere has been asked, about."""

_points: ContextVar[FaultPoints | None] = ContextVar("perdure_fault_points", default=None)


class FaultPoints:
    """Counts the points that a process passes, in any thread; dies at number `at` and leaves its name in `epitaph`."""

    def __init__(self, at: int | None = None, epitaph: Path | None = None) -> None:
        self.at = at
        self.names: list[str] = []
        self._epitaph = epitaph
        self._lock = Lock()

    def reach(self, name: str) -> None:
        with self._lock:
            self.names.append(name)
            if len(self.names) != self.at:
                return
            if self._epitaph is not None:
                self._epitaph.write_text(name)
            # The lock is kept: no other thread passes a point meanwhile.
            os.kill(os.getpid(), signal.SIGKILL)


class FaultyStore:
    """A store with a point before, inside (where the store can say) and after every append."""

    def __init__(self, store: Any, points: FaultPoints, *, says_when: bool | None = None) -> None:
        self._store = store
        self._points = points
        self._says_when = hasattr(store, "on_commit") if says_when is None else says_when
        if says_when is None and self._says_when:
            store.on_commit = lambda: points.reach("inside a commit")
        # Since Python 3.12 whoever asks what a store can do besides is not answered by __getattr__.
        for port in (Transacts, SharesDeltas, SharesQuota):
            for name in vars(port).keys() - vars(FaultyStore).keys():
                if not name.startswith("_") and hasattr(store, name):
                    setattr(self, name, getattr(store, name))

    async def append(self, batch: Batch) -> None:
        kinds = " ".join(type(decode_event(entry.payload)).__name__ for entry in batch.entries)
        self._points.reach(f"before {kinds}")
        if self._says_when:
            await self._store.append(batch)
        else:
            await self._append_from_afar(batch)
        self._points.reach(f"after {kinds}")

    async def _append_from_afar(self, batch: Batch) -> None:
        """A store elsewhere: it has been asked, and whoever dies now will never hear what came of it."""
        asked = asyncio.ensure_future(self._store.append(batch))
        for _ in range(STEPS_INSIDE):
            await asyncio.sleep(0)
        if not asked.done():
            self._points.reach("inside an append")
        await asked

    def begin(self) -> Any:
        """A transaction, with the same points around its append."""
        return FaultyStore(self._store.begin(), self._points, says_when=self._says_when)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def crash_at(store: Store, point: int | FaultPoints) -> Store:
    """The store, in a process that dies at the given point; count the points first with FaultPoints()."""
    points = FaultPoints(point) if isinstance(point, int) else point
    _points.set(points)
    return cast(Store, FaultyStore(store, points))


def fault_point(name: str) -> None:
    """One more place to die at, for the inside of a tool: behind the call that acts, before the one that reports."""
    points = _points.get()
    if points is not None:
        points.reach(name)
