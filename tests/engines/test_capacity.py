"""Caps hold at every moment over several processes, a flood keeps nobody else waiting, and what waits is bounded."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, Refused, Runtime, Session, ToolContext, UsageError, tool
from perdure.capacity import Busy, Capacity
from perdure.engines.dbos import DbosEngine
from perdure.events import InputAccepted
from perdure.ports import Store
from perdure.runtime.clock import SystemClock
from perdure.runtime.local import LocalEngine
from perdure.stores.memory import MemoryStore
from perdure.stores.postgres import PostgresStore
from perdure.stores.sqlite import SqliteStore
from perdure.testing import ManualClock, ScriptedModel, call
from tests.postgres import new_schema
from tests.runtime.scenes import events, soon, told, until

MakeStore = Callable[[], Store]


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path, postgres: str) -> MakeStore:
    """Gives store objects on the same data, as processes would have them."""
    memory, schema = MemoryStore(), new_schema()
    return {
        "memory": lambda: memory,
        "sqlite": lambda: SqliteStore(tmp_path / "x.db"),
        "postgres": lambda: PostgresStore(postgres, schema=schema, connections=4),
    }[request.param]


class Crowd:
    """Who works now, by tenant and agent, and the most that ever did."""

    def __init__(self) -> None:
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.order: list[str] = []
        self.pause: Callable[[str], Awaitable[object]] = lambda tenant: asyncio.sleep(0.005)

    async def work(self, ctx: ToolContext[Any, Any], agent: str) -> str:
        """Works."""
        self.order.append(ctx.session)
        for name in (ctx.tenant, agent):
            self.now[name] += 1
            self.most[name] = max(self.most[name], self.now[name])
        await self.pause(ctx.tenant)
        for name in (ctx.tenant, agent):
            self.now[name] -= 1
        return "worked"

    def agent(self, name: str = "clerk", turns: int = 2, **options: Any) -> Agent[Any]:
        @tool(effect="idempotent")
        async def work(ctx: ToolContext[Any, Any]) -> str:
            """Works."""
            return await self.work(ctx, name)

        def answer(request: Any) -> Any:
            return [call("work")] if len(request.messages) < 2 * turns else "done"

        return Agent(name=name, model=ScriptedModel(answer), tools=[work, *options.pop("tools", ())], **options)


@asynccontextmanager
async def workers(
    make_store: MakeStore, count: int, agents: list[Agent[Any]], capacity: Capacity, **options: Any
) -> AsyncIterator[list[Runtime]]:
    async with AsyncExitStack() as stack:
        opened: list[Runtime] = []
        for _ in range(count):
            engine = LocalEngine(SystemClock(), 0.05, **options)
            runtime = Runtime(make_store(), agents=agents, engine=engine, capacity=capacity)
            opened.append(await stack.enter_async_context(runtime))
        yield opened


async def flood(runtime: Runtime, agent: Agent[Any], tenant: str, count: int) -> list[Session[Any]]:
    opened = [await runtime.open(agent, id=f"{tenant}-{number}", tenant=tenant) for number in range(count)]
    for session in opened:
        await session.start("go", key="go")
    return opened


async def all_end(sessions: list[Session[Any]]) -> None:
    for session in sessions:
        assert (await soon(session.run("go", key="go"))).output == "done"


async def test_a_cap_holds_over_processes_and_a_flood_keeps_nobody_waiting(make_store: MakeStore) -> None:
    crowd, gate = Crowd(), asyncio.Event()
    crowd.pause = lambda tenant: gate.wait() if tenant == "big" else asyncio.sleep(0.005)
    agent = crowd.agent()
    async with Runtime(make_store(), agents=[agent], engine=None) as sender:
        many = await flood(sender, agent, "big", 120)
        few = await flood(sender, agent, "small", 2)
        async with workers(make_store, 3, [agent], Capacity(per_tenant=3)) as runtimes:
            await all_end([await runtimes[0].session(session.id, tenant="small") for session in few])
            await until(lambda: crowd.now["big"] == 3)
            assert len({*crowd.order}) == 5, "a page of the big tenant's did not stand before the small one's"
            gate.set()
            await all_end([await runtimes[0].session(session.id, tenant="big") for session in many[:20]])
    assert crowd.most["big"] == 3
    assert crowd.most["small"] <= 2


@pytest.mark.parametrize("hands_over", [False, True])
async def test_what_is_refused_goes_on_as_soon_as_there_is_room_here(hands_over: bool) -> None:
    """Nobody sweeps: one session after the other is called by the one before it."""
    crowd, clock = Crowd(), ManualClock()
    crowd.pause = lambda tenant: asyncio.sleep(0)
    agent = crowd.agent(turns=3)
    if hands_over:
        agent = Agent(
            name="first", model=ScriptedModel(lambda request: [call("hand_off", to="clerk")]), handoffs=[agent]
        )
    engine = LocalEngine(clock, 3600.0)
    async with Runtime(MemoryStore(), agents=[agent], engine=engine, clock=clock, capacity=Capacity(1, 1)) as runtime:
        opened = [await runtime.open(agent, id=f"t-{number}", tenant="t") for number in range(20)]
        runs = [await session.start("go") for session in opened]
        assert [(await soon(run)).output for run in runs] == ["done"] * 20
    assert crowd.most["t"] == 1
    assert hands_over or list(dict.fromkeys(crowd.order)) == [f"t-{number}" for number in range(20)]


async def test_a_cap_of_an_agent_holds_when_others_hand_over_to_it(make_store: MakeStore) -> None:
    crowd = Crowd()
    heir = crowd.agent("heir", turns=3)

    def answer(request: Any) -> Any:
        return [call("hand_off", to="heir")]

    clerk = Agent(name="clerk", model=ScriptedModel(answer), handoffs=[heir])
    capacity = Capacity(per_agent={"heir": 2})
    async with workers(make_store, 2, [clerk, heir], capacity) as (first, second):
        sessions = await flood(first, clerk, "t", 5) + await flood(second, clerk, "u", 5)
        await all_end(sessions)
    assert crowd.most["heir"] == 2


async def test_a_parent_that_waits_for_its_child_holds_no_room(make_store: MakeStore) -> None:
    crowd = Crowd()
    helper = crowd.agent("helper")

    def answer(request: Any) -> Any:
        return [call("helper", input="help")] if len(request.messages) == 1 else "done"

    boss = Agent(name="boss", model=ScriptedModel(answer), tools=[helper.as_tool()])
    capacity = Capacity(per_tenant=1, per_agent=1)
    async with workers(make_store, 2, [boss], capacity) as (first, second):
        await all_end(await flood(first, boss, "t", 3) + await flood(second, boss, "t2", 2))
    assert crowd.most["t"] == crowd.most["helper"] == 1


async def test_who_has_priority_comes_first_where_there_is_no_room(make_store: MakeStore) -> None:
    crowd = Crowd()
    agent = crowd.agent()
    gate = asyncio.Event()
    crowd.pause = lambda tenant: gate.wait()
    async with workers(make_store, 1, [agent], Capacity(), concurrency=1) as [runtime]:
        first = await runtime.open(agent, id="first")
        await first.start("go", key="go")
        await until(lambda: crowd.order)
        sessions = [first]
        for priority in (0, 5, -3, 2, 5):
            session = await runtime.open(agent, id=f"{priority}-{len(sessions)}", priority=priority)
            assert (session.state.priority, (await session.fork()).state.priority) == (priority, priority)
            await session.start("go", key="go")
            sessions.append(session)
        await sessions[3].set_priority(9)
        await asyncio.sleep(0.2)
        gate.set()
        await all_end(sessions)
    names = list(dict.fromkeys(crowd.order))
    assert names == ["first", "-3-3", "5-2", "5-5", "2-4", "0-1"]


async def test_priority_is_inherited_and_kept(make_store: MakeStore) -> None:
    crowd = Crowd()
    helper = crowd.agent("helper")

    def answer(request: Any) -> Any:
        return [call("helper", input="help")] if len(request.messages) == 1 else "done"

    boss = Agent(name="boss", model=ScriptedModel(answer), tools=[helper.as_tool()])
    async with Runtime(make_store(), agents=[boss]) as runtime:
        session = await runtime.open(boss, id="s", priority=7)
        assert (await soon(session.run("go"))).output == "done"
        rows = [row async for row in runtime.sessions(children=True)]
        assert [(row.agent, row.summary.priority) for row in rows] == [("helper", 7), ("boss", 7)]
        assert (await runtime.open(boss, id="s")).state.priority == 7
        for wrong in (1.5, True, 10_000, "high"):
            with pytest.raises(UsageError, match="give a whole number"):
                await runtime.open(boss, priority=wrong)  # type: ignore[arg-type]


async def test_one_too_many_is_refused_and_nothing_accepted_is_lost(make_store: MakeStore) -> None:
    crowd = Crowd()
    agent = crowd.agent()
    clock = ManualClock()
    capacity = Capacity(waiting=4, waiting_per_tenant=2)
    async with Runtime(make_store(), agents=[agent], engine=None, clock=clock, capacity=capacity) as sender:
        accepted = await flood(sender, agent, "a", 2)
        late = await sender.open(agent, id="late", tenant="a")
        with pytest.raises(Busy, match=r"2 sessions of tenant 'a' wait already.* try again in 2 s") as refused:
            await late.start("go", key="go")
        assert isinstance(refused.value, Refused)
        assert refused.value.retry_after == 2.0
        assert await events(late, InputAccepted) == []
        accepted += await flood(sender, agent, "b", 2)
        other = await sender.open(agent, id="other", tenant="c")
        with pytest.raises(Busy, match=r"^4 sessions wait already"):
            await other.start("go", key="go")
        await accepted[0].send("more")
        assert (await accepted[0].start("go", key="go")).input == 1
        async with workers(make_store, 1, [agent], Capacity()) as [worker]:
            there = [await worker.session(session.id, tenant=session.tenant) for session in accepted]
            await all_end(there)
            await clock.advance(1.0)
            run = await late.start("go", key="go")
            assert (await soon((await worker.session("late", tenant="a")).run("go", key="go"))).output == "done"
            assert run.input == 1


async def test_a_burst_that_is_driven_at_once_is_not_refused() -> None:
    crowd = Crowd()
    agent = crowd.agent()
    async with Runtime(MemoryStore(), agents=[agent], capacity=Capacity(waiting=3)) as runtime:
        sessions = [await runtime.open(agent) for _ in range(20)]
        for session in sessions:
            await session.start("go", key="go")
            await until(lambda session=session: session.state.run)
        await all_end(sessions)


@pytest.mark.parametrize(
    "wrong", [{"per_tenant": -1}, {"per_agent": {"a": True}}, {"per_agent": {1: 2}}, {"waiting": 1.5}, {"waiting": {}}]
)
def test_what_is_no_capacity_is_refused(wrong: Any) -> None:
    with pytest.raises(UsageError, match="give a number of at least 0"):
        Capacity(**wrong)


@pytest.mark.parametrize("dbos_serves", ["clerk", "gpu"])
async def test_sessions_pass_between_engines_and_caps_hold(
    postgres: str, dbos_serves: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.runtime.lookout.LOOK_EVERY", 0.2)
    crowd, schema = Crowd(), new_schema()

    @tool(effect="idempotent", queue="gpu")
    async def render(ctx: ToolContext[Any, Any]) -> str:
        """Renders."""
        return str(ctx.deps)

    def answer(request: Any) -> Any:
        turn = (len(request.messages) - 1) // 2
        return [call("render"), call("work")] if turn < 2 else "done"

    agent = dataclasses.replace(crowd.agent(tools=[render]), model=ScriptedModel(answer))
    others = "gpu" if dbos_serves == "clerk" else "clerk"
    dbos = DbosEngine(postgres, SystemClock(), schema=f"{schema}_dbos", poll=0.05, queues=[dbos_serves])
    local = LocalEngine(SystemClock(), 0.05, queues=[others])
    capacity = Capacity(per_tenant=2)

    def worker(engine: Any, place: str) -> Runtime:
        store = PostgresStore(postgres, schema=schema, connections=4)
        return Runtime(store, agents=[agent], engine=engine, deps=place, capacity=capacity)

    async with worker(dbos, dbos_serves) as first, worker(local, others):
        sessions = await flood(first, agent, "t", 6)
        await all_end(sessions)
        for session in sessions:
            assert {text for name, _, text in await told(session) if name == "render"} == {"gpu"}
    assert crowd.most["t"] <= 2
