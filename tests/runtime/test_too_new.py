"""Sessions that a newer version has written to are left to it: not claimed, not harmed, not looked at all the time."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from perdure import Agent, Runtime, tool
from perdure.core.errors import TooNew
from perdure.core.views import Summary
from perdure.ports import Batch, Entry, Store
from perdure.runtime.clock import SystemClock
from perdure.runtime.local import LocalEngine
from perdure.stores.memory import MemoryStore
from perdure.stores.sqlite import SqliteStore
from perdure.stores.terms import decode_summary
from perdure.testing import ScriptedModel, call
from tests.runtime.scenes import soon, until

TOMORROW = b'{"type":"Noted","kind":"x","mood":"good"}'


@pytest.fixture(params=["memory", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "x.db")


async def write_tomorrow(store: Store, uid: str) -> int:
    """What a newer version writes; the head that it leaves."""
    row = await store.get(uid)
    assert row is not None
    entry = Entry(row.updated_at, 0, TOMORROW)
    await store.append(Batch(uid, row.head, (entry,), Summary("clerk", "running", runnable=True)))
    return row.head + 1


def left(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "is left to newer workers" in record.getMessage()]


async def test_it_is_left_alone_and_said_once(place: Store, caplog: pytest.LogCaptureFixture) -> None:
    agent = Agent(name="clerk", model=ScriptedModel(lambda request: "done"))
    async with Runtime(place, agents=[agent], engine=None) as sender:
        session = await sender.open(agent, id="new")
        head = await write_tomorrow(place, session.uid)
        sweeps, reads, runnable, read = [0], [0], place.runnable, place.read

        async def counted(*args: object, **more: object) -> object:
            sweeps[0] += 1
            return await runnable(*args, **more)  # type: ignore[arg-type]

        async def reading(uid: str, **more: object) -> object:
            reads[0] += uid == session.uid
            return await read(uid, **more)  # type: ignore[arg-type]

        place.runnable, place.read = counted, reading  # type: ignore[method-assign, assignment]
        with caplog.at_level(logging.WARNING, "perdure"):
            async with Runtime(place, agents=[agent], engine=LocalEngine(SystemClock(), 0.005)) as worker:
                await until(lambda: sweeps[0] > 20)
                other = await worker.open(agent, id="other")
                assert (await soon(other.run("go"))).output == "done", "its neighbours are driven"
                assert session.uid not in await worker._host.duty.sweep(None)
                with pytest.raises(TooNew, match="upgrade"):
                    await worker.session("new")
        assert len(left(caplog)) == 1
        assert reads[0] <= 2, "once by the engine, once by us"
        row = await place.get(session.uid)
        assert row is not None
        assert (row.head, row.epoch, row.owner) == (head, 0, None)


async def test_what_becomes_too_new_while_it_is_driven_is_let_go(
    place: Store, caplog: pytest.LogCaptureFixture
) -> None:
    started, may_end = asyncio.Event(), asyncio.Event()

    @tool(effect="read")
    async def look() -> str:
        """Looks."""
        started.set()
        await may_end.wait()
        return "seen"

    agent = Agent(name="clerk", model=ScriptedModel([[call("look")], "done"]), tools=[look])
    with caplog.at_level(logging.WARNING, "perdure"):
        async with Runtime(place, agents=[agent], engine=LocalEngine(SystemClock(), 0.005)) as worker:
            session = await worker.open(agent)
            run = asyncio.ensure_future(session.run("go"))
            await soon(started.wait())
            head = await write_tomorrow(place, session.uid)
            may_end.set()
            with pytest.raises(TooNew):
                await soon(run)
            await until(lambda: left(caplog))
            row = await place.get(session.uid)
            assert row is not None
            assert (row.head, row.owner) == (head, None), "nothing more was written, and others may have it"
            assert list(await place.runnable(["clerk"], now=SystemClock().now())) == [session.uid]
    assert len(left(caplog)) == 1


async def test_a_child_whose_parent_became_too_new_is_left_to_whoever_can_tell_the_parent(
    place: Store, caplog: pytest.LogCaptureFixture
) -> None:
    started, may_end = asyncio.Event(), asyncio.Event()

    @tool(effect="read")
    async def look() -> str:
        """Looks."""
        started.set()
        await may_end.wait()
        return "seen"

    scout = Agent(name="scout", model=ScriptedModel([[call("look")], "found"]), tools=[look])
    chief = Agent(name="clerk", model=ScriptedModel([[call("scout", input="look")], "done"]), tools=[scout.as_tool()])
    with caplog.at_level(logging.WARNING, "perdure"):
        async with Runtime(place, agents=[chief], engine=LocalEngine(SystemClock(), 0.005)) as worker:
            session = await worker.open(chief)
            await session.start("go")
            await soon(started.wait())
            await write_tomorrow(place, session.uid)
            may_end.set()
            await until(lambda: len(left(caplog)) == 2)
            rows = [row async for row in worker.sessions(children=True)]
            assert len(rows) == 2
            assert [row.owner for row in rows] == [None, None]
            assert len(await place.runnable(["clerk", "scout"], now=SystemClock().now())) == 2


def test_lists_stay_whole_when_a_summary_is_too_new() -> None:
    assert decode_summary(b'{"agent":"clerk","mood":"good"}') == Summary("clerk")
    assert decode_summary(b'{"agent":"clerk","status":"asleep","title":"t"}') == Summary("clerk", title="t")
