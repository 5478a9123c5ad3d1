"""Opening a SQLite file: connections, migrations, and every failure as one sentence.

Rule 1: a file that is not Perdure's is never changed. Rule 2: a migration is one transaction that looks
again after it has the lock, so any number of processes may open a new file at once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any, Protocol, cast

import apsw

from perdure.core.errors import StoreError, UsageError

APPLICATION_ID = 0x50455244  # "PERD"
_PAGE_SIZE = 16384
_CHECKPOINT_PAGES = 512


class Cursor(Protocol):
    """What is used of apsw's cursors; their own types are unknown to Python 3.11."""

    def execute(self, statements: str, bindings: Sequence[object] = ()) -> Cursor: ...

    def executemany(self, statements: str, sequenceofbindings: Sequence[Sequence[object]]) -> Cursor: ...

    def fetchall(self) -> list[tuple[Any, ...]]: ...

    @property
    def get(self) -> Any:
        """The value of one row with one column, the row if it has several, None if there is none."""
        ...


class Connection(Protocol):
    """What is used of apsw's connections."""

    @property
    def in_transaction(self) -> bool: ...

    def cursor(self) -> Cursor: ...

    def execute(self, statements: str, bindings: Sequence[object] = ()) -> Cursor: ...

    def executemany(self, statements: str, sequenceofbindings: Sequence[Sequence[object]]) -> Cursor: ...

    def readonly(self, name: str) -> bool: ...

    def changes(self) -> int: ...

    def last_insert_rowid(self) -> int: ...

    def pragma(self, name: str, value: str | int | None = None) -> Any: ...

    def set_busy_timeout(self, milliseconds: int) -> None: ...

    def set_commit_hook(self, callable: Callable[[], bool] | None) -> None: ...

    def close(self, force: bool = False) -> None: ...


class SqliteFile:
    """Where the database is and how to connect to it."""

    def __init__(self, path: str | os.PathLike[str], *, busy_timeout: float) -> None:
        self.path = os.fspath(path)
        self._busy_timeout = busy_timeout

    def prepare(self) -> None:
        """Makes the file ours and current, or refuses."""
        self._check_place()
        try:
            connection = self._connect(apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE)
            try:
                if connection.readonly("main"):
                    raise self._unwritable()
                self._migrate_patiently(connection)
            finally:
                connection.close()
        except apsw.Error as error:
            raise self.error(error) from error

    def writer(self) -> Connection:
        connection = self._connect(apsw.SQLITE_OPEN_READWRITE)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
        return connection

    def reader(self) -> Connection:
        return self._connect(apsw.SQLITE_OPEN_READONLY)

    def _connect(self, flags: int) -> Connection:
        connection = cast(Connection, apsw.Connection(self.path, flags=flags))
        connection.set_busy_timeout(round(self._busy_timeout * 1000))
        return connection

    def _check_place(self) -> None:
        if self.path in ("", ":memory:"):
            raise UsageError('A SQLite store needs a file; for a store in memory use "memory:".')
        self.path = os.path.realpath(self.path)
        folder = os.path.dirname(self.path)
        if not os.path.isdir(folder):
            raise StoreError(f"The folder {folder!r} does not exist or cannot be read; create it first.")
        if os.path.isdir(self.path):
            raise StoreError(f"{self.path!r} is a folder; give the path of a file in it.")

    def _migrate_patiently(self, connection: Connection) -> None:
        deadline = time.monotonic() + self._busy_timeout
        while True:
            try:
                return self._migrate(connection)
            except apsw.BusyError:
                # Of many that make a new file at once, a few in a thousand are turned away without waiting.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def _migrate(self, connection: Connection) -> None:
        scripts = _scripts()
        version = self._version(connection, len(scripts))
        if version == 0:
            connection.execute(f"PRAGMA page_size = {_PAGE_SIZE}")
        if connection.pragma("journal_mode", "wal") != "wal":
            raise StoreError(f"{self.path!r} cannot have a write-ahead log there; put it on a local disk.")
        if version == len(scripts):
            return
        connection.execute("BEGIN IMMEDIATE")
        try:
            for script in scripts[self._version(connection, len(scripts)) :]:
                connection.execute(script)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {len(scripts)}")
            connection.execute("COMMIT")
        finally:
            roll_back(connection)

    def _version(self, connection: Connection, newest: int) -> int:
        """The file's schema version; 0 if it is empty. Refuses what is not ours or too new."""
        application, version, tables = connection.execute(
            "SELECT (SELECT application_id FROM pragma_application_id),"
            " (SELECT user_version FROM pragma_user_version), (SELECT count(*) FROM sqlite_schema)"
        ).get
        if application != APPLICATION_ID and (application, version, tables) != (0, 0, 0):
            raise StoreError(f"{self.path!r} is another program's database; give the path of a new file.")
        if version > newest:
            raise StoreError(
                f"{self.path!r} was written by a newer version of Perdure"
                f" (schema {version}, this one knows {newest}); upgrade Perdure."
            )
        return version

    def _unwritable(self) -> StoreError:
        return StoreError(f"{self.path!r} cannot be written; allow this user to write it and its folder.")

    def error(self, error: apsw.Error) -> StoreError:
        """The one sentence for what SQLite said; `retry_after` is set where waiting may help."""
        at = repr(self.path)
        match error:
            case apsw.FullError():
                return StoreError(f"The disk under {at} is full; free space and try again.", retry_after=5.0)
            case apsw.IOError() if getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_SHMSIZE:
                return StoreError(f"The disk under {at} is full; free space and try again.", retry_after=5.0)
            case apsw.BusyError() | apsw.LockedError():
                return StoreError(f"{at} is locked by another program; close it there, or wait.", retry_after=1.0)
            case apsw.NotADBError():
                return StoreError(f"{at} is not a SQLite database; give the path of a new file.")
            case apsw.CorruptError():
                return StoreError(f"{at} is damaged ({error}); restore it from a backup.")
            case apsw.CantOpenError() | apsw.PermissionsError():
                return StoreError(f"{at} cannot be opened; check that it and its folder can be read and written.")
            case apsw.ReadOnlyError():
                return self._unwritable()
            case apsw.TooBigError():
                return StoreError(f"A value is too large for {at}; keep single values under 1 GB.")
            case _:
                return StoreError(f"The disk under {at} failed ({error}); check it and open the store again.")


def roll_back(connection: Connection) -> None:
    """SQLite ends a transaction by itself on some errors, and not on others."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def _scripts() -> list[str]:
    """The migrations; the n-th brings a file from schema n - 1 to n."""
    folder = files("perdure.stores") / "schema"
    paths = sorted((path for path in folder.iterdir() if path.name.endswith(".sql")), key=lambda path: path.name)
    return [path.read_text(encoding="utf-8") for path in paths]
