"""How sub-agents end when they do not end by themselves: stopped, cancelled, late, silent, orphaned, deleted."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from perdure import Agent, Conflict, Limits, Refused, Runtime, Session, ToolContext, tool
from perdure.core.errors import StoreError
from perdure.events import CallEnded, CallStarted, CallSuspended, RunEnded, StopRequested
from perdure.ports import Batch, Store
from perdure.stores.memory import MemoryStore
from perdure.testing import ManualClock, Reply, ScriptedModel, call
from tests.runtime.kin import Gate, agent, born, child, children, end, outcome, row
from tests.runtime.scenes import crashing, events, said, seen, soon, told, turned, until


@tool(ask=True)
async def pay(order: str) -> str:
    """Pay an order."""
    return f"paid {order}"


class Mule:
    """A tool that does not end when it is told to."""

    def __init__(self) -> None:
        self.release = asyncio.Event()

    def tool(self) -> Any:
        @tool
        async def stubborn() -> str:
            """Do not want to end."""
            while not self.release.is_set():
                with suppress(asyncio.CancelledError):
                    await self.release.wait()
            return "at last"

        return stubborn


async def tree(runtime: Runtime, session: Session[Any]) -> list[Session[Any]]:
    """A session and all below it."""
    found = [session]
    for below in await children(runtime, session):
        found += await tree(runtime, below)
    return found


def deep(*tools: Any, answers: Any) -> Agent[Any]:
    """Three deep and two wide."""
    leaf = agent("leaf", *answers, tools=list(tools))
    mid = agent("mid", [call("leaf", input="a"), call("leaf", input="b")], "mid is done", tools=[leaf])
    return agent("top", [call("mid", input="a"), call("mid", input="b")], "top is done", "later", tools=[mid])


IN_TIME = 5.0
"""Seconds within which a cancelled tree has ended."""


# Stop, cancel, interrupt


async def test_cancel_ends_the_whole_tree(store: str | Store) -> None:
    gate = Gate()
    top = deep(gate.tool(), answers=[call("wait", what="x"), "ok"])
    async with Runtime(store, agents=[top]) as runtime:
        session = await runtime.open(top)
        run = await session.start("go")
        await until(lambda: gate.inside == 4)
        began = asyncio.get_running_loop().time()
        await session.cancel(by="ops")
        result = await soon(run)
        assert asyncio.get_running_loop().time() - began < IN_TIME
        assert (result.reason, result.detail) == ("cancelled", "by ops")
        found = await tree(runtime, session)
        assert len(found) == 7
        for below in found:
            assert below.state.run is None
            assert (await end(below))[0] == "cancelled"
        assert len(gate.cancelled) == 4
        assert [text for text, *_ in (await told(session))] == ["mid", "mid"]


async def test_a_leaf_that_will_not_end_is_left_behind_in_time(memory: Store) -> None:
    mule = Mule()
    top = deep(mule.tool(), answers=[call("stubborn"), "ok"])
    async with Runtime(memory, agents=[top], grace=0) as runtime:
        session = await runtime.open(top)
        run = await session.start("go")
        for mid in await born(runtime, session, 2):
            for leaf in await born(runtime, mid, 2):
                await seen(leaf, CallStarted)
        began = asyncio.get_running_loop().time()
        await session.cancel()
        assert (await soon(run)).reason == "cancelled"
        assert asyncio.get_running_loop().time() - began < IN_TIME
        found = await tree(runtime, session)
        assert [below.state.run for below in found] == [None] * 7
        leaves = [below for below in found if below.agent == "leaf"]
        assert [(await outcome(leaf))[0] for leaf in leaves] == ["unknown"] * 4
        assert all(ended.in_doubt for ended in await events(session, CallEnded)), "so nobody says that nothing happened"
        mule.release.set()


async def test_stop_lets_the_tools_of_children_finish(store: str | Store) -> None:
    gate = Gate()
    top = deep(gate.tool(), answers=[call("wait", what="x"), "ok"])
    async with Runtime(store, agents=[top]) as runtime:
        session = await runtime.open(top)
        run = await session.start("go")
        await until(lambda: gate.inside == 4)
        await session.stop(by="ops")
        for mid in await children(runtime, session):
            for leaf in await children(runtime, mid):
                await seen(leaf, StopRequested, cause="stop")
        assert session.state.run is not None, "it waits for them"
        gate.open.set()
        assert (await soon(run)).reason == "stopped"
        assert (len(gate.passed), gate.cancelled) == (4, [])
        for below in await tree(runtime, session):
            assert (await end(below))[0] == "stopped"


async def test_a_stopped_child_that_waits_for_a_person_ends_at_once(memory: Store) -> None:
    top = row("top", "mid", last=agent("leaf", call("pay", order="7"), "ok", tools=[pay]))
    async with Runtime(memory, agents=[top]) as runtime:
        session = await runtime.open(top)
        run = await session.start("go")
        (pending,) = (await soon(run)).pending
        await session.stop()
        assert (await soon(run)).reason == "stopped"
        assert await session.pending() == ()
        assert await runtime.pending() == []
        with pytest.raises(Conflict):
            await session.decide(pending.id, "approve")


async def test_an_interrupting_input_ends_the_children(store: str | Store) -> None:
    gate = Gate()
    top = row("top", "mid", last=agent("leaf", call("wait", what="x"), "ok", tools=[gate.tool()]))
    top = Agent(name="top", model=ScriptedModel([call("mid", input="x"), "The new one."]), tools=top.tools)
    async with Runtime(store, agents=[top]) as runtime:
        session = await runtime.open(top)
        run = await session.start("go")
        await until(lambda: gate.inside == 1)
        new = await session.send("no, this", busy="interrupt")
        assert (await soon(run)).detail == "interrupted by a new input"
        assert (await soon(new)).output == "The new one."
        assert [(await end(below))[0] for below in (await tree(runtime, session))[1:]] == ["cancelled"] * 2


async def test_a_cancel_that_meets_the_birth_of_a_child_ends_it(memory: MemoryStore) -> None:
    """The run is told to end between the intent and the child's first word."""
    gate = Gate()
    leaf = agent("leaf", call("wait", what="x"), "ok", tools=[gate.tool()])
    top = agent("top", call("leaf", input="x"), "ok", tools=[leaf])
    slow = SlowBirth(memory)
    async with Runtime(slow, agents=[top]) as runtime:  # type: ignore[arg-type]
        session = await runtime.open(top)
        run = await session.start("go")
        await seen(session, CallStarted)
        await session.cancel()
        slow.go.set()
        assert (await soon(run)).reason == "cancelled"
        for below in await children(runtime, session):
            await until(lambda below=below: below.state.run is None and not below.state.queue)
            assert below.state.owed == ()
        assert gate.inside == 0


