"""Back-up and restore: a dump that was taken while sessions were under way is a store that goes on."""

from __future__ import annotations

import asyncio

from perdure import Agent, Runtime, tool
from perdure.runtime.upkeep import check_session, digest_log, rows_of
from perdure.stores.postgres import PostgresStore
from perdure.testing import ScriptedModel, call
from tests.contract.test_stores import opened
from tests.postgres import OwnServer
from tests.runtime.scenes import soon


@tool(effect="idempotent", ask=True)
async def pay(item: str) -> str:
    """Asks first."""
    return f"paid {item}"


def make_agent() -> Agent:
    return Agent(name="clerk", model=ScriptedModel(lambda r: "Done." if len(r.messages) > 2 else ask()), tools=[pay])


def ask() -> object:
    return [call("pay", item="a")]


async def test_a_restored_store_is_whole_and_goes_on(server: OwnServer) -> None:
    agent = make_agent()
    async with Runtime(PostgresStore(server.url), agents=[agent]) as runtime:
        for number in range(5):
            session = await runtime.open(agent, id=str(number))
            assert (await soon(session.run("go", key="go"))).reason == "waiting"
        url = await asyncio.to_thread(server.dump_and_restore, "restored")
    async with opened(PostgresStore(server.url)) as before, opened(PostgresStore(url)) as after:
        rows = await rows_of(after)
        assert [row.uid for row in rows] == [row.uid for row in await rows_of(before)]
        for row in rows:
            assert await check_session(after, row) == []
            assert digest_log(await after.read(row.uid)) == digest_log(await before.read(row.uid))
    async with Runtime(PostgresStore(url), agents=[agent]) as runtime:
        for pending in await runtime.pending():
            session = await runtime.decide(pending.id, "approve", by="ops")
            assert (await soon(session.run("go", key="go"))).output == "Done."
