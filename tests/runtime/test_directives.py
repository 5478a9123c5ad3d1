"""Directives of tools: committed with the call's outcome, in one append, or not at all; and overrides of a turn."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from perdure import Agent, Limits, ModelSettings, Policy, Runtime, ToolContext, ToolError, tool
from perdure.core.actions import CallModel
from perdure.core.specs import NextTurn
from perdure.events import CallEnded, InputAccepted, Noted, RunStarted, StopRequested
from perdure.ports import Store
from perdure.testing import ManualClock, ScriptedModel, call
from tests.runtime.scenes import events, said, soon, told, turned


@tool(effect="once")
async def wish(ctx: ToolContext[Any, Any], fail: bool = False) -> str:
    """Wish for everything."""
    ctx.note("wished", {"by": ctx.call})
    ctx.schedule("Look again.", after=60)
    if fail:
        raise ToolError("no")
    return "wished"


async def test_notes_and_schedules_are_committed_with_the_outcome(store: str | Store) -> None:
    agent = Agent(name="clerk", model=ScriptedModel([[call("wish")], "Done."]), tools=[wish])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        await soon(session.run("go"))
        records = await session.records()
        at = next(n for n, record in enumerate(records) if isinstance(record.event, CallEnded))
        ended, noted, scheduled = records[at : at + 3]
        assert noted.event == Noted("wished", {"by": 1})
        assert isinstance(scheduled.event, InputAccepted)
        assert scheduled.event.by == "wish (call 1)"
        assert ended.at == noted.at == scheduled.at


async def test_a_tool_that_fails_has_wished_for_nothing(memory: Store) -> None:
    agent = Agent(name="clerk", model=ScriptedModel([[call("wish", fail=True)], "Done."]), tools=[wish])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        await soon(session.run("go"))
        assert await events(session, Noted) == []
        assert len(await events(session, InputAccepted)) == 1


async def test_a_scheduled_input_gets_its_run_when_its_time_comes(memory: Store) -> None:
    clock = ManualClock()
    agent = Agent(name="clerk", model=ScriptedModel([[call("wish")], "Done.", "Looked."]), tools=[wish])
    async with Runtime(memory, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent)
        run = await session.start("go")
        await turned(clock, lambda: len(session.state.ended) == 1, step=0.1)
        assert (await run).output == "Done."
        started = clock.now()
        await turned(clock, lambda: len(session.state.ended) == 2, step=5)
        assert clock.now() - started > 30
        assert await said(session) == ["go", "Look again."]
        assert len(await events(session, RunStarted)) == 2


async def test_a_scheduled_input_outlives_the_process(store: str | Store) -> None:
    @tool(effect="once")
    async def plan(ctx: ToolContext[Any, Any]) -> str:
        """Plan."""
        ctx.schedule("Look again.", after=3600)
        return "planned"

    model = ScriptedModel([[call("plan")], "Done.", "Looked."])
    agent = Agent(name="clerk", model=model, tools=[plan])
    clock = ManualClock()
    async with Runtime(store, agents=[agent], clock=clock) as runtime:
        await soon((await runtime.open(agent, id="x")).run("go"))
    later = ManualClock(clock.now() + 7200)
    async with Runtime(store, agents=[agent], clock=later) as runtime:
        session = await runtime.session("x")
        await turned(later, lambda: len(session.state.ended) == 2)
        assert await said(session) == ["go", "Look again."]


async def test_a_tool_may_stop_the_run(store: str | Store) -> None:
    @tool(effect="once")
    async def halt(ctx: ToolContext[Any, Any]) -> str:
        """Halt."""
        ctx.stop_run("enough")
        return "halted"

    agent = Agent(name="clerk", model=ScriptedModel([[call("halt"), call("wish")], "Never."]), tools=[halt, wish])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        result = await soon(session.run("go"))
        assert (result.reason, result.detail) == ("stopped", "by halt (call 1): enough")
        assert [outcome for _, outcome, _ in await told(session)] == ["ok", "ok"]
        assert len(await events(session, StopRequested)) == 1


async def test_what_no_log_can_hold_is_the_tools_own_error(memory: Store) -> None:
    @tool(effect="read")
    async def wrong(ctx: ToolContext[Any, Any], how: str) -> str:
        """Wrong."""
        if how == "note":
            ctx.note("x", object())
        else:
            ctx.schedule("x", after=-1)
        return "never"

    agent = Agent(
        name="clerk",
        model=ScriptedModel([[call("wrong", how="note"), call("wrong", how="time")], "Done."]),
        tools=[wrong],
    )
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        await soon(session.run("go"))
        assert [outcome for _, outcome, _ in await told(session)] == ["error", "error"]


# Overrides: agent < run < turn


async def test_settings_of_agent_run_and_turn_also_by_middleware(memory: Store) -> None:
    async def warm(action: Any, perform: Any) -> Any:
        if isinstance(action, CallModel) and action.turn == 2:
            action = replace(action, settings=ModelSettings(temperature=0.9))
        return await perform(action)

    model = ScriptedModel([[call("wish")], "Done."])
    agent = Agent(
        name="clerk",
        model=model,
        tools=[wish],
        settings=ModelSettings(temperature=0.1, top_p=0.5),
        middleware=[warm],
    )
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        await soon(session.run("go", settings=ModelSettings(temperature=0.4), limits=Limits(turns=7)))
        assert (await events(session, RunStarted))[0].limits.turns == 7
    assert [request.settings.temperature for request in model.requests] == [0.4, 0.9]
    assert [request.settings.top_p for request in model.requests] == [0.5, 0.5]


async def test_middleware_may_choose_the_tools_of_a_turn(memory: Store) -> None:
    @tool(effect="read", hidden=True)
    async def secret() -> str:
        """Secret."""
        return "secret"

    async def choose(action: Any, perform: Any) -> Any:
        if isinstance(action, CallModel):
            action = replace(action, next=NextTurn(show=("secret",), hide=("wish",)))
        return await perform(action)

    model = ScriptedModel(["Done."])
    agent = Agent(name="clerk", model=model, tools=[wish, secret], middleware=[choose])
    async with Runtime(memory, agents=[agent]) as runtime:
        await soon((await runtime.open(agent)).run("go"))
    assert [[spec.name for spec in request.tools] for request in model.requests] == [["secret"]]


@pytest.mark.parametrize("rule", ["wish", "w*"])
async def test_a_tool_that_is_denied_in_any_case_is_not_shown(memory: Store, rule: str) -> None:
    @tool(effect="read")
    async def look() -> str:
        """Look."""
        return "seen"

    model = ScriptedModel([[call("wish")], "Done."])
    agent = Agent(name="clerk", model=model, tools=[wish, look], policy=Policy(deny=[rule]))
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        await soon(session.run("go"))
        assert [outcome for _, outcome, _ in await told(session)] == ["denied"], "it may be called all the same"
    assert [[spec.name for spec in request.tools] for request in model.requests] == [["look"], ["look"]]


async def test_a_tool_that_a_predicate_may_deny_is_shown(memory: Store) -> None:
    model = ScriptedModel(["Done."])
    agent = Agent(name="clerk", model=model, tools=[wish], policy=Policy(deny=[lambda view: True]))
    async with Runtime(memory, agents=[agent]) as runtime:
        await soon((await runtime.open(agent)).run("go"))
    assert [[spec.name for spec in request.tools] for request in model.requests] == [["wish"]]
