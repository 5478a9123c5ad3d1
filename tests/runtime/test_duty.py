"""What a process does for its engine: nothing that it may not drive is kept from others, or keeps others away."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import Agent, Runtime, StoreError, tool
from perdure.core.state import SessionState
from perdure.ports import Store
from perdure.runtime import duty, log
from perdure.runtime.clock import SystemClock
from perdure.runtime.local import LocalEngine
from perdure.runtime.lookout import LOOK_EVERY, Lookout, Unavailable
from perdure.stores.memory import MemoryStore
from perdure.testing import ManualClock, ScriptedModel, call
from tests.runtime.scenes import soon, until
from tests.runtime.test_lookout import Found


@tool(effect="idempotent", queue="gpu")
async def render(item: str) -> str:
    """Renders an item."""
    return item


def then_done(*calls: Any) -> ScriptedModel:
    return ScriptedModel(lambda request: list(calls) if len(request.messages) == 1 else "Done.")


def worker(store: Store, *agents: Agent[Any], **options: Any) -> Runtime:
    return Runtime(store, agents=agents, engine=LocalEngine(SystemClock(), 0.02, **options))


class Reluctant(MemoryStore):
    """Fails when a session is to be released for another queue, so many times."""

    fails = 5

    async def release(self, session: str, *, epoch: int, head: int) -> bool:
        row = await self.get(session)
        if row is not None and row.summary.queue and self.fails:
            self.fails -= 1
            raise StoreError("The store is out of order.", retry_after=0.01)
        return await super().release(session, epoch=epoch, head=head)


async def test_what_could_not_be_released_for_another_queue_is_let_go_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "STORE_PATIENCE", (0.001,) * 4)
    store = Reluctant()
    painter = Agent(name="painter", model=then_done(call("render", item="a")), tools=[render])
    async with worker(store, painter, queues=["painter"]) as desk, worker(store, painter, queues=["gpu"]):
        session = await desk.open(painter, id="s")
        await session.start("go")
        await until(lambda: len(session.state.ended))
        assert store.fails == 0
        assert session.state.ended[-1].reason == "completed"


async def test_children_of_strangers_do_not_stand_in_the_way(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duty, "AT_ONCE", 3)
    helper = Agent(name="helper", model=ScriptedModel(lambda request: "Helped."))
    parent = Agent(name="parent", model=then_done(call("helper", input="x")), tools=[helper.as_tool()])
    async with worker(memory, parent, helper, queues=["parent"]) as runtime:
        sessions = [await runtime.open(parent, id=f"p{number}") for number in range(5)]
        for session in sessions:
            await session.start("go")
        await until(lambda: all(session.state.run and session.state.run.calls for session in sessions))
        while len([row async for row in runtime.sessions(agent="helper", children=True)]) < 5:
            await asyncio.sleep(0.01)
    async with worker(memory, helper), Runtime(memory, agents=[helper], engine=None) as sender:
        mine = await sender.open(helper, id="mine")
        assert (await soon(mine.run("go"))).output == "Helped."


async def test_suspects_are_driven_apart_and_take_no_room_from_others(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_work: list[str] = []
    together: list[int] = []
    free = asyncio.Event()

    async def is_suspect(store: Store, state: SessionState) -> bool:
        return state.id.startswith("suspect")

    @tool(effect="read")
    async def wait() -> str:
        """Waits."""
        at_work.append("")
        together.append(len(at_work))
        await free.wait()
        at_work.pop()
        return "waited"

    monkeypatch.setattr(duty, "is_suspect", is_suspect)
    monkeypatch.setattr(duty, "_place", lambda state: ())
    slow = Agent(name="slow", model=then_done(call("wait")), tools=[wait])
    quick = Agent(name="quick", model=ScriptedModel(lambda request: "Done."))
    async with worker(memory, slow, quick, concurrency=2) as runtime:
        suspects = [await runtime.open(slow, id=f"suspect-{number}") for number in range(3)]
        runs = [await session.start("go") for session in suspects]
        await until(lambda: at_work)
        good = await runtime.open(quick, id="good")
        assert (await soon(good.run("go"))).output == "Done."
        free.set()
        assert [(await soon(run)).output for run in runs] == ["Done."] * 3
        assert together == [1, 1, 1], "one at a time"


async def test_a_suspect_that_gets_on_makes_room_for_the_next(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = asyncio.Event()
    begun: list[str] = []

    async def is_suspect(store: Store, state: SessionState) -> bool:
        return True

    @tool(effect="read")
    async def wait() -> str:
        """Waits."""
        begun.append("")
        await free.wait()
        return "waited"

    monkeypatch.setattr(duty, "is_suspect", is_suspect)
    slow = Agent(name="slow", model=then_done(call("wait")), tools=[wait])
    async with worker(memory, slow) as runtime:
        runs = [await (await runtime.open(slow, id=f"s{number}")).start("go") for number in range(3)]
        await until(lambda: len(begun) == 3)
        free.set()
        assert [(await soon(run)).output for run in runs] == ["Done."] * 3


@pytest.mark.parametrize("error", [Unavailable("gone"), KeyError("services"), TimeoutError()])
async def test_whatever_goes_wrong_beside_the_lookout_sweeps_on(error: Exception) -> None:
    clock, work, found = ManualClock(), Found("s"), list[str]()

    async def beside() -> None:
        raise error

    lookout = Lookout(clock, work, lambda session, queue: found.append(session), beside, lambda session: None)
    looking = asyncio.ensure_future(lookout.keep(["clerk"]))
    for _ in range(50):
        await clock.advance(LOOK_EVERY / 10)
    assert not looking.done()
    looking.cancel()
    assert len(found) > 2
