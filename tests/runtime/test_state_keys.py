"""State keys: scopes, reducers and exclusive use, in the log and beside it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, Runtime, ToolContext, UsageError, tool
from perdure.core.events import StateChanged
from perdure.events import CallEnded, Noted
from perdure.plugins import Hooks, Plugin, StateKey
from perdure.ports import SessionQuery, Store
from perdure.runtime.shared_state import SHARED
from perdure.runtime.wishes import Shelf, Wishes
from perdure.testing import ScriptedModel, call
from tests.runtime.scenes import crashing, events, kinds, seen, soon, told, until


def added(one: int, other: int) -> int:
    return one + other


TOTAL = StateKey("total", int, scope="shared", default=0, reducer=added)
OWNER = StateKey("owner", str, scope="shared", default="")
CLIENT = StateKey("client", object, persistent=False)
TRIES = StateKey("tries", int, scope="run", default=0, reducer=added, persistent=False)


@tool(effect="idempotent")
async def add(ctx: ToolContext[Any, Any], amount: int = 1) -> str:
    """Add to what all sessions share."""
    ctx.set(TOTAL, amount)
    return str(ctx.get(TOTAL))


def sharer(*answers: Any, name: str = "clerk", tools: Any = (add,), keys: Any = (TOTAL, OWNER)) -> Agent[str]:
    plugins = [Plugin(name="shared", tools=list(tools), keys=list(keys))]
    return Agent(name=name, model=ScriptedModel(list(answers)), plugins=plugins)


async def shared_log(runtime: Runtime, tenant: str = "") -> Any:
    return await runtime.session(SHARED, tenant=tenant)


async def test_sessions_of_a_tenant_share_and_those_of_another_do_not(store: str | Store) -> None:
    agent = sharer([call("add", amount=2)], "Done.")
    async with Runtime(store, agents=[agent]) as runtime:
        for id, tenant in (("a", "acme"), ("b", "acme"), ("c", "other")):
            await soon((await runtime.open(agent, id=id, tenant=tenant)).run("go"))
        assert TOTAL.read((await shared_log(runtime, "acme")).state) == 4
        assert TOTAL.read((await shared_log(runtime, "other")).state) == 2
        assert [row.id async for row in runtime.sessions()] == ["c", "b", "a"], "it is no session of anybody's"
        changed = await events(await shared_log(runtime, "acme"), StateChanged)
        assert [event.by for event in changed] == ["add (call 1)"] * 2
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="d", tenant="acme")
        await soon(session.run("go"))
        assert await told(session) == [("add", "ok", "6")]


async def test_two_processes_share(tmp_path: Path) -> None:
    path = f"sqlite:{tmp_path / 'x.db'}"
    agents = [sharer(*[[call("add")]] * 5, "Done.") for _ in range(2)]
    async with Runtime(path, agents=agents[:1]) as one, Runtime(path, agents=agents[1:]) as two:
        runs = [
            (await runtime.open(agent, id=f"{number}-{n}")).run("go")
            for number, (runtime, agent) in enumerate(((one, agents[0]), (two, agents[1])))
            for n in range(3)
        ]
        assert {(await soon(run)).output for run in runs} == {"Done."}
        session = await shared_log(one)
        await session.history()
        assert TOTAL.read(session.state) == 30


@pytest.mark.parametrize("is_async", [False, True])
async def test_runs_one_after_the_other_in_two_processes_see_each_others_values(tmp_path: Path, is_async: bool) -> None:
    """However late the store tells of another process's commits."""
    path = f"sqlite:{tmp_path / 'x.db'}"
    found: list[tuple[int, str]] = []

    def gate(moment: Any) -> None:
        found.append((moment.here.get(TOTAL), moment.here.get(OWNER)))

    async def agate(moment: Any) -> None:
        gate(moment)

    @tool(effect="once")
    async def take(ctx: ToolContext[Any, Any]) -> str:
        """Take it from whoever has it."""
        ctx.set(OWNER, ctx.session)
        ctx.set(TOTAL, 1)
        return "taken"

    def sharing() -> Agent[str]:
        hooks = [Hooks(tool_gate=agate if is_async else gate)]
        plugin = Plugin(name="shared", tools=[take], keys=[TOTAL, OWNER], hooks=hooks)
        answers = [[call("take")], "Done."] * 4
        return Agent(name="clerk", model=ScriptedModel(answers), plugins=[plugin])

    agents = [sharing(), sharing()]
    async with Runtime(path, agents=agents[:1]) as one, Runtime(path, agents=agents[1:]) as two:
        sessions = [await one.open(agents[0], id="a"), await two.open(agents[1], id="b")]
        for session in sessions * 4:
            await soon(session.run("go"))
        assert found == [(n, "" if n == 0 else "ba"[n % 2]) for n in range(8)]
        assert [outcome for session in sessions for _, outcome, _ in await told(session)] == ["ok"] * 8


