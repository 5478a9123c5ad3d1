"""Tools that depend on the context: shown when a condition holds, or made for each run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import Agent, Policy, Runtime, ToolContext, ToolError, UsageError, tool
from perdure.core.messages import AssistantMessage
from perdure.events import CallChecked, Noted, RunStarted
from perdure.plugins import Plugin, StateKey
from perdure.ports import ModelRequest, Store
from perdure.stores.memory import MemoryStore
from perdure.testing import ManualClock, ScriptedModel, call
from perdure.tools import frontend, per_run
from tests.runtime.scenes import crashing, events, soon, told, turned, until

OPENED = StateKey("opened", bool, default=False)


def answers(*script: Any) -> ScriptedModel:
    """Entry n for the request that holds n answers; unlike a list, it need not be used up."""

    def answer(request: ModelRequest) -> Any:
        return script[sum(isinstance(message, AssistantMessage) for message in request.messages)]

    return ScriptedModel(answer)


def shown(model: ScriptedModel) -> list[list[str]]:
    return [[spec.name for spec in request.tools] for request in model.requests]


@tool(effect="idempotent")
async def unlock(ctx: ToolContext) -> str:
    """Unlock the safe."""
    ctx.set(OPENED, True)
    return "unlocked"


# Conditions


def is_open(ctx: ToolContext) -> bool:
    return ctx.get(OPENED)


async def is_open_later(ctx: ToolContext) -> bool:
    await asyncio.sleep(0)
    return ctx.get(OPENED)


@pytest.mark.parametrize("when", [is_open, is_open_later])
async def test_a_tool_is_shown_in_the_turns_in_which_its_condition_holds(store: str | Store, when: Any) -> None:
    @tool(effect="read", when=when)
    async def take() -> str:
        """Take it."""
        return "gold"

    model = answers([call("take")], [call("unlock")], [call("take")], "Rich.")
    agent = Agent(name="thief", model=model, tools=[unlock, take])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="s")
        assert (await soon(session.run("go"))).output == "Rich."
        assert shown(model) == [["unlock"], ["unlock"], ["unlock", "take"], ["unlock", "take"]]
        assert await told(session) == [
            ("take", "error", "The tool 'take' cannot be called now."),
            ("unlock", "ok", "unlocked"),
            ("take", "ok", "gold"),
        ]


async def test_a_condition_sees_deps_data_and_the_state() -> None:
    met: list[Any] = []

    def when(ctx: ToolContext) -> bool:
        met.append((ctx.deps, ctx.data, ctx.session, ctx.tenant, ctx.run, ctx.state.run is not None))
        return True

    @tool(effect="read", when=when)
    async def look() -> str:
        """Look."""
        return "seen"

    model = answers([call("look"), call("look")], "Done.")
    agent = Agent(name="clerk", model=model, tools=[look])
    async with Runtime(MemoryStore(), agents=[agent], deps="bank") as runtime:
        session = await runtime.open(agent, id="s", tenant="acme", data={"user": "u7"})
        assert (await soon(session.run("go"))).output == "Done."
    assert met == [("bank", {"user": "u7"}, "s", "acme", 1, True)] * 2, "once in a turn, however often it is called"


def failing(ctx: ToolContext) -> bool:
    raise KeyError("gone")


async def failing_late(ctx: ToolContext) -> bool:
    raise ToolError("never")


@pytest.mark.parametrize(("when", "why"), [(failing, "KeyError: 'gone'"), (failing_late, "ToolError: never")])
async def test_a_condition_that_fails_hides_the_tool_and_is_noted(store: str | Store, when: Any, why: str) -> None:
    @tool(effect="read", when=when)
    async def look() -> str:
        """Look."""
        return "seen"

    model = answers([call("look")], "Done.")
    agent = Agent(name="clerk", model=model, tools=[look])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="s")
        assert (await soon(session.run("go"))).output == "Done."
        assert shown(model) == [[], []]
        assert (await told(session))[0][1] == "error"
        notes = await events(session, Noted, kind="condition_failed")
        assert [note.data for note in notes] == [{"tool": "look", "detail": why}] * 2, "once in a turn"


async def test_a_condition_that_hangs_hides_the_tool() -> None:
    async def when(ctx: ToolContext) -> bool:
        await asyncio.Event().wait()
        return True

    @tool(effect="read", when=when)
    async def look() -> str:
        """Look."""
        return "seen"

    clock = ManualClock()
    model = ScriptedModel(["Done."], clock=clock)
    agent = Agent(name="clerk", model=model, tools=[look])
    async with Runtime(MemoryStore(), agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent)
        run = await session.start("go")
        await turned(clock, lambda: len(session.state.ended), step=5)
        assert (await soon(run)).output == "Done."
    assert shown(model) == [[]]


async def test_a_tool_with_a_condition_passes_the_same_gate(store: str | Store) -> None:
    @tool(effect="idempotent", when=lambda ctx: True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    agent = Agent(name="clerk", model=answers([call("pay")], "Done."), tools=[pay], policy=Policy(ask=["pay"]))
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="s")
        (pending,) = (await soon(session.run("go"))).pending
        await session.decide(pending.id, "deny", reason="no")
        assert (await soon(session.resume())).output == "Done."
        assert (await told(session))[0][1] == "denied"


async def test_after_a_crash_the_condition_is_asked_again(store: str | Store) -> None:
    """The model was shown the tool and has called it; the next process judges the call by what holds then."""
    gate = asyncio.Event()
    holds = [True]

    async def slow(call: Any) -> bool:
        await gate.wait()
        return False

    def made() -> Agent[Any]:
        @tool(effect="read", when=lambda ctx: holds[0], ask=slow)
        async def look() -> str:
            """Look."""
            return "seen"

        return Agent(name="clerk", model=answers([call("look")], "Done."), tools=[look])

    agent = made()
    async with crashing(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="s")
        await session.start("go")
        await until(lambda: session.state.run is not None and session.state.run.calls)
    holds[0] = False
    gate.set()
    agent = made()
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.session("s")
        assert (await soon(session.resume())).output == "Done."
        assert (await told(session))[0] == ("look", "error", "The tool 'look' cannot be called now.")


def test_conditions_that_make_no_sense() -> None:
    wrong: Any = "always"
    with pytest.raises(UsageError, match="when='always'; give a function of the ToolContext"):
        tool(unlock.function, when=wrong)


# Tools per run


def seller(*names: str) -> Any:
    """A tool for each of these things."""

    def make(name: str) -> Any:
        @tool(effect="idempotent", name=f"sell_{name}", description=f"Sell {name}.")
        async def sell(count: int, ctx: ToolContext) -> str:
            return f"{count} {name} sold to {ctx.data}"

        return sell

    return [make(name) for name in names]


async def test_tools_are_made_when_a_run_starts(store: str | Store) -> None:
    runs: list[int] = []

    def tools_of(ctx: ToolContext) -> Any:
        runs.append(ctx.run)
        return seller("bread") if ctx.data == "baker" else seller("meat", "fish")

    model = answers([call("sell_meat", count=2), call("sell_bread", count=1)], "Sold.", "Again.")
    agent = Agent(name="clerk", model=model, tools=[unlock, per_run(tools_of)], policy=Policy(deny=["sell_fish"]))
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="s", data="butcher")
        assert (await soon(session.run("go"))).output == "Sold."
        assert shown(model)[0] == ["unlock", "sell_meat"], "the policy holds for them as for others"
        assert await told(session) == [
            ("sell_meat", "ok", "2 meat sold to butcher"),
            (
                "sell_bread",
                "error",
                "There is no tool 'sell_bread'; the tools are: unlock, sell_meat, sell_fish.",
            ),
        ]
        (started,) = await events(session, RunStarted)
        assert [spec.name for spec in started.tools] == ["sell_meat", "sell_fish"], "the log is honest"
        await soon(session.run("more"))
        assert runs == [1, 2]


async def test_tools_may_be_made_by_async_functions_and_plug_ins(store: str | Store) -> None:
    async def tools_of(ctx: ToolContext) -> Any:
        await asyncio.sleep(0)
        return seller("bread")

    plugin = Plugin(name="shop", tools=[per_run(lambda ctx: seller("fish"))])
    model = answers([call("sell_bread", count=1), call("sell_fish", count=2), call("pick")], "Sold.")
    agent = Agent(name="clerk", model=model, tools=[per_run(tools_of)], plugins=[plugin])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="s")
        (pending,) = (await soon(session.run("go", tools=[frontend("pick")]))).pending
        await session.decide(pending.id, "answer", value="x")
        assert (await soon(session.resume())).output == "Sold."
        assert [line[:2] for line in await told(session)] == [("sell_bread", "ok"), ("sell_fish", "ok"), ("pick", "ok")]
        assert shown(model)[0] == ["pick", "sell_bread", "sell_fish"]


async def left_waiting(store: str | Store, agent: Agent[Any]) -> str:
    """A call of a tool that was made for the run waits for its approval when the process dies."""
    async with crashing(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="s")
        (pending,) = (await soon(session.run("go"))).pending
        return pending.id


def clerk(tools_of: Any, *script: Any) -> Agent[Any]:
    script = script or ([call("sell_bread", count=1)], "Sold.")
    return Agent(name="clerk", model=answers(*script), tools=[per_run(tools_of)], policy=Policy(ask=["sell_*"]))


async def test_whoever_picks_the_run_up_makes_the_tools_again(store: str | Store) -> None:
    pending = await left_waiting(store, clerk(lambda ctx: seller("bread")))
    async with Runtime(store, engine=None) as runtime:
        await (await runtime.session("s")).decide(pending, "approve")
    agent = clerk(lambda ctx: seller("bread", "fish"), [], [call("sell_fish", count=1)], "Sold.")
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.session("s")
        assert (await soon(session.resume())).output == "Sold."
        assert await told(session) == [
            ("sell_bread", "ok", "1 bread sold to None"),
            ("sell_fish", "error", "There is no tool 'sell_fish'; the tools are: sell_bread."),
        ], "an approval holds, and the run has the tools that it began with"
        model: Any = agent.model
        assert shown(model) == [["sell_bread"]] * 2


async def test_a_tool_that_is_not_made_again_no_longer_exists(store: str | Store) -> None:
    pending = await left_waiting(store, clerk(lambda ctx: seller("bread")))
    agent = clerk(lambda ctx: [])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.session("s")
        await session.decide(pending, "approve")
        assert (await soon(session.resume())).output == "Sold."
        assert await told(session) == [
            ("sell_bread", "error", "sell_bread was not started: the tool no longer exists.")
        ]
        model: Any = agent.model
        assert shown(model) == [[]]


async def test_a_tool_that_is_made_otherwise_is_asked_about_again(store: str | Store) -> None:
    def other(ctx: ToolContext) -> Any:
        @tool(effect="idempotent", name="sell_bread", description="Sell old bread.")
        async def sell(count: int) -> str:
            return "sold"

        return [sell]

    pending = await left_waiting(store, clerk(lambda ctx: seller("bread")))
    agent = clerk(other)
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.session("s")
        await session.decide(pending, "approve")
        result = await soon(session.resume())
        (again,) = result.pending
        assert again.prompt == "sell_bread has changed since this run began (description)"
        await session.decide(again.id, "approve")
        assert (await soon(session.resume())).output == "Sold."
        verdicts = [event.verdict for event in await events(session, CallChecked)]
        assert verdicts == ["ask", "stale", "ask"]


async def test_functions_that_fail_in_a_run_that_is_picked_up_leave_it_without_these_tools(store: str | Store) -> None:
    def broken(ctx: ToolContext) -> Any:
        raise KeyError("gone")

    pending = await left_waiting(store, clerk(lambda ctx: seller("bread")))
    agent = clerk(broken)
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.session("s")
        await session.decide(pending, "approve")
        assert (await soon(session.resume())).output == "Sold."
        assert (await told(session))[0][1] == "error"
        notes = await events(session, Noted, kind="tools_failed")
        assert [note.data for note in notes] == [{"run": 1, "detail": "KeyError: 'gone'"}]


def raising(ctx: ToolContext) -> Any:
    raise KeyError("gone")


async def raising_late(ctx: ToolContext) -> Any:
    raise ToolError("never")


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (raising, "tools: KeyError: 'gone'"),
        (raising_late, "tools: ToolError: never"),
        (lambda ctx: None, "tools: per_run(<lambda>) returned NoneType; it has to return a list of tools."),
        (lambda ctx: [7], "tools: 7 is no function; a tool is made of something that can be called."),
        (
            lambda ctx: seller("bread", "bread"),
            "tools: per_run(<lambda>) makes a second tool 'sell_bread'; give it another name=.",
        ),
        (lambda ctx: [unlock], "tools: per_run(<lambda>) makes a second tool 'unlock'; give it another name=."),
        (
            lambda ctx: [Agent(name="worker")],
            "tools: per_run(<lambda>) makes the sub-agent 'worker'; give sub-agents in tools=[…].",
        ),
        (lambda ctx: seller("x"), "tools: per_run(<lambda>) makes a second tool 'sell_x'; give it another name=."),
    ],
)
async def test_functions_that_fail_fail_the_run_with_one_sentence(function: Any, why: str) -> None:
    agent = Agent(name="clerk", model=answers("Done."), tools=[unlock, per_run(function)])
    async with Runtime(MemoryStore(), agents=[agent]) as runtime:
        session = await runtime.open(agent)
        result = await soon(session.run("go", tools=[frontend("sell_x")]))
        assert (result.reason, result.detail) == ("failed", why)


async def test_functions_that_hang_are_given_up_and_a_stop_does_not_wait_for_them() -> None:
    clock = ManualClock()

    async def hang(ctx: ToolContext) -> Any:
        await asyncio.Event().wait()

    agent = Agent(name="clerk", model=answers("Done."), tools=[per_run(hang)])
    async with Runtime(MemoryStore(), agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent)
        run = await session.start("go")
        await turned(clock, lambda: len(session.state.ended), step=5)
        assert (await soon(run)).detail == "tools: it took longer than 30 s"
        run = await session.start("go")
        await asyncio.sleep(0)
        await session.cancel()
        await until(lambda: len(session.state.ended) == 2)
        assert (await soon(run)).reason == "cancelled"
        async with asyncio.timeout(5):
            while await runtime.driver_of(session) is not None:
                await asyncio.sleep(0.002)


async def test_who_takes_over_has_the_tools_that_are_made_for_it(store: str | Store) -> None:
    billing = Agent(name="billing", tools=[per_run(lambda ctx: seller("stamps"))])
    agent = Agent(name="clerk", tools=[per_run(lambda ctx: seller("bread"))], handoffs=[billing])
    script = ([call("sell_bread", count=1)], [call("hand_off", to="billing")], [call("sell_stamps", count=3)], "Sold.")
    model = answers(*script)
    async with Runtime(store, agents=[agent], model=model) as runtime:
        session = await runtime.open(agent, id="s")
        assert (await soon(session.run("go", tools=[frontend("pick")]))).output == "Sold."
        assert shown(model) == [
            ["hand_off", "pick", "sell_bread"],
            ["hand_off", "pick", "sell_bread"],
            ["pick", "sell_stamps"],
            ["pick", "sell_stamps"],
        ]


async def test_functions_of_the_next_agent_that_fail_fail_the_hand_off(store: str | Store) -> None:
    billing = Agent(name="billing", tools=[per_run(raising)])
    agent = Agent(name="clerk", handoffs=[billing])
    async with Runtime(store, agents=[agent], model=answers([call("hand_off", to="billing")], "Alone.")) as runtime:
        session = await runtime.open(agent, id="s")
        assert (await soon(session.run("go"))).output == "Alone."
        assert session.agent == "clerk"


def test_per_run_takes_a_function() -> None:
    wrong: Any = [unlock]
    with pytest.raises(UsageError, match="give a function of the ToolContext that returns a list of tools"):
        per_run(wrong)
