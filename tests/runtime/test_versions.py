"""Versions: an open run keeps the agent that it began with; what changed is told, and asked about."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Agent, Limits, Runtime, tool
from perdure.core.specs import AgentSpec, ToolSpec
from perdure.core.versions import changes_between
from perdure.events import AgentPinned, CallChecked, Noted
from perdure.ports import Store
from perdure.runtime.tools import Tool
from perdure.testing import ScriptedModel, call
from tests.runtime.scenes import events, soon, told


@tool(effect="read", ask=True)
async def gate() -> str:
    """Wait for somebody."""
    return "open"


def pay(doc: str) -> Tool[..., Any]:
    async def pay(cents: int) -> str:
        return f"paid {cents}"

    return tool(pay, effect="idempotent", description=doc)


def clerk(*script: Any, doc: str = "Pay.", instructions: str = "You bill.", tools: Any = None) -> Agent[str]:
    own = [gate, pay(doc)] if tools is None else tools
    return Agent(
        name="clerk", model=ScriptedModel([[call("gate")], *script], name="m"), tools=own, instructions=instructions
    )


async def left_open(store: str | Store) -> None:
    """A run that waits for an approval, begun by the first version."""
    agent = clerk()
    async with Runtime(store, agents=[agent]) as runtime:
        assert (await soon((await runtime.open(agent, id="x")).run("go"))).reason == "waiting"


async def resumed(store: str | Store, agent: Agent[str]) -> tuple[Any, Any]:
    runtime = Runtime(store, agents=[agent])
    await runtime.__aenter__()
    session = await runtime.open(agent, id="x")
    (pending,) = await session.pending()
    await session.decide(pending.id, "approve")
    return runtime, session


async def test_an_open_run_keeps_its_words_and_the_next_one_has_the_new_ones(store: str | Store) -> None:
    await left_open(store)
    agent = clerk("Done.", "Again.", instructions="You bill and post.")
    model: Any = agent.model
    runtime, session = await resumed(store, agent)
    try:
        assert (await soon(session.resume())).output == "Done."
        assert model.requests[0].instructions == "You bill."
        (noted,) = [event for event in await events(session, Noted) if event.kind == "agent_changed"]
        assert noted.data == {"run": 1, "changes": ["its instructions changed"]}
        assert len(await events(session, AgentPinned)) == 1, "the log still names the agent that the run began with"
        assert (await soon(session.run("more"))).output == "Again."
        assert model.requests[1].instructions == "You bill and post."
        assert len(await events(session, AgentPinned)) == 2
    finally:
        await runtime.__aexit__(None, None, None)


async def test_a_call_of_a_tool_that_has_changed_is_asked_about(store: str | Store) -> None:
    await left_open(store)
    agent = clerk([call("pay", cents=5)], "Done.", doc="Pay twice.")
    runtime, session = await resumed(store, agent)
    try:
        result = await soon(session.resume())
        (pending,) = result.pending
        assert (result.reason, pending.tool, pending.prompt) == (
            "waiting",
            "pay",
            "pay has changed since this run began (description)",
        )
        await session.decide(pending.id, "approve")
        assert (await soon(session.resume())).output == "Done."
        assert (await told(session))[-1] == ("pay", "ok", "paid 5")
        checks = await events(session, CallChecked, call=2)
        assert [(check.verdict, check.rule) for check in checks] == [("ask", "changed")]
    finally:
        await runtime.__aexit__(None, None, None)


async def test_a_tool_that_is_gone_is_not_offered_and_a_new_one_waits_for_the_next_run(store: str | Store) -> None:
    @tool(effect="read")
    async def look() -> str:
        return "seen"

    await left_open(store)
    agent = clerk([call("pay", cents=5)], "Done.", "Again.", tools=[gate, look])
    model: Any = agent.model
    runtime, session = await resumed(store, agent)
    try:
        assert (await soon(session.resume())).output == "Done."
        assert [spec.name for spec in model.requests[0].tools] == ["gate"]
        assert "There is no tool 'pay'" in (await told(session))[-1][2]
        await soon(session.run("more"))
        assert [spec.name for spec in model.requests[-1].tools] == ["gate", "look"]
    finally:
        await runtime.__aexit__(None, None, None)


async def test_the_same_agent_again_says_nothing(store: str | Store) -> None:
    await left_open(store)
    runtime, session = await resumed(store, clerk("Done."))
    try:
        assert (await soon(session.resume())).output == "Done."
        assert [event.kind for event in await events(session, Noted)] == []
    finally:
        await runtime.__aexit__(None, None, None)


TOOL = ToolSpec("pay", "Pay.")


@pytest.mark.parametrize(
    ("new", "wanted"),
    [
        (AgentSpec("clerk", tools=(TOOL,)), []),
        (AgentSpec("clerk"), ["the tool pay is gone"]),
        (AgentSpec("clerk", tools=(TOOL, ToolSpec("look"))), ["the tool look is new"]),
        (
            AgentSpec("clerk", tools=(ToolSpec("pay", "Pay!", effect="read"),)),
            ["the tool pay has changed (description, effect)"],
        ),
        (AgentSpec("clerk", tools=(ToolSpec("pay", "Pay.", deferred=True),)), []),
        (
            AgentSpec("clerk", tools=(TOOL,), model="m", limits=Limits(turns=3)),
            ["its model changed", "its limits changed"],
        ),
    ],
)
def test_what_changed_is_said_in_words(new: AgentSpec, wanted: list[str]) -> None:
    assert changes_between(AgentSpec("clerk", tools=(TOOL,)), new) == wanted
