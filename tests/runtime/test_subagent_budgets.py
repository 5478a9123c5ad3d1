"""What a tree of agents may spend: shares, what comes back, and never more than one call's excess over the root's."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perdure import Agent, Limits, Runtime, ToolContext, tool
from perdure.core.messages import AssistantMessage, Usage, UserMessage
from perdure.core.window import estimate_message
from perdure.events import CallEnded, CallStarted, ModelCalled, ModelResponded
from perdure.ports import ModelRequest, Store
from perdure.stores.memory import MemoryStore
from perdure.testing import ManualClock, Reply, ScriptedModel, call
from tests.runtime.kin import Gate, agent, born, child, children, end, row
from tests.runtime.scenes import events, seen, soon, told, until


@tool(effect="read")
async def look(what: str) -> str:
    """Look something up."""
    return f"saw {what}"


def dear(usage: Usage) -> float:
    """A tenth of a cent per token."""
    return usage.total * 0.001


async def granted(session: Any) -> list[Limits]:
    return [event.granted for event in await events(session, CallStarted) if event.granted is not None]


# Shares


async def test_a_child_has_what_is_left_and_no_more_than_it_wants(memory: Store) -> None:
    leaf = agent("leaf", "ok")
    wants = Limits(turns=3, tokens=100_000, cost_usd=0.5, depth=9, children=2, silence=30)
    mid = agent("mid", call("leaf", input="x"), "ok", tools=[leaf], limits=wants)
    tools = [mid.as_tool(limits=Limits(turns=9, calls=5, cost_usd=0.9))]
    limits = Limits(turns=40, tokens=50_000, cost_usd=0.7, calls=20, seconds=60, depth=3, children=7, silence=40)
    top = agent("top", call("mid", input="go"), "ok", tools=tools, limits=limits, cost=dear)
    async with Runtime(memory, agents=[top]) as runtime:
        session = await runtime.open(top)
        await soon(session.run("go"))
        (given_to_mid,) = await granted(session)
        assert given_to_mid.turns == 3
        assert given_to_mid.tokens == 50_000 - 15
        assert given_to_mid.cost_usd == 0.5
        assert given_to_mid.calls == 5
        assert given_to_mid.seconds is not None
        assert given_to_mid.seconds <= 60
        assert (given_to_mid.depth, given_to_mid.children, given_to_mid.silence) == (2, 2, 30)
        (given_to_leaf,) = await granted(await child(runtime, session))
        assert (given_to_leaf.depth, given_to_leaf.calls, given_to_leaf.children) == (1, 4, 2)
        assert given_to_leaf.tokens == 50_000 - 15 - 15
        state = (await child(runtime, session)).state
        assert state.ended[0].called == 1


async def test_the_limits_of_a_run_narrow_its_children(memory: Store) -> None:
    leaf = agent("leaf", "ok", limits=Limits(tokens=90_000))
    top = agent("top", call("leaf", input="go"), "ok", tools=[leaf], limits=Limits(tokens=80_000))
    async with Runtime(memory, agents=[top]) as runtime:
        session = await runtime.open(top)
        await soon(session.run("go", limits=Limits(tokens=7_000)))
        assert [limits.tokens for limits in await granted(session)] == [7_000 - 15]


async def test_parallel_children_share_and_those_behind_get_what_comes_back(memory: Store) -> None:
    leaf = agent("leaf", "ok")
    calls = [call("leaf", input=str(number)) for number in range(4)]
    limits = Limits(tokens=40_015, cost_usd=4.015, calls=44)
    top = agent("top", calls, calls[:1], "ok", tools=[leaf], limits=limits, cost=dear)
    async with Runtime(memory, agents=[top]) as runtime:
        session = await runtime.open(top)
        await soon(session.run("go"))
        *first, last = await granted(session)
        assert [item.tokens for item in first] == [10_000] * 4
        assert [round(item.cost_usd or 0, 6) for item in first] == [1.0] * 4
        assert [item.calls for item in first] == [10] * 4
        assert last.tokens == 40_015 - 15 * 6, "two turns of the top, one of each leaf"
        assert last.calls == 44 - 5


async def test_calls_are_shared_out_and_counted_in_the_whole_tree(memory: Store) -> None:
    eager = agent("eager", [call("look", what=str(number)) for number in range(6)], "ok", tools=[look])
    top = agent("top", [call("eager", input="a"), call("eager", input="b")], "ok", tools=[eager])
    async with Runtime(memory, agents=[top]) as runtime:
        session = await runtime.open(top)
        result = await soon(session.run("go", limits=Limits(calls=9)))
        assert result.reason == "completed"
        assert [item.calls for item in await granted(session)] == [3, 4], "seven are left for two, none is lost"
        made = [
            len([end for end in await events(below, CallEnded) if end.outcome == "ok"])
            for below in await children(runtime, session)
        ]
        assert sorted(made) == [3, 4]
        assert [outcome for _, outcome, _ in await told(session)] == ["error", "error"]


async def test_under_a_cap_the_later_ones_get_what_the_first_left(memory: Store) -> None:
    leaf = agent("leaf", "ok")
    calls = [call("leaf", input=str(number)) for number in range(3)]
    top = agent("top", calls, "ok", tools=[leaf], limits=Limits(tokens=9_015), concurrency=1)
    async with Runtime(memory, agents=[top]) as runtime:
        session = await runtime.open(top)
        await soon(session.run("go"))
        assert [item.tokens for item in await granted(session)] == [3_000, (9_000 - 15) // 2, 9_000 - 30]


async def test_a_run_with_a_child_in_the_background_keeps_a_share(memory: Store) -> None:
    gate = Gate()
    slow = agent("slow", call("wait", what="x"), "slow is done", tools=[gate.tool()])
    tools = [slow.as_tool(background=True), look]
    limits = Limits(tokens=10_015, cost_usd=1.015, calls=11)
    top = agent("top", call("slow", input="go"), call("look", what="y"), "wait", "ok")
    top = Agent(name="top", model=ScriptedModel([*top.model._entries], cost=dear), tools=tools, limits=limits)  # type: ignore[union-attr]
    async with Runtime(memory, agents=[top]) as runtime:
        session = await runtime.open(top)
        run = await session.start("go")
        await until(lambda: session.state.run and session.state.run.turn == 3 and session.state.run.response)
        gate.open.set()
        result = await soon(run)
        assert (result.reason, result.output) == ("completed", "ok")
        (given_to_slow,) = await granted(session)
        assert (given_to_slow.tokens, given_to_slow.calls) == (5_000, 5)


async def test_what_is_granted_is_kept_back_while_a_child_works_in_the_background(memory: Store) -> None:
    gate = Gate()
    slow = agent("slow", call("wait", what="x"), "slow is done", tools=[gate.tool()])
    many = [call("look", what=str(number)) for number in range(9)]
    top = agent("top", call("slow", input="go"), many, "wait", "ok", tools=[slow.as_tool(background=True), look])
    async with Runtime(memory, agents=[top]) as runtime:
        session = await runtime.open(top)
        run = await session.start("go", limits=Limits(calls=11))
        await seen(session, CallEnded, 9)
        outcomes = [event.outcome for event in await events(session, CallEnded)]
        gate.open.set()
        await soon(run)
        assert outcomes.count("ok") == 11 - 1 - 5, "five calls are the child's, as long as it may make them"


# The excess


async def test_tokens_of_children_count_in_the_parents_limit(memory: Store) -> None:
    leaf = agent("leaf", "ok", usage=Usage(900, 100))
    answers = [call("leaf", input=str(number)) for number in range(9)]
    top = agent("top", *answers, "ok", tools=[leaf], limits=Limits(tokens=6_000), usage=Usage(90, 10))
    async with Runtime(memory, agents=[top]) as runtime:
        session = await runtime.open(top)
        result = await soon(session.run("go"))
        assert (result.reason, result.detail) == ("limit", "tokens")
        assert 5_000 <= result.usage.total <= 6_000 + 1_000


async def test_money_of_children_counts_in_the_parents_limit(memory: Store) -> None:
    leaf = agent("leaf", "ok", usage=Usage(90, 10), cost=dear)
    answers = [call("leaf", input=str(number)) for number in range(30)]
    top = agent("top", *answers, "ok", tools=[leaf], limits=Limits(cost_usd=1.0), usage=Usage(9, 1), cost=dear)
    async with Runtime(memory, agents=[top]) as runtime:
        session = await runtime.open(top)
        result = await soon(session.run("go"))
        assert (result.reason, result.detail) == ("limit", "cost_usd")
        assert result.cost_usd is not None
        assert 0.5 <= result.cost_usd <= 1.0 + 0.1
        assert result.cost_usd == pytest.approx(result.usage.total * 0.001)


async def test_a_child_without_a_known_price_makes_the_whole_unpriced(memory: Store) -> None:
    leaf = agent("leaf", "ok", cost=lambda usage: None)
    top = agent("top", call("leaf", input="x"), "ok", tools=[leaf], cost=dear)
    async with Runtime(memory, agents=[top]) as runtime:
        result = await soon((await runtime.open(top)).run("go"))
        assert result.cost_usd is None
        assert result.usage.total == 45


async def test_a_child_that_may_spend_nothing_says_so(memory: Store) -> None:
    leaf = agent("leaf", "ok")
    top = agent("top", call("leaf", input="x"), "ok", tools=[leaf.as_tool(limits=Limits(tokens=0))])
    async with Runtime(memory, agents=[top]) as runtime:
        session = await runtime.open(top)
        await soon(session.run("go"))
        assert await told(session) == [("leaf", "error", "leaf did not finish (limit: tokens).")]
        assert leaf.model.requests == []  # type: ignore[union-attr]


def spender(plan: dict[str, Any], path: str, sizes: list[int]) -> Any:
    """Goes through its plan turn by turn; what a turn costs is what was reserved for it, or less."""

    def answer(request: ModelRequest) -> Any:
        turn = sum(1 for message in request.messages if isinstance(message, AssistantMessage))
        name = next(m.parts[0].text for m in request.messages if isinstance(m, UserMessage))
        turns = plan[name]
        room = request.settings.max_tokens or 4096
        prompt = sum(estimate_message(message) for message in request.messages)
        size = sizes[(len(name) * 7 + turn * 3) % len(sizes)]
        parts = turns[turn] if turn < len(turns) else ["done"]
        return Reply(*parts, usage=Usage(prompt, min(room, size)))

    return answer


@st.composite
def trees(draw: Any) -> dict[str, Any]:
    """For each node, by its path, what it does turn by turn: starts children, and at last says that it is done."""
    plan: dict[str, Any] = {}

    def grow(path: str, depth: int) -> None:
        turns: list[Any] = []
        born = 0
        for _ in range(draw(st.integers(0, 2))):
            width = draw(st.integers(1, 3)) if depth else 0
            names = [f"{path}.{born + index}" for index in range(width)]
            born += width
            turns.append([call("node", input=name) for name in names] or [call("look", what=path)])
            for name in names:
                grow(name, depth - 1)
        plan[path] = turns

    grow("r", draw(st.integers(1, 3)))
    return plan


@given(
    plan=trees(),
    sizes=st.lists(st.integers(1, 400), min_size=1, max_size=5),
    tokens=st.none() | st.integers(50, 4_000),
    cents=st.none() | st.integers(5, 400),
    calls=st.none() | st.integers(0, 12),
    cap=st.none() | st.integers(1, 3),
    background=st.booleans(),
)
@settings(max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_tree_spends_more_than_its_root_may(
    plan: dict[str, Any],
    sizes: list[int],
    tokens: int | None,
    cents: int | None,
    calls: int | None,
    cap: int | None,
    background: bool,
) -> None:
    """Any tree, any limits: what the logs of all its sessions say together, against the root's limits."""

    async def grow() -> None:
        tools: list[Any] = [look]
        model = ScriptedModel(spender(plan, "r", sizes), cost=dear)
        node = Agent(name="node", model=model, tools=tools, concurrency=cap, limits=Limits(turns=20))
        tools.append(node.as_tool(background=background))
        limits = Limits(turns=20, tokens=tokens, cost_usd=None if cents is None else cents / 100, calls=calls)
        async with Runtime(MemoryStore(), agents=[node]) as runtime:
            session = await runtime.open(node)
            result = await soon(session.run("r", limits=limits))
            rows = [row async for row in runtime.sessions(children=True)]
            logs = [await runtime.session(row.id) for row in rows]
            answers = [event for log in logs for event in await events(log, ModelResponded)]
            intents = [event for log in logs for event in await events(log, ModelCalled)]
            spent = sum((event.usage for event in answers), Usage())
            excess = max((event.usage.total for event in answers), default=0)
            started = sum([len(await events(log, CallStarted, attempt=1)) for log in logs])
            assert result.usage.total == spent.total, "the root's account is that of the whole tree"
            assert result.cost_usd == pytest.approx(sum(event.cost_usd or 0 for event in answers))
            if tokens is not None:
                assert spent.total <= tokens + excess, intents
            if cents is not None:
                assert (result.cost_usd or 0) <= cents / 100 + dear(Usage(excess)) + 1e-9
            if calls is not None:
                assert started <= calls
            assert all(log.state.run is None for log in logs), "nobody works on"

    asyncio.run(grow())