class SlowBirth:
    """A store that takes its time with the first append of a child."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.go = asyncio.Event()

    async def append(self, batch: Batch) -> None:
        if batch.opening is not None and "." in batch.opening.id:
            await self.go.wait()
        await self._store.append(batch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def test_a_childs_own_end_by_a_person_is_told_to_the_parent(memory: Store) -> None:
    gate = Gate()
    leaf = agent("leaf", call("wait", what="x"), "ok", tools=[gate.tool()])
    top = agent("top", call("leaf", input="x"), "I see.", tools=[leaf])
    async with Runtime(memory, agents=[top]) as runtime:
        session = await runtime.open(top, id="s")
        run = await session.start("go")
        await until(lambda: gate.inside == 1)
        await (await child(runtime, session)).cancel(by="ops")
        assert (await soon(run)).output == "I see."
        assert await told(session) == [("leaf", "cancelled", "leaf did not finish (cancelled: by ops).")]


# A kept child


async def test_cancel_takes_back_what_waits_for_a_kept_child(store: str | Store) -> None:
    gate = Gate()
    leaf = agent("leaf", call("wait", what="x"), "ok", call("wait", what="y"), "ok", tools=[gate.tool()])
    calls = [call("leaf", input=text) for text in "abc"]
    top = agent("top", calls, "ok", tools=[leaf.as_tool(child="kept")])
    async with Runtime(store, agents=[top]) as runtime:
        session = await runtime.open(top)
        run = await session.start("go")
        await seen(session, CallSuspended, 3)
        await until(lambda: gate.inside == 1)
        await session.cancel()
        assert (await soon(run)).reason == "cancelled"
        below = await child(runtime, session)
        await until(lambda: not below.state.owed)
        assert (below.state.run, below.state.queue) == (None, ())
        assert gate.entered == ["x"], "what waited was never begun"
        outcomes = [ended.outcome for ended in await events(session, CallEnded)]
        assert outcomes == ["cancelled"] * 3, "nobody was waited for in vain"


async def test_the_time_of_one_call_is_not_that_of_another_to_the_same_child(memory: Store) -> None:
    clock, gate = ManualClock(), Gate()
    leaf = agent("leaf", call("wait", what="x"), "first", "second", tools=[gate.tool()])
    quick = leaf.as_tool(child="named", name="quick", timeout=5)
    slow = leaf.as_tool(child="named", name="slow")
    calls = [call("slow", input="a", child="ann"), call("quick", input="b", child="ann")]
    top = agent("top", calls, "ok", tools=[slow, quick])
    async with Runtime(memory, agents=[top], clock=clock) as runtime:
        session = await runtime.open(top)
        run = await session.start("go")
        await seen(session, CallSuspended, 2)
        await until(lambda: gate.inside == 1)
        await turned(clock, lambda: session.state.run and session.state.run.calls[1].status == "ended")
        assert gate.cancelled == []
        gate.open.set()
        assert (await soon(run)).output == "ok"
        assert [(name, said_outcome) for name, said_outcome, _ in await told(session)] == [
            ("slow", "ok"),
            ("quick", "timeout"),
        ]


# Time and silence


async def test_a_call_that_takes_too_long_is_ended(memory: Store) -> None:
    clock, gate = ManualClock(), Gate()
    leaf = agent("leaf", call("wait", what="x"), "ok", tools=[gate.tool()])
    top = agent("top", call("leaf", input="x"), "I see.", tools=[leaf.as_tool(timeout=30)])
    async with Runtime(memory, agents=[top], clock=clock) as runtime:
        session = await runtime.open(top)
        run = await session.start("go")
        await until(lambda: gate.inside == 1)
        (paused,) = await events(session, CallSuspended)
        assert paused.expires_at == clock.now() + 30
        await clock.advance(29)
        assert gate.inside == 1
        await turned(clock, lambda: session.state.run is None)
        assert (await soon(run)).output == "I see."
        assert await told(session) == [("leaf", "timeout", "leaf did not finish in time.")]
        assert (await end(await child(runtime, session)))[0] == "cancelled"
        assert gate.cancelled == ["x"]
        assert (await soon(run)).usage.total == 45, "what it had used is paid"


async def test_a_call_that_takes_too_long_in_the_background_is_ended(memory: Store) -> None:
    clock, gate = ManualClock(), Gate()
    leaf = agent("leaf", call("wait", what="x"), "ok", tools=[gate.tool()])
    tools = [leaf.as_tool(timeout=30, background=True)]
    top = agent("top", call("leaf", input="x"), "Waiting.", "I see.", tools=tools)
    async with Runtime(memory, agents=[top], clock=clock) as runtime:
        session = await runtime.open(top)
        run = await session.start("go")
        await until(lambda: gate.inside == 1 and session.state.run and session.state.run.turn == 2)
        await turned(clock, lambda: session.state.run is None)
        assert (await soon(run)).output == "I see."
        assert (await said(session))[-1] == "[leaf-1 ended: timeout] leaf did not finish in time."
        assert (await end(await child(runtime, session)))[0] == "cancelled"


async def test_a_child_that_does_not_say_that_it_ended_in_time_is_in_doubt(memory: Store) -> None:
    clock, mule = ManualClock(), Mule()
    leaf = agent("leaf", call("stubborn"), "ok", tools=[mule.tool()])
    top = agent("top", call("leaf", input="x"), "I see.", tools=[leaf.as_tool(timeout=30)])
    async with Runtime(memory, agents=[top], clock=clock, grace=0) as runtime:
        session = await runtime.open(top)
        run = await session.start("go")
        (below,) = await born(runtime, session)
        await seen(below, CallStarted)
        await turned(clock, lambda: session.state.run is None)
        assert (await soon(run)).output == "I see."
        ((_, said_outcome, _),) = await told(session)
        assert said_outcome == "timeout"
        assert (await events(session, CallEnded))[0].in_doubt
        mule.release.set()


async def test_a_cancelled_background_child_is_told(memory: Store) -> None:
    gate = Gate()
    leaf = agent("leaf", call("wait", what="x"), "ok", tools=[gate.tool()])
    tools = [leaf.as_tool(background=True)]
    top = agent("top", call("leaf", input="x"), "Waiting.", "I see.", tools=tools)
    async with Runtime(memory, agents=[top]) as runtime:
        session = await runtime.open(top)
        run = await session.start("go")
        await until(lambda: gate.inside == 1 and session.state.run and session.state.run.turn == 2)
        await session.cancel_background("leaf-1")
        assert (await soon(run)).output == "I see."
        assert (await said(session))[-1].startswith("[leaf-1 ended: cancelled]")
        assert gate.cancelled == ["x"]


async def test_a_run_that_ends_at_its_limit_ends_its_background_child(memory: Store) -> None:
    gate = Gate()
    leaf = agent("leaf", call("wait", what="x"), "ok", tools=[gate.tool()])
    tools = [leaf.as_tool(background=True), gate.tool(name="other")]
    top = agent("top", call("leaf", input="x"), call("leaf", input="y"), tools=tools, limits=Limits(turns=2))
    async with Runtime(memory, agents=[top]) as runtime:
        session = await runtime.open(top)
        result = await soon(session.run("go"))
        assert (result.reason, result.detail) == ("limit", "turns")
        for below in await children(runtime, session):
            assert below.state.run is None
        assert gate.inside == 0


def silent(seconds: float, **limits: Any) -> Any:
    return Limits(silence=seconds, **limits)


async def test_a_child_that_hangs_is_ended_for_its_silence(memory: Store) -> None:
    clock, gate = ManualClock(), Gate()
    leaf = agent("leaf", call("wait", what="x"), "ok", tools=[gate.tool()])
    mid = agent("mid", call("leaf", input="x"), "leaf hangs", tools=[leaf])
    top = agent("top", call("mid", input="x"), "I see.", tools=[mid], limits=silent(60))
    async with Runtime(memory, agents=[top], clock=clock) as runtime:
        session = await runtime.open(top)
        run = await session.start("go")
        await until(lambda: gate.inside == 1)
        await clock.advance(59)
        assert gate.inside == 1
        await turned(clock, lambda: session.state.run is None)
        assert (await soon(run)).output == "I see."
        below = await child(runtime, session)
        assert await told(below) == [("leaf", "error", "leaf did not finish (limit: silence).")]
        assert await end(await child(runtime, below)) == ("limit", "silence")
        assert (await end(below))[0] == "completed", "who waits for it is not silent itself"


async def test_a_model_that_hangs_is_silent(memory: Store) -> None:
    clock = ManualClock()
    leaf = agent("leaf", Reply("never", delay=10_000), clock=clock)
    top = agent("top", call("leaf", input="x"), "I see.", tools=[leaf.as_tool(limits=silent(20))])
    async with Runtime(memory, agents=[top], clock=clock) as runtime:
        session = await runtime.open(top)
        run = await session.start("go")
        (below,) = await born(runtime, session)
        await until(lambda: below.state.run and below.state.run.awaiting == "model")
        await turned(clock, lambda: session.state.run is None)
        assert (await soon(run)).output == "I see."
        assert await told(session) == [("leaf", "error", "leaf did not finish (limit: silence).")]


async def test_a_child_that_is_slow_and_not_silent_goes_on(memory: Store) -> None:
    """It streams a word every ten seconds, for far longer than it may be silent."""
    clock = ManualClock()

    async def speak(ctx: ToolContext[Any, Any]) -> str:
        """Speak slowly."""
        for number in range(30):
            woken = asyncio.Event()
            clock.call_later(10, woken.set)
            await woken.wait()
            ctx.progress(f"word {number}")
        return "spoken"

    leaf = agent("leaf", call("speak"), "ok", tools=[tool(speak, effect="read")])
    top = agent("top", call("leaf", input="x"), "fine", tools=[leaf], limits=silent(15))
    async with Runtime(memory, agents=[top], clock=clock) as runtime:
        session = await runtime.open(top)
        run = await session.start("go")
        (below,) = await born(runtime, session)
        await seen(below, CallStarted)
        for _ in range(320):
            await clock.advance(1)
        assert (await soon(run)).output == "fine"
        assert await told(session) == [("leaf", "ok", "ok")]


async def test_a_child_that_waits_for_a_person_is_not_silent(memory: Store) -> None:
    clock = ManualClock()
    leaf = agent("leaf", call("pay", order="7"), "paid", tools=[pay])
    top = row("top", "mid", last=leaf)
    async with Runtime(memory, agents=[top], clock=clock) as runtime:
        session = await runtime.open(top)
        run = await session.start("go", limits=silent(5))
        (pending,) = (await soon(run)).pending
        for _ in range(10):
            await clock.advance(86_400)
        assert [item.id for item in await session.pending()] == [pending.id]
        await session.decide(pending.id, "approve")
        assert (await soon(run)).output == "top is done"


# Orphans


async def test_an_orphan_that_may_finish_goes_on_after_a_cancel(store: str | Store) -> None:
    gate = Gate()
    leaf = agent("leaf", call("wait", what="x"), "ok", tools=[gate.tool()])
    top = agent("top", call("leaf", input="x"), "ok", tools=[leaf.as_tool(orphan="finish")])
    async with Runtime(store, agents=[top]) as runtime:
        session = await runtime.open(top)
        run = await session.start("go")
        await until(lambda: gate.inside == 1)
        await session.cancel()
        result = await soon(run)
        assert result.reason == "cancelled"
        assert result.usage.total == 30, "what it had used until then"
        assert await told(session) == [("leaf", "cancelled", "The run was ended; leaf goes on by itself.")]
        gate.open.set()
        below = await child(runtime, session)
        await seen(below, RunEnded)
        await until(lambda: not below.state.owed)
        assert await end(below) == ("completed", "")
        assert len(await events(session, CallEnded)) == 1


async def test_an_orphan_is_ended_by_whoever_finds_it(memory: Store) -> None:
    """The parent is gone, and the child's process died before anybody could tell it."""
    gate = Gate()
    leaf = agent("leaf", call("wait", what="x"), "ok", tools=[gate.tool()])
    top = agent("top", call("leaf", input="x"), "ok", tools=[leaf])
    async with crashing(memory, agents=[top]) as runtime:
        session = await runtime.open(top, id="s")
        await session.start("go")
        await until(lambda: gate.inside == 1)
    async with Runtime(memory, engine=None):
        await memory.delete(session.uid)
    async with Runtime(memory, agents=[top]) as runtime:
        below = await runtime.session("s.leaf-1")
        await seen(below, RunEnded)
        assert await end(below) == ("cancelled", "by its parent is gone")


