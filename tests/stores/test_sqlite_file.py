"""What a SQLite store says of files it cannot use, and that it leaves them alone."""

from __future__ import annotations

import asyncio
import os
import threading
import warnings
from collections.abc import Awaitable, Callable
from importlib.resources import files
from pathlib import Path

import apsw
import pytest
from msgspec.structs import replace

from perdure.core.errors import StoreError, UsageError
from perdure.ports import SessionQuery
from perdure.stores.memory import MemoryStore
from perdure.stores.sqlite import SqliteStore
from perdure.stores.sqlite_file import APPLICATION_ID
from perdure.stores.terms import encode_summary
from perdure.testing.store_samples import IDLE, batch, data_of, first


async def said_by_opening(path: Path | str, **options: float) -> StoreError:
    store = SqliteStore(path, **options)
    with pytest.raises(StoreError) as caught:
        await store.open()
    said = str(caught.value)
    assert said.endswith(".")
    assert "\n" not in said
    with pytest.raises(UsageError, match="not open"):
        await store.append(first("s", 1))
    return caught.value


async def test_the_constructor_touches_nothing(tmp_path: Path) -> None:
    SqliteStore(tmp_path / "missing" / "store.db")
    assert os.listdir(tmp_path) == []


async def test_a_missing_folder_is_not_made(tmp_path: Path) -> None:
    error = await said_by_opening(tmp_path / "missing" / "store.db")
    assert "does not exist" in str(error)
    assert error.retry_after is None
    assert os.listdir(tmp_path) == []


async def test_a_folder_is_no_file(tmp_path: Path) -> None:
    assert "is a folder" in str(await said_by_opening(tmp_path))


async def test_memory_has_a_store_of_its_own() -> None:
    for path in ("", ":memory:"):
        with pytest.raises(UsageError, match="memory:"):
            await SqliteStore(path).open()


async def test_a_file_that_is_no_database_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    text = b"dear diary, " * 1000
    path.write_bytes(text)
    assert "is not a SQLite database" in str(await said_by_opening(path))
    assert path.read_bytes() == text


@pytest.mark.parametrize("script", ["CREATE TABLE mine (x)", "PRAGMA user_version = 1", "PRAGMA application_id = 77"])
async def test_another_programs_database_stays_as_it_is(tmp_path: Path, script: str) -> None:
    path = tmp_path / "other.db"
    connection = apsw.Connection(str(path))
    connection.execute(script)
    connection.close()
    before = path.read_bytes()
    assert "another program's" in str(await said_by_opening(path))
    assert path.read_bytes() == before


async def test_a_file_of_the_first_schema_is_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    connection = apsw.Connection(str(path))
    connection.execute((files("perdure.stores") / "schema" / "0001_sessions.sql").read_text())
    connection.execute(
        "INSERT INTO sessions (uid, tenant, id, head, created_at, updated_at, agent, status, summary, metadata)"
        " VALUES ('old', '', 'old', 0, 1, 1, 'clerk', 'idle', ?, ?)",
        (encode_summary(IDLE), b"{}"),
    )
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = 1")
    connection.close()
    store = SqliteStore(path)
    await store.open()
    (row,) = (await store.list(SessionQuery())).rows
    assert (row.uid, row.summary) == ("old", IDLE)
    assert (await store.list(SessionQuery(triggers=True))).rows == ()
    await store.append(batch("old", 0, 1, summary=replace(IDLE, triggers=1, watches=1)))
    assert [row.uid for row in (await store.list(SessionQuery(triggers=True, watches=True))).rows] == ["old"]
    await store.close()


async def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = SqliteStore(path)
    await store.open()
    await store.close()
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    assert "upgrade Perdure" in str(await said_by_opening(path))


async def test_an_empty_file_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.touch()
    store = SqliteStore(path)
    await store.open()
    await store.append(first("s", 1))
    await store.close()
    connection = apsw.Connection(str(path))
    assert connection.pragma("page_size") == 16384
    assert connection.pragma("journal_mode") == "wal"


