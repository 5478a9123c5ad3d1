"""Recorded sessions against an agent as it is now: the same decisions, or what differs."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, Decision, Limits, ModelError, Policy, Record, Refused, Runtime, ToolContext, UsageError, tool
from perdure.core.commands import Decide, DecideAll
from perdure.core.specs import StopWhen
from perdure.events import CallDecided, CallEnded, CallStarted, CallSuspended, RunEnded
from perdure.plugins import Block, Guardrail
from perdure.runtime.clock import sleep
from perdure.runtime.wishes import Prepared
from perdure.stores.memory import MemoryStore
from perdure.testing import ManualClock, Replayed, ScriptedModel, call, check_replay, playback, replay
from perdure.testing.replay import show_differences
from perdure.tools import frontend
from tests.runtime.recordings import record
from tests.runtime.scenes import check_log, seen, soon, turned

SESSIONS = 100
TOGETHER = 10


@pytest.mark.parametrize("first", range(0, SESSIONS, TOGETHER))
async def test_the_same_agent_decides_the_same(first: int, record_property: pytest.RecordProperty) -> None:
    kinds: Counter[str] = Counter()
    for seed in range(first, first + TOGETHER):
        scene, agent, records = await record(seed)
        ran = list(scene.ran)
        done = await soon(replay(records, agent))
        assert done.identical, f"seed {seed}: {show_differences(done.differences)}"
        assert scene.ran == ran, "no tool was run"
        check_log(list(done.records))
        kinds.update(type(item.event).__name__ for item in records)
    record_property("figure: sessions recorded and replayed without a difference", TOGETHER)
    record_property("figure: events in them", kinds.total())


def clerk(*answers: Any, tools: Any = None, **changes: Any) -> Agent[Any]:
    return Agent(name="clerk", model=ScriptedModel(list(answers)), tools=tools or [look, act], **changes)


@tool(effect="read")
async def look(what: str) -> str:
    ran.append(what)
    return f"{what} is fine"


@tool(ask=True)
async def act(what: str) -> str:
    ran.append(what)
    return f"{what} is done"


ran: list[str] = []
SCRIPT = ([call("look", what="a"), call("act", what="b")], "One.", [call("look", what="a")], "Two.")


async def recorded(agent: Agent[Any]) -> list[Record]:
    """Two runs, with an approval in the first."""
    async with Runtime("memory:", agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        await session.run("one", on_pending=lambda _: Decision("approve", by="ann"))
        await session.run("two")
        ran.clear()
        return await session.records()


def places(done: Replayed) -> list[tuple[int, int, str]]:
    return [(item.run, item.turn, item.what) for item in done.differences]


async def test_another_policy_is_shown() -> None:
    records = await recorded(clerk(*SCRIPT))
    done = await soon(replay(records, clerk(*SCRIPT, policy=Policy(deny=["look"]))))
    assert not done.identical
    assert places(done)[:4] == [
        (1, 0, "agent"),
        (1, 1, "check look (call 1)"),
        (1, 1, "start look (call 1)"),
        (1, 1, "outcome look (call 1)"),
    ]
    (check,) = [item for item in done.differences if (item.run, item.what) == (1, "check look (call 1)")]
    assert check.recorded == "look: allow"
    assert check.replayed == "look: deny (deny: look, The rule 'look' forbids it.)"
    assert ran == []


async def test_another_schema_is_shown() -> None:
    @tool(effect="read", name="look")
    async def look_twice(what: str, times: int) -> str:
        raise AssertionError("a replay runs no tools")

    records = await recorded(clerk(*SCRIPT))
    done = await soon(replay(records, clerk(*SCRIPT, tools=[look_twice, act])))
    (agent, check, *_) = done.differences
    assert agent.what == "agent"
    assert "times" in agent.replayed
    assert "times" not in agent.recorded
    assert (check.run, check.turn, check.what) == (1, 1, "check look (call 1)")
    assert check.replayed.startswith("look: invalid (schema, The arguments do not fit look")


async def test_a_tool_that_is_gone_and_a_decision_that_nobody_asks_for_are_shown() -> None:
    @tool
    async def act(what: str) -> str:
        raise AssertionError("a replay runs no tools")

    records = await recorded(clerk(*SCRIPT))
    done = await soon(replay(records, clerk(*SCRIPT, tools=[act])))
    shown = {(item.run, item.what): (item.recorded, item.replayed) for item in done.differences}
    assert shown[1, "decision act (call 2)"] == ("act: approve by ann", "")
    assert shown[1, "outcome look (call 1)"][1].startswith("look → error: There is no tool 'look'")
    assert (1, "outcome act (call 2)") not in shown, "its result is in the record all the same"


async def test_a_policy_that_asks_now_waits_and_the_replay_ends() -> None:
    records = await recorded(clerk(*SCRIPT))
    done = await soon(replay(records, clerk(*SCRIPT, policy=Policy(ask=["look"]))))
    pauses = [item for item in done.differences if item.what == "pause look (call 1)"]
    assert pauses[0].replayed.startswith("look waits: approval")
    assert done.runs == 1, "nobody decided then, so nobody decides now"


async def test_fewer_turns_are_shown() -> None:
    records = await recorded(clerk(*SCRIPT))
    done = await soon(replay(records, clerk(*SCRIPT, limits=Limits(turns=1))))
    ends = [(item.run, item.turn, item.recorded, item.replayed) for item in done.differences if item.what == "end"]
    assert ends[0] == (1, 1, "", "limit (turns)")
    assert ends[1] == (1, 2, "completed", "")


async def test_a_model_is_really_asked_and_gets_the_recorded_results() -> None:
    records = await recorded(clerk(*SCRIPT))
    same = ScriptedModel(list(SCRIPT), name="same")
    done = await soon(replay(records, clerk(*SCRIPT), model=same))
    assert done.identical, "which model answered is no difference"
    assert len(same.requests) == 4
    assert same.requests[1].messages[2].results[0].parts[0].text == "a is fine"  # pyright: ignore
    other = ScriptedModel([[call("look", what="zzz"), call("act", what="b")], "Other.", "Two."], name="other")
    done = await soon(replay(records, clerk(*SCRIPT), model=other))
    shown = {(item.run, item.turn, item.what): (item.recorded, item.replayed) for item in done.differences}
    assert shown[1, 1, "call look (call 1)"] == ('call look(what="a")', 'call look(what="zzz")')
    text = "look → error: The record has no result for this call of look; a replay runs no tools."
    assert shown[1, 1, "outcome look (call 1)"] == ("look → ok: a is fine", text)
    assert shown[1, 2, "answer"] == ("answer One.", "answer Other.")
    assert (1, 1, "outcome act (call 2)") not in shown, "the other call got its decision and its result"
    assert ran == []


async def test_a_model_that_gives_up_is_shown() -> None:
    records = await recorded(clerk(*SCRIPT))
    deaf = ScriptedModel([ModelError("no key", kind="auth"), ModelError("no key", kind="auth")])
    done = await soon(replay(records, clerk(*SCRIPT), model=deaf))
    shown = {(item.run, item.turn, item.what): item.replayed for item in done.differences}
    assert shown[1, 1, "failure"] == "no answer: auth (no key)"
    assert shown[1, 1, "end"] == "failed (auth: no key)"


async def test_forks_are_replayed_with_their_past(memory: MemoryStore) -> None:
    release = asyncio.Event()

    @tool
    async def hold() -> str:
        await release.wait()
        return "held"

    agent = clerk(
        [call("look", what="a"), call("act", what="b"), call("hold")], "One.", "Two.", tools=[look, act, hold]
    )
    async with Runtime(memory, agents=[agent]) as runtime:
        parent = await runtime.open(agent, id="x")
        run = await parent.start("one")
        await seen(parent, CallStarted, 2)
        await seen(parent, CallSuspended)
        open_fork = await parent.fork(id="open")
        await open_fork.run("two")
        release.set()
        await soon(run)
        await parent.decide((await parent.pending())[0].id, "deny")
        await soon(run)
        idle_fork = await parent.fork(id="idle")
        await idle_fork.run("two")
        for session in (open_fork, idle_fork):
            done = await soon(replay(await session.records(), agent))
            assert done.identical, show_differences(done.differences)


async def test_a_record_that_ends_in_the_middle_is_played_as_far_as_it_goes(memory: MemoryStore) -> None:
    agent = clerk([call("look", what="a"), call("act", what="b")], "One.", "Two.")
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        await session.run("one", on_pending=lambda _: "approve")
        await session.run("two")
        records = await session.records()
    for length in range(1, len(records) + 1):
        done = await soon(replay(records[:length], agent))
        assert done.identical, f"after {length} records: {show_differences(done.differences)}"


async def test_a_hook_pushes_the_replay_on_as_it_did_the_run() -> None:
    from perdure.core.actions import CheckCall

    seen_checks: list[str] = []

    async def watch(action: Any, perform: Any) -> Any:
        if isinstance(action, CheckCall):
            seen_checks.append(action.name)
        return await perform(action)

    agent = clerk(*SCRIPT, middleware=[watch])
    records = await recorded(agent)
    seen_checks.clear()
    done = await soon(replay(records, agent))
    assert done.identical, show_differences(done.differences)
    assert seen_checks == ["look", "act", "look"], "the agent's own code decides"


async def test_records_without_their_beginning_are_refused() -> None:
    records = await recorded(clerk(*SCRIPT))
    for wrong in ([], records[1:]):
        with pytest.raises(UsageError, match="do not begin with the opening"):
            await replay(wrong, clerk(*SCRIPT))


def test_an_exported_session_is_checked_in_one_line(tmp_path: Path) -> None:
    agent = clerk(*SCRIPT)

    async def export() -> bytes:
        async with Runtime("memory:", agents=[agent]) as runtime:
            session = await runtime.open(agent, id="x")
            await session.run("one", on_pending=lambda _: "approve")
            return b"".join([line async for line in session.export()])

    path = tmp_path / "x.jsonl"
    path.write_bytes(asyncio.run(export()))
    assert check_replay(path, agent).identical
    with pytest.raises(AssertionError, match=r"x.jsonl: \d+ differences\nrun 1, before its first turn\n  agent"):
        check_replay(path, clerk(*SCRIPT, policy=Policy(deny=["look"])))


async def test_what_tools_of_other_kinds_came_to_is_played_back(memory: MemoryStore) -> None:
    clock = ManualClock()
    called: list[str] = []

    @tool(effect="once")
    async def build(name: str) -> str:
        called.append("build")
        return f"op-{name}"

    @build.check
    async def follow(operation: str, ctx: ToolContext) -> str:
        called.append("follow")
        return f"{operation} is built"

    @tool(effect="once", ask=True, expires=60)
    async def buy(item: str) -> str:
        called.append("buy")
        return "bought"

    @buy.listen
    async def quote(item: str) -> Any:
        called.append("quote")
        yield Prepared({"price": len(called)}, "r1", ready=True)

    @tool(kind="external")
    async def sign(paper: str) -> str: ...

    calls = [call("build", name="x"), call("buy", item="a"), call("sign", paper="p"), call("show", what="map")]
    agent = clerk(calls, [call("buy", item="b")], "Done.", tools=[build, buy, sign])
    async with Runtime(memory, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("go", tools=[frontend("show", parameters={"type": "object"})])
        await seen(session, CallSuspended, 3)
        for item in (await soon(run)).pending:
            value = None if item.kind == "approval" else "signed"
            await session.decide(item.id, "approve" if item.kind == "approval" else "answer", value=value)
        await seen(session, CallSuspended, 4)
        await clock.advance(61)
        await turned(clock, lambda: session.state.run is None)
        records = await session.records()
    assert [event.by for event in of_kind(records, CallDecided)][-1] == "expiry"
    before = list(called)
    done = await soon(replay(records, agent))
    assert done.identical, show_differences(done.differences)
    assert called == before, "nothing was started, followed, prepared or bought"


def of_kind(records: list[Record], kind: type[Any]) -> list[Any]:
    return [record.event for record in records if isinstance(record.event, kind)]


async def test_twins_each_have_their_own_result_decision_and_time(memory: MemoryStore) -> None:
    """Two equal calls of one turn: what came first then goes to the call that it came to."""
    clock = ManualClock()
    first, numbers = asyncio.Event(), iter(range(1, 10))

    @tool(effect="read")
    async def draw(from_: str) -> str:
        number = next(numbers)
        if number == 1:
            await first.wait()
        await asyncio.sleep(0)
        first.set()
        return f"card {number}"

    @tool(effect="read")
    async def rest() -> str:
        await sleep(clock, 40)
        return "rested"

    asked = [call("act", what="x"), call("act", what="x"), call("draw", from_="x"), call("draw", from_="x")]
    agent = clerk(asked, [call("rest")], [call("rest")], "Done.", tools=[act, draw, rest], limits=Limits(seconds=60))
    async with Runtime(memory, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("go")
        await seen(session, CallEnded, 2)
        one, other = (await soon(run)).pending
        await session._host.request(  # pyright: ignore[reportPrivateUsage]
            session._log,  # pyright: ignore[reportPrivateUsage]
            DecideAll((Decide(other.id, "deny", by="ann"), Decide(one.id, "approve", by="ann"))),
        )
        await turned(clock, lambda: session.state.run is None, step=10.0)
        records = await session.records()
    drawn = [event for event in of_kind(records, CallEnded) if event.call in (3, 4)]
    assert [(event.call, event.parts[0].text) for event in drawn] == [(4, "card 2"), (3, "card 1")]
    (ended,) = of_kind(records, RunEnded)
    assert (ended.reason, ended.detail) == ("limit", "seconds")
    done = await soon(replay(records, agent))
    assert done.identical, show_differences(done.differences)


async def test_inputs_that_came_while_nobody_drove_keep_their_numbers(memory: MemoryStore) -> None:
    agent = clerk("One.", "Two.", "Three.")
    async with Runtime(memory, agents=[agent], engine=None) as runtime:
        session = await runtime.open(agent, id="x")
        for word, busy in (("one", "queue"), ("two", "join"), ("three", "queue")):
            await session.start(word, busy=busy)
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.session("x")
        await seen(session, RunEnded, 2)
        records = await session.records()
    done = await soon(replay(records, agent))
    assert done.identical, show_differences(done.differences)


async def test_time_passes_as_it_did(memory: MemoryStore) -> None:
    clock = ManualClock()

    @tool(effect="read")
    async def rest() -> str:
        await sleep(clock, 40)
        return "rested"

    agent = clerk([call("rest")], "Never said.", tools=[rest], stop_when=[StopWhen(seconds=30)])
    async with Runtime(memory, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent, id="x")
        await session.start("go")
        await turned(clock, lambda: session.state.run is None and session.state.runs, step=10.0)
        records = await session.records()
    (ended,) = of_kind(records, RunEnded)
    assert ended.detail.startswith("stop condition")
    done = await soon(replay(records, agent))
    assert done.identical, show_differences(done.differences)


async def test_code_that_does_not_return_does_not_hold_a_replay_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    is_stuck = False

    async def watch(action: Any, perform: Any) -> Any:
        if is_stuck:
            await asyncio.Event().wait()
        return await perform(action)

    agent = clerk(*SCRIPT, middleware=[watch])
    records = await recorded(agent)
    is_stuck = True
    monkeypatch.setattr(playback, "PATIENCE", 0.2)
    with pytest.raises(Refused, match="does not go on"):
        await soon(replay(records, agent))


async def recorded_with(agent: Agent[Any], *inputs: str, store: MemoryStore) -> list[Record]:
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        for text in inputs:
            await soon(session.run(text))
        return await session.records()


async def test_an_answer_that_a_guardrail_would_block_now_is_shown(memory: MemoryStore) -> None:
    records = await recorded_with(clerk("A secret."), "go", store=memory)
    strict = clerk("A secret.", guardrails=[Guardrail(output=lambda moment: Block("secret"))])
    done = await soon(replay(records, strict))
    assert not done.identical
    assert "secret" in show_differences(done.differences)


async def test_another_model_in_the_same_session_is_no_difference(memory: MemoryStore) -> None:
    for name, text in (("one", "go"), ("two", "on")):
        agent = Agent(name="clerk", model=ScriptedModel(["One.", "Two."], name=name), tools=[look, act])
        records = await recorded_with(agent, text, store=memory)
    done = await soon(replay(records, clerk("x")))
    assert done.identical, show_differences(done.differences)
