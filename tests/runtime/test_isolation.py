"""Isolation: whatever user code does becomes an event; the run ends or goes on, and its neighbours live."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any

import pytest

from perdure import Agent, Limits, Runtime, ToolContext, tool
from perdure.core.fold import fold
from perdure.core.messages import Text, Thinking, ToolCall, Usage
from perdure.events import CallStarted, ModelFailed, ModelResponded, RunEnded
from perdure.ports import ModelRequest, ModelResponse, Store
from perdure.testing import ScriptedModel, call
from tests.runtime.scenes import events, soon, told


class Odd:
    """A model that somebody wrote in a hurry."""

    name = "odd"

    def __init__(self, items: Any, cost: Any = None) -> None:
        self.items = items
        self.price = cost

    async def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        for item in self.items:
            if isinstance(item, BaseException):
                raise item
            yield item

    def cost(self, usage: Usage) -> float | None:
        return self.price(usage) if self.price else None


class NotAModel:
    name = "not a model"

    def stream(self, request: ModelRequest) -> Any:
        return None

    def cost(self, usage: Usage) -> float | None:
        return None


class BrokenWords(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this works")


def divide(_: Usage) -> float:
    return 1 / 0


@pytest.mark.parametrize(
    ("model", "detail"),
    [
        (Odd([ValueError("a bug")]), "internal: ValueError: a bug"),
        (Odd([BrokenWords()]), "internal: BrokenWords"),
        (Odd([SystemExit(3)]), "internal: SystemExit: 3"),
        (NotAModel(), "internal: TypeError"),
        (Odd([GeneratorExit()]), "internal: GeneratorExit"),
        (Odd([KeyboardInterrupt()]), "internal: KeyboardInterrupt"),
        (Odd([ModelResponse(("just text",))]), "internal: UsageError: ModelResponded cannot hold"),  # type: ignore[arg-type]
        (Odd([ModelResponse((Text(7),))]), "internal: "),  # type: ignore[arg-type]
        (Odd([ModelResponse((ToolCall(0, "act", {"a": 1}),))]), "internal: UsageError: ModelResponded cannot hold"),  # type: ignore[arg-type]
        (Odd([ModelResponse((Text("x"),), stop="tool_use")]), "internal: UsageError: ModelResponded cannot hold"),  # type: ignore[arg-type]
        (Odd([ModelResponse((Text("x"),), usage=Usage(1.5, 2))]), "internal: UsageError: ModelResponded cannot hold"),  # type: ignore[arg-type]
        (Odd([ModelResponse((Thinking("x", extras=object()),))]), "internal: UsageError"),
        (Odd([ModelResponse(None)]), "internal: TypeError"),  # type: ignore[arg-type]
        (Odd([ModelResponse((Text("x"),), usage="many")]), "internal: "),  # type: ignore[arg-type]
    ],
)
async def test_a_model_that_fails_ends_its_run(store: str | Store, model: Any, detail: str) -> None:
    agent = Agent(name="clerk", model=model)
    neighbour = Agent(name="neighbour", model=ScriptedModel(["Fine.", "Still fine."]))
    async with Runtime(store, agents=[agent, neighbour]) as runtime:
        session, other = await runtime.open(agent, id="x"), await runtime.open(neighbour, id="y")
        result, _ = await soon(asyncio.gather(session.run("go"), other.run("go")))
        assert result.reason == "failed"
        assert result.detail.startswith(detail)
        assert len(await events(session, RunEnded)) == 1
        assert await events(session, ModelResponded) == [], "nothing of it is in the log"
        assert (await soon(other.run("go"))).output == "Still fine."
        # The session itself is sound: another model takes it from here.
        assert (
            await soon(session.run("again", model=ScriptedModel(lambda _: "Fine.", name="sound")))
        ).output == "Fine."


async def test_a_price_that_fails_is_an_unknown_price(memory: Store) -> None:
    agent = Agent(name="clerk", model=Odd([ModelResponse((Text("x"),))], cost=divide))
    async with Runtime(memory, agents=[agent]) as runtime:
        result = await soon((await runtime.open(agent)).run("go"))
        assert (result.output, result.cost_usd) == ("x", None)


@pytest.mark.parametrize(
    ("price", "cost"), [(Decimal("0.25"), 0.25), (1, 1.0), (math.nan, None), (math.inf, None), (-1.0, None)]
)
async def test_a_price_is_a_number_or_unknown(memory: Store, price: Any, cost: float | None) -> None:
    model = Odd([ModelResponse((Text("x"),), usage=Usage(10, 5))], cost=lambda usage: price)
    agent = Agent(name="clerk", model=model, limits=Limits(cost_usd=2))
    async with Runtime(memory, agents=[agent]) as runtime:
        result = await soon((await runtime.open(agent)).run("go"))
        assert (result.output, result.cost_usd) == ("x", cost)


async def test_prices_that_fail_before_a_call_end_the_run(memory: Store) -> None:
    agent = Agent(name="clerk", model=Odd([], cost=divide), limits=Limits(cost_usd=1))
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        result = await soon(session.run("go"))
        assert (result.reason, result.detail) == ("failed", "internal: ZeroDivisionError: division by zero")
        assert [failed.kind for failed in await events(session, ModelFailed)] == ["internal"]


@pytest.mark.parametrize("instructions", [lambda ctx: 1 / 0, lambda ctx: None, lambda: "no argument"])
async def test_instructions_that_fail_end_the_run(memory: Store, instructions: Any) -> None:
    agent = Agent(name="clerk", model=ScriptedModel(["Never."]), instructions=instructions)
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        result = await soon(session.run("go"))
        assert result.reason == "failed"
        assert result.detail.startswith("internal: ")


@pytest.mark.parametrize("key", [lambda what: 1 / 0, lambda what: 7, lambda: "x"])
async def test_a_business_key_that_fails_fails_its_call_before_it_starts(memory: Store, key: Any) -> None:
    started: list[str] = []

    @tool(effect="idempotent", key=key)
    async def act(what: str) -> str:
        started.append(what)
        return "done"

    agent = Agent(name="clerk", model=ScriptedModel([[call("act", what="it")], "I see."]), tools=[act])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        assert (await soon(session.run("go"))).output == "I see."
        ((_, outcome, text),) = await told(session)
        assert outcome == "error"
        assert "was not started" in text
        assert started == []
        assert await events(session, CallStarted) == []


async def test_a_tool_whose_error_has_no_words(memory: Store) -> None:
    @tool
    async def act() -> str:
        raise BrokenWords

    agent = Agent(name="clerk", model=ScriptedModel([[call("act")], "I see."]), tools=[act])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        assert (await soon(session.run("go"))).output == "I see."
        assert (await told(session))[0][1:] == ("error", "act failed: BrokenWords. It may have taken effect.")


async def test_deps_that_fail_are_the_tools_failure(memory: Store) -> None:
    class Bank:
        def pay(self) -> str:
            raise ConnectionError("the bank is closed")

    @tool(effect="read")
    async def act(ctx: ToolContext[Bank, Any]) -> str:
        return ctx.deps.pay()

    agent = Agent(name="clerk", model=ScriptedModel([[call("act")], "I see."]), tools=[act])
    async with Runtime(memory, agents=[agent], deps=Bank()) as runtime:
        session = await runtime.open(agent)
        assert (await soon(session.run("go"))).output == "I see."
        assert await told(session) == [("act", "error", "act failed: ConnectionError: the bank is closed.")]


@pytest.mark.parametrize("text", ["a \ud800 b", "nul \x00 byte", "line \u2028 end", "🦊"])
async def test_strange_text_lives_on_the_same_everywhere(store: str | Store, text: str) -> None:
    @tool(effect="read")
    async def echo(what: str) -> str:
        return text

    @tool(effect="read")
    async def fail() -> str:
        raise ValueError(text)

    model = ScriptedModel([Odd_reply(text), text])
    agent = Agent(name="clerk", model=model, tools=[echo, fail])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        result = await soon(session.run(["see", text], key=text))
        assert result.reason == "completed"
        result.output.encode()
        live = session.state
        assert fold([record.event for record in await session.records()]) == live
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        assert session.state == live
        again = await soon(session.run(["see", text], key=text))
        assert again.run == 1


def Odd_reply(text: str) -> list[Any]:  # noqa: N802 - reads like the class it stands for
    return [text, call("echo", what="it"), ToolCall(0, "echo", f'{{"what": "{text}"}}'), ToolCall(0, "fail", "{}")]


async def test_a_neighbour_in_trouble_does_not_disturb(store: str | Store) -> None:
    @tool
    def crash() -> str:
        raise SystemExit(1)

    @tool
    async def fail() -> str:
        raise RuntimeError("boom")

    bad = Agent(name="bad", model=ScriptedModel(lambda _: [call("crash"), call("fail")]), tools=[crash, fail])
    good = Agent(name="good", model=ScriptedModel(lambda _: "Fine."))
    async with Runtime(store, agents=[bad, good]) as runtime:
        troubled = [await (await runtime.open(bad)).start("go", limits=Limits(turns=3)) for _ in range(3)]
        for _ in range(20):
            assert (await soon((await runtime.open(good)).run("go"))).output == "Fine."
        assert {(await run).reason for run in troubled} == {"limit"}