async def test_those_who_wait_for_the_shared_state_share_one_look(memory: Store) -> None:
    looks: list[int] = []
    agent = sharer([call("add")], "Done.")
    async with Runtime(memory, agents=[agent]) as runtime:
        await soon((await runtime.open(agent)).run("go"))
        shared = await runtime._host.shared_by("")
        look = shared.log.refresh

        async def counted() -> None:
            looks.append(1)
            await asyncio.sleep(0)
            await look()

        shared.log.refresh = counted  # type: ignore[method-assign]
        await soon(asyncio.gather(*(shared.refresh() for _ in range(10))))
        assert len(looks) <= 2, "the one under way, and one for all who came after it began"
        await soon(shared.refresh())
        assert len(looks) <= 3


async def test_concurrent_calls_lose_nothing(memory: Store) -> None:
    agent = sharer([call("add") for _ in range(8)], "Done.")
    async with Runtime(memory, agents=[agent]) as runtime:
        sessions = [await runtime.open(agent, id=str(n)) for n in range(5)]
        await soon(asyncio.gather(*(session.run("go") for session in sessions)))
        assert TOTAL.read((await shared_log(runtime)).state) == 40


async def test_a_repeated_call_counts_once(store: str | Store) -> None:
    """The process dies after the shared change, before the call's outcome."""
    reached = asyncio.Event()
    dies = [True]

    async def die(action: Any, perform: Any) -> Any:
        event = await perform(action)
        if isinstance(event, CallEnded) and dies[0]:
            reached.set()
            await asyncio.Event().wait()
        return event

    agent = sharer([call("add", amount=5)], "Done.")
    async with crashing(store, agents=[agent], middleware=[die]) as runtime:
        session = await runtime.open(agent, id="x")
        await session.start("go")
        await soon(reached.wait())
        assert TOTAL.read((await shared_log(runtime)).state) == 5
    dies[0] = False
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.session("x")
        await until(lambda: len(session.state.ended))
        assert [end.outcome for end in await events(session, CallEnded)] == ["ok"]
        assert TOTAL.read((await shared_log(runtime)).state) == 5


async def test_an_exclusive_shared_key_is_not_overwritten_unseen(memory: Store) -> None:
    gate, read = asyncio.Event(), asyncio.Event()

    @tool(effect="once")
    async def take(ctx: ToolContext[Any, Any]) -> str:
        """Take it if nobody has it."""
        owner = ctx.get(OWNER)
        if ctx.session == "slow":
            read.set()
            await gate.wait()
        if owner:
            return f"{owner} has it"
        ctx.set(OWNER, ctx.session)
        return "taken"

    agent = sharer([call("take")], "Done.", tools=[take])
    async with Runtime(memory, agents=[agent]) as runtime:
        slow, fast = [await runtime.open(agent, id=id) for id in ("slow", "fast")]
        run = await slow.start("go")
        await soon(read.wait())
        await soon(fast.run("go"))
        gate.set()
        await soon(run)
        ((_, outcome, text),) = await told(slow)
        assert outcome == "error"
        assert "owner was changed by another session" in text
        assert OWNER.read((await shared_log(runtime)).state) == "fast"


