"""Hand-offs: another agent goes on with the run from the next turn on; the conversation, and what the run has, stay."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any

import pytest

from perdure import (
    Agent,
    Conflict,
    Limits,
    ModelSettings,
    Policy,
    RunResult,
    Runtime,
    Session,
    ToolContext,
    ToolError,
    UsageError,
    tool,
)
from perdure.core.messages import AssistantMessage, Message, Text, ToolMessage, UserMessage
from perdure.core.specs import Window
from perdure.core.transcript import unpaired
from perdure.events import AgentPinned, CallChecked, HistoryCut, ModelCalled, RunStarted
from perdure.handoffs import handoff, inputs_only, last_messages, without_calls
from perdure.plugins import Hooks, StateKey, SwitchAgent
from perdure.ports import ModelRequest, Store
from perdure.runtime.handoffs import HAND_OFF
from perdure.stores.memory import MemoryStore
from perdure.testing import ManualClock, ScriptedModel, call, replay
from perdure.testing.replay import show_differences
from perdure.tools import frontend
from tests.runtime.scenes import crashing, events, said, seen, soon, told, turned, until

NAME = StateKey("name", str, default="")


def agent(name: str, *handoffs: Any, **options: Any) -> Agent[Any]:
    return Agent(name=name, instructions=f"You are {name}.\nAnd nobody else.", handoffs=handoffs, **options)


def answers(*script: Any) -> ScriptedModel:
    """Entry n for the request that holds n answers; unlike a list, it need not be used up."""

    def answer(request: ModelRequest) -> Any:
        return script[sum(isinstance(message, AssistantMessage) for message in request.messages)]

    return ScriptedModel(answer)


def asked(model: ScriptedModel) -> list[str]:
    """Who was asked, turn by turn."""
    return [request.instructions.split()[2].rstrip(".") for request in model.requests]


async def run(store: str | Store, clerk: Agent[Any], *script: Any, **options: Any) -> tuple[RunResult[Any], list[str]]:
    model = ScriptedModel(list(script))
    async with Runtime(store, agents=[clerk], model=model) as runtime:
        session = await runtime.open(clerk, id="s")
        return await soon(session.run("Bill order 7", **options)), asked(model)


async def test_another_agent_goes_on_from_the_next_turn_on(store: str | Store) -> None:
    clerk = agent("clerk", agent("billing"))
    model = ScriptedModel([[call(HAND_OFF, to="billing", reason="money")], "Billed.", "Again."])
    async with Runtime(store, agents=[clerk], model=model) as runtime:
        session = await runtime.open(clerk, id="s")
        result = await soon(session.run("Bill order 7"))
        assert (result.output, result.turns, result.run) == ("Billed.", 2, 1)
        assert asked(model) == ["clerk", "billing"]
        assert await told(session) == [(HAND_OFF, "ok", "billing takes over from the next turn on.")]
        assert (session.agent, session.state.home) == ("billing", "clerk")
        (row,) = [row async for row in runtime.sessions()]
        assert row.agent == "billing"
        assert (await soon(session.run("more"))).output == "Again."
        assert asked(model)[-1] == "billing", "a hand-off holds beyond its run"
        assert len(await events(session, RunStarted)) == 2
        history = list(model.requests[1].messages)
        assert [type(message) for message in history[:3]] == [UserMessage, AssistantMessage, ToolMessage]


async def test_the_tool_says_who_there_is_and_what_for() -> None:
    billing = agent("billing")
    clerk = agent("clerk", billing, "refunds", handoff("shipping", description="sends parcels"))
    model = ScriptedModel(["Hello."])
    async with Runtime(MemoryStore(), agents=[clerk], model=model) as runtime:
        await soon((await runtime.open(clerk)).run("hi"))
    (spec,) = model.requests[0].tools
    assert spec.name == HAND_OFF
    assert spec.description.splitlines()[1:] == [
        "- billing: You are billing.",
        "- refunds",
        "- shipping: sends parcels",
    ]
    assert sorted(spec.parameters["properties"]) == ["reason", "to"]


@pytest.mark.parametrize(
    ("handoffs", "wrong"),
    [
        ([7], "Agent 'clerk': handoffs takes agents, names or handoff(…), not 7."),
        ([""], "Agent 'clerk': handoffs takes agents, names or handoff(…), not ''."),
        (["clerk"], "Agent 'clerk' hands over to itself; take it out of its handoffs."),
        (["a", "a"], "Agent 'clerk': two of its handoffs are named 'a'; keep one of them."),
        ("billing", "Agent 'clerk': handoffs is a list; write handoffs=[…]."),
    ],
)
def test_hand_offs_that_make_no_sense(handoffs: Any, wrong: str) -> None:
    with pytest.raises(UsageError) as refused:
        Agent(name="clerk", model="a:b", handoffs=handoffs)
    assert str(refused.value) == wrong


def test_filters_that_make_no_sense() -> None:
    wrong: Any = "all"
    with pytest.raises(UsageError, match="give a function of the list of messages"):
        handoff("billing", filter=wrong)
    with pytest.raises(UsageError, match="at least 1"):
        last_messages(0)


async def test_the_tool_is_there_however_many_others_there_are() -> None:
    def make(number: int) -> Any:
        @tool(effect="read", name=f"look_{number}", description="Look. " * 50)
        async def look() -> str:
            return "x"

        return look

    clerk = agent("clerk", agent("billing"), tools=[make(number) for number in range(9)], defer_above=1000)
    model = ScriptedModel(["Hello."])
    async with Runtime(MemoryStore(), agents=[clerk], model=model) as runtime:
        await soon((await runtime.open(clerk)).run("hi"))
    assert HAND_OFF in [spec.name for spec in model.requests[0].tools]


async def test_an_unknown_target_is_an_error_that_the_model_sees(store: str | Store) -> None:
    clerk = agent("clerk", agent("billing"), "refunds")
    model = ScriptedModel([[call(HAND_OFF, to="mars")], [call(HAND_OFF, to="refunds")], "Alone."])
    async with Runtime(store, agents=[clerk], model=model) as runtime:
        session = await runtime.open(clerk, id="s")
        assert (await soon(session.run("go"))).output == "Alone."
        assert await told(session) == [
            (HAND_OFF, "error", "There is no agent 'mars' to hand over to; take one of: billing, refunds."),
            (HAND_OFF, "error", "The agent 'refunds' is not known here; take one of: billing."),
        ]
        assert asked(model) == ["clerk"] * 3
        assert session.agent == "clerk"


async def test_agents_may_name_each_other_in_a_circle(store: str | Store) -> None:
    one, two = agent("one", "two"), agent("two", "one")
    model = ScriptedModel([[call(HAND_OFF, to="two")], [call(HAND_OFF, to="one")], "Home."])
    async with Runtime(store, agents=[one, two], model=model) as runtime:
        session = await runtime.open(one)
        assert (await soon(session.run("go"))).output == "Home."
    assert asked(model) == ["one", "two", "one"]


async def test_agents_may_hold_each_other_in_a_circle() -> None:
    items: list[Any] = []
    one = Agent(name="one", instructions="You are one", handoffs=items)
    items.append(agent("two", one))
    result, who = await run(MemoryStore(), one, [call(HAND_OFF, to="two")], [call(HAND_OFF, to="one")], "Home.")
    assert (result.output, who) == ("Home.", ["one", "two", "one"])


async def test_of_two_hand_offs_in_one_turn_the_first_counts(store: str | Store) -> None:
    clerk = agent("clerk", agent("billing"), agent("refunds"))
    model = ScriptedModel([[call(HAND_OFF, to="billing"), call(HAND_OFF, to="refunds")], "Billed."])
    async with Runtime(store, agents=[clerk], model=model) as runtime:
        session = await runtime.open(clerk, id="s")
        assert (await soon(session.run("go"))).output == "Billed."
        assert await told(session) == [
            (HAND_OFF, "ok", "billing takes over from the next turn on."),
            (HAND_OFF, "error", "billing takes over already; only one agent can."),
        ]
    assert asked(model) == ["clerk", "billing"]


async def test_a_tool_of_ones_own_may_hand_over(store: str | Store) -> None:
    @tool(effect="once")
    async def escalate(to: str, ctx: ToolContext) -> str:
        """Call somebody."""
        ctx.next_turn(agent=to)
        return f"called {to}"

    clerk = agent("clerk", agent("billing"), tools=[escalate])
    script = [[call("escalate", to="nobody")], [call("escalate", to="billing"), call("escalate", to="clerk")], "Here."]
    model = ScriptedModel(script)
    async with Runtime(store, agents=[clerk], model=model) as runtime:
        session = await runtime.open(clerk, id="s")
        assert (await soon(session.run("go"))).output == "Here."
        assert [line[1:] for line in await told(session)] == [
            ("error", "The agent 'nobody' is not known here; take one of: billing."),
            ("ok", "called billing"),
            ("error", "billing takes over already; only one agent can."),
        ]
    assert asked(model) == ["clerk", "clerk", "billing"]


@pytest.mark.parametrize("decision", ["approve", "deny"])
async def test_the_policy_has_its_say_about_a_hand_off(store: str | Store, decision: Any) -> None:
    clerk = agent("clerk", agent("billing"), policy=Policy(ask=[HAND_OFF]))
    model = answers([call(HAND_OFF, to="billing")], "Done.")
    async with crashing(store, agents=[clerk], model=model) as runtime:
        result = await soon((await runtime.open(clerk, id="s")).run("go"))
        (pending,) = result.pending
    async with Runtime(store, agents=[clerk], model=model) as runtime:
        session = await runtime.session("s")
        await session.decide(pending.id, decision, by="ops")
        assert (await soon(session.resume())).output == "Done."
        (checked,) = await events(session, CallChecked)
        assert checked.verdict == "ask"
        assert session.agent == ("billing" if decision == "approve" else "clerk")
    assert asked(model) == ["clerk", session.agent]


async def test_work_in_the_background_is_awaited_before_the_hand_off(store: str | Store) -> None:
    ready = asyncio.Event()

    @tool(effect="read", background=True)
    async def bake() -> str:
        """Bake."""
        await ready.wait()
        return "bread"

    clerk = agent("clerk", agent("billing"), tools=[bake])
    model = ScriptedModel([[call("bake"), call(HAND_OFF, to="billing")], "Eaten."])
    async with Runtime(store, agents=[clerk], model=model) as runtime:
        session = await runtime.open(clerk, id="s")
        started = await session.start("go")
        await soon(session._log.until(lambda state: state.run is not None and state.run.wanted == "billing"))  # pyright: ignore[reportPrivateUsage]
        assert session.agent == "clerk", "the oven is the clerk's"
        ready.set()
        assert (await soon(started)).output == "Eaten."
        assert asked(model) == ["clerk", "billing"]
        assert (await said(session))[-1] == "[bake-1 ended: ok] bread"


@dataclass
class Invoice:
    cents: int


async def test_who_takes_over_answers_in_its_own_type(store: str | Store) -> None:
    billing = agent("billing", "clerk", output=Invoice)
    clerk = agent("clerk", billing)
    model = ScriptedModel(
        [[call(HAND_OFF, to="billing")], "nonsense", '{"cents": 990}', [call(HAND_OFF, to="clerk")], "Bye."]
    )
    async with Runtime(store, agents=[clerk], model=model) as runtime:
        session = await runtime.open(clerk, id="s")
        first = await soon(session.run("go", key="first"))
        assert first.output == Invoice(990)
        assert (await soon(session.run("more"))).output == "Bye."
        again = await soon(session.run("go", key="first"))
        assert again.output == Invoice(990), "a run's output is read with the type of the agent that gave it"


async def test_an_output_that_was_asked_for_with_the_run_stays(store: str | Store) -> None:
    clerk = agent("clerk", agent("billing"))
    script = [[call(HAND_OFF, to="billing")], '{"cents": 5}']
    result, _ = await run(store, clerk, *script, output=Invoice)
    assert result.output == Invoice(5)


async def test_front_end_tools_state_and_budget_survive(store: str | Store) -> None:
    @tool(effect="idempotent")
    async def learn(name: str, ctx: ToolContext) -> str:
        """Learn a name."""
        ctx.set(NAME, name)
        return "learned"

    @tool(effect="read")
    async def recall(ctx: ToolContext) -> str:
        """Say the name."""
        return ctx.get(NAME)

    clerk = agent("clerk", agent("billing", tools=[recall]), tools=[learn], limits=Limits(turns=4))
    script = [
        [call("learn", name="Ann")],
        [call(HAND_OFF, to="billing")],
        [call("recall"), call("pick", what="card")],
        "Paid.",
    ]
    model = ScriptedModel(script)
    pick = frontend(
        "pick", "Pick something.", parameters={"type": "object", "properties": {"what": {"type": "string"}}}
    )
    async with Runtime(store, agents=[clerk], model=model) as runtime:
        session = await runtime.open(clerk, id="s")
        result = await soon(session.run("go", tools=[pick]))
        (pending,) = result.pending
        assert (pending.kind, pending.tool, pending.arguments) == ("frontend", "pick", {"what": "card"})
        await session.decide(pending.id, "answer", value="visa")
        result = await soon(session.resume())
        assert (result.output, result.turns, result.usage.total) == ("Paid.", 4, 60)
        assert [line for line in await told(session) if line[0] != HAND_OFF][1:] == [
            ("recall", "ok", "Ann"),
            ("pick", "ok", "visa"),
        ]
        assert [[spec.name for spec in request.tools] for request in model.requests[1:3]] == [
            [HAND_OFF, "learn", "pick"],
            ["recall", "pick"],
        ]
        assert await soon(session.run("more", limits=Limits(turns=0))), "the budget is the run's"


async def test_the_limits_of_the_run_hold_for_who_takes_over(store: str | Store) -> None:
    clerk = agent("clerk", agent("billing", limits=Limits(turns=50)), limits=Limits(turns=1))
    model = ScriptedModel([[call(HAND_OFF, to="billing")], "Billed."])
    async with Runtime(store, agents=[clerk], model=model) as runtime:
        session = await runtime.open(clerk, id="s")
        result = await soon(session.run("go"))
        assert (result.reason, result.detail, session.agent) == ("limit", "turns", "billing")
        assert (await soon(session.resume())).output == "Billed."
    assert asked(model) == ["clerk", "billing"], "who was to go on goes on"


async def test_a_tool_that_the_run_and_the_next_agent_both_have_fails_the_hand_off(store: str | Store) -> None:
    @tool(effect="read")
    async def pick() -> str:
        """Pick."""
        return "x"

    clerk = agent("clerk", agent("billing", tools=[pick]))
    model = ScriptedModel([[call(HAND_OFF, to="billing")], "Alone."])
    async with Runtime(store, agents=[clerk], model=model) as runtime:
        session = await runtime.open(clerk, id="s")
        result = await soon(session.run("go", tools=[frontend("pick")]))
        assert (result.output, session.agent) == ("Alone.", "clerk")
        assert (await said(session))[-1] == (
            "The hand-off to billing failed: The agent 'billing' has a tool 'pick', and so has this run. "
            "Go on without it."
        )


async def test_data_that_does_not_fit_the_next_agent_fails_the_hand_off(store: str | Store) -> None:
    @tool(effect="read")
    async def look(ctx: ToolContext[None, Invoice]) -> str:
        """Look."""
        return "x"

    clerk = agent("clerk", agent("billing", tools=[look]))
    model = ScriptedModel([[call(HAND_OFF, to="billing")], "Alone."])
    async with Runtime(store, agents=[clerk], model=model) as runtime:
        session = await runtime.open(clerk, id="s", data={"cents": "many"})
        assert (await soon(session.run("go"))).output == "Alone."
        assert "does not fit the tool 'look'" in (await said(session))[-1]


def scripted(name: str, *script: Any) -> ScriptedModel:
    left = list(script)
    return ScriptedModel(lambda request: left.pop(0), name=name)


async def test_who_takes_over_brings_its_model_and_settings() -> None:
    first, second, other = scripted("a", [call(HAND_OFF, to="billing")]), scripted("b", "Billed."), scripted("c")
    billing = agent("billing", model=[second, other], settings=ModelSettings(seed=2, top_k=3))
    clerk = agent("clerk", billing, model=first, settings=ModelSettings(seed=1))
    async with Runtime(MemoryStore(), agents=[clerk]) as runtime:
        session = await runtime.open(clerk)
        given = ModelSettings(temperature=0.5)
        assert (await soon(session.run("go", settings=given))).output == "Billed."
    assert [request.model for request in (*first.requests, *second.requests)] == ["a", "b"]
    assert first.requests[0].settings == ModelSettings(seed=1, temperature=0.5)
    assert second.requests[0].settings == ModelSettings(seed=2, top_k=3, temperature=0.5), (
        "what the run asked for stays"
    )


@pytest.mark.parametrize("whose", ["run", "session"])
async def test_a_model_of_the_run_or_the_session_stays(whose: str) -> None:
    own = scripted("own", [call(HAND_OFF, to="billing")], "Billed.")
    clerk = agent("clerk", agent("billing", model=scripted("b")), model=scripted("a"))
    async with Runtime(MemoryStore(), agents=[clerk]) as runtime:
        session = await runtime.open(clerk)
        if whose == "session":
            await session.set_model(own)
        assert (await soon(session.run("go", model=own if whose == "run" else None))).output == "Billed."
    assert asked(own) == ["clerk", "billing"]


# Filters


@dataclass
class Filtered:
    read: list[Message]
    said: list[str]
    cuts: list[HistoryCut]
    calls: int


async def filtered(filter: Any, store: str | Store | None = None) -> Filtered:
    """A talk of two runs, then a hand-off with the filter; what the other one read."""

    @tool(effect="idempotent")
    async def learn(name: str, ctx: ToolContext) -> str:
        """Learn a name."""
        ctx.set(NAME, name)
        return "learned"

    script: list[Any] = [[call("learn", name="Ann")], "Hello Ann.", [call(HAND_OFF, to="billing")]]
    model = ScriptedModel(lambda request: script.pop(0) if script else "Done.")
    clerk = agent("clerk", handoff(agent("billing"), filter=filter), tools=[learn])
    async with Runtime(store or MemoryStore(), agents=[clerk], model=model) as runtime:
        session = await runtime.open(clerk, id="s")
        await soon(session.run("I am Ann"))
        assert (await soon(session.run("Bill me"))).output == "Done."
        read = list(model.requests[-1].messages)
        assert NAME.read(session.state) == "Ann", "a filter changes nothing but what is read"
        assert unpaired(session.state.history) == []
        assert len(await session.history(full=True)) == 8, "the log is whole"
        return Filtered(read, await said(session), await events(session, HistoryCut), session.state.calls)


async def test_only_the_last_messages(store: str | Store) -> None:
    came = await filtered(last_messages(1), store)
    assert [type(message) for message in came.read] == [AssistantMessage, ToolMessage], "a result stays with its call"
    came = await filtered(last_messages(3))
    assert [type(message) for message in came.read] == [UserMessage, AssistantMessage, ToolMessage]
    assert came.said == ["Bill me"]


async def test_only_what_was_said() -> None:
    came = await filtered(without_calls)
    assert [type(message) for message in came.read] == [UserMessage, AssistantMessage, UserMessage]
    assert came.said == ["I am Ann", "Bill me"]
    came = await filtered(inputs_only)
    assert [type(message) for message in came.read] == [UserMessage, UserMessage]


async def test_a_filter_may_be_async_and_may_write_words_of_its_own(store: str | Store) -> None:
    async def brief(messages: list[Message]) -> list[Message]:
        await asyncio.sleep(0)
        return [UserMessage((Text(f"{len(messages)} messages came before."),)), messages[-4]]

    came = await filtered(brief, store)
    assert came.said == ["7 messages came before."]
    assert len(came.read) == 2
    (cut,) = came.cuts
    assert (cut.by, cut.keep, cut.values) == ("hand-off to billing", 0, {"name": "Ann"})


async def test_a_filter_that_keeps_everything_writes_nothing() -> None:
    came = await filtered(lambda messages: messages)
    assert (len(came.read), came.cuts) == (7, [])


async def test_what_a_filter_breaks_is_mended() -> None:
    def break_up(messages: list[Message]) -> list[Message]:
        return [message for message in messages if not isinstance(message, ToolMessage)]

    came = await filtered(break_up)
    results = [result for message in came.read if isinstance(message, ToolMessage) for result in message.results]
    assert [(result.name, result.outcome) for result in results] == [("learn", "unknown"), (HAND_OFF, "unknown")]
    assert {result.call for result in results}.isdisjoint({1, 2}), "they are not the calls that the session knows"
    assert came.calls == 4


def raising(messages: list[Message]) -> list[Message]:
    raise KeyError("no")


async def raising_late(messages: list[Message]) -> list[Message]:
    raise ToolError("never")


@pytest.mark.parametrize(
    ("filter", "why"),
    [
        (raising, "KeyError: 'no'"),
        (raising_late, "ToolError: never"),
        (lambda messages: [], "The filter of the hand-off left no message"),
        (lambda messages: "all", "The filter of the hand-off has to return a list of messages"),
        (lambda messages: ["all"], "The filter of the hand-off has to return a list of messages"),
    ],
)
async def test_a_filter_that_fails_fails_the_hand_off_and_the_model_is_told(filter: Any, why: str) -> None:
    script: list[Any] = [[call(HAND_OFF, to="billing")], "Alone."]
    clerk = agent("clerk", handoff(agent("billing"), filter=filter))
    model = ScriptedModel(script)
    async with Runtime(MemoryStore(), agents=[clerk], model=model) as runtime:
        session = await runtime.open(clerk)
        assert (await soon(session.run("go"))).output == "Alone."
        assert (await said(session))[-1] == f"The hand-off to billing failed: {why}. Go on without it."
        assert session.agent == "clerk"
        assert [pinned.spec.name for pinned in await events(session, AgentPinned)] == ["clerk", "clerk"]
    assert asked(model) == ["clerk", "clerk"]


async def test_a_filter_that_does_not_end_is_given_up() -> None:
    async def hang(messages: list[Message]) -> list[Message]:
        await asyncio.Event().wait()
        return messages

    clock = ManualClock()
    clerk = agent("clerk", handoff(agent("billing"), filter=hang))
    model = ScriptedModel([[call(HAND_OFF, to="billing")], "Alone."], clock=clock)
    async with Runtime(MemoryStore(), agents=[clerk], model=model, clock=clock) as runtime:
        session = await runtime.open(clerk)
        run = await session.start("go")
        await turned(clock, lambda: len(session.state.ended))
        assert (await soon(run)).output == "Alone."
        assert "it took longer than 30 s" in (await said(session))[-1]


async def let_go(runtime: Runtime, session: Session[Any]) -> None:
    """Until nobody drives the session any more."""
    while await runtime.driver_of(session) is not None:
        await asyncio.sleep(0.002)


async def test_a_stop_does_not_wait_for_a_filter() -> None:
    began = asyncio.Event()

    async def hang(messages: list[Message]) -> list[Message]:
        began.set()
        await asyncio.Event().wait()
        return messages

    clerk = agent("clerk", handoff(agent("billing"), filter=hang))
    model = answers([call(HAND_OFF, to="billing")])
    async with Runtime(MemoryStore(), agents=[clerk], model=model) as runtime:
        session = await runtime.open(clerk)
        run = await session.start("go")
        await soon(began.wait())
        await session.stop()
        assert (await soon(run)).reason == "stopped"
        assert session.agent == "clerk"
        await soon(let_go(runtime, session))


async def test_a_compaction_beside_a_filter_makes_it_look_again() -> None:
    began, go_on = asyncio.Event(), asyncio.Event()
    looked: list[int] = []

    async def slow(messages: list[Message]) -> list[Message]:
        looked.append(len(messages))
        began.set()
        await go_on.wait()
        return messages[-2:]

    script: list[Any] = [*["Well. " * 200] * 6, [call(HAND_OFF, to="billing")]]

    def answer(request: ModelRequest) -> Any:
        if "summar" in request.instructions.lower() or not request.instructions.startswith("You are"):
            return "They counted."
        return script.pop(0) if script else "Done."

    clerk = agent("clerk", handoff(agent("billing"), filter=slow), window=Window(keep_last=2))
    async with Runtime(MemoryStore(), agents=[clerk], model=ScriptedModel(answer)) as runtime:
        session = await runtime.open(clerk)
        for number in range(6):
            await soon(session.run(f"Count {number}"))
        run = await session.start("go")
        await soon(began.wait())
        compacted = await session.compact()
        assert compacted is not None
        assert not compacted.error
        go_on.set()
        assert (await soon(run)).output == "Done."
    assert len(looked) == 2
    assert looked[1] < looked[0]


# Around it


async def test_the_hooks_of_an_agent_are_told_of_its_own_turns(store: str | Store) -> None:
    heard: list[str] = []

    def listening(name: str) -> Hooks:
        def say(what: str) -> Any:
            return lambda moment: heard.append(f"{name} {what} {getattr(moment, 'number', '')}".strip())

        return Hooks(turn_start=say("starts"), turn_end=say("ends"), run_start=say("begins"), run_end=say("closes"))

    clerk = agent("clerk", agent("billing", hooks=[listening("billing")]), hooks=[listening("clerk")])
    await run(store, clerk, [call(HAND_OFF, to="billing")], "Billed.")
    assert heard == [
        "clerk begins",
        "clerk starts 1",
        "clerk ends 1",
        "billing starts 2",
        "billing ends 2",
        "billing closes",
    ]


async def test_a_script_that_is_run_again_opens_the_session_of_its_first_agent(store: str | Store) -> None:
    refunds = agent("refunds")
    clerk = agent("clerk", agent("billing"))
    model = answers([call(HAND_OFF, to="billing")], "Billed.")
    for _ in range(2):
        async with Runtime(store, agents=[clerk, refunds], model=model) as runtime:
            session = await runtime.open(clerk, id="s")
            result = await soon(session.run("go", key="go"))
            assert result.output == "Billed."
            await runtime.open("billing", id="s")
            with pytest.raises(Conflict, match="Session 's' belongs to the agent 'billing'"):
                await runtime.open(refunds, id="s")


async def test_a_fork_goes_on_with_the_agent_of_its_time(store: str | Store) -> None:
    clerk = agent("clerk", agent("billing"))
    model = ScriptedModel(["Hello.", [call(HAND_OFF, to="billing")], "Billed.", "Here."])
    async with Runtime(store, agents=[clerk], model=model) as runtime:
        session = await runtime.open(clerk, id="s")
        await soon(session.run("hi"))
        at = session.state.seq
        await soon(session.run("go"))
        late, early = await session.fork(), await session.fork(at=at)
        assert (late.agent, early.agent) == ("billing", "clerk")
        assert (await soon(late.run("more"))).output == "Here."
    assert asked(model)[-1] == "billing"


async def test_inputs_that_come_meanwhile_are_heard_by_who_takes_over(store: str | Store) -> None:
    clerk = agent("clerk", agent("billing"))
    gate = asyncio.Event()

    async def answer(request: ModelRequest) -> Any:
        if len(request.messages) == 1:
            await gate.wait()
            return [call(HAND_OFF, to="billing")]
        return "Both."

    model = ScriptedModel(answer)
    async with Runtime(store, agents=[clerk], model=model) as runtime:
        session = await runtime.open(clerk, id="s")
        run = await session.start("one")
        await seen(session, ModelCalled)
        await session.send("two")
        gate.set()
        assert (await soon(run)).output == "Both."
        assert await said(session) == ["one", "two"]
        (first, second) = await events(session, ModelCalled)
        assert (first.inputs, second.inputs) == ((), (2,))


async def test_a_process_that_does_not_know_the_next_agent_leaves_it_to_one_that_does(store: str | Store) -> None:
    """The process dies behind the hand-off; the next one has the clerk alone."""
    clerk = agent("clerk", agent("billing"))
    hang = asyncio.Event()

    async def answer(request: ModelRequest) -> Any:
        if len(request.messages) == 1:
            return [call(HAND_OFF, to="billing")]
        await hang.wait()
        return "Billed."

    model = ScriptedModel(answer)
    async with crashing(store, agents=[clerk], model=model) as runtime:
        session = await runtime.open(clerk, id="s")
        await session.start("go", key="go")
        await until(lambda: session.agent == "billing")
    alone = agent("clerk")
    async with Runtime(store, agents=[alone], model=model) as runtime:
        session = await runtime.session("s")
        with pytest.raises(UsageError, match="The agent 'billing' is not known here"):
            await session.resume()
    hang.set()
    async with Runtime(store, agents=[clerk], model=model) as runtime:
        assert (await soon((await runtime.session("s")).run("go", key="go"))).output == "Billed."


async def test_a_target_that_the_next_process_does_not_know_fails_the_hand_off(store: str | Store) -> None:
    """It dies before the change of agents is made, in the middle of the filter."""
    began = asyncio.Event()

    async def hang(messages: list[Message]) -> list[Message]:
        began.set()
        await asyncio.Event().wait()
        return messages

    model = answers([call(HAND_OFF, to="billing")], "Alone.")
    clerk = agent("clerk", handoff("billing", filter=hang))
    async with crashing(store, agents=[clerk, agent("billing")], model=model) as runtime:
        session = await runtime.open(clerk, id="s")
        await session.start("go", key="go")
        await soon(began.wait())
    async with Runtime(store, agents=[agent("clerk", "billing")], model=model) as runtime:
        session = await runtime.session("s")
        assert (await soon(session.run("go", key="go"))).output == "Alone."
        failed = "The hand-off to billing failed: The agent 'billing' is not known here. Go on without it."
        assert (await said(session))[-1] == failed


async def test_middleware_sees_the_change_of_agents_and_may_forbid_it(store: str | Store) -> None:
    met: list[Any] = []

    async def forbid(action: Any, perform: Any) -> Any:
        if isinstance(action, SwitchAgent):
            met.append((action.agent, action.call))
            if action.agent == "refunds":
                raise ToolError("not today")
            if action.agent == "mars":
                return "nonsense"
        return await perform(action)

    clerk = agent("clerk", agent("refunds"), agent("mars"), agent("billing"))
    script = [[call(HAND_OFF, to=name)] for name in ("refunds", "mars", "billing")]
    model = ScriptedModel([*script, "Billed."])
    async with Runtime(store, agents=[clerk], model=model, middleware=[forbid]) as runtime:
        session = await runtime.open(clerk, id="s")
        assert (await soon(session.run("go"))).output == "Billed."
        assert met == [("refunds", 1), ("mars", 2), ("billing", 3)]
        assert asked(model) == ["clerk", "clerk", "clerk", "billing"]
        assert (await said(session))[1] == "The hand-off to refunds failed: ToolError: not today. Go on without it."
        assert "which does not fit" in (await said(session))[2]


async def test_a_record_of_hand_offs_is_replayed() -> None:
    refunds = agent("refunds", model="a:b")
    billing = agent("billing", refunds, model="a:b")
    model = answers([call(HAND_OFF, to="billing")], [call(HAND_OFF, to="refunds")], "Refunded.", "More.")
    clerk = agent("clerk", handoff(billing, filter=last_messages(2)), model="a:b")
    store = MemoryStore()
    async with Runtime(store, agents=[clerk], model=model) as runtime:
        session = await runtime.open(clerk)
        assert (await soon(session.run("go"))).output == "Refunded."
        await session.set_agent("clerk")
        assert (await soon(session.run("more"))).output == "More."
        records = await session.records()
    done = await soon(replay(records, clerk))
    assert done.identical, show_differences(done.differences)
    done = await soon(replay(records, replace(clerk, handoffs=[handoff(billing, filter=inputs_only)])))
    assert not done.identical, "another filter is another decision"


# Fifty turns

FIFTY = 50
RING = {"clerk": "billing", "billing": "refunds", "refunds": "clerk"}


def ring(store: Store, *, stop_at: frozenset[int] = frozenset()) -> tuple[Runtime, list[Agent[Any]], asyncio.Event]:
    """Three agents that hand over to the next one in each turn; the model hangs when a turn of `stop_at` is asked."""
    hangs = asyncio.Event()

    @tool(effect="idempotent")
    async def count(turn: int, ctx: ToolContext) -> str:
        """Count this turn."""
        ctx.set(COUNTED, 1)
        return f"counted {ctx.get(COUNTED)}"

    async def answer(request: ModelRequest) -> Any:
        turn = 1 + sum(isinstance(message, AssistantMessage) for message in request.messages)
        assert [spec.name for spec in request.tools] == [HAND_OFF, "count", "pick"]
        if turn in stop_at:
            hangs.set()
            await asyncio.Event().wait()
        if turn == FIFTY:
            return "Round."
        who = request.instructions.split()[2].rstrip(".")
        return [call("count", turn=turn), call(HAND_OFF, to=RING[who], reason=f"turn {turn}")]

    model = ScriptedModel(answer)
    agents = [agent(name, other, tools=[count]) for name, other in RING.items()]
    return Runtime(store, agents=agents, model=model, grace=0), agents, hangs


COUNTED = StateKey("counted", int, scope="run", default=0, reducer=lambda one, other: one + other)
BUDGET = Limits(turns=FIFTY, calls=2 * FIFTY)


async def play(store: Store, *lives: frozenset[int]) -> tuple[RunResult[Any], Session[Any], list[AgentPinned]]:
    """One life after the other, each until its model hangs; the last one to the end."""
    for stop_at in (*lives, frozenset[int]()):
        runtime, agents, hangs = ring(store, stop_at=stop_at)
        async with runtime:
            session = await runtime.open(agents[0], id="s")
            run = await session.start("go", key="go", tools=[frontend("pick")], limits=BUDGET)
            if stop_at:
                await soon(hangs.wait())
            else:
                result = await soon(run)
                return result, session, await events(session, AgentPinned)
    raise AssertionError


def same(result: RunResult[Any], session: Session[Any], pinned: list[AgentPinned]) -> Any:
    state = session.state
    return result.output, result.turns, list(state.history), state.agent, state.ended[0].agent, state.calls, pinned


async def test_fifty_turns_of_ping_pong_are_one_history_whatever_turn_dies(record_property: Any) -> None:
    result, session, pinned = await play(MemoryStore())
    undisturbed = same(result, session, pinned)
    assert (result.output, result.turns, result.usage.total) == ("Round.", FIFTY, 15 * FIFTY)
    assert len(session.state.history) == 1 + 2 * (FIFTY - 1) + 1
    assert unpaired(session.state.history) == []
    counted = [message.results[0].parts for message in session.state.history if isinstance(message, ToolMessage)]
    assert counted == [(Text(f"counted {turn}"),) for turn in range(1, FIFTY)], "a key of the run, in all its turns"
    assert len(pinned) == FIFTY, "the first one, and each that took over"
    for turn in range(1, FIFTY + 1):
        store = MemoryStore()
        assert same(*await play(store, frozenset({turn}))) == undisturbed, f"turn {turn}"
    record_property("figure: hand-offs with a crash in the turn behind them", FIFTY - 1)


async def test_fifty_turns_each_in_a_process_of_its_own() -> None:
    store = MemoryStore()
    lives = [frozenset({turn}) for turn in range(1, FIFTY + 1)]
    assert same(*await play(store, *lives)) == same(*await play(MemoryStore()))
