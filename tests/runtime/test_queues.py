"""Queues of tools: a call runs where its queue is served, and everything else where the agent's is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from perdure import Agent, Runtime, ToolContext, UsageError, tool
from perdure.core.queues import queue_of
from perdure.events import CallStarted, ModelCalled
from perdure.ports import Store
from perdure.runtime.clock import SystemClock
from perdure.runtime.local import LocalEngine
from perdure.stores.memory import MemoryStore
from perdure.testing import ScriptedModel, call
from tests.runtime.scenes import events, soon, told, until


@tool(effect="idempotent")
async def lookup(item: str, ctx: ToolContext[Any, Any]) -> str:
    """Looks an item up."""
    return f"{item} at the {ctx.deps}"


@tool(effect="idempotent", queue="gpu")
async def render(item: str, ctx: ToolContext[Any, Any]) -> str:
    """Renders an item."""
    return f"{item} on the {ctx.deps}"


@tool(queue="gpu", ask=True)
async def print_(item: str, ctx: ToolContext[Any, Any]) -> str:
    """Prints an item."""
    return f"{item} on the {ctx.deps}"


def painter(*script: Any, name: str = "painter", **options: Any) -> Agent[Any]:
    def answer(request: Any) -> Any:
        return script[sum(type(message).__name__ == "AssistantMessage" for message in request.messages)]

    return Agent(name=name, model=ScriptedModel(answer), **{"tools": [lookup, render, print_], **options})


def worker(store: str | Store, agent: Agent[Any], place: str, *more: str, **options: Any) -> Runtime:
    """A process that serves one queue, or several, and whose tools can tell where they are."""
    names = (agent.name, *more) if place == "desk" else (place, *more)
    engine = LocalEngine(SystemClock(), 0.02, queues=names)
    return Runtime(store, agents=[agent], engine=engine, deps=place, **options)


@asynccontextmanager
async def both(store: str | Store, agent: Agent[Any], *more: str) -> AsyncIterator[Runtime]:
    async with worker(store, agent, "gpu"), worker(store, agent, "desk", *more) as desk:
        yield desk


async def test_a_call_runs_where_its_queue_is_served(store: str | Store) -> None:
    agent = painter([call("render", item="a")], [call("lookup", item="b")], [call("render", item="c")], "Done.")
    async with both(store, agent) as runtime:
        session = await runtime.open(agent, id="s")
        assert (await soon(session.run("go"))).output == "Done."
        assert [text for _, _, text in await told(session)] == ["a on the gpu", "b at the desk", "c on the gpu"]
        assert len(await events(session, ModelCalled)) == 4


async def test_parallel_calls_run_each_in_its_place_and_once(store: str | Store) -> None:
    first = [call("lookup", item="a"), call("render", item="b"), call("lookup", item="c"), call("render", item="d")]
    agent = painter(first, "Done.")
    async with both(store, agent) as runtime:
        session = await runtime.open(agent, id="s")
        assert (await soon(session.run("go"))).output == "Done."
        places = [text for _, _, text in await told(session)]
        assert places == ["a at the desk", "b on the gpu", "c at the desk", "d on the gpu"]
        assert len(await events(session, CallStarted)) == 4


async def test_what_is_approved_runs_in_its_place(store: str | Store) -> None:
    agent = painter([call("print_", item="a"), call("render", item="b")], "Done.")
    async with both(store, agent) as runtime:
        session = await runtime.open(agent, id="s")
        run = await session.start("go")
        waiting = await soon(run)
        assert [pending.tool for pending in waiting.pending] == ["print_"]
        await session.decide(waiting.pending[0].id, "approve")
        assert (await soon(run)).output == "Done."
        assert [text for _, _, text in await told(session)] == ["a on the gpu", "b on the gpu"]


async def test_a_session_whose_queue_nobody_serves_waits_and_may_be_ended(store: str | Store) -> None:
    agent = painter([call("render", item="a")], "Done.")
    async with worker(store, agent, "desk") as runtime:
        session, other = await runtime.open(agent, id="s"), await runtime.open(agent, id="t")
        run = await session.start("go")
        await other.start("go")
        await until(lambda: queue_of(session.state) == "gpu")
        await until(lambda: queue_of(other.state) == "gpu")
        [row] = [row async for row in runtime.sessions() if row.id == "s"]
        assert (row.status, row.agent, row.summary.queue) == ("running", "painter", "gpu")
        await other.cancel()
        await until(lambda: other.state.run is None)
        assert await events(session, CallStarted) == []
        async with worker(store, agent, "gpu"):
            assert (await soon(run)).output == "Done."


async def test_without_a_choice_a_worker_serves_all_queues(store: str | Store) -> None:
    agent = painter([call("render", item="a")], "Done.")
    async with Runtime(store, agents=[agent], deps="desk") as runtime:
        assert list(runtime.queues) == ["painter", "gpu"]
        assert list(runtime.agents) == ["painter"]
        session = await runtime.open(agent)
        assert (await soon(session.run("go"))).output == "Done."


async def test_tools_of_sub_agents_and_of_those_who_take_over(memory: MemoryStore) -> None:
    helper = painter([call("render", item="h")], "Helped.", name="helper")
    heir = painter(None, None, [call("render", item="i")], "Inherited.", name="heir")
    script = [call("helper", input="help"), call("lookup", item="a")], [call("hand_off", to="heir")]
    agent = painter(*script, tools=[helper.as_tool(), lookup], handoffs=[heir])
    async with both(memory, agent, "helper", "heir") as runtime:
        session = await runtime.open(agent, id="s")
        assert (await soon(session.run("go"))).output == "Inherited."
        assert (await told(session))[-1][2] == "i on the gpu"
        [child] = [row async for row in runtime.sessions(children=True) if row.agent == "helper"]
        assert [text for _, _, text in await told(await runtime.session_by_uid(child.uid))] == ["h on the gpu"]


async def test_what_was_under_way_when_a_worker_died_goes_on_in_its_place(store: str | Store) -> None:
    begun = asyncio.Event()
    runs: list[Any] = []

    @tool(effect="idempotent", queue="gpu")
    async def bake(ctx: ToolContext[Any, Any]) -> str:
        """Bakes."""
        runs.append(ctx.deps)
        if len(runs) == 1:
            begun.set()
            await asyncio.sleep(3600)
        return f"baked on the {ctx.deps}"

    @tool(queue="gpu")
    async def pay(ctx: ToolContext[Any, Any]) -> str:
        """Pays, at most once."""
        runs.append("pay")
        await asyncio.sleep(3600)
        return "paid"

    agent = painter([call("bake")], [call("pay")], "Done.", tools=[bake, pay])
    async with worker(store, agent, "desk") as runtime:
        session = await runtime.open(agent, id="s")
        async with worker(store, agent, "gpu", grace=0):
            run = await session.start("go")
            await soon(begun.wait())
        async with worker(store, agent, "gpu", grace=0):
            await until(lambda: runs == ["gpu", "gpu", "pay"])
        # What may not be repeated is in doubt, and for that nobody needs a GPU.
        waiting = await soon(run)
        assert [pending.kind for pending in waiting.pending] == ["unknown"]
        await session.decide(waiting.pending[0].id, "retry")
        async with worker(store, agent, "gpu", grace=0):
            await until(lambda: runs.count("pay") == 2)
        await session.cancel()
        await until(lambda: session.state.run is None)
    assert runs == ["gpu", "gpu", "pay", "pay"]


async def test_a_runtime_is_told_which_queues_it_serves(memory: MemoryStore) -> None:
    agent = painter([call("render", item="a")], "Done.")
    async with (
        Runtime(memory, agents=[agent], queues=["painter"], deps="desk") as desk,
        Runtime(memory, agents=[agent], queues=["gpu"], deps="gpu") as gpu,
    ):
        session = await desk.open(agent, id="s")
        assert (await soon(session.run("go"))).output == "Done."
        assert [text for _, _, text in await told(session)] == ["a on the gpu"]
        assert [worker.about["queues"] for worker in await gpu.workers()] in (
            [["painter"], ["gpu"]],
            [["gpu"], ["painter"]],
        )
    for wrong, engine in (("gpu", "local"), (["gpu"], None), (["gpu"], LocalEngine(SystemClock()))):
        with pytest.raises(UsageError, match="queues="):
            Runtime(memory, engine=engine, queues=wrong)


def test_a_queue_is_for_functions() -> None:
    with pytest.raises(UsageError, match="queues are for functions"):

        @tool(kind="external", queue="gpu")
        def wait() -> str:
            """Waits."""
            return ""

    with pytest.raises(UsageError, match="give the name of a queue"):
        tool(lookup.function, queue=7)  # type: ignore[call-overload]