async def test_a_locked_file_is_worth_waiting_for(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    connection = apsw.Connection(str(path))
    connection.execute("BEGIN EXCLUSIVE")
    error = await said_by_opening(path, busy_timeout=0.2)
    assert "locked" in str(error)
    assert error.retry_after is not None
    connection.execute("ROLLBACK")
    store = SqliteStore(path)
    await store.open()
    connection.execute("BEGIN IMMEDIATE")
    late = asyncio.ensure_future(store.append(first("s", 1)))
    await asyncio.sleep(0.3)
    assert not late.done()
    connection.execute("ROLLBACK")
    await late
    await store.close()


async def test_a_lock_that_stays_fails_the_write_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = SqliteStore(path, busy_timeout=0.2)
    await store.open()
    await store.append(first("s", 1))
    connection = apsw.Connection(str(path))
    connection.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="locked") as caught:
        await store.append(batch("s", 1, 2))
    assert caught.value.retry_after is not None
    assert data_of(await store.read("s")) == [1]
    connection.execute("ROLLBACK")
    await store.append(batch("s", 1, 2))
    assert data_of(await store.read("s")) == [1, 2]
    await store.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
async def test_a_file_that_may_not_be_written(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = SqliteStore(path)
    await store.open()
    await store.close()
    path.chmod(0o444)
    assert "written" in str(await said_by_opening(path))


async def test_a_store_opened_by_many_at_once_is_made_once(tmp_path: Path) -> None:
    for number in range(5):
        stores = [SqliteStore(tmp_path / f"{number}.db") for _ in range(6)]
        await asyncio.gather(*(store.open() for store in stores))
        await asyncio.gather(*(store.append(first(f"s{n}", n)) for n, store in enumerate(stores)))
        assert len((await stores[0].list(SessionQuery())).rows) == 6
        await asyncio.gather(*(store.close() for store in stores))


async def test_one_object_may_be_opened_several_times_at_once(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db")
    await asyncio.gather(store.open(), store.open())
    assert len([thread for thread in threading.enumerate() if thread.name == "perdure-writer"]) == 1
    await store.append(first("s", 1))
    await store.close()
    await store.append(batch("s", 1, 2))
    await store.close()
    with pytest.raises(UsageError, match="not open"):
        await store.read("s")


async def test_the_file_is_whole_after_closing(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db")
    await store.open()
    await store.append(first("s", 1))
    await store.join("a")
    await store.close()
    assert sorted(os.listdir(tmp_path)) == ["store.db", "store.db-owners"]
    assert os.listdir(tmp_path / "store.db-owners") == []


def _after_fork(calls: Callable[[], list[Callable[[], object]]]) -> list[str]:
    """What each call says in a forked child."""
    receiver, sender = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that forking with threads is unwise is the point
        child = os.fork()
    if child == 0:
        try:
            said: list[str] = []
            for call in calls():
                try:
                    result = call()
                    if isinstance(result, Awaitable):
                        result.send(None)  # type: ignore[attr-defined]
                    said.append("served")
                except UsageError as error:
                    said.append(str(error))
                except BaseException as error:
                    said.append(repr(error))
            os.write(sender, "\n".join(said).encode())
        finally:
            os._exit(0)
    os.close(sender)
    os.waitpid(child, 0)
    with os.fdopen(receiver) as lines:
        return lines.read().split("\n")


@pytest.mark.parametrize("kind", ["sqlite", "memory"])
async def test_every_method_notices_a_fork(tmp_path: Path, kind: str) -> None:
    store = SqliteStore(tmp_path / "store.db") if kind == "sqlite" else MemoryStore()
    await store.open()
    await store.append(first("s", 1))
    await store.join("a")
    said = _after_fork(
        lambda: [
            lambda: store.open(),
            lambda: store.close(),
            lambda: store.append(batch("s", 1, 2)),
            lambda: store.read("s"),
            lambda: store.watch("s", print),
            lambda: store.find("", "s"),
            lambda: store.get("s"),
            lambda: store.list(SessionQuery()),
            lambda: store.delete("s"),
            lambda: store.join("b"),
            lambda: store.leave("a"),
            lambda: store.owners(),
            lambda: store.claim("s", "a"),
            lambda: store.release("s", epoch=1, head=1),
            lambda: store.runnable(["clerk"], now=0),
            lambda: store.save_artifact("s", "d", b""),
            lambda: store.load_artifact("s", "d"),
            lambda: store.append_draft("s", b"", epoch=1),
            lambda: store.read_draft("s"),
        ]
    )
    assert said == ["This Runtime was opened before fork(); open a new one in the child."] * 19
    await store.append(batch("s", 1, 2))
    assert data_of(await store.read("s")) == [1, 2]
    await store.close()
