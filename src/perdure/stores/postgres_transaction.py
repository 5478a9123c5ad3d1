"""A tool's writes in the transaction of its outcome, on PostgreSQL: held open on a connection until that is committed.

Rule 1: a transaction that waits for its commit never waits for a connection. Rule 2: a transaction whose connection
broke before COMMIT was sent has not happened; after that only the log can tell.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from perdure.core.errors import Conflict, PerdureError, StaleEpoch, TransactionLost
from perdure.ports import Batch, Transaction
from perdure.stores import terms
from perdure.stores.postgres_batch import append_values, refusal
from perdure.stores.postgres_link import Link, failures, told
from perdure.stores.postgres_names import key

IDLE_SECONDS = 60
LOST = "the connection to PostgreSQL broke"


class PostgresTransaction:
    """`room` leaves some connections to those who only append: `tell` hears of what was committed."""

    def __init__(self, link: Link, room: asyncio.Semaphore, append: str, tell: Callable[[bytes, int], None]) -> None:
        self._link = link
        self._room = room
        self._append = append
        self._tell = tell
        self._connection: Any = None
        self._transaction: Any = None

    async def run(self, body: Callable[[Transaction], Awaitable[Any]]) -> Any:
        return await body(_Awaited(await self._begin()))

    async def run_in_thread(self, body: Callable[[Transaction], Any], submit: Callable[..., Awaitable[Any]]) -> Any:
        within = _Waited(await self._begin(), asyncio.get_running_loop())
        return await submit(lambda: body(within))

    async def append(self, batch: Batch) -> None:
        if self._connection is None:
            raise TransactionLost(LOST)
        terms.checked(batch)
        values = append_values(batch, terms.times_of(batch))
        try:
            said = await self._connection.fetchval(self._append, *values)
        except failures() as error:
            await self.roll_back()
            raise TransactionLost(f"PostgreSQL broke it off: {error}") from error
        if said:
            await self._refuse(refusal(batch, said))
        try:
            await self._transaction.commit()
        except failures() as error:
            raise told(error) from error
        finally:
            await self._let_go()
        self._tell(key(batch.session), batch.expect + len(batch.entries))

    async def roll_back(self) -> None:
        if self._connection is not None:
            with suppress(*failures()):
                await self._transaction.rollback()
            await self._let_go()

    async def _begin(self) -> Any:
        await self._room.acquire()
        try:
            connection = await self._link.borrow()
        except BaseException:
            self._room.release()
            raise
        self._connection = connection
        self._transaction = connection.transaction()
        try:
            await self._transaction.start()
            # A worker that is stopped in the middle must not keep its locks for ever.
            await connection.execute(f"SET LOCAL idle_in_transaction_session_timeout = '{IDLE_SECONDS}s'")
        except failures() as error:
            await self._let_go()
            raise told(error) from error
        return connection

    async def _refuse(self, error: PerdureError) -> None:
        if not isinstance(error, Conflict) or isinstance(error, StaleEpoch):
            await self.roll_back()
        raise error

    async def _let_go(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._room.release()
            await self._link.give_back(connection)


class _Awaited:
    """The Transaction of an async tool."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def execute(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in await self._connection.fetch(sql, *values)]


class _Waited:
    """The Transaction of a tool in a thread."""

    def __init__(self, connection: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._awaited = _Awaited(connection)
        self._loop = loop

    def execute(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        return asyncio.run_coroutine_threadsafe(self._awaited.execute(sql, *values), self._loop).result()
