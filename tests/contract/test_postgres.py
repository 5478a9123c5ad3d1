"""PostgreSQL keeps the store contract, the same as the other stores."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from perdure.core.errors import StoreError, UsageError
from perdure.ports import Store
from perdure.stores.postgres import PostgresStore
from perdure.stores.postgres_names import kept, meant
from perdure.testing.store_contract import CHECKS
from tests.contract.test_stores import opened
from tests.postgres import new_schema


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
async def test_postgres(check: Callable[..., object], postgres: str) -> None:
    await check(lambda: opened(PostgresStore(postgres, schema=new_schema())), beside)


@pytest.mark.parametrize("check", ["order", "conflict", "follow", "claim_and_release", "runnable"])
async def test_behind_a_transaction_pooler(check: str, postgres: str) -> None:
    """No prepared statements, no LISTEN: it looks for news again and again."""

    def pooled(schema: str) -> AbstractAsyncContextManager[Store]:
        return opened(PostgresStore(postgres, schema=schema, pooled=True, poll=0.05))

    await CHECKS[check](lambda: pooled(new_schema()), lambda store: pooled(schema_of(store)))


def schema_of(store: Store) -> str:
    assert isinstance(store, PostgresStore)
    return store.schema


def beside(store: Store) -> AbstractAsyncContextManager[Store]:
    assert isinstance(store, PostgresStore)
    return opened(PostgresStore(store.url, schema=store.schema))


@pytest.mark.parametrize("name", ["", "\\", "\0", "\\0", "\\\0", "a\\\\0b\0\\", "é\0\U0001f600"])
def test_names_are_kept_as_they_are(name: str) -> None:
    assert meant(kept(name)) == name
    assert "\0" not in kept(name)


@pytest.mark.parametrize("schema", ["", "Perdure", "a;b", 'x"', "1st", "p" * 42])
def test_a_schema_has_a_plain_name(schema: str) -> None:
    with pytest.raises(UsageError, match="cannot be the name of a schema"):
        PostgresStore("postgresql:///x", schema=schema)


async def test_no_server_is_one_sentence() -> None:
    with pytest.raises(StoreError, match=r"^PostgreSQL cannot serve this now \(.*\); try again\.$") as caught:
        await PostgresStore("postgresql://localhost:1/x", timeout=2.0).open()
    assert caught.value.retry_after