async def test_who_speaks_to_an_orphan_is_answered(memory: Store) -> None:
    leaf = agent("leaf", "first", "second")
    top = agent("top", call("leaf", input="x"), "ok", tools=[leaf.as_tool(child="kept")])
    async with Runtime(memory, agents=[top]) as runtime:
        session = await runtime.open(top, id="s")
        await soon(session.run("go"))
        await memory.delete(session.uid)
        below = await runtime.session("s.leaf")
        assert (await soon(below.run("and you?"))).output == "second"


async def test_deleting_a_parent_ends_and_deletes_what_is_below(store: str | Store) -> None:
    gate = Gate()
    top = deep(gate.tool(), answers=[call("wait", what="x"), "ok"])
    async with Runtime(store, agents=[top]) as runtime:
        session = await runtime.open(top, id="s")
        await session.start("go")
        await until(lambda: gate.inside == 4)
        began = asyncio.get_running_loop().time()
        await soon(session.delete())
        assert asyncio.get_running_loop().time() - began < IN_TIME
        assert [row.id async for row in runtime.sessions(children=True)] == []
        assert len(gate.cancelled) == 4


async def test_deleting_a_parent_leaves_orphans_that_may_finish(memory: Store) -> None:
    gate = Gate()
    leaf = agent("leaf", call("wait", what="x"), "ok", tools=[gate.tool()])
    top = agent("top", call("leaf", input="x"), "ok", tools=[leaf.as_tool(orphan="finish")])
    async with Runtime(memory, agents=[top]) as runtime:
        session = await runtime.open(top, id="s")
        await session.start("go")
        await until(lambda: gate.inside == 1)
        await soon(session.delete())
        gate.open.set()
        below = await runtime.session("s.leaf-1")
        await seen(below, RunEnded)
        await until(lambda: not below.state.owed)
        assert await end(below) == ("completed", "")


