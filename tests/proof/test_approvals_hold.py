"""An approval is for what was shown, whoever carries the call out and whatever happens meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import Agent, Policy, Runtime, ToolContext, UsageError, tool
from perdure.events import CallEnded, CallSuspended
from perdure.runtime.wishes import Prepared
from perdure.stores.memory import MemoryStore
from perdure.testing import ManualClock, ScriptedModel, call


def clerk(made: Any, name: str, ask: tuple[str, ...] = (), deny: tuple[str, ...] = ()) -> Agent[str]:
    model = ScriptedModel([[call(name, n=5)], "Done."])
    return Agent(name="clerk", model=model, tools=[made], policy=Policy(ask=list(ask), deny=list(deny)))


async def asked_then(store: MemoryStore, agent: Agent[str], decision: Any, **more: Any) -> None:
    async with Runtime(store, agents=[agent], grace=0) as runtime:
        (pending,) = (await (await runtime.open(agent, id="x")).run("go", key="k")).pending
    async with Runtime(store, engine=None) as runtime:
        await (await runtime.session("x")).decide(pending.id, decision, **more)


@pytest.mark.parametrize("what", ["description", "effect", "policy"])
async def test_an_edit_is_bound_to_what_was_shown(what: str) -> None:
    ran: list[int] = []

    def pay(description: str = "Pay.", effect: Any = "once") -> Any:
        @tool(name="pay", description=description, effect=effect)
        async def pay(n: int) -> str:
            ran.append(n)
            return "paid"

        return pay

    store = MemoryStore()
    await asked_then(store, clerk(pay(), "pay", ("pay",)), "edit", arguments={"n": 4})
    changed = {
        "description": lambda: clerk(pay("Pay all."), "pay", ("pay",)),
        "effect": lambda: clerk(pay(effect="idempotent"), "pay", ("pay",)),
        "policy": lambda: clerk(pay(), "pay", ("pay", "other")),
    }[what]()
    async with Runtime(store, agents=[changed]) as runtime:
        result = await (await runtime.open(changed, id="x")).run("go", key="k")
        assert (result.reason, ran) == ("waiting", [])


@pytest.mark.parametrize("what", ["description", "policy", "deny"])
async def test_approved_calls_of_others_are_bound(what: str) -> None:
    def ship(description: str = "Ship.") -> Any:
        @tool(name="ship", kind="external", description=description)
        def ship(n: int) -> str:
            raise AssertionError

        return ship

    store = MemoryStore()
    await asked_then(store, clerk(ship(), "ship", ("ship",)), "approve")
    changed = {
        "description": lambda: clerk(ship("Ship all."), "ship", ("ship",)),
        "policy": lambda: clerk(ship(), "ship", ("ship", "other")),
        "deny": lambda: clerk(ship(), "ship", deny=("ship",)),
    }[what]()
    async with Runtime(store, agents=[changed]) as runtime:
        session = await runtime.open(changed, id="x")
        result = await session.run("go", key="k")
        assert [item.kind for item in result.pending] == ([] if what == "deny" else ["approval"])


async def test_an_edit_of_a_prepared_call_asks_about_the_new_snapshot() -> None:
    ran, price = list[Any](), [5]

    @tool(ask=True)
    async def buy(n: int, ctx: ToolContext[Any, Any]) -> str:
        ran.append(ctx.prepared)
        return "bought"

    @buy.listen
    async def quote(n: int) -> Any:
        yield Prepared({"price": price[0]}, str(price[0]), ready=True)

    agent = clerk(buy, "buy")
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.open(agent)
        (pending,) = (await session.run("go")).pending
        price[0] = 99_999
        await session.decide(pending.id, "edit", arguments={"n": 6})
        assert (await session.resume()).reason == "waiting", ran


@pytest.mark.parametrize("on_expiry", ["approve", ("answer", "no int")])
async def test_the_default_of_an_expiry_is_checked(on_expiry: Any) -> None:
    """approve: external is suspended again and again, for ever; answer: goes past the response schema."""
    clock = ManualClock()
    with pytest.raises(UsageError):

        @tool(kind="external", expires=60, on_expiry=on_expiry)
        def ship(n: int) -> int:
            raise AssertionError

        agent = clerk(ship, "ship")
        async with Runtime(agents=[agent], clock=clock) as runtime:
            session = await runtime.open(agent)
            await session.run("go")
            for _ in range(700):
                await clock.advance(1)
            pauses = [r for r in await session.records() if isinstance(r.event, CallSuspended)]
            ends = [r.event.outcome for r in await session.records() if isinstance(r.event, CallEnded)]
            print(len(pauses), "pauses", ends)


def operation(description: str, log: list[str], ask: bool) -> Any:
    @tool(name="build", description=description, ask=ask)
    async def build(n: int) -> str:
        log.append("start")
        return "op"

    @build.check
    async def follow(operation: str, ctx: ToolContext[Any, Any]) -> str:
        log.append("check")
        await asyncio.Event().wait()
        return "built"

    @build.cancel
    async def scrap(operation: str, ctx: ToolContext[Any, Any]) -> None:
        log.append("cancel")

    return build


async def test_an_operation_under_way_is_not_asked_about_again() -> None:
    store, log = MemoryStore(), list[str]()
    first = clerk(operation("Build.", log, True), "build")
    async with Runtime(store, agents=[first], grace=0) as runtime:
        session = await runtime.open(first, id="x")
        (pending,) = (await session.run("go", key="k")).pending
        await session.decide(pending.id, "approve")
        while "check" not in log:
            await asyncio.sleep(0.001)
    second = clerk(operation("Build!", log, True), "build")
    async with Runtime(store, agents=[second], grace=0) as runtime:
        session = await runtime.open(second, id="x")
        run = await session.start("go", key="k")
        for _ in range(500):
            await asyncio.sleep(0.001)
            if log.count("check") == 2:
                return
        for pending in await session.pending():
            await session.decide(pending.id, "deny")
        await run
        (end,) = [r.event for r in await session.records() if isinstance(r.event, CallEnded)]
        assert "cancel" in log or end.in_doubt, (log, end)


async def test_a_cancel_while_nobody_follows_reaches_the_operation() -> None:
    store, log = MemoryStore(), list[str]()
    agent = clerk(operation("Build.", log, False), "build")
    async with Runtime(store, agents=[agent], grace=0) as runtime:
        await (await runtime.open(agent, id="x")).start("go", key="k")
        while "check" not in log:
            await asyncio.sleep(0.001)
    async with Runtime(store, engine=None) as runtime:
        await (await runtime.session("x")).cancel()
    async with Runtime(store, agents=[agent]) as runtime:
        assert (await (await runtime.open(agent, id="x")).run("go", key="k")).reason == "cancelled"
    assert "cancel" in log


async def test_denying_a_repetition_does_not_say_that_the_call_failed() -> None:
    ran, store = list[str](), MemoryStore()

    def pay(description: str) -> Any:
        @tool(name="pay", description=description, ask=True)
        async def pay(n: int) -> str:
            ran.append(description)
            await asyncio.Event().wait()
            return "paid"

        return pay

    first = clerk(pay("Pay."), "pay")
    async with Runtime(store, agents=[first], grace=0) as runtime:
        session = await runtime.open(first, id="x")
        (pending,) = (await session.run("go", key="k")).pending
        await session.decide(pending.id, "approve")
        while not ran:
            await asyncio.sleep(0.001)
    await asked_then(store, first, "retry")
    second = clerk(pay("Pay more."), "pay")
    async with Runtime(store, agents=[second], grace=0) as runtime:
        session = await runtime.open(second, id="x")
        (pending,) = (await session.run("go", key="k")).pending
        assert pending.kind == "approval"
        await session.decide(pending.id, "deny")
        await session.resume()
        (end,) = [r.event for r in await session.records() if isinstance(r.event, CallEnded)]
        assert (end.outcome, end.in_doubt) == ("unknown", True), "the first attempt took effect"