async def test_what_was_changed_already_is_no_conflict_when_it_is_repeated(memory: Store) -> None:
    agent = sharer([call("add")], "Done.")
    async with Runtime(memory, agents=[agent]) as runtime:
        await soon((await runtime.open(agent)).run("go"))
        shared = await runtime._host.shared_by("")

        def wish(value: str) -> Wishes:
            wishes = Wishes(Shelf(shared=shared.state))
            wishes.set(OWNER, value, shared.state())
            return wishes

        first, again = wish("a"), wish("a")
        await shared.change(first, by="a", origin="a/1")
        await shared.change(wish("b"), by="b", origin="b/1")
        await shared.change(again, by="a", origin="a/1")
        assert OWNER.read(shared.state()) == "b"
        with pytest.raises(ValueError, match="owner was changed"):
            await shared.change(again, by="a", origin="a/2")


async def test_a_hook_may_use_shared_keys(memory: Store) -> None:
    found: list[int] = []

    async def count(moment: Any) -> None:
        moment.here.set(TOTAL, 1)
        found.append(moment.here.get(TOTAL))

    plugin = Plugin(name="shared", keys=[TOTAL], hooks=[Hooks(run_start=count, before_model=count)])
    agent = Agent(name="clerk", model=ScriptedModel(["Done."]), plugins=[plugin])
    async with Runtime(memory, agents=[agent]) as runtime:
        for id in ("a", "b"):
            await soon((await runtime.open(agent, id=id)).run("go"))
        await until(lambda: not runtime._host.duty.drivers)
        assert TOTAL.read((await shared_log(runtime)).state) == 4
    assert len(found) == 4


async def test_a_shared_key_that_nobody_declared_is_the_tools_own_error(memory: Store) -> None:
    agent = Agent(name="clerk", model=ScriptedModel([[call("add")], "Done."]), tools=[add])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        await soon(session.run("go"))
        ((_, outcome, text),) = await told(session)
        assert outcome == "error"
        assert "declare it" in text


async def test_nobody_drives_or_takes_the_name_of_the_shared_state(memory: Store) -> None:
    with pytest.raises(UsageError, match="cannot be named"):
        async with Runtime(memory, agents=[Agent(name=SHARED, model=ScriptedModel([]))]):
            pass
    agent = sharer([call("add")], "Done.")
    async with Runtime(memory, agents=[agent]) as runtime:
        await soon((await runtime.open(agent)).run("go"))
        rows = (await runtime._host.world.store.list(SessionQuery(agent=SHARED))).rows
        assert [(row.status, row.owner, row.summary.runnable) for row in rows] == [("idle", None, False)]


# Not in the log


async def test_a_key_that_is_not_persistent_is_never_in_the_log(memory: Store) -> None:
    client = object()
    found: list[Any] = []

    @tool(effect="read")
    async def use(ctx: ToolContext[Any, Any]) -> str:
        """Use the client."""
        if ctx.get(CLIENT) is None:
            ctx.set(CLIENT, client)
        ctx.set(TRIES, 1)
        found.append((ctx.get(CLIENT), ctx.get(TRIES)))
        return "used"

    model = ScriptedModel([[call("use")], [call("use")], "Done.", [call("use")], "Done."])
    agent = Agent(name="clerk", model=model, tools=[use])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        await soon(session.run("go"))
        await soon(session.run("again"))
        assert found == [(client, 1), (client, 2), (client, 1)], "of the run before, the run's own is gone"
        assert {name for end in await events(session, CallEnded) for name in end.changes} == set()
        other = await runtime.open(agent, id="y")
        assert CLIENT.read(other.state) is None
        assert "StateChanged" not in await kinds(session)


# Of one session