async def test_deleting_a_parent_ends_what_waits_for_a_kept_child(memory: Store) -> None:
    gate = Gate()
    leaf = agent("leaf", call("wait", what="x"), "ok", call("wait", what="y"), "ok", tools=[gate.tool()])
    calls = [call("leaf", input=text) for text in "abc"]
    top = agent("top", calls, "ok", tools=[leaf.as_tool(child="kept")])
    async with Runtime(memory, agents=[top]) as runtime:
        session = await runtime.open(top, id="s")
        await session.start("go")
        await seen(session, CallSuspended, 3)
        await until(lambda: gate.inside == 1)
        await soon(session.delete())
        assert gate.entered == ["x"]
        assert [row.id async for row in runtime.sessions(children=True)] == []


async def test_deleting_a_child_is_told_to_who_waits_for_it(store: str | Store) -> None:
    leaf = agent("leaf", call("pay", order="7"), "ok", tools=[pay])
    top = row("top", "mid", last=leaf)
    async with Runtime(store, agents=[top]) as runtime:
        session = await runtime.open(top)
        run = await session.start("go")
        (pending,) = (await soon(run)).pending
        await (await runtime.session(pending.session)).delete()
        result = await soon(run)
        assert (result.output, result.usage.total) == ("top is done", 15 * 5)
        mid = await child(runtime, session)
        ((_, said_outcome, text),) = await told(mid)
        assert said_outcome == "unknown"
        assert text == "The session of leaf was deleted; it is not known what it has done until then."
        assert (await events(mid, CallEnded))[0].in_doubt


