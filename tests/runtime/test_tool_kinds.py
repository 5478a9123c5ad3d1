"""Tools that operate elsewhere, prepare first, keep state, try again, end runs, or say very much."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import Agent, ModelSettings, Policy, Runtime, ToolContext, ToolError, UsageError, tool
from perdure.core.specs import ToolErrors
from perdure.events import CallAdvanced, CallChecked, CallEnded, CallStarted, RunEnded
from perdure.ports import Store
from perdure.runtime.wishes import Prepared, StateKey
from perdure.testing import ManualClock, ScriptedModel, call
from tests.runtime.scenes import crashing, events, seen, soon, told, turned, until


def clerk(*answers: Any, **options: Any) -> Agent[str]:
    return Agent(name="clerk", model=ScriptedModel(list(answers)), **options)


# Operations


class Yard:
    """A shipyard elsewhere: it goes on whatever happens to us."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.checked: list[str] = []
        self.cancelled: list[str] = []
        self.done = asyncio.Event()

    def tool(self, **options: Any) -> Any:
        @tool(effect="once", **options)
        async def build(name: str) -> str:
            """Build a ship."""
            self.started.append(name)
            return f"op-{name}"

        @build.check
        async def follow(operation: str, ctx: ToolContext[Any, Any]) -> str:
            self.checked.append(operation)
            ctx.progress("on the slip", 0.5)
            await self.done.wait()
            return f"{operation} is built"

        @build.cancel
        async def scrap(operation: str, ctx: ToolContext[Any, Any]) -> None:
            self.cancelled.append(operation)

        return build


async def test_an_operation_is_started_once_and_found_again_after_a_crash(store: str | Store) -> None:
    yard = Yard()
    agent = clerk([call("build", name="Vasa")], "Done.", tools=[yard.tool()])
    for _ in range(3):
        before = len(yard.checked)
        async with crashing(store, agents=[agent]) as runtime:
            session = await runtime.open(agent, id="x")
            await session.start("go", key="k")
            await until(lambda: len(yard.checked) > before)  # noqa: B023 - awaited in this round
            (advanced,) = await events(session, CallAdvanced)
            assert advanced.operation == "op-Vasa", "in the log before anybody waits"
    yard.done.set()
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        assert (await soon(session.run("go", key="k"))).output == "Done."
        assert await told(session) == [("build", "ok", "op-Vasa is built")]
        assert [started.effect for started in await events(session, CallStarted)] == ["resumable"] * 4
    assert yard.started == ["Vasa"]
    assert len(yard.checked) == 4
    assert yard.cancelled == [], "a process that only leaves ends nothing elsewhere"


