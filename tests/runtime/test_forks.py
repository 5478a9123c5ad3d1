"""Forks: the same past, its own future, and nothing run again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import Agent, Conflict, Record, Runtime, UsageError, tool
from perdure.events import CallEnded, CallStarted, CallSuspended, ModelCalled, RunEnded, SessionOpened
from perdure.ports import Store
from perdure.testing import ScriptedModel, call
from tests.runtime.scenes import events, kinds, said, seen, soon, told

ledger: list[str] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    ledger.clear()


@tool(effect="read")
async def look(what: str) -> str:
    ledger.append(what)
    return f"{what} is fine"


@tool(ask=True)
async def act(what: str) -> str:
    ledger.append(what)
    return f"{what} is done"


def clerk(*answers: Any, tools: Any = (look, act)) -> Agent[str]:
    return Agent(name="clerk", model=ScriptedModel(list(answers)), tools=list(tools))


async def test_a_fork_shares_the_past_and_has_its_own_future(store: str | Store) -> None:
    agent = clerk([call("look", what="it")], "One.", "Two.", "Three.")
    async with Runtime(store, agents=[agent]) as runtime:
        parent = await runtime.open(agent, id="x", tenant="acme", data={"user": "u7"}, metadata={"order": "7"})
        await parent.run("one")
        before = await parent.records()
        fork = await parent.fork(id="y")
        assert (fork.id, fork.tenant, fork.agent) == ("y", "acme", "clerk")
        assert fork.state.data == {"user": "u7"}
        assert fork.state.metadata == {"order": "7"}
        assert (await fork.run("a fork")).output == "Two."
        assert await said(fork) == ["one", "a fork"]
        assert await parent.records() == before, "the parent is as it was"
        assert await parent.run("two")
        assert await said(parent) == ["one", "two"]
        assert await said(fork) == ["one", "a fork"]
        assert ledger == ["it"], "nothing was run again"
        records = await fork.records()
        assert [record.event for record in records[: len(before)]] == [record.event for record in before]
        assert {record.session for record in records} == {fork.uid}
        opened = records[len(before)].event
        assert isinstance(opened, SessionOpened)
        assert opened.origin is not None
        assert (opened.origin.session, opened.origin.seq) == (parent.uid, len(before))
    async with Runtime(store, agents=[agent]) as runtime:
        fork = await runtime.session("y", tenant="acme")
        assert (await fork.run("later")).output == "Three."
        assert await said(fork) == ["one", "a fork", "later"]


async def test_a_fork_may_start_at_any_record(store: str | Store) -> None:
    agent = clerk([call("look", what="a"), call("look", what="b")], "One.")
    async with Runtime(store, agents=[agent]) as runtime:
        parent = await runtime.open(agent, id="x")
        await parent.run("one")
        past = await parent.records()
        for at in range(1, len(past) + 1):
            fork = await parent.fork(at=at)
            result = await soon(fork.run("again"))
            assert result.reason in ("completed", "failed"), "at the end the script may have no answer left"
            assert (await fork.history())[-1]
        assert await parent.records() == past


async def test_a_fork_of_a_fork(store: str | Store) -> None:
    agent = clerk("One.", "Two.", "Three.")
    async with Runtime(store, agents=[agent]) as runtime:
        root = await runtime.open(agent, id="root")
        await root.run("one")
        child = await root.fork(id="child")
        await child.run("two")
        grandchild = await child.fork(id="grandchild")
        await grandchild.run("three")
        assert await said(grandchild) == ["one", "two", "three"]
        await child.delete()
        await root.delete()
    async with Runtime(store, agents=[agent]) as runtime:
        grandchild = await runtime.session("grandchild")
        assert await said(grandchild) == ["one", "two", "three"], "a fork keeps its past when its parents go"
        assert len([record for record in await grandchild.records() if isinstance(record, Record)]) > 10


async def test_calls_under_way_at_the_cut_are_unknown_and_pending_ones_superseded(store: str | Store) -> None:
    release = asyncio.Event()

    @tool
    async def send(to: str) -> str:
        ledger.append(to)
        await release.wait()
        return "sent"

    @tool(effect="read")
    async def watch(what: str) -> str:
        ledger.append(what)
        await release.wait()
        return "seen"

    agent = clerk(
        [call("send", to="bob"), call("watch", what="it"), call("act", what="x")],
        "Going on.",
        tools=[send, watch, act],
    )
    async with Runtime(store, agents=[agent]) as runtime:
        parent = await runtime.open(agent, id="x")
        await parent.start("go")
        await seen(parent, CallStarted, 2)
        await seen(parent, CallSuspended)
        fork = await parent.fork()
        assert await fork.pending() == ()
        assert fork.state.run is None
        result = await soon(fork.run("what now?"))
        assert result.output == "Going on."
        outcomes = [(name, outcome) for name, outcome, _ in await told(fork)]
        assert outcomes == [("send", "unknown"), ("watch", "superseded"), ("act", "superseded")]
        assert [end.in_doubt for end in await events(fork, CallEnded)] == [True, False, False]
        (ended, _) = await events(fork, RunEnded)
        assert (ended.reason, ended.detail) == ("cancelled", "the session was forked here")
        (pending,) = await parent.pending()
        assert pending.tool == "act", "the parent still waits"
        release.set()
        await parent.decide(pending.id, "approve")
        await seen(parent, RunEnded, reason="completed")
        assert [(name, outcome) for name, outcome, _ in await told(parent)] == [
            ("send", "ok"),
            ("watch", "ok"),
            ("act", "ok"),
        ]
        assert ledger == ["bob", "it", "x"]


async def test_a_fork_while_the_model_answers_calls_nobody_again(store: str | Store) -> None:
    release = asyncio.Event()

    async def answer(_: object) -> str:
        await release.wait()
        return "Done."

    agent = Agent(name="clerk", model=ScriptedModel(answer))
    async with Runtime(store, agents=[agent]) as runtime:
        parent = await runtime.open(agent, id="x")
        run = await parent.start("go")
        await seen(parent, ModelCalled)
        fork = await parent.fork()
        assert (await kinds(fork))[-2:] == ["SessionOpened", "RunEnded"]
        release.set()
        assert (await soon(run)).output == "Done."
        assert (await soon(fork.run("again"))).output == "Done."


async def test_what_was_remembered_holds_in_the_fork(memory: Store) -> None:
    agent = clerk([call("act", what="a")], "One.", [call("act", what="b")], "Two.")
    async with Runtime(memory, agents=[agent]) as runtime:
        parent = await runtime.open(agent)
        result = await parent.run("one")
        await parent.decide(result.pending[0].id, "approve", remember="tool")
        await seen(parent, RunEnded)
        fork = await parent.fork()
        assert (await fork.run("two")).output == "Two."


async def test_keys_of_the_past_are_known_in_the_fork(store: str | Store) -> None:
    agent = clerk("One.", "Two.")
    async with Runtime(store, agents=[agent]) as runtime:
        parent = await runtime.open(agent, id="x")
        await parent.run("one", key="k")
        fork = await parent.fork()
        assert (await fork.run("one", key="k")).output == "One."
        assert (await fork.run("two", key="k2")).output == "Two."


async def test_an_input_that_waited_at_the_cut_is_not_the_forks(store: str | Store) -> None:
    release = asyncio.Event()

    async def answer(_: object) -> str:
        await release.wait()
        return "Done."

    agent = Agent(name="clerk", model=ScriptedModel(answer))
    async with Runtime(store, agents=[agent]) as runtime:
        parent = await runtime.open(agent, id="x")
        await parent.start("one", key="one")
        await seen(parent, ModelCalled)
        queued = await parent.start("two", key="two")
        fork = await parent.fork()
        release.set()
        assert (await soon(queued)).output == "Done."
        result = await soon(fork.run("two", key="two"))
        assert result.output == "Done."
        assert await said(fork) == ["one", "two"], "its key is free again, and it is said once"
        assert (await soon(fork.run("two", key="two"))).run == result.run


async def test_bad_places_to_fork(store: str | Store) -> None:
    agent = clerk("One.")
    async with Runtime(store, agents=[agent]) as runtime:
        parent = await runtime.open(agent, id="x")
        for at in (0, -1, 2, 10**9):
            with pytest.raises(UsageError, match="records 1 to 1"):
                await parent.fork(at=at)
        with pytest.raises(Conflict, match="session 'x' already"):
            await parent.fork(id="x")
        assert [row.id async for row in runtime.sessions()] == ["x"]
