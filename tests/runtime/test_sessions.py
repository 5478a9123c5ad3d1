"""Sessions: what is kept beside the conversation, who sees which, and how many fit into one process."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from perdure import Agent, Conflict, NotFound, Refused, Runtime, ToolContext, UsageError, tool
from perdure.events import CallEnded, CallStarted, ModelCalled
from perdure.ports import Store
from perdure.runtime.log import SessionLog
from perdure.stores.memory import MemoryStore
from perdure.testing import ScriptedModel, call
from tests.runtime.scenes import crashing, events, kinds, seen, soon, told, until


def echo(name: str = "echo", **options: Any) -> Agent[str]:
    return Agent(name=name, model=ScriptedModel(lambda _: "Yes."), **options)


# Lists, tenants, metadata


async def test_sessions_are_listed_newest_first_and_filtered(store: str | Store) -> None:
    @tool(ask=True)
    async def act() -> str:
        return "done"

    agent, other = echo(), Agent(name="asker", model=ScriptedModel([[call("act")]]), tools=[act])
    async with Runtime(store, agents=[agent, other]) as runtime:
        for number in range(3):
            await runtime.open(agent, id=f"s{number}", metadata={"order": str(number), "kind": "bill"})
        waiting = await runtime.open(other, id="w", metadata={"kind": "ask"})
        await waiting.run("go")

        async def listed(**filters: Any) -> list[str]:
            return [row.id async for row in runtime.sessions(**filters)]

        assert await listed() == ["w", "s2", "s1", "s0"]
        assert await listed(metadata={"kind": "bill"}) == ["s2", "s1", "s0"]
        assert await listed(metadata={"kind": "bill", "order": "1"}) == ["s1"]
        assert await listed(metadata={"order": "9"}) == []
        assert await listed(agent="asker") == ["w"]
        assert await listed(status="waiting") == ["w"]
        assert await listed(status="idle", agent="echo") == ["s2", "s1", "s0"]
        (row,) = [row async for row in runtime.sessions(agent="asker")]
        assert (row.uid, row.status, row.metadata) == (waiting.uid, "waiting", {"kind": "ask"})


async def test_a_list_longer_than_a_page_is_complete(memory: Store) -> None:
    agent = echo()
    async with Runtime(memory, agents=[agent]) as runtime:
        for number in range(230):
            await runtime.open(agent, id=f"s{number}")
        assert [row.id async for row in runtime.sessions()] == [f"s{number}" for number in reversed(range(230))]


async def test_tenants_do_not_see_each_other(store: str | Store) -> None:
    @tool(ask=True)
    async def act() -> str:
        return "done"

    agent = Agent(name="asker", model=ScriptedModel(lambda _: [call("act")]), tools=[act])
    async with Runtime(store, agents=[agent]) as runtime:
        acme = await runtime.open(agent, id="x", tenant="acme")
        umbrella = await runtime.open(agent, id="x", tenant="umbrella")
        assert acme.uid != umbrella.uid
        assert (acme.tenant, umbrella.tenant) == ("acme", "umbrella")
        await asyncio.gather(acme.run("a"), umbrella.run("b"))
        assert [row.uid async for row in runtime.sessions(tenant="acme")] == [acme.uid]
        (pending,) = await runtime.pending(tenant="acme")
        assert pending.id.startswith(acme.uid)
        assert len(await runtime.pending()) == 2
        with pytest.raises(NotFound):
            await umbrella.decide(pending.id, "approve")
        with pytest.raises(NotFound):
            await runtime.session("x")
        assert (await runtime.session("x", tenant="umbrella")).uid == umbrella.uid


class SlowToLetGo(MemoryStore):
    """A store that takes its time to release what was driven."""

    async def release(self, session: str, *, epoch: int, head: int) -> bool:
        await asyncio.sleep(0.05)
        return await super().release(session, epoch=epoch, head=head)


@pytest.mark.parametrize("answer", ["Done.", [call("act")]])
async def test_a_session_can_be_deleted_as_soon_as_its_run_has_ended_or_waits(answer: Any) -> None:
    @tool(ask=True)
    async def act() -> str:
        return "never"

    agent = Agent(name="clerk", model=ScriptedModel([answer]), tools=[act])
    async with Runtime(SlowToLetGo(), agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        await session.run("go")
        await session.delete()
        assert [row async for row in runtime.sessions()] == []


async def test_a_session_cannot_be_deleted_while_it_works(store: str | Store) -> None:
    release = asyncio.Event()

    async def answer(_: object) -> str:
        await release.wait()
        return "Done."

    agent = Agent(name="clerk", model=ScriptedModel(answer))
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("go")
        await seen(session, ModelCalled)
        with pytest.raises(Refused, match="stop it first"):
            await session.delete()
        release.set()
        assert (await run).output == "Done."


# Data


@dataclass
class Customer:
    user: str


class Stricter(msgspec.Struct):
    user: str
    vat: str


@tool
async def greet(ctx: ToolContext[Any, Customer]) -> str:
    """Greet."""
    assert isinstance(ctx.data, Customer)
    return f"hello {ctx.data.user}"


async def test_data_is_typed_and_kept(store: str | Store) -> None:
    agent = Agent(name="clerk", model=ScriptedModel([[call("greet")], "One.", [call("greet")], "Two."]), tools=[greet])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x", data=Customer("u7"))
        await session.run("go")
        assert session.state.data == {"user": "u7"}
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        await session.run("go")
        assert await told(session) == [("greet", "ok", "hello u7")] * 2
        assert (await runtime.open(agent, id="x", data=Customer("u7"))).uid == session.uid
        with pytest.raises(Conflict, match="other data"):
            await runtime.open(agent, id="x", data=Customer("u8"))


@pytest.mark.parametrize("data", [None, {"user": 7}, "u7"])
async def test_data_that_does_not_fit_the_tools_is_refused_and_nothing_is_made(memory: Store, data: Any) -> None:
    agent = Agent(name="clerk", model=ScriptedModel(["Never."]), tools=[greet])
    async with Runtime(memory, agents=[agent]) as runtime:
        with pytest.raises(UsageError, match="data of session 'x' does not fit the tool 'greet'"):
            await runtime.open(agent, id="x", data=data)
        assert [row async for row in runtime.sessions()] == []


async def test_data_that_no_longer_fits_is_told_at_every_door(store: str | Store) -> None:
    started: list[str] = []

    @tool(name="greet")
    async def stricter(ctx: ToolContext[Any, Stricter]) -> str:
        started.append(ctx.data.vat)
        return "hello"

    model = ScriptedModel([[call("greet")], "Done."])
    old = Agent(name="clerk", model=model, tools=[greet])
    new = Agent(name="clerk", model=model, tools=[stricter])
    async with Runtime(store, agents=[old], engine=None) as runtime:
        session = await runtime.open(old, id="x", data=Customer("u7"))
        await session.start("go")
    async with Runtime(store, agents=[new]) as runtime:
        with pytest.raises(UsageError, match="`vat`"):
            await runtime.open(new, id="x")
        session = await runtime.session("x")
        with pytest.raises(UsageError, match="`vat`"):
            await session.run("more")
        # What was accepted before is worked off: the call fails before it starts, so nothing is in doubt.
        await until(lambda: session.state.run is None and session.state.runs == 1)
        ((name, outcome, text),) = await told(session)
        assert (name, outcome) == ("greet", "error")
        assert "vat" in text
        assert "may have taken effect" not in text
        (ended,) = await events(session, CallEnded)
        assert not ended.in_doubt
        assert started == []


# deps


async def test_deps_are_entered_once_and_closed(store: str | Store) -> None:
    life: list[str] = []

    @asynccontextmanager
    async def open_deps() -> AsyncIterator[dict[str, str]]:
        life.append("opened")
        yield {"bank": "b"}
        life.append("closed")

    @tool(effect="read")
    async def ask_bank(ctx: ToolContext[dict[str, str], Any]) -> str:
        return ctx.deps["bank"]

    agent = Agent(name="clerk", model=ScriptedModel(lambda r: "Done." if len(r.messages) > 2 else [call("ask_bank")]))
    agent = Agent(name="clerk", model=agent.model, tools=[ask_bank])
    async with Runtime(store, agents=[agent], deps=open_deps) as runtime:
        for number in range(3):
            session = await runtime.open(agent, id=str(number))
            await session.run("go")
            assert await told(session) == [("ask_bank", "ok", "b")]
        assert life == ["opened"]
    assert life == ["opened", "closed"]


async def test_deps_may_be_a_context_manager_or_the_thing_itself(memory: Store) -> None:
    @asynccontextmanager
    async def open_deps() -> AsyncIterator[str]:
        yield "entered"

    found: list[object] = []

    @tool(effect="read")
    async def peek(ctx: ToolContext[Any, Any]) -> str:
        found.append(ctx.deps)
        return "ok"

    for deps in (open_deps(), ["a", "list"], None):
        agent = Agent(name="clerk", model=ScriptedModel([[call("peek")], "Done."]), tools=[peek])
        async with Runtime(memory, agents=[agent], deps=deps) as runtime:
            await (await runtime.open(agent)).run("go")
    assert found == ["entered", ["a", "list"], None]


async def test_deps_that_fail_to_open_leave_the_store_closed(store: str | Store) -> None:
    @asynccontextmanager
    async def open_deps() -> AsyncIterator[None]:
        raise OSError("no bank today")
        yield

    agent = echo()
    with pytest.raises(OSError, match="no bank today"):
        async with Runtime(store, agents=[agent], deps=open_deps):
            pass
    async with Runtime(store, agents=[agent]) as runtime:
        assert (await (await runtime.open(agent)).run("go")).output == "Yes."


async def test_deps_are_closed_after_the_last_call(memory: Store) -> None:
    order: list[str] = []

    @asynccontextmanager
    async def open_deps() -> AsyncIterator[None]:
        yield
        order.append("deps closed")

    started = asyncio.Event()

    @tool
    async def work() -> str:
        started.set()
        await asyncio.sleep(0.05)
        order.append("tool done")
        return "ok"

    agent = Agent(name="clerk", model=ScriptedModel([[call("work")], "Done."]), tools=[work])
    async with Runtime(memory, agents=[agent], deps=open_deps) as runtime:
        await (await runtime.open(agent)).start("go")
        await soon(started.wait())
    assert order == ["tool done", "deps closed"]


# Many sessions


async def test_many_sessions_work_side_by_side(store: str | Store) -> None:
    count = 40
    together = asyncio.Barrier(count)

    @tool(effect="read")
    async def meet() -> str:
        await together.wait()
        return "met"

    agent = Agent(name="clerk", model=ScriptedModel(lambda r: "Done." if len(r.messages) > 2 else [call("meet")]))
    agent = Agent(name="clerk", model=agent.model, tools=[meet])
    async with Runtime(store, agents=[agent]) as runtime:
        sessions = [await runtime.open(agent, id=str(number)) for number in range(count)]
        results = await soon(asyncio.gather(*(session.run("go") for session in sessions)))
        assert {result.output for result in results} == {"Done."}


async def test_sessions_that_nobody_holds_leave_memory(memory: Store) -> None:
    agent = echo()
    async with Runtime(memory, agents=[agent]) as runtime:
        held = await runtime.open(agent, id="held")
        await held.run("go")
        for number in range(300):
            await (await runtime.open(agent, id=str(number))).run("go")
        gc.collect()
        logs = [log for log in gc.get_objects() if type(log) is SessionLog and log._store is memory]  # pyright: ignore[reportPrivateUsage]
        assert held._log in logs  # pyright: ignore[reportPrivateUsage]
        assert len(logs) <= 110, "only the most recent are kept warm"
        forgotten = await runtime.session("0")
        assert (await forgotten.run("again")).output == "Yes."
        assert (await held.run("again")).output == "Yes."


async def test_a_run_goes_on_although_nobody_holds_its_session(memory: Store) -> None:
    release = asyncio.Event()

    async def answer(_: object) -> str:
        await release.wait()
        return "Done."

    agent = Agent(name="clerk", model=ScriptedModel(answer))
    async with Runtime(memory, agents=[agent]) as runtime:
        await (await runtime.open(agent, id="x")).start("go", key="k")
        gc.collect()
        release.set()
        result = await soon((await runtime.session("x")).run("go", key="k"))
        assert result.output == "Done."


async def test_a_session_of_an_unknown_agent_is_listed_and_left_alone(store: str | Store) -> None:
    agent = echo("stranger")
    async with Runtime(store, agents=[agent], engine=None) as runtime:
        session = await runtime.open(agent, id="x")
        await session.start("go")
    known = echo("known")
    async with Runtime(store, agents=[known]) as runtime:
        assert [(row.id, row.agent) async for row in runtime.sessions()] == [("x", "stranger")]
        session = await runtime.session("x")
        with pytest.raises(UsageError, match=r"'stranger' is not known here; pass it in agents="):
            await session.run("more")
        assert (await (await runtime.open(known, id="y")).run("go")).output == "Yes."
        assert await kinds(session) == ["SessionOpened", "InputAccepted"]
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.session("x")
        await until(lambda: session.state.runs == 1 and session.state.run is None)


async def test_a_changed_agent_is_pinned_again(store: str | Store) -> None:
    async with Runtime(store, agents=[echo(instructions="Old.")]) as runtime:
        session = await runtime.open(echo(instructions="Old."), id="x")
        await session.run("one")
        await session.run("two")
    changed = echo(instructions="New.")
    async with Runtime(store, agents=[changed]) as runtime:
        session = await runtime.open(changed, id="x")
        await session.run("three")
        assert (await kinds(session)).count("AgentPinned") == 2
        assert session.state.spec is not None
        assert session.state.spec.instructions == "New."


async def test_a_tool_that_is_gone_from_the_code_ends_its_call_truthfully(store: str | Store) -> None:
    @tool(effect="idempotent")
    async def act() -> str:
        await asyncio.Event().wait()
        return "done"

    model = ScriptedModel([[call("act")], "Done."])
    before = Agent(name="clerk", model=model, tools=[act])
    after = Agent(name="clerk", model=model)
    async with crashing(store, agents=[before]) as runtime:
        session = await runtime.open(before, id="x")
        await session.start("go", key="k")
        await until(lambda: any(c.status == "started" for c in (session.state.run.calls if session.state.run else ())))
    async with Runtime(store, agents=[after]) as runtime:
        session = await runtime.open(after, id="x")
        assert (await soon(session.run("go", key="k"))).output == "Done."
        ((_, outcome, text),) = await told(session)
        assert (outcome, text) == ("error", "act was not started: the tool no longer exists.")
        (ended,) = await events(session, CallEnded)
        assert ended.in_doubt
        assert len(await events(session, CallStarted)) == 1
