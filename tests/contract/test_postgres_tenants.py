"""Row-level security as docs/postgres.md sets it up: a role sees and writes the sessions of its tenant alone."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from perdure import Agent, Runtime, StoreError
from perdure.ports import SessionQuery
from perdure.stores.postgres import PostgresStore
from perdure.stores.postgres_link import load_driver
from perdure.testing import ScriptedModel
from perdure.testing.store_samples import data_of, first
from tests.contract.test_stores import opened
from tests.postgres import new_schema

DOCS = Path(__file__).parents[2] / "docs" / "postgres.md"


@pytest.fixture
async def tenants(postgres: str) -> AsyncIterator[tuple[PostgresStore, PostgresStore]]:
    """A store as the owner sees it, and as the role of one tenant does."""
    schema = new_schema()
    role = f"acme_{schema}"
    owner = PostgresStore(postgres, schema=schema)
    async with opened(owner):
        section = DOCS.read_text().partition("row-level security\n")[2]
        found = re.search(r"```sql\n(.*?)```", section, re.DOTALL)
        assert found
        connection = await load_driver().connect(postgres)
        await connection.execute(re.sub(r"\bperdure\b", schema, found[1]).replace("acme", role))
        await connection.close()
        async with opened(PostgresStore(postgres.replace("//postgres:", f"//{role}:"), schema=schema)) as acme:
            yield owner, acme


async def test_a_role_sees_its_tenant_alone(tenants: tuple[PostgresStore, PostgresStore]) -> None:
    owner, acme = tenants
    own = f"acme_{owner.schema}"
    await owner.append(first("mine", 1, tenant=own))
    await owner.append(first("theirs", 2, tenant="other"))
    await owner.save_artifact("theirs", "d", b"secret")
    assert [row.uid for row in (await acme.list(SessionQuery())).rows] == ["mine"]
    assert await acme.get("theirs") is None
    assert await acme.find("other", "theirs") is None
    assert data_of(await acme.read("mine")) == [1]
    connection = await load_driver().connect(acme.url)
    try:
        for table, rows in (("sessions", 1), ("records", 1), ("artifacts", 0)):
            assert await connection.fetchval(f"SELECT count(*) FROM {acme.schema}.{table}") == rows
    finally:
        await connection.close()


async def test_a_role_writes_for_its_tenant_alone(tenants: tuple[PostgresStore, PostgresStore]) -> None:
    owner, acme = tenants
    with pytest.raises(StoreError, match=r"^PostgreSQL does not allow this \(.*row-level security.*\); ") as caught:
        await acme.append(first("theirs", 1, tenant="other"))
    assert caught.value.retry_after is None
    assert await owner.get("theirs") is None


async def test_a_role_runs_its_sessions(tenants: tuple[PostgresStore, PostgresStore]) -> None:
    owner, acme = tenants
    agent = Agent(name="clerk", model=ScriptedModel(["Done."]))
    async with Runtime(acme, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="s", tenant=f"acme_{owner.schema}")
        assert (await session.run("go")).output == "Done."
        assert await owner.read(session.uid) == await session.records()
