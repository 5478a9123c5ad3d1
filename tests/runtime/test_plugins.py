"""Plug-ins: hooks, tools, keys, guardrails and prompt parts under one name."""

from __future__ import annotations

from typing import Any

import pytest

import perdure.plugins
from perdure import Agent, Runtime, ToolContext, UsageError, tool
from perdure.plugins import Block, Guardrail, Hooks, Plugin, StateKey
from perdure.ports import Store
from perdure.testing import ScriptedModel, call
from tests.runtime.scenes import soon, told

COUNT = StateKey("count", int, default=0, reducer=lambda one, other: one + other)


@tool(effect="once")
async def count(ctx: ToolContext[Any, Any]) -> str:
    """Count."""
    ctx.set(COUNT, 1)
    return str(ctx.get(COUNT))


def counter(name: str = "counter", **options: Any) -> Plugin:
    async def remind(ctx: ToolContext[Any, Any]) -> str:
        return f"Counted {ctx.get(COUNT)} so far."

    given = {
        "tools": [count],
        "keys": [COUNT],
        "hooks": [Hooks(before_tool=lambda moment: moment.here.set(COUNT, 10))],
        "instructions": "Count what you do.",
        "context": [remind],
        **options,
    }
    return Plugin(name=name, **given)


async def test_a_plugin_brings_all_that_belongs_together(store: str | Store) -> None:
    model = ScriptedModel([[call("count")], "Done."])
    agent = Agent(name="clerk", model=model, instructions="You are a clerk.", plugins=[counter()])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        assert (await soon(session.run("go"))).output == "Done."
        assert COUNT.read(session.state) == 11
        assert await told(session) == [("count", "ok", "1")]
        history = await session.history()
        assert len(history) == 4, "what stands behind the conversation is for one request alone"
    first, second = model.requests
    assert [spec.name for spec in first.tools] == ["count"]
    assert first.instructions == "You are a clerk.\n\nCount what you do."
    assert [message.parts[0].text for message in first.suffix] == ["Counted 0 so far."]  # type: ignore[union-attr]
    assert [message.parts[0].text for message in second.suffix] == ["Counted 11 so far."]  # type: ignore[union-attr]


async def test_instructions_may_be_functions_of_several_owners(memory: Store) -> None:
    async def who(ctx: ToolContext[Any, Any]) -> str:
        return f"This is {ctx.session}."

    model = ScriptedModel(["Done."])
    plugins = [Plugin(name="who", instructions=who), Plugin(name="silent", instructions=lambda ctx: "")]
    agent = Agent(name="clerk", model=model, instructions=lambda ctx: "You are a clerk.", plugins=plugins)
    async with Runtime(memory, agents=[agent]) as runtime:
        await soon((await runtime.open(agent, id="x")).run("go"))
    assert model.requests[0].instructions == "You are a clerk.\n\nThis is x."


async def test_hooks_of_plugins_stand_between_the_runtimes_and_the_agents(memory: Store) -> None:
    order: list[str] = []

    def hooks(name: str) -> list[Hooks]:
        return [Hooks(before_model=lambda moment: order.append(name))]

    agent = Agent(
        name="clerk",
        model=ScriptedModel(["Done."]),
        hooks=hooks("agent"),
        plugins=[Plugin(name="a", hooks=hooks("a")), Plugin(name="b", hooks=hooks("b"))],
    )
    async with Runtime(memory, agents=[agent], hooks=hooks("runtime")) as runtime:
        await soon((await runtime.open(agent)).run("go"))
    assert order == ["runtime", "a", "b", "agent"]


async def test_a_plugin_may_bring_guardrails(memory: Store) -> None:
    plugin = Plugin(name="safe", guardrails=[Guardrail(input=lambda moment: Block("no"))])
    agent = Agent(name="clerk", model=ScriptedModel([]), plugins=[plugin])
    async with Runtime(memory, agents=[agent]) as runtime:
        assert (await soon((await runtime.open(agent)).run("go"))).reason == "refusal"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"plugins": [counter(), counter("other", keys=[])]}, ["tool 'count'", "'counter'", "'other'"]),
        ({"plugins": [counter(keys=[])], "tools": [count]}, ["tool 'count'", "agent 'clerk'", "'counter'"]),
        ({"plugins": [counter(), counter("other", tools=[])]}, ["state key 'session/count'", "'counter'", "'other'"]),
        ({"plugins": [Plugin(name="a"), Plugin(name="a")]}, ["plug-in 'a'", "twice"]),
    ],
)
async def test_what_two_of_them_claim_is_refused_and_both_are_named(options: Any, words: list[str]) -> None:
    agent = Agent(name="clerk", model=ScriptedModel([]), **options)
    with pytest.raises(UsageError) as refused:
        async with Runtime("memory:", agents=[agent]):
            pass
    for word in words:
        assert word in str(refused.value)


def test_a_plugin_needs_a_name() -> None:
    with pytest.raises(UsageError, match="needs a name"):
        Plugin(name=" ")


def test_the_public_module_has_what_it_says() -> None:
    assert perdure.plugins.__all__ == sorted(perdure.plugins.__all__)
    for name in perdure.plugins.__all__:
        thing = getattr(perdure.plugins, name)
        assert name == "Middleware" or thing.__doc__, f"{name} has no docstring"