# Depth and number


@pytest.mark.parametrize("depth", [0, 1, 2, 5, 7])
async def test_the_depth_is_exact(memory: Store, depth: int) -> None:
    names = [f"a{number}" for number in range(9)]
    below = agent("last", "deepest")
    for name in reversed(names):
        below = agent(name, call(below.name, input="x"), "ok", tools=[below], limits=Limits(depth=99))
    async with Runtime(memory, agents=[below]) as runtime:
        session = await runtime.open(below)
        await soon(session.run("go", limits=Limits(depth=depth)))
        rows = [row async for row in runtime.sessions(children=True)]
        assert len(rows) == depth + 1
        deepest = session
        while found := await children(runtime, deepest):
            deepest = found[0]
        assert [outcome for _, outcome, _ in await told(deepest)] == ["error"]


async def test_the_depth_of_five_is_the_default(memory: Store) -> None:
    top = row(*(f"a{number}" for number in range(9)), last=agent("last", "ok"))
    async with Runtime(memory, agents=[top]) as runtime:
        await soon((await runtime.open(top)).run("go"))
        assert len([row async for row in runtime.sessions(children=True)]) == 1 + 5


async def test_the_number_of_children_is_exact(memory: Store) -> None:
    leaf = agent("leaf", "ok")
    calls = [call("leaf", input="x")] * 3
    top = agent("top", calls, calls, "ok", tools=[leaf], limits=Limits(children=4))
    async with Runtime(memory, agents=[top]) as runtime:
        session = await runtime.open(top)
        await soon(session.run("go"))
        outcomes = [(outcome, text) for _, outcome, text in await told(session)]
        refused = ("error", "This run may start no more than 4 sub-agents; do it yourself.")
        assert outcomes == [("ok", "ok")] * 4 + [refused] * 2
        assert len(await session.children()) == 4


