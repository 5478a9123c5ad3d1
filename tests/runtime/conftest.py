"""Stores for the runtime's tests; whatever a test leaves in one is checked against the laws of the log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from perdure.ports import Store
from perdure.stores.memory import MemoryStore
from tests.runtime.scenes import check_store


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str | Store]:
    """A place that several Runtimes, one after the other or at once, may open."""
    place: str | Store = MemoryStore() if request.param == "memory" else f"sqlite:{tmp_path / 'x.db'}"
    yield place
    await check_store(place)


@pytest.fixture
async def memory() -> AsyncIterator[MemoryStore]:
    """For what the kind of store has no part in."""
    place = MemoryStore()
    yield place
    await check_store(place)
