"""The one thread that writes, and the group commit: whatever has queued up shares a transaction and an fsync.

Rule 1: nothing is answered before its commit has returned. Rule 2: a refused write harms no other of its
group; a failed transaction fails them all. Rule 3: after a commit of unknown fate the connection is opened
anew, and what it finds there, not what was hoped, is the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue

import apsw
import msgspec

from perdure.core.errors import PerdureError, StoreError
from perdure.ports import Batch
from perdure.stores import terms
from perdure.stores.sqlite_appends import Appends
from perdure.stores.sqlite_file import Connection, SqliteFile, roll_back
from perdure.stores.sqlite_watch import Head, Watch
from perdure.stores.sqlite_writes import Write

Loop = asyncio.AbstractEventLoop


class Joint(msgspec.Struct, frozen=True):
    """An append and a write that stand or fall together."""

    batch: Batch
    write: Write


Work = Batch | Write | Joint
Request = tuple[Loop, "asyncio.Future[object]", Work]
Answer = tuple["asyncio.Future[object]", object]
"""What a future is to be given: a result, or an exception to raise."""

# The place, not the request, is at fault: trying the others of the group one by one would not help.
_ENVIRONMENT = (
    apsw.FullError,
    apsw.IOError,
    apsw.BusyError,
    apsw.LockedError,
    apsw.ReadOnlyError,
    apsw.CorruptError,
    apsw.NotADBError,
    apsw.CantOpenError,
    apsw.PermissionsError,
    apsw.ProtocolError,
    apsw.NoMemError,
)


class Writer:
    """The thread, its connection and its queue."""

    def __init__(self, file: SqliteFile, watch: Watch, on_commit: Callable[[], None] | None) -> None:
        self._file = file
        self._watch = watch
        self._on_commit = on_commit
        self._connection: Connection | None = None
        self._appends: Appends | None = None
        self._queue: SimpleQueue[Request | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="perdure-writer", daemon=True)
        self._thread.start()

    def submit(self, work: Work) -> asyncio.Future[object]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[object] = loop.create_future()
        self._queue.put((loop, future, work))
        return future

    async def submit_with(self, batch: Batch, write: Write) -> None:
        """Appends the batch and does the write in one transaction, or neither."""
        terms.checked(batch)
        await self.submit(Joint(batch, write))

    def close(self) -> None:
        """Ends the thread, after it has written what was submitted before."""
        self._queue.put(None)

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        queue = self._queue
        while (request := queue.get()) is not None:
            group = [request]
            while not queue.empty() and (request := queue.get()) is not None:
                group.append(request)
            self._serve(group)
            if request is None:
                break
        self._drop_connection()

    def _serve(self, group: list[Request]) -> None:
        try:
            results = self._written(group)
        except Exception as error:  # noqa: BLE001 - a writer that dies would leave all its callers waiting
            results = [self._said(error) for _ in group]
        answers: dict[Loop, list[Answer]] = {}
        heads: list[Head] = []
        for (loop, future, work), result in zip(group, results, strict=True):
            answers.setdefault(loop, []).append((future, result))
            batch = _batch_of(work)
            if batch is not None and result is None:
                heads.append((batch.session, batch.expect + len(batch.entries)))
        for loop in {*answers, *self._watch.loops()} if heads else answers:
            with contextlib.suppress(RuntimeError):  # the loop has been closed: nobody waits there any more
                loop.call_soon_threadsafe(self._deliver, loop, answers.get(loop, ()), heads)

    def _deliver(self, loop: Loop, answers: Sequence[Answer], heads: Sequence[Head]) -> None:
        for future, result in answers:
            if future.done():
                continue
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)
        if heads:
            self._watch.tell(loop, heads)

    def _written(self, group: list[Request]) -> list[object]:
        """What each write came to, once all of them are on disk."""
        connection, appends = self._connected()
        try:
            connection.execute("BEGIN IMMEDIATE")
            results = [_apply(connection, appends, work) for _, _, work in group]
            appends.flush()
        except Exception as error:
            self._abandon(connection, appends)
            if len(group) == 1 or isinstance(error, _ENVIRONMENT):
                raise
            return [self._written_alone(request) for request in group]
        try:
            connection.execute("COMMIT")
        except Exception as error:  # noqa: BLE001 - whatever it was, only the file can tell what became of the commit
            return self._read_back(group, results, error)
        return results

    def _written_alone(self, request: Request) -> object:
        try:
            return self._written([request])[0]
        except Exception as error:  # noqa: BLE001 - see _serve
            return self._said(error)

    def _abandon(self, connection: Connection, appends: Appends) -> None:
        appends.forget()
        try:
            roll_back(connection)
        except apsw.Error:
            self._drop_connection()

    def _read_back(self, group: list[Request], results: list[object], error: Exception) -> list[object]:
        self._drop_connection()
        try:
            _, appends = self._connected()
            return [
                result if isinstance(result, PerdureError) or _is_there(appends, work) else self._said(error)
                for (_, _, work), result in zip(group, results, strict=True)
            ]
        except apsw.Error as lost:
            said = f"A commit failed ({error}) and cannot be read back ({lost}); open the store again and look."
            return [StoreError(said) for _ in group]

    def _said(self, error: Exception) -> PerdureError:
        if isinstance(error, apsw.Error):
            return self._file.error(error)
        if isinstance(error, UnicodeEncodeError):
            return terms.no_text(error)
        return StoreError(f"A write failed inside the store ({type(error).__name__}: {error}); report it.")

    def _connected(self) -> tuple[Connection, Appends]:
        if self._connection is None or self._appends is None:
            self._connection = self._file.writer()
            if self._on_commit is not None:
                self._connection.set_commit_hook(self._committing)
            self._appends = Appends(self._connection)
        return self._connection, self._appends

    def _committing(self) -> bool:
        if self._on_commit is not None:
            self._on_commit()
        return False

    def _drop_connection(self) -> None:
        if self._connection is not None:
            self._connection.close(force=True)
        self._connection = self._appends = None


def _apply(connection: Connection, appends: Appends, work: Work) -> object:
    """The write's result, or why it was refused."""
    try:
        if isinstance(work, Batch):
            return appends.append(work)
        appends.flush()
        return _apply_joint(connection, appends, work) if isinstance(work, Joint) else work(connection)
    except PerdureError as refusal:
        return refusal


def _apply_joint(connection: Connection, appends: Appends, joint: Joint) -> None:
    connection.execute("SAVEPOINT joint")
    try:
        joint.write(connection)
        appends.append(joint.batch)
        appends.flush()
    except BaseException:
        # What it remembers of the session was not to be.
        appends.forget()
        connection.execute("ROLLBACK TO joint")
        raise
    finally:
        connection.execute("RELEASE joint")


def _batch_of(work: Work) -> Batch | None:
    if isinstance(work, Joint):
        return work.batch
    return work if isinstance(work, Batch) else None


def _is_there(appends: Appends, work: Work) -> bool:
    batch = _batch_of(work)
    return batch is not None and appends.holds(batch)