async def test_a_kept_child_that_was_deleted_begins_anew(store: str | Store) -> None:
    leaf = agent("leaf", "one", "two")
    top = agent("top", call("leaf", input="a"), "ok", call("leaf", input="b"), "ok")
    top = Agent(name="top", model=top.model, tools=[leaf.as_tool(child="kept")])
    async with Runtime(store, agents=[top]) as runtime:
        session = await runtime.open(top, id="s")
        await soon(session.run("go"))
        below = await child(runtime, session)
        await until(lambda: not below.state.owed)
        await below.delete()
        await soon(session.run("go"))
        assert [text for _, _, text in await told(session)] == ["one", "one"]
        assert await said(await child(runtime, session)) == ["b"]


# Back, and aside


async def test_a_fork_does_not_touch_the_children(store: str | Store) -> None:
    gate = Gate()
    leaf = agent("leaf", call("wait", what="x"), "found", tools=[gate.tool()])
    top = agent("top", call("leaf", input="x"), "ok", tools=[leaf])
    async with Runtime(store, agents=[top]) as runtime:
        session = await runtime.open(top, id="s")
        run = await session.start("go")
        await until(lambda: gate.inside == 1)
        await seen(session, CallSuspended)
        fork = await session.fork(id="f")
        assert fork.state.run is None
        assert (await told(fork))[0][1] == "unknown"
        assert await fork.children() == []
        gate.open.set()
        assert (await soon(run)).output == "ok"
        assert await told(session) == [("leaf", "ok", "found")]
        assert len(await events(fork, CallEnded, outcome="ok")) == 0
        assert fork.state.metadata == {}


