"""Several processes on one SQLite file: they share it, follow each other, and notice each other's death."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from perdure.core.errors import Refused
from perdure.ports import SessionQuery, Store
from perdure.stores.sqlite import SqliteStore
from perdure.testing.store_samples import READY, START, append_somewhere, batch, data_of, first

SCRIPT = Path(__file__).parent / "process.py"


class Process:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def answer(self) -> str:
        assert self._process.stdout is not None
        return (await asyncio.wait_for(self._process.stdout.readline(), 60)).decode().strip()

    def tell(self, *words: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(words).encode() + b"\n")

    async def ask(self, *words: str) -> str:
        self.tell(*words)
        return await self.answer()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def end(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


@asynccontextmanager
async def process(path: Path, *, beat: float = 2.0) -> AsyncIterator[Process]:
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        str(SCRIPT),
        str(path),
        str(beat),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    other = Process(child)
    try:
        assert await other.answer() == "ready"
        yield other
    finally:
        await other.end()


@asynccontextmanager
async def opened(store: Store) -> AsyncIterator[Store]:
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def test_one_sends_while_the_other_drives(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with opened(SqliteStore(path)) as store, process(path) as driver:
        await store.append(first("s", "start"))
        await driver.ask("join", "driver")
        assert await driver.ask("claim", "s", "driver") == "claimed"
        driver.tell("drive", "s", "60")
        for number in range(30):
            await append_somewhere(store, "s", f"command-{number}")
        assert await driver.answer() == "ok"
        records = await store.read("s")
        said = data_of(records)
        assert [record.seq for record in records] == list(range(1, 92))
        assert [item for item in said if item.startswith("driver")] == [f"driver-{n}" for n in range(60)]
        assert [item for item in said if item.startswith("command")] == [f"command-{n}" for n in range(30)]


async def test_two_busy_writers_both_get_through(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with opened(SqliteStore(path)) as store, process(path) as other:
        await store.append(first("s", "start"))
        other.tell("send", "s", "40")
        for uid in range(20):
            await asyncio.gather(*(store.append(first(f"{uid}-{n}", "x" * 5000)) for n in range(20)))
        assert await other.answer() == "ok"
        assert len(await store.read("s")) == 41
        assert len((await store.list(SessionQuery(limit=1000))).rows) == 401


async def test_many_processes_make_a_new_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with process(path) as a, process(path) as b, process(path) as c:
        assert await asyncio.gather(a.ask("open", "a"), b.ask("open", "b"), c.ask("open", "c")) == ["ok"] * 3
        async with opened(SqliteStore(path)) as store:
            assert {row.uid for row in (await store.list(SessionQuery())).rows} == {"a", "b", "c"}


async def test_other_processes_commits_are_told(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with opened(SqliteStore(path)) as store, process(path) as other:
        await store.append(first("s", "start"))
        heads: asyncio.Queue[int] = asyncio.Queue()
        anything = asyncio.Event()
        ends = [store.watch("s", heads.put_nowait), store.watch(None, lambda _: anything.set())]
        while await asyncio.wait_for(heads.get(), 20) < 1:
            pass
        anything.clear()
        await other.ask("send", "s", "3")
        while await asyncio.wait_for(heads.get(), 20) < 4:
            pass
        await asyncio.wait_for(anything.wait(), 20)
        anything.clear()
        await other.ask("open", "unwatched")
        await asyncio.wait_for(anything.wait(), 20)
        ends.append(store.watch("unwatched", heads.put_nowait))
        while await asyncio.wait_for(heads.get(), 20) != 1:
            pass  # who watches later is told the head without anybody moving it
        for end in ends:
            end()


async def test_a_killed_owner_is_dead_at_once(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    # The heartbeat could not tell within the hour: only the lock can.
    async with opened(SqliteStore(path, dead_after=3600)) as store, process(path) as owner:
        await store.append(first("s", "start", summary=READY))
        await owner.ask("join", "victim")
        await owner.ask("claim", "s", "victim")
        await store.join("heir")
        assert await store.claim("s", "heir") is None
        assert await store.runnable(["clerk"], now=START) == []
        with pytest.raises(Refused, match="stop it first"):
            await store.delete("s")
        owner.signal(signal.SIGKILL)
        await owner.end()
        assert await store.owners() == ["heir"]
        assert await store.runnable(["clerk"], now=START) == ["s"]
        claim = await store.claim("s", "heir")
        assert claim is not None
        assert claim.epoch == 2


async def test_what_dead_owners_leave_is_swept(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    folder = tmp_path / "store.db-owners"
    async with opened(SqliteStore(path)) as store:
        async with process(path) as owner:
            await owner.ask("join", "victim")
            assert len(os.listdir(folder)) == 1
            owner.signal(signal.SIGKILL)
            await owner.end()
        assert len(os.listdir(folder)) == 1
        await store.join("heir")
        assert len(os.listdir(folder)) == 1
        await store.leave("heir")
        assert os.listdir(folder) == []


async def test_a_stopped_owner_is_dead_after_its_heartbeat_and_fenced(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with opened(SqliteStore(path, dead_after=3.0)) as store, process(path, beat=0.1) as zombie:
        await store.append(first("s", "start"))
        await zombie.ask("join", "zombie")
        await zombie.ask("claim", "s", "zombie")
        await store.join("heir")
        await asyncio.sleep(3.5)
        assert await store.claim("s", "heir") is None, "a beating owner lives"
        zombie.signal(signal.SIGSTOP)
        try:
            for _ in range(600):
                if claim := await store.claim("s", "heir"):
                    break
                await asyncio.sleep(0.1)
        finally:
            zombie.signal(signal.SIGCONT)
        assert claim is not None, "an owner that stopped beating is dead"
        await store.append(batch("s", 1, "heir", epoch=claim.epoch))
        assert await zombie.ask("drive", "s", "1") == "StaleEpoch"
        assert await zombie.ask("send", "s", "1") == "ok"
        assert data_of(await store.read("s")) == ["start", "heir", "command-0"]


async def test_an_owner_joins_from_one_place_only(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with opened(SqliteStore(path)) as store, process(path) as other:
        assert await other.ask("join", "same") == "ok"
        with pytest.raises(Exception, match="joined from elsewhere"):
            await store.join("same")


async def test_one_file_by_two_names_has_one_set_of_owners(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "store.db")
    async with (
        opened(SqliteStore(tmp_path / "store.db")) as store,
        opened(SqliteStore(tmp_path / "link.db")) as link,
    ):
        await store.append(first("s", "start"))
        await store.join("a")
        await link.join("b")
        assert await store.claim("s", "a") is not None
        assert await link.claim("s", "b") is None
