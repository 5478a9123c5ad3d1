"""The threads that ask the database questions beside the writer.

Rule 1: a question is one read transaction, so it sees one state of the store. Rule 2: the loop never waits
for the file.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

import apsw

from perdure.core.errors import PerdureError, StoreError
from perdure.stores import terms
from perdure.stores.sqlite_file import Connection, SqliteFile, roll_back

T = TypeVar("T")
Request = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Callable[[Connection], object]]

_THREADS = 2


class Readers:
    """A few threads, each with a connection of its own that can only read."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._queue: SimpleQueue[Request | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"perdure-reader-{number}", daemon=True)
            for number in range(1, _THREADS + 1)
        ]
        for thread in self._threads:
            thread.start()

    def ask(self, question: Callable[[Connection], T]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._queue.put((loop, future, question))
        return future

    def close(self) -> None:
        for _ in self._threads:
            self._queue.put(None)

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        connection: Connection | None = None
        while (request := self._queue.get()) is not None:
            loop, future, question = request
            try:
                connection = connection or self._file.reader()
                answer = _asked(connection, question)
            except PerdureError as error:
                answer = error
            except UnicodeEncodeError as error:
                answer = terms.no_text(error)
            except apsw.Error as error:
                answer = self._file.error(error)
                if connection is not None:
                    connection.close(force=True)
                    connection = None
            except Exception as error:  # noqa: BLE001 - a reader that dies would leave its callers waiting
                answer = StoreError(f"A read failed inside the store ({type(error).__name__}: {error}); report it.")
            with contextlib.suppress(RuntimeError):  # the loop has been closed: nobody waits there any more
                loop.call_soon_threadsafe(_deliver, future, answer)
        if connection is not None:
            connection.close(force=True)


def _asked(connection: Connection, question: Callable[[Connection], object]) -> object:
    connection.execute("BEGIN")
    try:
        return question(connection)
    finally:
        roll_back(connection)


def _deliver(future: asyncio.Future[Any], answer: object) -> None:
    if future.done():
        return
    if isinstance(answer, PerdureError):
        future.set_exception(answer)
    else:
        future.set_result(answer)