# Time


async def test_the_time_of_children_counts_once_although_they_work_at_once(memory: Store) -> None:
    clock = ManualClock()

    @tool(effect="read")
    async def nap(ctx: ToolContext[Any, Any]) -> str:
        """Sleep."""
        woken = asyncio.Event()
        clock.call_later(10, woken.set)
        await woken.wait()
        return "slept"

    leaf = agent("leaf", call("nap"), "ok", tools=[nap])
    top = agent("top", [call("leaf", input="a"), call("leaf", input="b")], "ok", tools=[leaf])
    async with Runtime(memory, agents=[top], clock=clock) as runtime:
        session = await runtime.open(top)
        run = await session.start("go", limits=Limits(seconds=60))
        await until(lambda: len(clock._timers) >= 2)
        await born(runtime, session, 2)
        for _ in range(20):
            await clock.advance(1)
        assert (await soon(run)).output == "ok"
        assert session.state.ended[0].seconds == pytest.approx(10)


async def test_a_childs_time_is_what_its_parents_run_has_left(memory: Store) -> None:
    clock = ManualClock()
    gate = Gate()
    leaf = agent("leaf", call("wait", what="x"), "ok", tools=[gate.tool()])
    top = row("top", "mid", last=leaf)
    async with Runtime(memory, agents=[top], clock=clock) as runtime:
        session = await runtime.open(top)
        run = await session.start("go", limits=Limits(seconds=30))
        await until(lambda: gate.inside == 1)
        for _ in range(40):
            await clock.advance(1)
        result = await soon(run)
        assert (result.reason, result.detail) == ("limit", "seconds")
        mid = await child(runtime, session)
        assert await end(await child(runtime, mid)) == ("limit", "seconds")
        assert (await end(mid))[0] == "limit"
        assert gate.cancelled == ["x"]