async def test_two_calls_that_end_in_the_same_moment_both_count(memory: Store) -> None:
    """Neither has seen the other's change when it ends; both are in the sum."""
    both = StateKey("both", int, default=0, reducer=added)
    together = asyncio.Event()
    waiting: list[int] = []

    @tool(effect="once")
    async def plus(ctx: ToolContext[Any, Any]) -> str:
        """Plus one."""
        ctx.set(both, 1)
        waiting.append(1)
        if len(waiting) == 5:
            together.set()
        await together.wait()
        return "ok"

    agent = Agent(name="clerk", model=ScriptedModel([[call("plus") for _ in range(5)], "Done."]), tools=[plus])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        await soon(session.run("go"))
        assert both.read(session.state) == 5


async def test_two_calls_that_end_in_the_same_moment_do_not_share_an_exclusive_key(memory: Store) -> None:
    one = StateKey("one", str, default="")
    together = asyncio.Event()
    waiting: list[int] = []

    @tool(effect="once")
    async def claim(ctx: ToolContext[Any, Any]) -> str:
        """Claim."""
        ctx.set(one, str(ctx.call))
        ctx.note("claimed")
        waiting.append(1)
        if len(waiting) == 2:
            together.set()
        await together.wait()
        return "claimed"

    agent = Agent(name="clerk", model=ScriptedModel([[call("claim"), call("claim")], "Done."]), tools=[claim])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        await soon(session.run("go"))
        outcomes = {outcome: text for _, outcome, text in await told(session)}
        text = outcomes["error"]
        assert outcomes["ok"] == "claimed"
        assert "claim (call 1)" in text
        assert "claim (call 2)" in text
        assert len(await events(session, Noted, kind="claimed")) == 1, "the one that failed has wished for nothing"


async def test_a_call_does_not_overwrite_what_a_hook_changed_meanwhile(memory: Store) -> None:
    note = StateKey("note", str, default="")
    begun, go_on = asyncio.Event(), asyncio.Event()

    @tool(effect="once")
    async def write(ctx: ToolContext[Any, Any]) -> str:
        """Write."""
        ctx.get(note)
        begun.set()
        await go_on.wait()
        ctx.set(note, "by the tool")
        return "written"

    async def scribble(moment: Any) -> None:
        await begun.wait()
        moment.here.set(note, "by the hook")

    agent = Agent(
        name="clerk",
        model=ScriptedModel([[call("write")], "Done."]),
        tools=[write],
        hooks=[Hooks(run_start=scribble)],
    )
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        run = await session.start("go")
        await seen(session, StateChanged)
        go_on.set()
        await soon(run)
        ((_, outcome, text),) = await told(session)
        assert outcome == "error"
        assert "note was changed meanwhile" in text
        assert note.read(session.state) == "by the hook"


async def test_a_reducer_that_fails_is_the_calls_error(memory: Store) -> None:
    def broken(one: int, other: int) -> int:
        if one:
            raise ValueError("no sum")
        return one + other

    key = StateKey("key", int, default=0, reducer=broken)

    @tool(effect="once")
    async def put(ctx: ToolContext[Any, Any]) -> str:
        """Put."""
        ctx.set(key, 1)
        return "ok"

    agent = Agent(name="clerk", model=ScriptedModel([[call("put")], [call("put")], "Done."]), tools=[put])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        assert (await soon(session.run("go"))).output == "Done."
        assert [outcome for _, outcome, _ in await told(session)] == ["ok", "error"]


async def test_a_default_that_is_changed_in_place_is_nobody_elses(memory: Store) -> None:
    key = StateKey("items", list[str], default=[])

    @tool(effect="read")
    async def spoil(ctx: ToolContext[Any, Any]) -> str:
        """Spoil."""
        ctx.get(key).append("spoilt")
        return "ok"

    agent = Agent(name="clerk", model=ScriptedModel([[call("spoil")], "Done."]), tools=[spoil])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        await soon(session.run("go"))
        assert key.read(session.state) == []


def test_a_scope_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UsageError, match="take 'run', 'session' or 'shared'"):
        StateKey("x", int, scope="world")  # type: ignore[arg-type]
