"""Fault points around every append: the process that reaches the chosen one kills itself with SIGKILL.

Nothing of this is in the product: a store is wrapped, so a fault point that is off costs nothing.
"""

from __future__ import annotations

import os
import signal
from typing import Any, cast

from perdure.core.codec import decode_event
from perdure.ports import Batch, Store


class FaultPoints:
    """Counts the points that a process passes; dies at number `at`, if that is set."""

    def __init__(self, at: int | None = None) -> None:
        self.at = at
        self.names: list[str] = []

    def reach(self, name: str) -> None:
        self.names.append(name)
        if len(self.names) == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


class FaultyStore:
    """A store with a point before, inside (where the store can say) and after every append."""

    def __init__(self, store: Store, points: FaultPoints) -> None:
        self._store = store
        self._points = points
        if hasattr(store, "on_commit"):
            cast(Any, store).on_commit = lambda: points.reach("inside a commit")

    async def append(self, batch: Batch) -> None:
        kinds = " ".join(type(decode_event(entry.payload)).__name__ for entry in batch.entries)
        self._points.reach(f"before {kinds}")
        await self._store.append(batch)
        self._points.reach(f"after {kinds}")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def crash_at(store: Store, point: int | FaultPoints) -> Store:
    """The store, in a process that dies at the given point; count the points first with FaultPoints()."""
    points = FaultPoints(point) if isinstance(point, int) else point
    return cast(Store, FaultyStore(store, points))