# While they work


async def test_usage_and_cost_are_live(store: str | Store) -> None:
    gate = Gate()
    leaf = agent("leaf", call("wait", what="x"), call("pay"), "ok", tools=[gate.tool(), _pay], cost=dear)
    mid = agent("mid", call("leaf", input="x"), "ok", tools=[leaf], cost=dear)
    top = agent("top", call("mid", input="x"), "ok", tools=[mid], cost=dear)
    async with Runtime(store, agents=[top]) as runtime:
        session = await runtime.open(top)
        run = await session.start("go")
        await until(lambda: gate.inside == 1)
        assert (await session.usage()).total == 45, "one turn each"
        assert session.state.usage.total == 15
        gate.open.set()
        waiting = await soon(run)
        assert (waiting.reason, waiting.usage.total) == ("waiting", 60)
        assert waiting.cost_usd == pytest.approx(0.060)
        await session.decide(waiting.pending[0].id, "approve")
        result = await soon(run)
        assert result.usage.total == 15 * 7
        assert result.cost_usd == pytest.approx(0.105)
        assert (await session.usage()).total == 15 * 7
        (spent,) = [event.spent for event in await events(session, CallEnded)]
        assert spent is not None
        assert (spent.usage.total, spent.calls) == (75, 3)


@tool(name="pay", ask=True)
async def _pay() -> str:
    """Pay."""
    return "paid"


async def test_what_an_ended_child_of_a_cancelled_run_has_used_is_not_lost(memory: Store) -> None:
    gate = Gate()
    leaf = agent("leaf", call("wait", what="x"), "ok", tools=[gate.tool()])
    top = row("top", "mid", last=leaf)
    async with Runtime(memory, agents=[top]) as runtime:
        session = await runtime.open(top)
        run = await session.start("go")
        await until(lambda: gate.inside == 1)
        await session.cancel()
        assert (await soon(run)).usage.total == 45
