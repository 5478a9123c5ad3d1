"""Connections to PostgreSQL: a pool that comes back after a fail-over, migrations, and errors in our own words.

Rule 1: no connection is held beyond one statement. Rule 2: what PostgreSQL cannot do now is a StoreError with a time to
try again, never a wait without end.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from hashlib import blake2b
from importlib import import_module
from importlib.resources import files
from typing import Any, TypeAlias, TypeVar

from perdure.core.errors import PerdureError, StoreError, UsageError

T = TypeVar("T")

Connection: TypeAlias = Any
"""One of asyncpg's, which has no types."""

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,40}")
RETRY_AFTER = 2.0
PATIENCE = (0.05, 0.2, 0.5, 1.0, 2.0)


def load_driver() -> Any:
    try:
        return import_module("asyncpg")
    except ImportError:
        raise UsageError("PostgreSQL needs asyncpg; install perdure[postgres].") from None


def check_schema(schema: str) -> None:
    if not _NAME.fullmatch(schema):
        raise UsageError(f"{schema!r} cannot be the name of a schema; take small letters, digits and '_'.")


class Link:
    """A pool of connections; `pooled`, a transaction pooler stands before the database."""

    def __init__(self, url: str, *, schema: str, connections: int, timeout: float, pooled: bool) -> None:
        self.url = url
        self.schema = schema
        self._connections = connections
        self._timeout = timeout
        self._pooled = pooled
        self._pool: Any = None

    async def open(self, direct: str | None = None) -> None:
        asyncpg = load_driver()
        try:
            self._pool = await self._spoken(
                asyncpg.create_pool(
                    self.url,
                    min_size=1,
                    max_size=self._connections,
                    timeout=self._timeout,
                    command_timeout=self._timeout,
                    # A transaction pooler gives every statement another session, which knows nothing of prepared ones.
                    statement_cache_size=0 if self._pooled else 200,
                    max_inactive_connection_lifetime=60.0,
                )
            )
        except ValueError:
            raise _unreadable("The store's address") from None
        try:
            if direct not in (None, self.url):
                await self._check_direct(direct)
            await self._migrate()
        except BaseException:
            await self.close()
            raise

    async def _check_direct(self, url: str) -> None:
        """An address that cannot be right is refused; a server that is only out of order may come back."""
        try:
            connection = await self._spoken(load_driver().connect(url, timeout=self._timeout))
        except ValueError:
            raise _unreadable("The store's direct address") from None
        except StoreError as error:
            if error.retry_after is None:
                raise
        else:
            connection.terminate()

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            try:
                await asyncio.wait_for(pool.close(), self._timeout)
            except failures():
                pool.terminate()

    def sql(self, text: str) -> str:
        return text.replace("@schema", self.schema)

    async def ask(self, question: Callable[[Connection], Awaitable[T]], *, tries: int = 3) -> T:
        """The answer to one question. A connection that broke is replaced and the question asked again.

        So it has to be one that may be asked twice.
        """
        for patience in PATIENCE[: tries - 1]:
            try:
                return await self._once(question)
            except StoreError as error:
                if error.retry_after is None:
                    raise
                await asyncio.sleep(patience)
        return await self._once(question)

    async def borrow(self) -> Any:
        """A connection for longer than one statement; whoever takes it gives it back."""
        if self._pool is None:
            raise StoreError("The store is closed.")
        return await self._spoken(self._pool.acquire(timeout=self._timeout))

    async def give_back(self, connection: Any) -> None:
        if self._pool is not None:
            with suppress(StoreError):
                await self._spoken(self._pool.release(connection, timeout=self._timeout))

    async def _once(self, question: Callable[[Connection], Awaitable[T]]) -> T:
        pool = self._pool
        if pool is None:
            raise StoreError("The store is closed.")

        async def asked() -> T:
            async with pool.acquire(timeout=self._timeout) as connection:
                return await question(connection)

        return await self._spoken(asked())

    async def _spoken(self, work: Awaitable[T]) -> T:
        try:
            return await work
        except PerdureError:
            raise
        except failures() as error:
            raise told(error) from error

    async def _migrate(self) -> None:
        """Each process brings the schema up to date, one at a time; a schema that is newer is refused."""
        scripts = _scripts()

        async def migrate(connection: Connection) -> None:
            if await self._version(connection) == len(scripts):
                return  # so a role that may not create anything can open it
            lock = int.from_bytes(blake2b(self.schema.encode(), digest_size=7).digest(), "big")
            async with connection.transaction():
                await connection.execute("SELECT pg_advisory_xact_lock($1)", lock)
                await connection.execute(self.sql("CREATE SCHEMA IF NOT EXISTS @schema"))
                await connection.execute(self.sql("CREATE TABLE IF NOT EXISTS @schema.migrations (version INTEGER)"))
                found = await connection.fetchval(self.sql("SELECT coalesce(max(version), 0) FROM @schema.migrations"))
                if found > len(scripts):
                    raise StoreError(
                        f"A newer version of Perdure has written this database (schema {found}, this one knows"
                        f" {len(scripts)}); upgrade Perdure."
                    )
                for version, script in enumerate(scripts[found:], found + 1):
                    await connection.execute(self.sql(script))
                    await connection.execute(self.sql("INSERT INTO @schema.migrations VALUES ($1)"), version)

        await self.ask(migrate)

    async def _version(self, connection: Connection) -> int | None:
        if await connection.fetchval("SELECT to_regclass($1)", f"{self.schema}.migrations") is None:
            return None
        return await connection.fetchval(self.sql("SELECT max(version) FROM @schema.migrations"))


def failures() -> tuple[type[Exception], ...]:
    """All that the driver raises when PostgreSQL does not do what it is asked."""
    asyncpg = load_driver()
    return (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)


def told(error: BaseException) -> StoreError:
    """What went wrong, for people; the driver's own words are behind it."""
    asyncpg = load_driver()
    words = " ".join(str(error).split()) or type(error).__name__
    if isinstance(
        error,
        asyncpg.InvalidAuthorizationSpecificationError
        | asyncpg.InvalidCatalogNameError
        | asyncpg.UndefinedObjectError
        | asyncpg.exceptions.ClientConfigurationError,
    ):
        return StoreError(f"PostgreSQL does not take this connection ({words}); mend the store's address.")
    if isinstance(error, asyncpg.InsufficientPrivilegeError):
        return StoreError(f"PostgreSQL does not allow this ({words}); give the role the rights that it needs.")
    if isinstance(error, TimeoutError):
        words = "it did not answer in time"
    return StoreError(f"PostgreSQL cannot serve this now ({words}); try again.", retry_after=RETRY_AFTER)


def _unreadable(what: str) -> UsageError:
    return UsageError(  # what the driver says could show a part of the password
        f"{what} cannot be read; write postgresql://USER:PASSWORD@HOST:PORT/DATABASE, and what is special in a password"
        " as %40 for @, %3A for :, %2F for / and %3F for ?."
    )


def _scripts() -> list[str]:
    folder = files("perdure.stores") / "schema" / "postgres"
    paths = sorted((path for path in folder.iterdir() if path.name.endswith(".sql")), key=lambda path: path.name)
    return [path.read_text(encoding="utf-8") for path in paths]
