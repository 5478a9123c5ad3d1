"""Trials on PostgreSQL: a schema for each, whose address lies in the trial's folder for the judge to find.

Rule 1: a process of a trial is dead or alone, so a short silence is enough to call it dead. Rule 2: it is the clients
that are killed, so a commit need not wait for the disk.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from perdure.ports import Record, SessionRow
from perdure.stores.postgres import PostgresStore
from perdure.stores.postgres_link import load_driver
from perdure.testing.sweep import OpenStore
from tests.postgres import new_schema

ADDRESS = "postgres.json"


class Address(msgspec.Struct, frozen=True):
    url: str
    schema: str


def opener(url: str) -> OpenStore:
    """Opens the store of a trial: the first of its lives makes one, the others find it."""

    def open_store(folder: Path) -> PostgresStore:
        file = folder / ADDRESS
        if not file.exists():
            file.write_bytes(msgspec.json.encode(Address(url, f"{new_schema()}_{folder.name}".replace("-", "_"))))
        return _store(folder)

    return open_store


def read_postgres(folder: Path) -> tuple[SessionRow, list[Record]] | None:
    """What is in the trial's store, read in a loop of its own: whoever judges may be inside of one."""

    async def read() -> tuple[SessionRow, list[Record]] | None:
        store = _store(folder)
        await store.open()
        try:
            row = await store.find("", "order")
            return (row, await store.read(row.uid)) if row else None
        finally:
            await store.close()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(read())).result()


def address_in(folder: Path) -> Address:
    return msgspec.json.decode((folder / ADDRESS).read_bytes(), type=Address)


async def ask(folder: Path, sql: str) -> list[tuple[Any, ...]]:
    """Asks the trial's database, in whose schema the tools' tables are too."""
    address = address_in(folder)
    connection = await load_driver().connect(f"{address.url}&search_path={address.schema}")
    try:
        return [tuple(row) for row in await connection.fetch(sql)]
    finally:
        await connection.close()


def _store(folder: Path) -> PostgresStore:
    address = address_in(folder)
    url = f"{address.url}&synchronous_commit=off&search_path={address.schema}"
    return PostgresStore(url, schema=address.schema, connections=4, beat=0.05, dead_after=0.25)
