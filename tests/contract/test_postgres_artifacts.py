"""Large artifacts outside of the database: found, shared with forks, removed with the last session that needs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.core.errors import NotFound, StoreError, UsageError
from perdure.stores.postgres import PostgresStore
from perdure.testing.store_contract import CHECKS
from perdure.testing.store_samples import first
from tests.contract.test_stores import opened
from tests.postgres import Cutter, new_schema

SMALL, LARGE = b"s" * 10, b"l" * 11


def outside(url: str, folder: Path, schema: str | None = None) -> PostgresStore:
    return PostgresStore(url, schema=schema or new_schema(), artifacts=f"file://{folder}", artifacts_inside=10)


def files(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in folder.rglob("*") if path.is_file()]


async def test_only_what_is_long_lies_outside(postgres: str, tmp_path: Path) -> None:
    async with opened(outside(postgres, tmp_path)) as store:
        await store.append(first("s", 1))
        for data in (SMALL, LARGE, LARGE):
            await store.save_artifact("s", data.decode(), data)
        assert await store.load_artifact("s", SMALL.decode()) == SMALL
        assert await store.load_artifact("s", LARGE.decode()) == LARGE
        assert files(tmp_path) == [LARGE], "saved twice, it is there once"
        with pytest.raises(NotFound):
            await store.save_artifact("nobody", "d", LARGE)
        assert files(tmp_path) == [LARGE]


async def test_it_goes_with_the_last_who_needs_it(postgres: str, tmp_path: Path) -> None:
    async with opened(outside(postgres, tmp_path)) as store:
        await store.append(first("s", 1))
        await store.save_artifact("s", "d", LARGE)
        await store.append(first("fork", 2, base=("s", 1)))
        await store.delete("s")
        assert await store.load_artifact("fork", "d") == LARGE
        await store.delete("fork")
        assert files(tmp_path) == []


async def test_an_answer_that_got_lost_does_not_cost_the_artifact(postgres: str, tmp_path: Path) -> None:
    sockets, folder = tmp_path / "sockets", tmp_path / "artifacts"
    sockets.mkdir()
    async with Cutter(postgres, sockets) as cutter, opened(outside(cutter.url, folder)) as store:
        await store.append(first("s", 1))
        cutter.cuts = 1
        await store.save_artifact("s", "d", LARGE)
        assert cutter.cuts == 0
        assert await store.load_artifact("s", "d") == LARGE


async def test_what_is_out_of_reach_is_told(postgres: str, tmp_path: Path) -> None:
    schema = new_schema()
    async with (
        opened(outside(postgres, tmp_path, schema)) as store,
        opened(PostgresStore(postgres, schema=schema)) as without,
    ):
        await store.append(first("s", 1))
        await store.save_artifact("s", "d", LARGE)
        with pytest.raises(StoreError, match=r"lies outside of the database; open the store with artifacts=…\.$"):
            await without.load_artifact("s", "d")
        next(path for path in tmp_path.rglob("*") if path.is_file()).unlink()
        with pytest.raises(NotFound, match="has no artifact 'd'"):
            await store.load_artifact("s", "d")
    with pytest.raises(UsageError, match=r"^'nowhere' is no place for artifacts \(.*\); give file:///… or s3://…\.$"):
        PostgresStore(postgres, artifacts="nowhere")


@pytest.mark.parametrize("check", ["artifacts", "delete", "forks"])
async def test_the_contract_holds(check: str, postgres: str, tmp_path: Path) -> None:
    await CHECKS[check](lambda: opened(outside(postgres, tmp_path)), None)
