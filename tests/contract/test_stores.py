"""Both stores keep the store contract."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from perdure.ports import Store
from perdure.stores.memory import MemoryStore
from perdure.stores.sqlite import SqliteStore
from perdure.testing.store_contract import CHECKS, check_store


@asynccontextmanager
async def opened(store: Store) -> AsyncIterator[Store]:
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def beside(store: Store) -> AbstractAsyncContextManager[Store]:
    assert isinstance(store, SqliteStore)
    return opened(SqliteStore(store.path))


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
async def test_memory(check: Callable[..., object]) -> None:
    await check(lambda: opened(MemoryStore()), None)


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
async def test_sqlite(check: Callable[..., object], tmp_path: Path) -> None:
    await check(lambda: opened(SqliteStore(tmp_path / "store.db")), beside)


async def test_a_broken_store_is_reported() -> None:
    class Forgetful(MemoryStore):
        async def append_draft(self, session: str, chunk: bytes, *, epoch: int) -> None: ...

    report = await check_store(lambda: opened(Forgetful()))
    assert set(report.failed) == {"drafts", "stale_epoch", "delete"}
    assert len(report.passed) == len(CHECKS) - 3
    assert report.failed["drafts"] == "AssertionError: broken: chunks are kept in order"
