"""Messages, a child that is started by one, and the news of its end, killed around every append: each arrives once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, Runtime, Session, ToolContext, tool
from perdure.events import InputAccepted, MessageSent, MessageSettled, RunEnded
from perdure.ports import Store
from perdure.stores.sqlite import SqliteStore
from perdure.testing import ScriptedModel, call, crash_sweep
from perdure.tools import send_message

WORDS = ["one", "two", "three"]
SAMPLED = 24


@tool(effect="idempotent")
async def hire(ctx: ToolContext) -> str:
    """Start a child."""
    ctx.start_child("ann", "worker", "work")
    return "hired"


def make_agents() -> list[Agent[Any]]:
    sends = [call("send_message", to="ear", text=word) for word in WORDS]
    answer = ["heard"] * 9
    worker = [call("send_message", to="parent", text="hello"), "worked"]
    return [
        Agent(
            name="mouth",
            model=ScriptedModel([[*sends, call("hire")], *answer]),
            tools=[send_message(), hire],
        ),
        Agent(name="ear", model=ScriptedModel(answer)),
        Agent(name="worker", model=ScriptedModel(worker), tools=[send_message()]),
    ]


async def scenario(store: Store) -> None:
    agents = make_agents()
    async with Runtime(store, agents=agents) as runtime:
        await runtime.open(agents[1], id="ear")
        mouth = await runtime.open(agents[0], id="mouth")
        await mouth.run("go", key="go")
        while not await is_quiet(runtime):
            await asyncio.sleep(0.002)


async def is_quiet(runtime: Runtime) -> bool:
    rows = [row async for row in runtime.sessions(children=True)]
    if len(rows) < 3 or any(row.summary.runnable for row in rows):
        return False
    mouth = await runtime.session("mouth")
    return len(await of(mouth, InputAccepted)) == 3 and not mouth.state.run


async def of(session: Session[Any], kind: type) -> list[Any]:
    return [record.event for record in await session.records() if isinstance(record.event, kind)]


def words(inputs: list[Any]) -> list[str]:
    return [event.parts[-1].text for event in inputs]


async def judge(folder: Path) -> None:
    async with Runtime(SqliteStore(folder / "x.db"), engine=None) as runtime:
        mouth, ear, ann = [await runtime.session(id) for id in ("mouth", "ear", "mouth.ann")]
        assert words(await of(ear, InputAccepted)) == WORDS
        assert words(await of(ann, InputAccepted)) == ["work"]
        assert words(await of(mouth, InputAccepted)) == ["go", "hello", "worked"]
        assert [event.output for event in await of(ann, RunEnded)] == ["worked"]
        assert len(await of(mouth, MessageSent)) == 4
        for session in (mouth, ear, ann):
            settled = [(event.message, event.input) for event in await of(session, MessageSettled)]
            assert len(settled) == len(set(settled)), "each is settled once"
            state = session.state
            assert (state.run, state.queue, state.outbox, state.owed, state.dead) == (None, (), (), (), ())


async def sweep(**options: Any) -> int:
    count = 0
    async for crash in crash_sweep(scenario, open_store=lambda folder: SqliteStore(folder / "x.db"), **options):
        try:
            await judge(crash.folder)
        except AssertionError as error:
            raise AssertionError(f"killed at {crash.point}, {crash.name}: {error}") from error
        count += 1
    return count


@pytest.mark.sweep
@pytest.mark.timeout(900)
async def test_every_point(record_property: Any) -> None:
    count = await sweep()
    assert count > 60
    record_property("figure: points sessions that send messages were killed at", count)


@pytest.mark.slow
async def test_sampled_points(record_property: Any) -> None:
    record_property("figure: points sessions that send messages were killed at", await sweep(sample=SAMPLED, seed=3))
