"""A tool's writes in the transaction of its outcome, on SQLite, where one thread writes for everybody.

A transaction cannot be held open there while a driver, hooks and middleware make an outcome of what the tool returned:
everybody else would wait. So the tool's body runs in the writer's thread, is rolled back at once, and leaves its
statements with the rows that they gave. The append does them again before its own writes. Rule: where a statement gives
other rows than the tool saw, nothing is committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from time import monotonic
from typing import Any

import apsw
import msgspec

from perdure.core.errors import TransactionLost, UsageError
from perdure.ports import Batch, Transaction
from perdure.stores.sqlite_writer import Writer

SECONDS = 5.0
"""For this long a tool's body may hold up everybody who wants to write."""

_OWN_TABLES = frozenset(("sessions", "records", "metadata", "artifacts", "drafts"))


def _operations(*names: str) -> frozenset[int]:
    return frozenset(getattr(apsw, f"SQLITE_{name}") for name in names)


_OF_FIRST = _operations("INSERT", "UPDATE", "DELETE", "CREATE_VTABLE", "DROP_VTABLE") | _operations(
    # One of the same name, if only a temporary one, would take the place of the store's own.
    *(f"{verb}_{kind}" for verb in ("CREATE", "DROP") for kind in ("TABLE", "TEMP_TABLE", "VIEW", "TEMP_VIEW"))
)
"""SQLite names the table first."""
_OF_SECOND = _operations("ALTER_TABLE") | _operations(
    *(f"{verb}_{kind}" for verb in ("CREATE", "DROP") for kind in ("INDEX", "TEMP_INDEX", "TRIGGER", "TEMP_TRIGGER"))
)
"""SQLite names the table after the index, the trigger or the database."""
_FORBIDDEN = _operations("TRANSACTION", "SAVEPOINT", "ATTACH", "DETACH", "PRAGMA")


class Statement(msgspec.Struct, frozen=True):
    """What was asked, and what came of it."""

    sql: str
    values: tuple[Any, ...]
    rows: list[tuple[Any, ...]]
    changes: int


class _Came(msgspec.Struct, frozen=True):
    """What came of a body: a value, or what it raised."""

    value: Any = None
    error: BaseException | None = None


class SqliteTransaction:
    """`turn` is had by one tool at a time, from its first statement to its commit: so only others can interfere."""

    def __init__(self, writer: Writer, turn: asyncio.Lock) -> None:
        self._writer = writer
        self._turn = turn
        self._has_turn = False
        self._statements: list[Statement] = []

    async def run(self, body: Callable[[Transaction], Awaitable[Any]]) -> Any:
        raise UsageError("On SQLite a transactional tool runs in the writer's thread; make it a plain function.")

    async def run_in_thread(self, body: Callable[[Transaction], Any], submit: Callable[..., Awaitable[Any]]) -> Any:
        await self._turn.acquire()
        self._has_turn = True
        came = await self._writer.submit(lambda connection: self._rehearse(connection, body))
        assert isinstance(came, _Came)
        if came.error is not None:
            raise came.error
        return came.value

    async def append(self, batch: Batch) -> None:
        await self._writer.submit_with(batch, self._repeat)

    async def roll_back(self) -> None:
        self._statements = []
        if self._has_turn:
            self._has_turn = False
            self._turn.release()

    def _rehearse(self, connection: Any, body: Callable[[Transaction], Any]) -> _Came:
        self._statements = []
        connection.execute("SAVEPOINT tool")
        try:
            with _guarded(connection, monotonic() + SECONDS):
                return _Came(body(_Recorded(connection, self._statements, monotonic() + SECONDS)))
        except BaseException as error:  # noqa: BLE001 - a tool is user code, and this thread is everybody's
            return _Came(error=_said(error))
        finally:
            connection.execute("ROLLBACK TO tool")
            connection.execute("RELEASE tool")

    def _repeat(self, connection: Any) -> None:
        with _guarded(connection, monotonic() + SECONDS):
            for statement in self._statements:
                try:
                    again = _ask(connection, statement.sql, statement.values)
                except apsw.Error as error:
                    raise TransactionLost(f"what it wrote can no longer be written ({error})") from None
                if again != statement:
                    raise TransactionLost("others have changed what it had read")


class _Recorded:
    """The Transaction that a body is given; of no use when the body is over."""

    def __init__(self, connection: Any, statements: list[Statement], until: float) -> None:
        self._connection = connection
        self._statements = statements
        self._until = until

    def execute(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        if monotonic() > self._until:
            raise TimeoutError(f"a transaction on SQLite may take {SECONDS:.0f} s")
        statement = _ask(self._connection, sql, values)
        self._statements.append(statement)
        return statement.rows


def _ask(connection: Any, sql: str, values: tuple[Any, ...]) -> Statement:
    before = connection.total_changes()
    # SQLite takes $1 for a name.
    given = {str(number): value for number, value in enumerate(values, 1)} if "$1" in sql else values
    rows = connection.execute(sql, given).fetchall()
    return Statement(sql, values, rows, connection.total_changes() - before)


def _said(error: BaseException) -> BaseException:
    if isinstance(error, apsw.InterruptError):
        return TimeoutError(f"a transaction on SQLite may take {SECONDS:.0f} s")
    return error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__} in a transaction")


def _is_refused(operation: int, first: str, second: str) -> bool:
    if operation == apsw.SQLITE_ALTER_TABLE and first == "temp":
        return True  # its new name is not told, and may be one of the store's
    if operation in _OF_FIRST:
        return first.lower() in _OWN_TABLES
    return operation in _FORBIDDEN or (operation in _OF_SECOND and second.lower() in _OWN_TABLES)


@contextmanager
def _guarded(connection: Any, until: float) -> Generator[None]:
    """A tool's statements end in time, and leave the store's own tables and its transaction alone."""

    def allow(operation: int, first: str | None, second: str | None, _3: str | None, _4: str | None) -> int:
        return apsw.SQLITE_DENY if _is_refused(operation, first or "", second or "") else apsw.SQLITE_OK

    connection.authorizer = allow
    connection.set_progress_handler(lambda: monotonic() > until, 1000)
    try:
        yield
    finally:
        connection.set_progress_handler(None)
        connection.authorizer = None
