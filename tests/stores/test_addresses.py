"""Options in a store's address: taken out before PostgreSQL sees the rest; and nothing secret is ever shown."""

from __future__ import annotations

import pytest

from perdure.core.errors import StoreError, UsageError
from perdure.stores.addresses import masked
from perdure.stores.postgres import PostgresStore
from perdure.stores.postgres_address import OPTIONS, at_address
from perdure.testing.store_contract import CHECKS
from perdure.wiring import Runtime, resolve_store
from tests.contract.test_stores import opened
from tests.postgres import new_schema


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("postgresql://db/agents", "postgresql://db/agents"),
        ("postgresql://ann@db/agents", "postgresql://ann@db/agents"),
        ("postgresql://ann:pw@db:5432/agents?sslmode=require", "postgresql://ann:…@db:5432/agents?sslmode=require"),
        ("postgresql://ann:p@w/x:y@db/agents", "postgresql://ann:…@db/agents"),
        ("postgresql://ann:p?w@db/agents", "postgresql://…"),
        ("postgresql://db/a?user=ann&password=pw", "postgresql://db/a?user=ann&password=…"),
        ("postgresql://db/a?direct=postgresql://ann:pw@db2/a", "postgresql://db/a?direct=postgresql://ann:…@db2/a"),
        ("postgresql://db/a?direct=postgresql%3A%2F%2Fann%3Apw%40b", "postgresql://db/a?direct=postgresql://ann:…@b"),
        ("postgresql:ann:pw@db/agents", "postgresql:ann:…@db/agents"),
        ("sqlite:a:b@c.db", "sqlite:a:b@c.db"),
        ("memory:", "memory:"),
    ],
)
def test_what_is_secret_is_not_shown(address: str, shown: str) -> None:
    assert masked(address) == shown


def test_options_are_taken_out_and_the_rest_stays() -> None:
    direct = "postgresql%3A%2F%2Fdb2%2Fagents%3Fsslmode%3Drequire%26a%3D1"
    store = resolve_store(
        f"postgresql://ann:p%40w@db/agents?host=/run/pg&schema=shop&connections=4&direct={direct}&pooled=true"
        "&application_name=a%20b&deltas=off&timeout=2.5&artifacts_inside=5000"
    )
    assert isinstance(store, PostgresStore)
    assert store.url == "postgresql://ann:p%40w@db/agents?host=/run/pg&application_name=a%20b"
    assert (store.schema, store.direct) == ("shop", "postgresql://db2/agents?sslmode=require&a=1")
    assert (store._connections, store._pooled, store._deltas, store._timeout) == (4, True, False, 2.5)
    assert store._inside == 5_000


def test_every_option_of_the_store_can_stand_in_its_address() -> None:
    import inspect

    options = inspect.signature(PostgresStore.__init__).parameters
    assert set(OPTIONS) == set(options) - {"self", "url"}
    plain = at_address("postgresql://db/agents")
    assert (plain.url, plain.schema, plain.direct) == ("postgresql://db/agents", "perdure", "postgresql://db/agents")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("connections=abc", r"^The store's address says connections=abc: write a whole number above 0\.$"),
        ("connections=0", "write a whole number above 0"),
        ("connections=", "write a whole number above 0"),
        ("pooled=maybe", r"^The store's address says pooled=maybe: write true or false\.$"),
        ("timeout=nan", "write a number of seconds"),
        ("beat=-1", "write a number of seconds"),
        ("direct=", "it has no value"),
        ("schema=a&schema=b", r"^The store's address says schema twice; leave one of them out\.$"),
        ("schema=No-Name", "'No-Name' cannot be the name of a schema"),
    ],
)
def test_a_bad_value_is_one_sentence(options: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        resolve_store(f"postgresql://ann:secret@db/agents?{options}")


@pytest.mark.parametrize("address", ["mysql://ann:secret@db/a", "postgresql:ann:secret@db/a"])
def test_what_names_no_store_shows_no_password(address: str) -> None:
    with pytest.raises(UsageError, match="names no store") as caught:
        resolve_store(address)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("address", ["postgresql://ann:se:cret@db:x/a", "postgresql://ann:secret?x@db/a"])
async def test_what_cannot_be_read_shows_no_password(address: str) -> None:
    with pytest.raises(UsageError, match=r"^The store's address cannot be read; write postgresql://USER") as caught:
        await resolve_store(address).open()
    assert "cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("/postgres?", "/nothing?", 'database "nothing" does not exist'),
        ("//postgres:", "//nobody:", 'role "nobody" does not exist'),
        ("?host", "?nonsense=1&host", 'unrecognized configuration parameter "nonsense"'),
    ],
)
async def test_what_no_waiting_mends_says_so(postgres: str, before: str, after: str, said: str) -> None:
    with pytest.raises(StoreError, match=rf"\({said}\); mend the store's address\.$") as caught:
        await resolve_store(postgres.replace(before, after)).open()
    assert caught.value.retry_after is None


async def test_a_runtime_takes_such_an_address(postgres: str) -> None:
    schema = new_schema()
    async with Runtime(f"{postgres}&schema={schema}&connections=3&deltas=false", engine=None):
        pass
    async with opened(PostgresStore(postgres, schema=schema)) as store:
        assert await store.owners() == []


async def test_while_listen_does_not_work_it_looks_for_news(postgres: str) -> None:
    def deaf(schema: str) -> PostgresStore:
        return PostgresStore(postgres, schema=schema, direct="postgresql://localhost:1/x")

    await CHECKS["follow"](lambda: opened(deaf(new_schema())), lambda store: opened(deaf(store.schema)))  # type: ignore[attr-defined]