async def test_a_fork_starts_children_of_its_own(memory: Store) -> None:
    leaf = agent("leaf", "found")
    top = agent("top", call("leaf", input="x"), "ok", call("leaf", input="y"), "ok")
    top = Agent(name="top", model=top.model, tools=[leaf.as_tool(child="kept")])
    async with Runtime(memory, agents=[top]) as runtime:
        session = await runtime.open(top, id="s")
        await soon(session.run("go"))
        fork = await session.fork(id="f")
        assert (await soon(fork.run("again"))).reason == "completed"
        below = await child(runtime, fork)
        assert (below.id, await said(below)) == ("f.leaf", ["y"])
        assert await said(await child(runtime, session)) == ["x"]


async def test_a_parent_goes_back_when_its_children_are_done(memory: Store) -> None:
    gate = Gate()
    leaf = agent("leaf", call("wait", what="x"), "found", tools=[gate.tool()])
    top = agent("top", call("leaf", input="x"), "ok", tools=[leaf])
    async with Runtime(memory, agents=[top]) as runtime:
        session = await runtime.open(top, id="s")
        before = session.state.seq
        run = await session.start("go")
        await until(lambda: gate.inside == 1)
        with pytest.raises(Refused):
            await session.rewind(before)
        gate.open.set()
        await soon(run)
        await session.rewind(before)
        assert await session.history() == []
        assert len(await session.children()) == 1, "the log is whole"
        assert (await soon(session.run("go"))).output == "ok"
        assert [below.id for below in await children(runtime, session)] == ["s.leaf-1", "s.leaf-2"]


# A store out of order


class Flaky:
    """A store that refuses some appends to one session, as if its disk were full for a while."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.refuse: set[str] = set()
        self.refused = 0

    async def append(self, batch: Batch) -> None:
        if batch.session in self.refuse:
            self.refused += 1
            raise StoreError("the disk is full")
        await self._store.append(batch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def test_an_end_is_not_lost_because_a_store_is_out_of_order(memory: MemoryStore) -> None:
    clock, gate = ManualClock(), Gate()
    flaky = Flaky(memory)
    leaf = agent("leaf", call("wait", what="x"), "found", tools=[gate.tool()])
    top = agent("top", call("leaf", input="x"), "ok", tools=[leaf])
    async with Runtime(flaky, agents=[top], clock=clock) as runtime:  # type: ignore[arg-type]
        session = await runtime.open(top, id="s")
        run = await session.start("go")
        await until(lambda: gate.inside == 1)
        await seen(session, CallSuspended)
        flaky.refuse.add(session.uid)
        gate.open.set()
        await turned(clock, lambda: flaky.refused > 8)
        flaky.refuse.clear()
        await turned(clock, lambda: session.state.run is None)
        assert (await soon(run)).output == "ok"
        assert await told(session) == [("leaf", "ok", "found")]