async def test_an_operation_whose_id_nobody_saw_is_in_doubt(store: str | Store) -> None:
    async def hang(*_: Any) -> str:
        await asyncio.Event().wait()
        return ""

    @tool(effect="once")
    async def build(name: str) -> str:
        """Build."""
        return await hang()

    build.check(hang)
    agent = clerk([call("build", name="Vasa")], "Done.", tools=[build])
    async with crashing(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        await session.start("go", key="k")
        await seen(session, CallStarted)
    async with Runtime(store, agents=[agent]) as runtime:
        result = await soon((await runtime.open(agent, id="x")).run("go", key="k"))
        assert [pending.kind for pending in result.pending] == ["unknown"], "it may have begun: never start it again"


async def test_cancel_reaches_the_operation(memory: Store) -> None:
    yard = Yard()
    agent = clerk([call("build", name="Vasa")], tools=[yard.tool()])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        run = await session.start("go")
        await until(lambda: yard.checked)
        await session.cancel()
        assert (await soon(run)).reason == "cancelled"
    assert yard.cancelled == ["op-Vasa"]


async def test_an_operation_expires_over_restarts(store: str | Store) -> None:
    yard, clock = Yard(), ManualClock()
    agent = clerk([call("build", name="Vasa")], "Done.", tools=[yard.tool(timeout=100)])
    async with crashing(store, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent, id="x")
        await session.start("go", key="k")
        await until(lambda: yard.checked)
        await clock.advance(60)
    async with Runtime(store, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("go", key="k")
        await until(lambda: len(yard.checked) == 2)
        await clock.advance(39)
        assert await events(session, CallEnded) == []
        await turned(clock, lambda: len(session.state.ended) == 1)
        assert (await run).output == "Done."
        assert [outcome for _, outcome, _ in await told(session)] == ["timeout"]
    assert yard.cancelled == ["op-Vasa"]


def test_what_belongs_to_a_tool_is_given_before_it_is_used() -> None:
    build = Yard().tool()
    assert build.spec.effect == "resumable"
    with pytest.raises(UsageError, match="right behind it"):
        build.check(lambda *_: None)


# Preparing first


def preparing(
    updates: list[Any], ran: list[Any], closed: list[bool] | None = None, begun: list[bool] | None = None
) -> Any:
    @tool(effect="once", ask=True)
    async def buy(item: str, ctx: ToolContext[Any, Any]) -> str:
        """Buy."""
        ran.append(ctx.prepared)
        return "bought"

    @buy.listen
    async def quote(item: str) -> Any:
        if begun is not None:
            begun.append(True)
        try:
            for update in updates:
                if isinstance(update, Exception):
                    raise update
                if update == "hang":
                    await asyncio.Event().wait()
                yield update
        finally:
            if closed is not None:
                closed.append(True)

    return buy


async def test_the_snapshot_is_what_is_approved_and_what_runs(store: str | Store) -> None:
    ran: list[Any] = []
    updates = [Prepared({"price": 5}, "1"), Prepared({"price": 7}, "2", ready=True), Prepared({"price": 9}, "3")]
    agent = clerk([call("buy", item="hat")], "Done.", tools=[preparing(updates, ran)])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        result = await soon(session.run("go"))
        (checked,) = await events(session, CallChecked)
        assert (checked.snapshot, checked.revision) == ({"price": 7}, "2")
        assert ran == [], "nothing lasting happens before the policy"
        await session.decide(result.pending[0].id, "approve")
        assert (await soon(session.resume())).output == "Done."
    assert [(prepared.snapshot, prepared.revision) for prepared in ran] == [({"price": 7}, "2")]


@pytest.mark.parametrize(
    ("updates", "said"),
    [
        ([Prepared({}), ToolError("sold out")], "sold out"),
        ([Prepared({}, "1")], "ended before it was ready"),
        ([ZeroDivisionError("oops")], "ZeroDivisionError"),
        (["nonsense"], "it yielded"),
    ],
)
async def test_what_cannot_be_prepared_is_told_to_the_model(memory: Store, updates: Any, said: str) -> None:
    ran: list[Any] = []
    agent = clerk([call("buy", item="hat")], "Done.", tools=[preparing(updates, ran)])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        assert (await soon(session.run("go"))).output == "Done."
        ((_, outcome, text),) = await told(session)
        assert (outcome, said in text) == ("error", True), text
    assert ran == []


async def test_silence_while_listening_ends_the_call_and_cancel_is_heard(memory: Store) -> None:
    clock, closed = ManualClock(), list[bool]()
    agent = clerk([call("buy", item="hat")], "Done.", tools=[preparing([Prepared({}), "hang"], [], closed)])
    async with Runtime(memory, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent)
        run = await session.start("go")
        await turned(clock, lambda: len(session.state.ended) == 1, 10)
        assert (await run).output == "Done."
        assert "not ready in time" in (await told(session))[0][2]
        assert closed == [True]
    begun: list[bool] = []
    agent = clerk([call("buy", item="hat")], tools=[preparing(["hang"], [], closed, begun)])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        run = await session.start("go")
        await until(lambda: begun)
        await session.cancel()
        assert (await soon(run)).reason == "cancelled"
        await until(lambda: len(closed) == 2)


async def test_what_was_prepared_expires(memory: Store) -> None:
    ran: list[Any] = []
    clock = ManualClock()
    updates = [Prepared({}, "1", ready=True, valid_until=clock.now() + 60)]
    agent = clerk([call("buy", item="hat")], "Done.", tools=[preparing(updates, ran)])
    async with Runtime(memory, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent)
        result = await soon(session.run("go"))
        await clock.advance(61)
        await session.decide(result.pending[0].id, "approve")
        assert (await soon(session.resume())).output == "Done."
        assert "expired" in (await told(session))[0][2]
    assert ran == []


# State


CART = StateKey("cart", list[str], default=[])
STEPS = StateKey("steps", int, scope="run", default=0, reducer=lambda one, other: one + other)


@tool(effect="once")
async def put(item: str, ctx: ToolContext[Any, Any]) -> str:
    """Put something into the cart."""
    ctx.set(CART, [*ctx.get(CART), item])
    ctx.set(STEPS, 1)
    return f"{len(ctx.get(CART))} in the cart"


async def test_state_is_committed_with_the_outcome_and_lasts(store: str | Store) -> None:
    agent = clerk([call("put", item="a")], [call("put", item="b")], "Done.", "Yes.", tools=[put])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        await soon(session.run("go"))
        ended = await events(session, CallEnded)
        assert [event.changes for event in ended] == [
            {"run/steps": 1, "session/cart": ["a"]},
            {"run/steps": 2, "session/cart": ["a", "b"]},
        ]
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        await soon(session.run("again"))
        assert CART.read(session.state) == ["a", "b"]
        assert STEPS.read(session.state) == 0, "of a run that is over nothing is left"


async def test_a_call_that_fails_changes_nothing(memory: Store) -> None:
    @tool(effect="once")
    async def spoil(ctx: ToolContext[Any, Any]) -> str:
        """Spoil the cart."""
        ctx.set(CART, ["spoilt"])
        raise ToolError("no")

    agent = clerk([call("spoil")], "Done.", tools=[spoil])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        await soon(session.run("go"))
        assert CART.read(session.state) == []


async def test_two_calls_of_a_turn_do_not_share_an_exclusive_key(memory: Store) -> None:
    gate = asyncio.Event()

    @tool(effect="once")
    async def slow(ctx: ToolContext[Any, Any]) -> str:
        """Slow."""
        cart = ctx.get(CART)
        await gate.wait()
        ctx.set(CART, [*cart, "slow"])
        ctx.set(STEPS, 1)
        return "ok"

    @tool(effect="once")
    async def fast(ctx: ToolContext[Any, Any]) -> str:
        """Fast."""
        ctx.set(CART, ["fast"])
        ctx.set(STEPS, 1)
        return "ok"

    agent = clerk([call("slow"), call("fast")], "Done.", tools=[slow, fast])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        run = await session.start("go")
        await seen(session, CallEnded)
        gate.set()
        assert (await soon(run)).output == "Done."
        (_, outcome, text), (_, other, _) = await told(session)
        assert (outcome, other) == ("error", "ok")
        assert "slow (call 1)" in text
        assert "fast (call 2)" in text
        assert CART.read(session.state) == ["fast"]


async def test_a_value_of_another_type_is_refused(memory: Store) -> None:
    @tool(effect="once")
    async def wrong(ctx: ToolContext[Any, Any]) -> str:
        """Wrong."""
        ctx.set(CART, 7)  # type: ignore[arg-type]
        return "ok"

    agent = clerk([call("wrong")], "Done.", tools=[wrong])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        await soon(session.run("go"))
        assert [outcome for _, outcome, _ in await told(session)] == ["error"]


# What a tool may want


async def test_a_tool_may_end_the_run_with_its_result(store: str | Store) -> None:
    @tool(effect="once")
    async def finish(total: int, ctx: ToolContext[Any, Any]) -> str:
        """Finish."""
        ctx.end_run({"total": total})
        return "finished"

    agent = clerk([call("finish", total=7), call("put", item="a")], "Never.", tools=[finish, put])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        result = await soon(session.run("go"))
        assert (result.reason, result.output, result.detail) == ("completed", {"total": 7}, "ended by finish")
        assert len(await events(session, CallEnded)) == 2, "the other calls of the turn have ended too"


async def test_a_tool_may_hide_tools_and_change_settings_for_one_turn(memory: Store) -> None:
    @tool(effect="read")
    async def calm(ctx: ToolContext[Any, Any]) -> str:
        """Calm down."""
        ctx.next_turn(hide=["put"], settings=ModelSettings(temperature=0.0))
        return "calm"

    model = ScriptedModel([call("calm"), call("calm"), "Done."])
    agent = Agent(name="clerk", model=model, tools=[calm, put], settings=ModelSettings(temperature=0.7))
    async with Runtime(memory, agents=[agent]) as runtime:
        await soon((await runtime.open(agent)).run("go"))
    assert [[spec.name for spec in request.tools] for request in model.requests] == [
        ["calm", "put"],
        ["calm"],
        ["calm"],
    ]
    assert [request.settings.temperature for request in model.requests] == [0.7, 0.0, 0.0]


async def test_a_tool_may_add_a_hidden_one_for_one_turn(memory: Store) -> None:
    @tool(effect="read", hidden=True)
    async def secret() -> str:
        """Open the safe."""
        return "open"

    @tool(effect="read")
    async def key(ctx: ToolContext[Any, Any]) -> str:
        """Find the key."""
        ctx.next_turn(show=["secret"])
        return "found"

    model = ScriptedModel([call("key"), call("secret"), "Done."])
    agent = Agent(name="clerk", model=model, tools=[key, secret])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        assert (await soon(session.run("go"))).output == "Done."
        assert [text for _, _, text in await told(session)] == ["found", "open"]
    shown = [[spec.name for spec in request.tools] for request in model.requests]
    assert shown == [["key"], ["key", "secret"], ["key"]]


# Failures


async def test_a_tool_is_tried_again_where_its_effect_allows(memory: Store) -> None:
    clock = ManualClock()
    tries: list[int] = []

    @tool(effect="read", retries=2)
    async def flaky(good: int) -> str:
        """Flaky."""
        tries.append(good)
        if len(tries) % 3 or good > 1:
            raise RuntimeError(f"try {len(tries)}")
        return "at last"

    agent = clerk([call("flaky", good=1)], [call("flaky", good=9)], "Done.", tools=[flaky])
    async with Runtime(memory, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent)
        run = await session.start("go")
        await turned(clock, lambda: len(session.state.ended) == 1)
        assert (await run).output == "Done."
        (_, first, text), (_, second, failures) = await told(session)
        assert (first, text) == ("ok", "at last")
        assert second == "error"
        assert all(f"try {number}" in failures for number in (4, 5, 6)), "all failures are listed"
    with pytest.raises(UsageError, match="read or idempotent"):
        tool(flaky.function, effect="once", retries=1)


@tool(effect="read")
async def broken() -> str:
    """Broken."""
    raise ToolError("out of order")


async def test_an_agent_may_stop_at_the_first_failure(memory: Store) -> None:
    agent = clerk([call("broken")], "Never.", tools=[broken], tool_errors=ToolErrors(then="stop"))
    async with Runtime(memory, agents=[agent]) as runtime:
        result = await soon((await runtime.open(agent)).run("go"))
        assert (result.reason, result.detail) == ("failed", "tool: broken: out of order")


@pytest.mark.parametrize(("last", "reason"), [("An answer.", "completed"), ([call("put", item="a")], "failed")])
async def test_after_failures_in_a_row_there_is_one_round_more(memory: Store, last: Any, reason: str) -> None:
    model = ScriptedModel([call("broken"), call("broken"), last])
    agent = Agent(name="clerk", model=model, tools=[broken, put], tool_errors=ToolErrors(in_a_row=2))
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        result = await soon(session.run("go"))
        assert result.reason == reason
        (ended,) = await events(session, RunEnded)
        if reason == "failed":
            assert ended.detail == "broken failed 2 times in a row"
    assert [spec.name for spec in model.requests[2].tools] == ["put"], "without the tool that fails"


# Long results


async def test_a_long_result_is_spilled_and_can_be_read_by_range(store: str | Store) -> None:
    text = "".join(f"line {number}\n" for number in range(20_000))

    @tool(effect="read")
    async def dump() -> str:
        """Dump."""
        return text

    def script(request: Any) -> Any:
        answers = sum(type(message).__name__ == "AssistantMessage" for message in request.messages)
        if answers == 0:
            return call("dump")
        if answers == 1:
            shown = request.messages[-1].results[0].parts[0].text
            name = shown.split("output='")[1].split("'")[0]
            return [call("read_output", output=name, start=100_000, length=50), call("read_output", output="nonsense")]
        return "Done."

    model = ScriptedModel(script)
    agent = Agent(name="clerk", model=model, tools=[dump], policy=Policy())
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        assert (await soon(session.run("go"))).output == "Done."
        long, part, missing = await told(session)
        assert len(long[2]) < 10_000
        assert long[2].startswith("line 0\n")
        assert long[2].endswith("line 19999\n")
        assert part[2] == f"[characters 100,000 to 100,050 of {len(text):,}]\n{text[100_000:100_050]}"
        assert missing[1] == "error"
    assert [[spec.name for spec in request.tools] for request in model.requests] == [
        ["dump"],
        ["dump", "read_output"],
        ["dump", "read_output"],
    ]
