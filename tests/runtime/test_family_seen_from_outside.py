"""A family as others see it: deleted by a process that drives nothing, cancelled after a stop, found by uid."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, NotFound, Record, Runtime, Session, UsageError, tool
from perdure.events import CallStarted, FromChild
from perdure.runtime.subagents import PARENT, ROOT
from perdure.testing import ScriptedModel, call


@tool(effect="once", ask=True)
def mail(to: str) -> str:
    """Mail somebody."""
    raise NotImplementedError


@tool(effect="read")
async def wait_for_ever() -> str:
    """Wait."""
    await asyncio.Event().wait()
    return ""


postman = Agent(name="postman", tools=[mail], model=ScriptedModel([[call("mail", to="ann")], "Sent."]))
middle = Agent(name="middle", tools=[postman], model=ScriptedModel([[call("postman", input="go")], "Done."]))
top = Agent(name="top", tools=[middle], model=ScriptedModel([[call("middle", input="go")], "Done."]))

sleeper = Agent(name="sleeper", tools=[wait_for_ever], model=ScriptedModel([[call("wait_for_ever")]]))
keeper = Agent(name="keeper", tools=[sleeper], model=ScriptedModel([[call("sleeper", input="go")]]))
house = Agent(name="house", tools=[keeper], model=ScriptedModel([[call("keeper", input="go")]]))


async def test_a_family_that_nobody_drives_is_deleted_at_once(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'f.db'}"
    async with Runtime(store, agents=[top]) as runtime:
        assert (await (await runtime.open(top, id="top")).run("go")).reason == "waiting"
    async with Runtime(store, engine=None) as runtime:
        session = await runtime.session("top")
        # Waiting for their ends would take five seconds each, and they would never come.
        await asyncio.wait_for(session.delete(), 4)
        assert [row async for row in runtime.sessions(children=True)] == []


async def test_a_family_that_is_driven_here_is_ended_and_deleted() -> None:
    async with Runtime("memory:", agents=[house]) as runtime:
        session = await runtime.open(house, id="house")
        run = await session.start("go")
        await until_asleep(session)
        await session.cancel()
        await run
        await session.delete()
        assert [row async for row in runtime.sessions(children=True)] == []


async def test_a_cancel_behind_a_stop_reaches_every_descendant() -> None:
    """The stop waits for the tools under way, in the whole family; who loses patience does not wait with it."""
    async with Runtime("memory:", agents=[house]) as runtime:
        session = await runtime.open(house, id="house")
        run = await session.start("go")
        await until_asleep(session)
        await session.stop()
        below = await runtime.session("house.keeper-1.sleeper-1")
        async for _ in below.stream():
            if below.state.run is not None and below.state.run.stop is not None:
                break
        await session.cancel()
        assert (await run).reason == "cancelled"
        assert [below.state.ended[-1].reason, below.state.run] == ["cancelled", None]


async def until_asleep(session: Session[Any]) -> None:
    """Until the grandchild's tool has started."""
    async for item in session.stream():
        match item:
            case FromChild(item=FromChild(item=Record(event=CallStarted()))):
                return
            case _:
                pass


async def test_a_family_is_found_by_its_root() -> None:
    async with Runtime("memory:", agents=[top]) as runtime:
        session = await runtime.open(top, id="top")
        await session.run("go")
        below = [row.id async for row in runtime.sessions(metadata={ROOT: session.uid}, children=True)]
        assert sorted(below) == ["top.middle-1", "top.middle-1.postman-1"]
        (child,) = [row async for row in runtime.sessions(metadata={PARENT: session.uid}, children=True)]
        assert (await runtime.session_by_uid(child.uid)).id == "top.middle-1"
        with pytest.raises(NotFound):
            await runtime.session_by_uid("nobody")
        with pytest.raises(UsageError, match="where sub-agents belong"):
            await runtime.open(top, metadata={ROOT: "x"})


async def test_dead_letters_of_all_sessions_are_listed_with_their_senders() -> None:
    lone = Agent(name="lone", model=ScriptedModel(lambda request: "Hm."))
    async with Runtime("memory:", agents=[lone]) as runtime:
        for tenant in ("a", "b"):
            session = await runtime.open(lone, id="s", tenant=tenant)
            await session.message("nobody", f"Hello from {tenant}")
            async for _ in session.stream():
                if session.state.dead:
                    break
        found = await runtime.dead_letters()
        assert sorted(sender.tenant for sender, _ in found) == ["a", "b"]
        ((sender, letter),) = await runtime.dead_letters(tenant="b")
        assert (sender.id, letter.sent.message, letter.sent.parts[0].text) == ("s", 1, "Hello from b")  # type: ignore[union-attr]
        assert letter.why.startswith("There is no session 'nobody'")
