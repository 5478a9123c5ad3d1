"""Group commit, failing commits, full disks and damaged rows."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Awaitable, Iterator
from pathlib import Path

import apsw
import pytest

from perdure.core.codec import encode_event
from perdure.core.errors import Conflict, StoreError
from perdure.core.messages import JSON
from perdure.core.views import Summary
from perdure.ports import Batch, Entry
from perdure.stores.sqlite import SqliteStore
from perdure.testing.store_samples import IDLE, START, batch, data_of, first, note


@pytest.fixture
def connections() -> Iterator[list[apsw.Connection]]:
    """Every connection that is opened while the test runs, as apsw tells of them."""
    made: list[apsw.Connection] = []
    apsw.connection_hooks.append(made.append)
    yield made
    apsw.connection_hooks.remove(made.append)


def writer_of(connections: list[apsw.Connection]) -> apsw.Connection:
    """The one that may write and is open."""
    found: list[apsw.Connection] = []
    for connection in connections:
        try:
            if not connection.readonly("main"):
                found.append(connection)
        except apsw.ConnectionClosedError:
            continue
    return found[-1]


async def test_concurrent_appends_share_commits(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db")
    commits: list[int] = []
    store.on_commit = lambda: commits.append(1)
    await store.open()
    await asyncio.gather(*(store.append(first(f"s{n}", n)) for n in range(200)))
    assert len(commits) <= 20
    assert data_of(await store.read("s199")) == [199]
    await store.close()


async def test_nothing_is_answered_before_its_commit(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db")
    answered: list[bool] = []
    append: asyncio.Task[None] | None = None

    def committing() -> None:
        answered.append(append is not None and append.done())

    store.on_commit = committing
    await store.open()
    append = asyncio.ensure_future(store.append(first("s", 1)))
    await append
    assert answered == [False]
    await store.close()


async def test_a_refused_append_harms_no_other_of_its_group(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db")
    await store.open()
    await store.append(first("s", 1))
    work = [batch("s", 1, 2), batch("s", 1, "late"), batch("nobody", 0, 1), first("t", 1), batch("s", 2, 3)]
    results = await asyncio.gather(*map(store.append, work), return_exceptions=True)
    assert [type(result).__name__ for result in results] == [
        "NoneType",
        "Conflict",
        "NotFound",
        "NoneType",
        "NoneType",
    ]
    assert data_of(await store.read("s")) == [1, 2, 3]
    await store.close()


async def test_an_append_that_cannot_be_written_harms_no_other_of_its_group(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db")
    await store.open()
    huge = Batch("s", 0, (Entry(START, 2**70, encode_event(note())),), IDLE, opening=first("s", 1).opening)
    results = await asyncio.gather(
        store.append(first("a", 1)), store.append(huge), store.append(first("b", 1)), return_exceptions=True
    )
    assert [type(result).__name__ for result in results] == ["NoneType", "StoreError", "NoneType"]
    assert await store.get("s") is None
    assert data_of(await store.read("b")) == [1]
    await store.close()


async def test_a_commit_that_failed_is_not_acknowledged(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db")
    fails = False

    def committing() -> None:
        if fails:
            raise OSError("no")

    store.on_commit = committing
    await store.open()
    await store.append(first("s", 1))
    fails = True
    results = await asyncio.gather(store.append(batch("s", 1, 2)), store.append(first("t", 1)), return_exceptions=True)
    assert [type(result) for result in results] == [StoreError, StoreError]
    assert data_of(await store.read("s")) == [1]
    assert await store.get("t") is None
    fails = False
    await store.append(batch("s", 1, 2))
    assert data_of(await store.read("s")) == [1, 2]
    await store.close()


async def test_a_commit_of_unknown_fate_is_read_back(tmp_path: Path, connections: list[apsw.Connection]) -> None:
    store = SqliteStore(tmp_path / "store.db")
    await store.open()
    await store.append(first("s", 1))

    def committed(*_: object) -> int:
        raise OSError("the commit is on disk, but its success could not be told")

    writer_of(connections).set_wal_hook(committed)
    results = await asyncio.gather(
        store.append(batch("s", 1, 2)),
        store.append(batch("s", 1, "late")),
        store.append(first("t", 1)),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [type(None), Conflict, type(None)]
    await store.append(batch("s", 2, 3))
    assert data_of(await store.read("s")) == [1, 2, 3]
    await store.close()


async def test_a_failed_write_is_forgotten(tmp_path: Path, connections: list[apsw.Connection]) -> None:
    """A summary that was rolled back is not taken for the one in the row."""
    path = tmp_path / "store.db"
    other, store = SqliteStore(path), SqliteStore(path)
    await other.open()
    await store.open()
    await other.append(first("s", 1))
    await store.append(batch("s", 1, 2))
    writer_of(connections).pragma("max_page_count", 1)
    lost = Summary("clerk", "waiting")
    with pytest.raises(StoreError, match="full"):
        await store.append(batch("s", 2, "x" * 100_000, summary=lost))
    await other.append(batch("s", 2, 3))
    await store.append(batch("s", 3, 4, summary=lost))
    row = await store.get("s")
    assert row is not None
    assert row.status == "waiting"
    await store.close()
    await other.close()


async def test_another_objects_summary_is_not_taken_for_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store, other = SqliteStore(path), SqliteStore(path)
    await store.open()
    await other.open()
    mine = Summary("clerk", "waiting")
    await store.append(first("s", 1, summary=mine))
    await other.append(batch("s", 1, 2))
    await store.append(batch("s", 2, 3, summary=mine))
    row = await store.get("s")
    assert row is not None
    assert row.status == "waiting"
    await store.close()
    await other.close()


async def test_commits_are_fsynced(tmp_path: Path, connections: list[apsw.Connection]) -> None:
    store = SqliteStore(tmp_path / "store.db")
    await store.open()
    await store.append(first("s", 1))
    full = 2
    assert writer_of(connections).pragma("synchronous") == full
    await store.close()


async def test_deletion_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = SqliteStore(path)
    await store.open()
    counts = apsw.Connection(str(path))

    def left() -> dict[str, int]:
        tables = ("sessions", "records", "metadata", "artifacts", "drafts")
        return {table: counts.execute(f"SELECT count(*) FROM {table}").get for table in tables}

    await store.join("a")
    await store.append(first("s", 1, 2, 3, metadata={"k": "v"}))
    await store.save_artifact("s", "d", b"data")
    claim = await store.claim("s", "a")
    assert claim is not None
    await store.append_draft("s", b"draft", epoch=claim.epoch)
    await store.append(first("fork", "f", base=("s", 2)))
    await store.leave("a")
    await store.delete("s")
    assert left() == {"sessions": 2, "records": 3, "metadata": 0, "artifacts": 1, "drafts": 0}
    await store.delete("fork")
    # In one transaction, so that the deletion has to see records that are only gathered yet.
    await asyncio.gather(store.append(first("t", 1)), store.delete("t"))
    assert set(left().values()) == {0}
    await store.close()


async def fill(store: SqliteStore, size: int) -> int:
    """Appends until the disk is full; the last head that was acknowledged."""
    for head in range(1, 10_000):
        if failure := await failed(store.append(batch("s", head, "x" * size))):
            assert "full; free space" in str(failure)
            assert failure.retry_after is not None
            return head
    raise AssertionError("the disk never got full")


async def failed(append: Awaitable[None]) -> StoreError | None:
    try:
        await append
    except StoreError as error:
        return error
    return None


async def check_acknowledged(store: SqliteStore, head: int, size: int) -> None:
    sizes = [len(item) for item in data_of(await store.read("s"))]
    assert sizes == [0] + [size] * (head - 1)


async def test_a_full_database(tmp_path: Path, connections: list[apsw.Connection]) -> None:
    store = SqliteStore(tmp_path / "store.db")
    await store.open()
    await store.append(first("s", ""))
    writer = writer_of(connections)
    writer.pragma("max_page_count", 64)
    head = await fill(store, 20_000)
    assert head > 10
    await check_acknowledged(store, head, 20_000)
    lock = apsw.Connection(str(tmp_path / "store.db"))
    lock.execute("BEGIN IMMEDIATE")
    work = (batch("holds the writer up", 0, 1), first("small", ""), first("large", "x" * 20_000))
    appends = [asyncio.ensure_future(store.append(item)) for item in work]
    await asyncio.sleep(0.1)
    lock.execute("ROLLBACK")
    results = await asyncio.gather(*appends, return_exceptions=True)
    assert [type(result) for result in results[1:]] == [StoreError, StoreError], "they share a transaction"
    writer.pragma("max_page_count", 1000)
    await store.append(batch("s", head, "x" * 20_000))
    await check_acknowledged(store, head + 1, 20_000)
    await store.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)]
    try:
        refused = subprocess.run(mount, check=False, capture_output=True).returncode != 0
    except FileNotFoundError:
        refused = True
    if refused:
        pytest.skip("this user may not mount a disk")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


async def test_a_full_disk(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 1_000_000)
    store = SqliteStore(small_disk / "store.db")
    await store.open()
    await store.append(first("s", ""))
    head = await fill(store, 50_000)
    await check_acknowledged(store, head, 50_000)
    ballast.unlink()
    await store.append(batch("s", head, "x" * 50_000))
    await check_acknowledged(store, head + 1, 50_000)
    await store.close()
    again = SqliteStore(small_disk / "store.db")
    await again.open()
    await check_acknowledged(again, head + 1, 50_000)
    await again.close()


@pytest.mark.parametrize(
    "damage",
    [
        'UPDATE records SET payload = CAST(\'{"type":"Noted","kind":"forged"}\' AS BLOB) WHERE seq = 2',
        "UPDATE records SET run = 9 WHERE seq = 2",
        "UPDATE records SET payload = (SELECT payload FROM records r WHERE r.seq = 3),"
        " digest = (SELECT digest FROM records r WHERE r.seq = 3) WHERE seq = 2",
        "DELETE FROM records WHERE seq = 2",
        "UPDATE records SET no = no + 100 WHERE seq = 2",
    ],
)
async def test_a_damaged_record_is_noticed(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "store.db"
    store = SqliteStore(path)
    await store.open()
    await store.append(first("s", 1, 2, 3))
    await store.append(first("fork", "f", base=("s", 2)))
    connection = apsw.Connection(str(path))
    connection.execute(damage)
    for uid in ("s", "fork"):
        with pytest.raises(StoreError, match=r"Record 2 of session 's' is damaged"):
            await store.read(uid)
    assert data_of(await store.read("s", after=2)) == [3]
    assert data_of(await store.read("s", limit=1)) == [1]
    await store.close()


async def test_a_missing_last_record_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = SqliteStore(path)
    await store.open()
    await store.append(first("s", 1, 2))
    apsw.Connection(str(path)).execute("DELETE FROM records WHERE seq = 2")
    with pytest.raises(StoreError, match="Record 2 of session 's'"):
        await store.read("s")
    await store.close()


@pytest.mark.parametrize("sessions", [1, 40])
async def test_the_file_is_hardly_larger_than_what_it_holds(tmp_path: Path, sessions: int) -> None:
    path = tmp_path / "store.db"
    store = SqliteStore(path)
    await store.open()
    turn: list[JSON] = ["x" * size for size in (2150, 100, 100, 1300, 100)]
    rounds = 800 // sessions
    for uid in range(sessions):
        await store.append(first(str(uid), 0))
    for head in range(1, 5 * rounds, 5):
        await asyncio.gather(*(store.append(batch(str(uid), head, *turn[:3])) for uid in range(sessions)))
        await asyncio.gather(*(store.append(batch(str(uid), head + 3, *turn[3:])) for uid in range(sessions)))
    await store.close()
    payloads = sessions * rounds * sum(len(encode_event(note(item))) for item in turn)
    assert path.stat().st_size <= 1.3 * payloads


async def test_a_cancelled_caller_leaves_the_writer_alone(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db")
    await store.open()
    gone = asyncio.ensure_future(store.append(first("s", 1)))
    await asyncio.sleep(0)
    gone.cancel()
    await store.append(first("t", 1))
    assert data_of(await store.read("t")) == [1]
    await store.close()


def test_a_loop_that_ended_leaves_the_store_to_the_next(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db")

    async def begin() -> None:
        await store.open()
        await store.append(first("s", 1))
        store.watch("s", print)
        asyncio.ensure_future(store.append(batch("s", 1, 2)))  # noqa: RUF006 - nobody is to wait for it
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def go_on() -> None:
        for _ in range(2000):
            if len(await store.read("s")) == 2:
                break
            await asyncio.sleep(0.01)
        await store.append(batch("s", 2, 3))
        await store.close()

    asyncio.run(begin())
    asyncio.run(go_on())
