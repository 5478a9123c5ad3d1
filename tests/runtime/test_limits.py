"""Limits: reserved before a call, settled after it; at the limit a run ends, or says one last word."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from perdure import Agent, Limits, Refused, Runtime, Session, UsageError, tool
from perdure.core.messages import Usage
from perdure.core.specs import ModelSettings
from perdure.events import CallStarted, InputAccepted, ModelCalled, ModelResponded, Noted, RunEnded, RunStarted
from perdure.ports import ModelRequest, Store
from perdure.testing import ManualClock, Reply, ScriptedModel, call
from tests.runtime.scenes import crashing, events, kinds, said, seen, soon, told, turned

ledger: list[str] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    ledger.clear()


@tool(effect="read")
async def look(what: str = "it") -> str:
    ledger.append(what)
    return "fine"


def busy(limits: Limits, **options: Any) -> Agent[str]:
    """An agent that would go on for ever."""
    options = {"model": ScriptedModel(lambda r: [call("look", what=str(len(r.messages)))]), "tools": [look], **options}
    return Agent(name="busy", limits=limits, **options)


async def test_turns(store: str | Store) -> None:
    agent = busy(Limits(turns=3))
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        result = await soon(session.run("go"))
        assert (result.reason, result.detail, result.turns) == ("limit", "turns", 3)
        assert len(await events(session, ModelCalled)) == 3
        assert len(ledger) == 3, "the last turn's calls still have results"


async def test_turns_are_limited_to_fifty_unless_somebody_says_otherwise(memory: Store) -> None:
    assert Limits().turns == 50
    agent = busy(Limits())
    async with Runtime(memory, agents=[agent]) as runtime:
        result = await soon((await runtime.open(agent)).run("go"))
        assert (result.reason, result.detail, result.turns) == ("limit", "turns", 50)


async def test_no_turns_at_all(memory: Store) -> None:
    agent = busy(Limits(turns=0))
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        result = await soon(session.run("go"))
        assert (result.reason, result.detail, result.turns) == ("limit", "turns", 0)
        assert await events(session, ModelCalled) == []


async def test_calls(store: str | Store) -> None:
    model = ScriptedModel(lambda _: [call("look", what="a"), call("look", what="b")])
    agent = busy(Limits(calls=3), model=model)
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        result = await soon(session.run("go"))
        assert (result.reason, result.detail) == ("limit", "calls")
        assert ledger == ["a", "b", "a"]
        assert [outcome for _, outcome, _ in await told(session)] == ["ok", "ok", "ok", "cancelled"]
        assert len(await events(session, CallStarted)) == 3


async def test_as_many_calls_as_are_allowed_are_no_end(memory: Store) -> None:
    agent = busy(Limits(calls=2), model=ScriptedModel([[call("look"), call("look")], "Done."]))
    async with Runtime(memory, agents=[agent]) as runtime:
        assert (await soon((await runtime.open(agent)).run("go"))).output == "Done."


async def test_tokens(store: str | Store) -> None:
    agent = busy(Limits(tokens=100), model=ScriptedModel(lambda _: [call("look")], usage=Usage(20, 10)))
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        result = await soon(session.run("go"))
        assert (result.reason, result.detail) == ("limit", "tokens")
        assert result.usage.total <= 100
        spent = 0
        for event in [record.event for record in await session.records()]:
            if isinstance(event, ModelCalled):
                assert event.reserved.tokens > 0
                assert spent + event.reserved.tokens <= 100, "what is reserved fits into what is left"
            if isinstance(event, ModelResponded):
                spent += event.usage.total
        assert spent == result.usage.total
    sizes = [request.settings.max_tokens for request in agent.model.requests]  # type: ignore[union-attr]
    assert sizes == sorted(sizes, reverse=True), "answers get shorter as room gets less"


async def test_a_model_is_told_how_long_its_answer_may_be(memory: Store) -> None:
    model = ScriptedModel(["Done."])
    agent = busy(Limits(tokens=100), model=model)
    async with Runtime(memory, agents=[agent]) as runtime:
        await soon((await runtime.open(agent)).run("a" * 80))
    size = model.requests[0].settings.max_tokens
    assert size is not None
    assert size <= 100 - 20


async def test_a_prompt_beyond_the_limit_is_not_sent(memory: Store) -> None:
    model = ScriptedModel(["Never."])
    agent = busy(Limits(tokens=50), model=model)
    async with Runtime(memory, agents=[agent]) as runtime:
        result = await soon((await runtime.open(agent)).run("a" * 400))
        assert (result.reason, result.detail, result.turns) == ("limit", "tokens", 0)
    assert model.requests == []


def price(usage: Usage) -> float:
    return usage.input * 1e-4 + usage.output * 5e-4


@pytest.mark.parametrize("seed", range(12))
async def test_money_is_never_overspent_by_more_than_one_calls_excess(memory: Store, seed: int) -> None:
    chance = random.Random(seed)
    cap = chance.uniform(0.01, 0.3)
    prompt = 0

    def answer(request: ModelRequest) -> Reply:
        nonlocal prompt
        prompt += chance.randrange(5, 60)
        longest = request.settings.max_tokens or 0
        return Reply(call("look", what=str(prompt)), usage=Usage(prompt, chance.randint(1, max(1, longest))))

    model = ScriptedModel(answer, cost=price)
    agent = busy(Limits(turns=None, cost_usd=cap), model=model)
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        result = await soon(session.run("go"))
        assert (result.reason, result.detail) == ("limit", "cost_usd")
        spent, reserved, excess = 0.0, 0.0, 0.0
        for event in [record.event for record in await session.records()]:
            if isinstance(event, ModelCalled):
                assert spent < cap
                assert event.reserved.cost_usd > 0
                assert spent + event.reserved.cost_usd <= cap + 1e-9, "reserved before"
                reserved = event.reserved.cost_usd
            if isinstance(event, ModelResponded):
                assert event.cost_usd == pytest.approx(price(event.usage)), "settled after"
                spent += event.cost_usd or 0.0
                excess = max(0.0, (event.cost_usd or 0.0) - reserved)
        assert result.cost_usd == pytest.approx(spent)
        assert spent <= cap + excess + 1e-9


async def test_what_money_cannot_pay_is_not_asked(memory: Store) -> None:
    model = ScriptedModel(lambda _: [call("look")], usage=Usage(100, 10), cost=lambda usage: usage.total * 0.01)
    agent = busy(Limits(cost_usd=1.5), model=model)
    async with Runtime(memory, agents=[agent]) as runtime:
        result = await soon((await runtime.open(agent)).run("go"))
        assert (result.reason, result.detail, result.turns) == ("limit", "cost_usd", 1)
        assert result.cost_usd == pytest.approx(1.1), "0.40 would not even pay for reading 110 tokens again"
    assert len(model.requests) == 1


@pytest.mark.parametrize(
    ("thinking", "tokens"), [(None, 4096), ("off", 4096), ("low", 5120), ("high", 28_672), (10_000, 14_096)]
)
async def test_what_a_model_thinks_has_room_beside_what_it_says(memory: Store, thinking: Any, tokens: int) -> None:
    model = ScriptedModel(["Done."])
    settings = ModelSettings(thinking=thinking)
    agent = Agent(name="clerk", model=model, settings=settings, limits=Limits(tokens=100_000))
    async with Runtime(memory, agents=[agent]) as runtime:
        await soon((await runtime.open(agent)).run("go"))
    assert model.requests[0].settings.max_tokens == tokens


async def test_a_model_without_a_price_is_not_limited_by_money(memory: Store) -> None:
    agent = busy(Limits(cost_usd=0.01), model=ScriptedModel(["Done."], cost=lambda _: None))
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        result = await soon(session.run("go"))
        assert (result.output, result.cost_usd) == ("Done.", None)
        (note,) = await events(session, Noted)
        assert (note.kind, note.data) == ("price_unknown", {"model": "scripted", "limit": 0.01}), "and the log says so"


async def test_what_a_dead_process_had_reserved_counts_as_spent(store: str | Store) -> None:
    async def hang(_: object) -> str:
        await asyncio.Event().wait()
        return "never"

    stuck = busy(Limits(cost_usd=5.0), model=ScriptedModel(hang, cost=price))
    async with crashing(store, agents=[stuck]) as runtime:
        session = await runtime.open(stuck, id="x")
        await session.start("go", key="k")
        called = await seen(session, ModelCalled)
    assert called.reserved.cost_usd > 0
    agent = busy(Limits(cost_usd=5.0), model=ScriptedModel(["Done."], cost=price))
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        result = await soon(session.run("go", key="k"))
        assert result.output == "Done."
        assert result.cost_usd == pytest.approx(called.reserved.cost_usd + price(Usage(10, 5)))


# Seconds


async def test_seconds_end_a_tool_that_takes_too_long(store: str | Store) -> None:
    clock = ManualClock()

    @tool(effect="read")
    async def slow() -> str:
        await asyncio.Event().wait()
        return "never"

    agent = busy(Limits(seconds=10), model=ScriptedModel([[call("slow")]]), tools=[slow])
    async with Runtime(store, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("go")
        await seen(session, CallStarted)
        await clock.advance(9)
        assert session.state.run is not None
        await turned(clock, lambda: session.state.run is None)
        result = await soon(_result(run))
        assert (result.reason, result.detail) == ("limit", "seconds")
        assert [outcome for _, outcome, _ in await told(session)] == ["cancelled"]


async def _result(run: Any) -> Any:
    return await run


async def test_seconds_end_a_model_that_takes_too_long(store: str | Store) -> None:
    clock = ManualClock()

    async def hang(_: object) -> str:
        await asyncio.Event().wait()
        return "never"

    agent = busy(Limits(seconds=10), model=ScriptedModel(hang))
    async with Runtime(store, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("go")
        await seen(session, ModelCalled)
        await turned(clock, lambda: session.state.run is None)
        result = await soon(_result(run))
        assert (result.reason, result.detail) == ("limit", "seconds")


async def test_seconds_add_up_over_turns(memory: Store) -> None:
    clock = ManualClock()

    @tool(effect="read")
    async def step() -> str:
        clock.skip(4)
        return "done"

    agent = busy(Limits(seconds=10), model=ScriptedModel(lambda _: [call("step")]), tools=[step])
    async with Runtime(memory, agents=[agent], clock=clock) as runtime:
        result = await soon((await runtime.open(agent)).run("go"))
        assert (result.reason, result.detail, result.turns) == ("limit", "seconds", 3)


async def test_waiting_does_not_count(store: str | Store) -> None:
    clock = ManualClock()

    @tool(ask=True)
    async def act() -> str:
        return "done"

    agent = busy(Limits(seconds=10), model=ScriptedModel([[call("act")], "Done."]), tools=[act])
    async with Runtime(store, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent, id="x")
        (pending,) = (await soon(session.run("go"))).pending
        clock.skip(1000)
        await session.decide(pending.id, "approve")
        assert (await soon(session.resume())).output == "Done."


async def test_time_in_a_dead_process_does_not_count(store: str | Store) -> None:
    clock = ManualClock()
    started: list[int] = []

    @tool(effect="read")
    async def slow() -> str:
        started.append(1)
        if len(started) == 1:
            await asyncio.Event().wait()
        return "done"

    agent = busy(Limits(seconds=10), model=ScriptedModel([[call("slow")], "Done."]), tools=[slow])
    async with crashing(store, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent, id="x")
        await session.start("go", key="k")
        await seen(session, CallStarted)
    clock.skip(1000)
    async with Runtime(store, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent, id="x")
        assert (await soon(session.run("go", key="k"))).output == "Done."


# The last word


@pytest.mark.parametrize(
    ("limits", "limit"),
    [
        (Limits(turns=2, at_limit="answer"), "turns"),
        (Limits(calls=1, at_limit="answer"), "calls"),
        (Limits(tokens=200, at_limit="answer"), "tokens"),
        (Limits(cost_usd=0.01, at_limit="answer"), "cost_usd"),
    ],
)
async def test_at_the_limit_one_answer_without_tools(memory: Store, limits: Limits, limit: str) -> None:
    def answer(request: ModelRequest) -> Any:
        return [call("look", what=str(len(request.messages)))] if request.tools else "That is all I have."

    model = ScriptedModel(answer, cost=price)
    agent = busy(limits, model=model)
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        result = await soon(session.run("go"))
        assert (result.reason, result.output) == ("completed", "That is all I have.")
        assert result.detail == f"answered at the limit: {limit}"
        assert [request.tools == () for request in model.requests].count(True) == 1
        called = await events(session, ModelCalled)
        assert [event.final for event in called] == [False] * (len(called) - 1) + [True]
        assert len(ledger) == 1 or limit != "calls"
        if limit in ("tokens", "cost_usd"):
            assert model.requests[-1].settings.max_tokens == 1024, "the last word is owed, but it is kept short"


async def test_the_last_word_is_not_broken_off_by_the_clock(memory: Store) -> None:
    clock = ManualClock()

    @tool(effect="read")
    async def slow() -> str:
        await asyncio.Event().wait()
        return "never"

    model = ScriptedModel([[call("slow")], Reply("Enough.", delay=30)], clock=clock)
    agent = busy(Limits(seconds=10, at_limit="answer"), model=model, tools=[slow])
    async with Runtime(memory, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent)
        run = await session.start("go")
        await seen(session, CallStarted)
        await turned(clock, lambda: session.state.run is None)
        result = await soon(_result(run))
        assert (result.output, result.detail) == ("Enough.", "answered at the limit: seconds")


async def test_a_last_word_that_asks_for_tools_gets_none(memory: Store) -> None:
    agent = busy(Limits(turns=1, at_limit="answer"))
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        result = await soon(session.run("go"))
        assert (result.reason, result.detail, result.turns) == ("limit", "turns", 2)
        assert [outcome for _, outcome, _ in await told(session)] == ["ok", "cancelled"]
        assert len(ledger) == 1


# Going on


async def test_resume_starts_a_new_run_that_continues(store: str | Store) -> None:
    model = ScriptedModel([[call("look", what="a")], [call("look", what="b")], "Done."])
    agent = busy(Limits(turns=1), model=model)
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        assert (await soon(session.run("go"))).reason == "limit"
        again = await soon(session.resume())
        assert (again.run, again.reason) == (2, "limit"), "the agent's limits hold for the new run"
        result = await soon(session.resume(limits=Limits(turns=10)))
        assert (result.run, result.output, result.turns) == (3, "Done.", 1)
        assert [started.continues for started in await events(session, RunStarted)] == [None, 1, 2]
        assert await said(session) == ["go"], "no new input was said"
        assert ledger == ["a", "b"]
        assert [ended.reason for ended in await events(session, RunEnded)] == ["limit", "limit", "completed"]


async def test_resume_of_nothing_is_refused(store: str | Store) -> None:
    agent = busy(Limits(), model=ScriptedModel(["Done."]))
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        with pytest.raises(Refused, match="no run yet"):
            await session.resume()
        await session.run("go")
        before = await kinds(session)
        with pytest.raises(Refused, match="last run is completed"):
            await session.resume()
        assert await kinds(session) == before


async def test_resume_of_a_run_that_waits_waits_with_it(memory: Store) -> None:
    @tool(ask=True)
    async def act() -> str:
        return "done"

    agent = busy(Limits(), model=ScriptedModel([[call("act")], "Done."]), tools=[act])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        first = await soon(session.run("go"))
        again = await soon(session.resume())
        assert (again.reason, again.pending) == ("waiting", first.pending)
        assert len(await events(session, InputAccepted)) == 1


@pytest.mark.parametrize(
    "wrong",
    [{"turns": -1}, {"cost_usd": "2"}, {"calls": True}, {"seconds": float("nan")}, {"at_limit": "explode"}],
)
def test_limits_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"Limits\("):
        Limits(**wrong)


async def test_each_run_has_its_own_allowance(memory: Store) -> None:
    agent = busy(
        Limits(turns=2), model=ScriptedModel(lambda r: "Done." if len(r.messages) % 4 == 3 else [call("look")])
    )
    async with Runtime(memory, agents=[agent]) as runtime:
        session: Session[str] = await runtime.open(agent)
        for _ in range(3):
            assert (await soon(session.run("go"))).output == "Done."
