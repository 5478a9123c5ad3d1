"""Sub-agents: a call that is a session of its own; what it is given, what comes back, and what nobody widens."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, Limits, ModelError, Policy, Runtime, ToolContext, UsageError, tool
from perdure.events import CallChecked, CallEnded, CallSuspended, RunEnded
from perdure.plugins import Hooks
from perdure.ports import ModelRequest, Store
from perdure.runtime.subagents import PARENT, ROOT
from perdure.stores.memory import MemoryStore
from perdure.testing import Reply, ScriptedModel, call
from tests.runtime.kin import Gate, agent, child, children, opened, row
from tests.runtime.scenes import events, kinds, said, seen, soon, told, until


@dataclass
class Invoice:
    number: str
    cents: int


@tool(effect="read")
async def look(what: str) -> str:
    """Look something up."""
    return f"saw {what}"


@tool(ask=True)
async def pay(order: str) -> str:
    """Pay an order."""
    return f"paid {order}"


# A call that is a session


async def test_an_agent_given_as_a_tool_does_a_task_in_a_session_of_its_own(store: str | Store) -> None:
    finder = agent("finder", call("look", what="x"), "It is an x.", tools=[look])
    boss = agent("boss", call("finder", input="What is it?"), "An x, then.", tools=[finder])
    async with Runtime(store, agents=[boss]) as runtime:
        session = await runtime.open(boss, id="b", metadata={"order": "7"}, data={"user": "u"})
        result = await soon(session.run("go"))
        assert (result.output, result.reason) == ("An x, then.", "completed")
        assert await told(session) == [("finder", "ok", "It is an x.")]
        below = await child(runtime, session)
        assert below.id == "b.finder-1"
        assert await said(below) == ["What is it?"]
        first = await opened(below)
        assert first.origin is not None
        assert (first.origin.session, first.origin.call, first.origin.agents) == (session.uid, 1, ("boss",))
        assert (first.data, first.metadata["order"]) == ({"user": "u"}, "7")
        assert await kinds(session) == [
            "SessionOpened",
            "InputAccepted",
            "AgentPinned",
            "RunStarted",
            "ModelCalled",
            "ModelResponded",
            "CallChecked",
            "CallStarted",
            "CallSuspended",
            "CallEnded",
            "ModelCalled",
            "ModelResponded",
            "RunEnded",
        ]


async def test_the_tool_is_named_described_and_asked_about_as_others_are(memory: Store) -> None:
    finder = agent("finder", "found")
    boss = agent(
        "boss",
        call("search", input="x"),
        "done",
        tools=[finder.as_tool(name="search", description="Searches.", ask=True)],
    )
    async with Runtime(memory, agents=[boss]) as runtime:
        session = await runtime.open(boss)
        result = await soon(session.run("go"))
        (pending,) = result.pending
        assert (pending.kind, pending.tool, pending.session) == ("approval", "search", session.id)
        assert await session.children() == [], "nothing is started before somebody has said yes"
        await session.decide(pending.id, "approve")
        assert (await soon(session.resume())).output == "done"
        assert boss.model.requests[0].tools[0].description == "Searches."  # type: ignore[union-attr]


async def test_what_the_model_wrote_wrongly_starts_nothing(memory: Store) -> None:
    finder = agent("finder", "found")
    boss = agent("boss", call("finder", task="x"), call("finder", input=7), "done", tools=[finder])
    async with Runtime(memory, agents=[boss]) as runtime:
        session = await runtime.open(boss)
        await soon(session.run("go"))
        assert [result[1] for result in await told(session)] == ["error", "error"]
        assert await session.children() == []


async def test_a_typed_answer_comes_as_json(memory: Store) -> None:
    clerk = agent("clerk", '{"number": "7", "cents": 990}', output=Invoice)
    boss = agent("boss", call("clerk", input="bill 7"), "done", tools=[clerk])
    async with Runtime(memory, agents=[boss]) as runtime:
        session = await runtime.open(boss)
        await soon(session.run("go"))
        assert await told(session) == [("clerk", "ok", '{"cents":990,"number":"7"}')]


async def test_a_long_answer_is_an_artifact_of_the_parents(store: str | Store) -> None:
    def reads(request: ModelRequest) -> Any:
        texts = [part.text for m in request.messages for r in getattr(m, "results", ()) for part in r.parts]
        if len(texts) == 1:
            name = next(word for word in re.findall(r"[0-9a-f]{16,}", texts[0]))
            return call("read_output", output=name, start=39_990, length=40)
        return "done" if texts else call("writer", input="write")

    writer = agent("writer", "q" * 40_000 + "MIDDLE" + "z" * 40_000)
    boss = Agent(name="boss", model=ScriptedModel(reads), tools=[writer])
    async with Runtime(store, agents=[boss]) as runtime:
        session = await runtime.open(boss)
        await soon(session.run("go"))
        shown, rest = await told(session)
        assert len(shown[2]) < 60_000
        assert "MIDDLE" not in shown[2]
        assert (rest[1], "MIDDLE" in rest[2]) == ("ok", True)
        assert (await events(session, CallEnded))[0].spilled


@pytest.mark.parametrize(
    ("answers", "options", "outcome_is", "words"),
    [
        ([ModelError("no such model", kind="invalid_request")], {}, "error", "did not finish (failed: invalid_request"),
        ([Reply("I will not.", stop="refusal")], {}, "error", "finder did not finish (refusal: I will not)."),
        (
            [call("look", what="a"), call("look", what="b"), "x"],
            {"limits": Limits(turns=1)},
            "error",
            "finder did not finish (limit: turns).",
        ),
        ([["Half way.", call("look", what="a")], "x"], {"limits": Limits(turns=1)}, "error", "(limit: turns)."),
    ],
)
async def test_what_the_parents_model_is_told_of_a_child_that_did_not_finish(
    memory: Store, answers: list[Any], options: dict[str, Any], outcome_is: str, words: str
) -> None:
    finder = agent("finder", *answers, tools=[look], **options)
    boss = agent("boss", call("finder", input="go"), "I see.", tools=[finder])
    async with Runtime(memory, agents=[boss]) as runtime:
        session = await runtime.open(boss)
        assert (await soon(session.run("go"))).output == "I see."
        ((_, said_outcome, text),) = await told(session)
        assert said_outcome == outcome_is
        assert words in text


async def test_a_child_that_acted_and_did_not_finish_is_in_doubt(memory: Store) -> None:
    @tool(effect="idempotent")
    async def act() -> str:
        """Act."""
        return "acted"

    for tools, doubt in (([act], True), ([look], False)):
        wanted = call("act") if doubt else call("look", what="x")
        doer = agent("doer", wanted, "x", tools=tools, limits=Limits(turns=1))
        boss = agent("boss", call("doer", input="go"), "I see.", tools=[doer])
        async with Runtime(memory, agents=[boss]) as runtime:
            session = await runtime.open(boss)
            await soon(session.run("go"))
            (ended,) = await events(session, CallEnded)
            assert ended.in_doubt is doubt


async def test_children_may_answer_at_their_limit(memory: Store) -> None:
    finder = agent("finder", call("look", what="a"), "So far: a.", tools=[look])
    tools = [finder.as_tool(limits=Limits(turns=1, at_limit="answer"))]
    boss = agent("boss", call("finder", input="go"), "I see.", tools=tools)
    async with Runtime(memory, agents=[boss]) as runtime:
        session = await runtime.open(boss)
        await soon(session.run("go"))
        assert await told(session) == [("finder", "ok", "So far: a.")]


# New, kept and named


async def test_each_call_gets_a_new_child(store: str | Store) -> None:
    finder = agent("finder", "found")
    boss = agent("boss", call("finder", input="a"), call("finder", input="b"), "done", tools=[finder])
    async with Runtime(store, agents=[boss]) as runtime:
        session = await runtime.open(boss, id="s")
        await soon(session.run("go"))
        one, two = await children(runtime, session)
        assert (one.id, two.id) == ("s.finder-1", "s.finder-2")
        assert (await said(one), await said(two)) == (["a"], ["b"])


async def test_a_kept_child_remembers_the_task_before(store: str | Store) -> None:
    finder = agent("finder", "first", "second", "third")
    boss = agent("boss", call("finder", input="a"), call("finder", input="b"), "done", call("finder", input="c"), "x")
    boss = Agent(name="boss", model=boss.model, tools=[finder.as_tool(child="kept")])
    async with Runtime(store, agents=[boss]) as runtime:
        session = await runtime.open(boss, id="s")
        await soon(session.run("go"))
        await soon(session.run("and again"))
        below = await child(runtime, session)
        assert below.id == "s.finder"
        assert await said(below) == ["a", "b", "c"]
        assert [text for _, _, text in await told(session)] == ["first", "second", "third"]


async def test_parallel_calls_of_a_kept_child_queue_up_there(store: str | Store) -> None:
    gate = Gate()
    finder = agent("finder", call("wait", what="a"), "one", "two", tools=[gate.tool()])
    finders = [finder.as_tool(child="kept")]
    boss = agent("boss", [call("finder", input="a"), call("finder", input="b")], "done", tools=finders)
    async with Runtime(store, agents=[boss]) as runtime:
        session = await runtime.open(boss)
        run = await session.start("go")
        await until(lambda: gate.entered)
        await seen(session, CallSuspended, 2)
        assert (await session.usage()).total == 15 + 15, "the boss's turn and the finder's first, once"
        gate.open.set()
        result = await soon(run)
        assert [text for _, _, text in await told(session)] == ["one", "two"]
        below = await child(runtime, session)
        assert len(await events(below, RunEnded)) == 2
        assert result.usage == (await session.usage())
        assert result.usage.total == 15 * 5


async def test_a_named_child_is_chosen_per_call(store: str | Store) -> None:
    finder = agent("finder", "one", "two")
    boss = agent(
        "boss",
        [call("finder", input="a", child="ann"), call("finder", input="b", child="bob"), call("finder", input="n")],
        call("finder", input="c", child="ann"),
        "done",
        tools=[finder.as_tool(child="named")],
    )
    async with Runtime(store, agents=[boss]) as runtime:
        session = await runtime.open(boss, id="s")
        await soon(session.run("go"))
        found = {below.id: await said(below) for below in await children(runtime, session)}
        assert found == {"s.ann": ["a", "c"], "s.bob": ["b"], "s.finder-3": ["n"]}


async def test_an_id_that_is_taken_by_somebody_else_is_no_obstacle(memory: Store) -> None:
    finder = agent("finder", "found")
    boss = agent("boss", call("finder", input="a"), "done", tools=[finder])
    async with Runtime(memory, agents=[boss]) as runtime:
        other = await runtime.open(finder, id="s.finder-1")
        session = await runtime.open(boss, id="s")
        await soon(session.run("go"))
        below = await child(runtime, session)
        assert below.id == below.uid != other.uid
        assert await told(session) == [("finder", "ok", "found")]


# In parallel, in the background


async def test_parallel_children_work_at_once_up_to_the_cap(memory: Store) -> None:
    gate = Gate()
    worker = agent("worker", call("wait", what="w"), "ok", tools=[gate.tool()])
    calls = [call("worker", input=str(number)) for number in range(6)]
    boss = agent("boss", calls, "done", tools=[worker], concurrency=2)
    async with Runtime(memory, agents=[boss]) as runtime:
        session = await runtime.open(boss)
        run = await session.start("go")
        await until(lambda: gate.inside == 2)
        assert len(await session.children()) == 2
        gate.open.set()
        assert (await soon(run)).output == "done"
        assert gate.most == 2
        assert len(await session.children()) == 6
        assert [text for _, _, text in await told(session)] == ["ok"] * 6


async def test_without_a_cap_all_work_at_once(memory: Store) -> None:
    gate = Gate()
    worker = agent("worker", call("wait", what="w"), "ok", tools=[gate.tool()])
    boss = agent("boss", [call("worker", input=str(number)) for number in range(5)], "done", tools=[worker])
    async with Runtime(memory, agents=[boss]) as runtime:
        run = await (await runtime.open(boss)).start("go")
        await until(lambda: gate.inside == 5)
        gate.open.set()
        await soon(run)


async def test_a_sub_agent_in_the_background_is_news(store: str | Store) -> None:
    gate = Gate()
    worker = agent("worker", call("wait", what="w"), "worked", tools=[gate.tool()])
    boss = agent("boss", call("worker", input="go"), call("look", what="x"), "Waiting.", "I heard.")
    boss = Agent(name="boss", model=boss.model, tools=[worker.as_tool(background=True), look])
    async with Runtime(store, agents=[boss]) as runtime:
        session = await runtime.open(boss)
        run = await session.start("go")
        await until(lambda: gate.entered and session.state.run and session.state.run.turn == 3)
        await until(lambda: session.state.run and session.state.run.response and not session.state.run.awaiting)
        assert session.background() == {"worker-1": "worker"}
        gate.open.set()
        assert (await soon(run)).output == "I heard."
        assert (await said(session))[-1] == "[worker-1 ended: ok] worked"
        assert (await soon(run)).usage.total == 15 * 6, "the child's two turns count"


# What is inherited, and never widened


async def test_labels_tenant_and_data_are_inherited(store: str | Store) -> None:
    seen_data: list[Any] = []

    @tool(effect="read")
    async def who(ctx: ToolContext[Any, Any]) -> str:
        """Who?"""
        seen_data.append((ctx.data, ctx.tenant))
        return "you"

    top = row("top", "mid", last=agent("leaf", call("who"), "ok", tools=[who]))
    async with Runtime(store, agents=[top]) as runtime:
        session = await runtime.open(top, id="s", tenant="acme", data={"user": "u7"}, metadata={"order": "7"})
        await soon(session.run("go"))
        mid = await child(runtime, session)
        leaf = await child(runtime, mid)
        assert seen_data == [({"user": "u7"}, "acme")]
        assert leaf.id == "s.mid-1.leaf-1"
        assert (await opened(leaf)).metadata == {"order": "7", PARENT: mid.uid, ROOT: session.uid}
        assert (await opened(mid)).metadata == {"order": "7", PARENT: session.uid, ROOT: session.uid}
        assert [row.id async for row in runtime.sessions(tenant="acme")] == ["s"]
        rows = [row.id async for row in runtime.sessions(tenant="acme", metadata={"order": "7"}, children=True)]
        assert sorted(rows) == ["s", "s.mid-1", "s.mid-1.leaf-1"]
        with pytest.raises(UsageError, match="says where sub-agents belong"):
            await runtime.open(top, metadata={PARENT: session.uid})


@pytest.mark.parametrize("name", ["top", "mid"])
async def test_what_an_ancestor_forbids_is_forbidden_below(memory: Store, name: str) -> None:
    leaf = agent("leaf", call("look", what="x"), "sorry", tools=[look], policy=Policy(allow=["*"]))
    policies = {name: Policy(deny=["look"])}
    mid = agent("mid", call("leaf", input="go"), "ok", tools=[leaf], policy=policies.get("mid", Policy()))
    top = agent("top", call("mid", input="go"), "ok", tools=[mid], policy=policies.get("top", Policy()))
    async with Runtime(memory, agents=[top]) as runtime:
        session = await runtime.open(top)
        await soon(session.run("go"))
        below = await child(runtime, await child(runtime, session))
        ((_, said_outcome, text),) = await told(below)
        assert said_outcome == "denied"
        (checked,) = await events(below, CallChecked)
        assert checked.verdict == "deny"
        assert name in f"{checked.rule} {text}"
        assert leaf.model.requests[0].tools == (), "what is never allowed is not shown"  # type: ignore[union-attr]


async def test_an_ancestors_ask_holds_below_and_a_childs_allow_does_not_help(memory: Store) -> None:
    leaf = agent("leaf", call("look", what="x"), "ok", tools=[look], policy=Policy(allow=["look"]))
    top = agent("top", call("leaf", input="go"), "ok", tools=[leaf], policy=Policy(ask=["look"]))
    async with Runtime(memory, agents=[top]) as runtime:
        session = await runtime.open(top)
        result = await soon(session.run("go", on_pending=lambda pending: "approve"))
        assert result.output == "ok"
        assert len(await events(await child(runtime, session), CallSuspended, kind="approval")) == 1


async def test_a_child_is_left_alone_where_an_ancestors_policy_is_not_known(tmp_path: Path) -> None:
    leaf = agent("leaf", call("pay", order="7"), "ok", tools=[pay])
    top = agent("top", call("leaf", input="go"), "ok", tools=[leaf])
    url = f"sqlite:{tmp_path / 'x.db'}"
    async with Runtime(url, agents=[top]) as runtime:
        session = await runtime.open(top, id="s")
        (pending,) = (await soon(session.run("go"))).pending
    async with Runtime(url, agents=[leaf]) as runtime:
        below = await runtime.session("s.leaf-1")
        await below.decide(pending.id, "approve")
        assert await events(below, CallEnded) == []
        with pytest.raises(UsageError, match="keeps to the policy of the agent 'top'"):
            await below.run("now you")
    async with Runtime(url, agents=[top]) as runtime:
        session = await runtime.session("s")
        assert (await soon(session.resume())).output == "ok"


async def test_hooks_and_tools_are_inherited_when_asked(memory: Store) -> None:
    met: list[str] = []

    async def meet(moment: Any) -> None:
        met.append(moment.name)

    hooks = [Hooks(before_tool=meet)]
    worker = agent("worker", call("look", what="x"), "ok")
    for hooked, tooled, name, outcomes, seen_by in (
        (True, True, "worker@boss", "ok", ["worker", "look"]),
        (False, True, "worker@boss", "ok", ["worker"]),
        (True, False, "worker@boss", "error", ["worker"]),
        (False, False, "worker", "error", ["worker"]),
    ):
        met.clear()
        tools = [worker.as_tool(hooks=hooked, tools=tooled), look]
        boss = agent("boss", call("worker", input="go"), "done", tools=tools, hooks=hooks)
        async with Runtime(MemoryStore(), agents=[boss]) as runtime:
            session = await runtime.open(boss)
            await soon(session.run("go"))
            below = await child(runtime, session)
            assert below.agent == name
            assert [result[1] for result in await told(below)] == [outcomes]
            assert met == seen_by


async def test_hooks_of_the_runtime_are_for_children_too(memory: Store) -> None:
    met: list[str] = []

    async def meet(moment: Any) -> None:
        met.append(moment.name)

    worker = agent("worker", call("look", what="x"), "ok", tools=[look])
    boss = agent("boss", call("worker", input="go"), "done", tools=[worker])
    async with Runtime(memory, agents=[boss], hooks=[Hooks(before_tool=meet)]) as runtime:
        await soon((await runtime.open(boss)).run("go"))
    assert met == ["worker", "look"]


async def test_a_hook_may_answer_in_place_of_a_child(memory: Store) -> None:
    from perdure.plugins import Result

    async def own(moment: Any) -> Any:
        return Result("known already")

    worker = agent("worker", "ok")
    boss = agent("boss", call("worker", input="go"), "done", tools=[worker], hooks=[Hooks(before_tool=own)])
    async with Runtime(memory, agents=[boss]) as runtime:
        session = await runtime.open(boss)
        await soon(session.run("go"))
        assert await told(session) == [("worker", "ok", "known already")]
        assert await session.children() == []


# Wrong use


def test_options_that_make_no_sense_are_told_at_once() -> None:
    worker = agent("worker", "ok")
    for options, words in (
        ({"child": "old"}, "child='old'"),
        ({"orphan": "adopt"}, "orphan='adopt'"),
        ({"effect": "read"}, "has no option 'effect'"),
        ({"retries": 3}, "has no option 'retries'"),
        ({"limits": {"turns": 3}}, "limits"),
        ({"hooks": "all"}, "hooks"),
        ({"tools": [look]}, "tools"),
    ):
        with pytest.raises(UsageError, match=words) as caught:
            worker.as_tool(**options)  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)


async def test_two_agents_of_one_name_are_refused(memory: Store) -> None:
    one, two = agent("worker", "a"), agent("worker", "b", instructions="Other.")
    boss = agent("boss", "x", tools=[one.as_tool(), two.as_tool(name="other")])
    with pytest.raises(UsageError, match="Two agents are named 'worker'"):
        async with Runtime(memory, agents=[boss]):
            pass


async def test_two_tools_of_one_name_are_refused(memory: Store) -> None:
    one, two = agent("worker", "a"), agent("worker", "b")
    boss = agent("boss", "x", tools=[one, two])
    with pytest.raises(UsageError, match="worker"):
        async with Runtime(memory, agents=[boss]):
            pass


async def test_a_sub_agents_tool_is_not_called_directly() -> None:
    with pytest.raises(UsageError, match="give its tool to an agent"):
        await agent("worker", "a").as_tool()(input="x")


async def test_agents_that_call_each_other_end_at_the_depth(memory: Store) -> None:
    tools: list[Any] = []

    def go_deeper(request: ModelRequest) -> Any:
        results = [m for m in request.messages if type(m).__name__ == "ToolMessage"]
        return "enough" if results else call("ping" if "pong" in request.instructions else "pong", input="deeper")

    ping = Agent(name="ping", instructions="I am ping.", model=ScriptedModel(go_deeper), tools=tools)
    pong = Agent(name="pong", instructions="I am pong.", model=ScriptedModel(go_deeper), tools=[ping])
    tools.append(pong.as_tool())
    async with Runtime(memory, agents=[ping]) as runtime:
        session = await runtime.open(ping)
        assert (await soon(session.run("go"))).output == "enough"
        depth, below = 0, session
        while found := await children(runtime, below):
            depth, below = depth + 1, found[0]
        assert depth == 5
        ((_, said_outcome, text),) = await told(below)
        assert (said_outcome, text) == ("error", "Sub-agents may not be nested deeper than this; do it yourself.")


def test_an_agent_that_inherits_from_itself_is_refused() -> None:
    tools: list[Any] = []
    ping = Agent(name="ping", model=ScriptedModel(["x"]), tools=tools)
    tools.append(ping.as_tool(hooks=True))
    with pytest.raises(UsageError, match="inherits from itself"), Runtime(MemoryStore(), agents=[ping]):
        pass
