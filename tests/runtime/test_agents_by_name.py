"""Agents by name: set for a session, chosen for a run, passed in, loaded from files, or found by a resolver."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, Limits, RunResult, Runtime, ToolContext, UsageError, tool
from perdure.core.specs import Overrides
from perdure.engines.dbos import DbosEngine
from perdure.events import AgentPinned, ModelCalled, RunStarted, SettingsChanged
from perdure.plugins import Hooks
from perdure.ports import ModelRequest, SessionQuery, Store
from perdure.runtime.clock import SystemClock
from perdure.stores.memory import MemoryStore
from perdure.testing import ManualClock, ScriptedModel, call
from perdure.tools import frontend
from tests.runtime.scenes import crashing, events, said, seen, soon, told, turned, until


def agent(name: str, **options: Any) -> Agent[Any]:
    return Agent(name=name, instructions=f"You are {name}.", **options)


CLERK, BILLING, REFUNDS = agent("clerk"), agent("billing"), agent("refunds")


class Told:
    """A model that says who was asked; what is asked for "hold" waits until it is let go."""

    def __init__(self) -> None:
        self.holds = asyncio.Event()
        self.go_on = asyncio.Event()
        self.model = ScriptedModel(self._answer)

    @property
    def asked(self) -> list[str]:
        return [request.instructions.split()[2].rstrip(".") for request in self.model.requests]

    async def _answer(self, request: ModelRequest) -> Any:
        text = str(request.messages[-1])
        if "hold" in text and not self.go_on.is_set():
            self.holds.set()
            await self.go_on.wait()
            return [call("nothing")]
        return f"{request.instructions.split()[2].rstrip('.')} says hello"


# set_agent


async def test_between_runs_another_agent_is_set_at_once(store: str | Store) -> None:
    told_by = Told()
    async with Runtime(store, agents=[CLERK, BILLING], model=told_by.model) as runtime:
        session = await runtime.open(CLERK, id="s")
        await soon(session.run("one"))
        await session.rename("Bills")
        await session.set_agent(BILLING)
        assert (session.agent, session.state.title) == ("billing", "Bills")
        (row,) = [row async for row in runtime.sessions(agent="billing")]
        assert row.id == "s"
        assert (await soon(session.run("two"))).output == "billing says hello"
        await session.set_agent("clerk")
        assert (await soon(session.run("three"))).output == "clerk says hello"
        await session.set_agent("clerk")
        assert len(await events(session, SettingsChanged)) == 3, "the same again says nothing"
        assert await said(session) == ["one", "two", "three"]
    async with Runtime(store, agents=[CLERK], model=told_by.model) as runtime:
        assert (await runtime.session("s")).agent == "clerk"


async def test_in_a_run_it_takes_over_at_the_end_of_the_turn(store: str | Store) -> None:
    told_by = Told()
    async with Runtime(store, agents=[CLERK, BILLING], model=told_by.model) as runtime:
        session = await runtime.open(CLERK, id="s")
        run = await session.start("hold")
        await soon(told_by.holds.wait())
        await session.set_agent("billing")
        assert session.agent == "billing"
        told_by.go_on.set()
        assert (await soon(run)).output == "billing says hello"
        assert told_by.asked == ["clerk", "billing"]
        assert len(await events(session, RunStarted)) == 1


async def test_who_is_set_and_set_back_before_the_turn_ends_never_takes_over(store: str | Store) -> None:
    told_by = Told()
    async with Runtime(store, agents=[CLERK, BILLING], model=told_by.model) as runtime:
        session = await runtime.open(CLERK, id="s")
        run = await session.start("hold")
        await soon(told_by.holds.wait())
        await session.set_agent("billing")
        await session.set_agent("clerk")
        told_by.go_on.set()
        assert (await soon(run)).output == "clerk says hello"
        assert len(await events(session, AgentPinned)) == 1


async def test_an_agent_that_the_driver_does_not_know_leaves_the_run_to_the_one_it_has(store: str | Store) -> None:
    """Somebody elsewhere sets it; the run goes on as it is, the session is the other's."""
    told_by = Told()
    async with Runtime(store, agents=[CLERK], model=told_by.model) as runtime, Runtime(store, engine=None) as beside:
        session = await runtime.open(CLERK, id="s")
        run = await session.start("hold")
        await soon(told_by.holds.wait())
        await (await beside.session("s")).set_agent("billing")
        await until(lambda: session.agent == "billing")
        told_by.go_on.set()
        assert (await soon(run)).output == "clerk says hello"
        assert (await said(session))[-1] == (
            "billing could not take over: The agent 'billing' is not known here. Go on without it."
        )
        with pytest.raises(UsageError, match="The agent 'billing' is not known here"):
            await session.run("more")


@pytest.mark.parametrize(("name", "wrong"), [("mars", "not known here"), ("", "is empty"), (7, "is text, not int")])
async def test_an_agent_that_nobody_knows_cannot_be_set(name: Any, wrong: str) -> None:
    async with Runtime(MemoryStore(), agents=[CLERK], model=Told().model) as runtime:
        session = await runtime.open(CLERK)
        with pytest.raises(UsageError, match=wrong):
            await session.set_agent(name)
        assert session.agent == "clerk"


async def test_data_that_does_not_fit_is_refused_when_an_agent_is_set() -> None:
    @tool(effect="read")
    async def look(ctx: ToolContext[None, int]) -> str:
        """Look."""
        return "x"

    async with Runtime(MemoryStore(), agents=[CLERK], model=Told().model) as runtime:
        session = await runtime.open(CLERK, data="seven")
        with pytest.raises(UsageError, match="does not fit the tool 'look'"):
            await session.set_agent(agent("billing", tools=[look]))
        with pytest.raises(UsageError, match="does not fit the tool 'look'"):
            await session.run("go", agent="billing")


# Chosen per run


async def test_an_agent_chosen_for_a_run_drives_that_run_alone(store: str | Store) -> None:
    told_by = Told()
    async with Runtime(store, agents=[CLERK, BILLING], model=told_by.model) as runtime:
        session = await runtime.open(CLERK, id="s")
        assert (await soon(session.run("one"))).output == "clerk says hello"
        assert (await soon(session.run("two", agent=BILLING))).output == "billing says hello"
        assert session.agent == "clerk"
        assert (await soon(session.run("three"))).output == "clerk says hello"
        assert (await soon(session.run("four", agent="billing"))).output == "billing says hello"
        assert await said(session) == ["one", "two", "three", "four"], "one conversation"
        assert [ended.agent for ended in session.state.ended] == ["clerk", "billing", "clerk", "billing"]
        assert len(list(told_by.model.requests[-1].messages)) >= 7


async def test_inputs_for_different_agents_wait_their_turn(store: str | Store) -> None:
    told_by = Told()
    async with Runtime(store, agents=[CLERK, BILLING, REFUNDS], model=told_by.model) as runtime:
        session = await runtime.open(CLERK, id="s")
        runs = [await session.start("hold")]
        await soon(told_by.holds.wait())
        for name in ("billing", None, "refunds", "refunds", "billing"):
            runs.append(await session.start(f"for {name}", agent=name))
        runs.append(await session.start("join me", busy="join", agent="refunds"))
        told_by.go_on.set()
        results: list[RunResult[Any]] = [await soon(run) for run in runs]
        names = ["clerk", "billing", "clerk", "refunds", "refunds", "billing", "refunds"]
        assert [result.output for result in results] == [f"{name} says hello" for name in names]
        assert [ended.agent for ended in session.state.ended] == names[:-1]
        assert runs[-1].run == runs[3].run, "it joins the first run of its agent"


async def test_a_run_of_a_chosen_agent_is_picked_up_by_who_has_that_agent(store: str | Store) -> None:
    told_by = Told()
    async with crashing(store, agents=[CLERK, BILLING], model=told_by.model) as runtime:
        session = await runtime.open(CLERK, id="s")
        await session.start("hold", agent="billing", key="k")
        await seen(session, ModelCalled)
        (row,) = [row async for row in runtime.sessions()]
        assert row.agent == "billing", "whose the work is"
    told_by.go_on.set()
    async with Runtime(store, agents=[CLERK], model=told_by.model) as runtime:
        # It has its own agent, and is not asked for the other's: the sweep leaves it alone.
        session = await runtime.session("s")
        assert session.state.run is not None
    async with Runtime(store, agents=[BILLING], model=told_by.model) as runtime:
        session = await runtime.session("s")
        await until(lambda: session.state.run is None)
        assert session.state.ended[0].agent == "billing"
    async with Runtime(store, agents=[CLERK], model=told_by.model) as runtime:
        assert (await soon((await runtime.session("s")).run("more"))).output == "clerk says hello"


async def test_a_queue_for_different_agents_survives_a_crash(store: str | Store) -> None:
    told_by = Told()
    async with crashing(store, agents=[CLERK, BILLING], model=told_by.model) as runtime:
        session = await runtime.open(CLERK, id="s")
        await session.start("hold", key="0")
        await seen(session, ModelCalled)
        await session.start("one", agent="billing", key="1")
        await session.start("two", key="2")
    told_by.go_on.set()
    async with Runtime(store, agents=[CLERK], model=told_by.model) as runtime:
        session = await runtime.session("s")
        await until(lambda: len(session.state.ended) == 1)
        (row,) = [row async for row in runtime.sessions()]
        assert (row.agent, row.status) == ("billing", "running"), "the next work is the other agent's"
    async with Runtime(store, agents=[CLERK, BILLING], model=told_by.model) as runtime:
        session = await runtime.session("s")
        await until(lambda: len(session.state.ended) == 3)
        assert [ended.agent for ended in session.state.ended] == ["clerk", "billing", "clerk"]


async def test_a_chosen_run_that_goes_on_is_the_chosen_agent_s(store: str | Store) -> None:
    told_by = Told()
    async with Runtime(store, agents=[CLERK, BILLING], model=told_by.model) as runtime:
        session = await runtime.open(CLERK, id="s")
        result = await soon(session.run("one", agent="billing", limits=Limits(turns=0)))
        assert result.reason == "limit"
        assert (await soon(session.resume())).output == "billing says hello"
        assert (await soon(session.run("two"))).output == "clerk says hello"
        await soon(session.run("three", agent="billing", limits=Limits(turns=0)))
    async with Runtime(store, agents=[CLERK], model=told_by.model) as runtime:
        session = await runtime.session("s")
        with pytest.raises(UsageError, match="The agent 'billing' is not known here"):
            await session.resume()


async def test_the_tools_of_a_chosen_run_are_checked_against_the_chosen_agent() -> None:
    @tool(effect="read")
    async def pick() -> str:
        """Pick."""
        return "x"

    billing = agent("billing", tools=[pick])
    async with Runtime(MemoryStore(), agents=[CLERK, billing], model=Told().model) as runtime:
        session = await runtime.open(CLERK)
        with pytest.raises(UsageError, match="A tool is called 'pick' already"):
            await session.run("go", agent="billing", tools=[frontend("pick")])
        assert (await soon(session.run("go", tools=[frontend("pick")]))).output == "clerk says hello"


async def test_a_hook_may_choose_who_drives_the_run(store: str | Store) -> None:
    def route(moment: Any) -> Overrides | None:
        return Overrides(agent="billing") if "bill" in moment.text else None

    told_by = Told()
    clerk = agent("clerk", hooks=[Hooks(input=route)])
    async with Runtime(store, agents=[clerk, BILLING], model=told_by.model) as runtime:
        session = await runtime.open(clerk, id="s")
        assert (await soon(session.run("bill me"))).output == "billing says hello"
        assert (await soon(session.run("greet me"))).output == "clerk says hello"


# The registry and files


async def test_agents_are_opened_by_name(store: str | Store) -> None:
    told_by = Told()
    async with Runtime(store, agents=[CLERK, BILLING], model=told_by.model) as runtime:
        session = await runtime.open("billing", id="s")
        assert (await soon(session.run("go"))).output == "billing says hello"
        with pytest.raises(UsageError) as refused:
            await runtime.open("mars")
        assert str(refused.value) == "The agent 'mars' is not known here; pass it in agents=[…]."
        wrong: Any = 7
        with pytest.raises(UsageError, match="An agent's name is text, not int"):
            await runtime.open(wrong)


def test_scripts_name_agents_too() -> None:
    with Runtime(MemoryStore(), agents=[CLERK], model=Told().model) as runtime:
        assert runtime.run_sync("clerk", "go", id="s").output == "clerk says hello"


AGENTS = """
from perdure import Agent
from perdure.testing import ScriptedModel
loaded = []
clerk = Agent(name="clerk", model=ScriptedModel(lambda request: "from a file"), handoffs=["billing"])
billing = Agent(name="billing", model=ScriptedModel(lambda request: "from a file too"))
number = 7
"""


async def test_agents_come_from_files(tmp_path: Path) -> None:
    file = tmp_path / "agents.py"
    file.write_text(AGENTS)
    async with Runtime(MemoryStore(), agents=[f"{file}:clerk", f"{file}:billing"]) as runtime:
        assert (await soon((await runtime.open("clerk")).run("go"))).output == "from a file"
        assert (await soon((await runtime.open("billing")).run("go"))).output == "from a file too"


@pytest.mark.parametrize(
    ("where", "text", "wrong"),
    [
        ("clerk", "", "agents=[…] 'clerk': write it as FILE.py:NAME, for example agents.py:clerk."),
        ("agents.py:", "", "agents=[…] 'agents.py:': write it as FILE.py:NAME, for example agents.py:clerk."),
        ("there.py:clerk", "", "agents=[…]: there is no file 'there.py'; check the path."),
        ("agents.py:mars", AGENTS, "agents=[…]: agents.py has no Agent named 'mars'; it has clerk, billing."),
        ("agents.py:number", AGENTS, "agents=[…]: agents.py has no Agent named 'number'; it has clerk, billing."),
        (
            "agents.py:clerk",
            "x = 1\n",
            "agents=[…]: agents.py has no Agent named 'clerk'; define clerk = Agent(…) at its top level.",
        ),
        (
            "agents.py:clerk",
            "\n1 / 0\n",
            "agents=[…]: agents.py cannot be loaded (ZeroDivisionError: division by zero, line 2); mend it.",
        ),
        ("agents.py:clerk", "def (", "agents=[…]: agents.py cannot be loaded (SyntaxError: "),
        ("agents.py:clerk", "raise SystemExit(3)", "agents=[…]: agents.py cannot be loaded (SystemExit: 3, line 1)"),
        ("agents.txt:clerk", "x", "agents=[…]: agents.txt is no Python file; write it as FILE.py:NAME."),
    ],
)
async def test_files_that_make_no_sense(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, text: str, wrong: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if text:
        (tmp_path / where.partition(":")[0]).write_text(text)
    elif where.endswith(":"):
        (tmp_path / "agents.py").write_text("")
    with pytest.raises(UsageError) as refused:
        async with Runtime(MemoryStore(), agents=[where]):
            pass
    assert str(refused.value).startswith(wrong)


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"agents": "agents.py:clerk"}, "it is a list; write agents=[…]."),
        ({"agents": CLERK}, "it is a list; write agents=[…]."),
        ({"agents": [7]}, "Runtime(agents=[7]): give agents, or FILE.py:NAME."),
        ({"resolve": {"clerk": CLERK}}, "give a function that finds an agent by its name."),
    ],
)
def test_a_runtime_that_makes_no_sense(options: dict[str, Any], wrong: str) -> None:
    with pytest.raises(UsageError) as refused:
        Runtime(MemoryStore(), **options)
    assert str(refused.value).endswith(wrong)


async def test_two_agents_of_one_name_are_refused() -> None:
    other = agent("clerk", limits=Limits(turns=1))
    with pytest.raises(UsageError, match="Two agents are named 'clerk'"):
        async with Runtime(MemoryStore(), agents=[CLERK, agent("x", handoffs=[other])], model=Told().model):
            pass


# The resolver


class Directory:
    """Agents that are found by name; counts how often it is asked."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)
        self.asked: list[str] = []

    def __call__(self, name: str) -> Agent[Any] | None:
        self.asked.append(name)
        return agent(name) if name in self.names else None

    async def later(self, name: str) -> Agent[Any] | None:
        await asyncio.sleep(0)
        return self(name)


@pytest.mark.parametrize("way", ["sync", "async"])
async def test_a_resolver_finds_agents_once(store: str | Store, way: str) -> None:
    directory = Directory("clerk", "billing")
    resolve: Any = directory if way == "sync" else directory.later
    async with Runtime(store, resolve=resolve, model=Told().model) as runtime:
        sessions = await asyncio.gather(*(runtime.open("clerk", id=f"s{n}") for n in range(5)))
        assert {session.agent for session in sessions} == {"clerk"}
        assert (await soon(sessions[0].run("go"))).output == "clerk says hello"
        assert (await soon(sessions[0].run("go", agent="billing"))).output == "billing says hello"
        await sessions[0].set_agent("billing")
        assert directory.asked == ["clerk", "billing"]
        for _ in range(2):
            with pytest.raises(UsageError, match="The agent 'mars' is not known here"):
                await runtime.open("mars")
        assert directory.asked[2:] == ["mars", "mars"], "who is not there may come later"


@pytest.mark.parametrize("engine", ["temporal://127.0.0.1:1", "restate://127.0.0.1:1", "dbos"])
async def test_a_resolver_is_refused_where_an_engine_has_queues_of_known_agents(engine: str) -> None:
    given: Any = engine if engine != "dbos" else DbosEngine("postgresql://localhost:1/x", SystemClock())
    with pytest.raises(UsageError, match=r"^Runtime\(resolve=…\) works with the local engine alone; name the agents"):
        async with Runtime("memory:", resolve=Directory("clerk"), engine=given):
            pass


async def test_a_resolver_goes_with_a_process_that_drives_nothing() -> None:
    async with Runtime("memory:", resolve=Directory("clerk"), engine=None, model=Told().model) as runtime:
        assert (await runtime.open("clerk")).agent == "clerk"


async def test_hand_offs_find_their_targets_with_the_resolver(store: str | Store) -> None:
    directory = Directory("billing")
    model = ScriptedModel([[call("hand_off", to="mars")], [call("hand_off", to="billing")], "Billed."])
    clerk = agent("clerk", handoffs=["billing", "mars"])
    async with Runtime(store, agents=[clerk], resolve=directory, model=model) as runtime:
        session = await runtime.open(clerk, id="s")
        assert (await soon(session.run("go"))).output == "Billed."
        assert (await told(session))[0][1:] == (
            "error",
            "The agent 'mars' is not known here; take one of: billing.",
        )
        assert session.agent == "billing"


async def left_behind(store: str | Store, name: str, id: str) -> None:
    """A session of that agent with work that nobody has begun."""
    async with Runtime(store, agents=[agent(name)], engine=None, model=Told().model) as runtime:
        await (await runtime.open(name, id=id)).start("go")


async def test_a_sweep_finds_the_sessions_of_agents_that_the_resolver_knows(store: str | Store) -> None:
    for name in ("mars", "billing", "venus"):
        await left_behind(store, name, name)
    directory = Directory("billing")
    async with Runtime(store, resolve=directory, model=Told().model) as runtime:
        session = await runtime.session("billing")
        await until(lambda: len(session.state.ended))
        assert session.state.ended[0].output == "billing says hello"
        rows = {row.id: row.status async for row in runtime.sessions()}
        assert rows == {"mars": "running", "billing": "idle", "venus": "running"}, "listed, and left alone"
        assert sorted(directory.asked) == ["billing", "mars", "venus"]


async def test_nobody_s_sessions_do_not_stand_in_the_way_and_are_looked_at_again_later() -> None:
    clock, store = ManualClock(), MemoryStore()
    directory = Directory("billing")
    for number in range(120):
        await left_behind(store, "mars", f"m{number}")
    await left_behind(store, "billing", "b")
    async with Runtime(store, resolve=directory, model=Told().model, clock=clock) as runtime:
        session = await runtime.session("b")
        await turned(clock, lambda: len(session.state.ended), step=0.5)
        asked = len(directory.asked)
        await clock.advance(5)
        assert len(directory.asked) == asked, "for a while nobody is asked again"
        directory.names.append("mars")
        other = await runtime.session("m0")
        await turned(clock, lambda: len(other.state.ended), step=10)


async def test_a_resolver_that_fails_is_logged_once_and_the_session_left_alone(
    store: str | Store, caplog: pytest.LogCaptureFixture
) -> None:
    await left_behind(store, "mars", "one")
    await left_behind(store, "mars", "two")
    tried: list[str] = []

    def resolve(name: str) -> Agent[Any] | None:
        tried.append(name)
        raise KeyError(name)

    caplog.set_level(logging.WARNING, "perdure")
    async with Runtime(store, resolve=resolve, model=Told().model) as runtime:
        await until(lambda: len(tried) >= 1)
        with pytest.raises(UsageError) as refused:
            await runtime.open("mars", id="three")
        wrong = "The resolver failed for the agent 'mars' (KeyError: 'mars'); mend it."
        assert str(refused.value) == wrong
        assert {row.status async for row in runtime.sessions()} == {"running"}
    assert [record.getMessage() for record in caplog.records if record.name == "perdure"] == [wrong]


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ("a string", "The resolver returned str for the agent 'mars', not an Agent."),
        (agent("venus"), "The resolver returned the agent 'venus' for 'mars'; the names must agree."),
        (
            Agent(name="mars"),
            "Agent 'mars' has no model; give it model='provider:name', or --model at the command line.",
        ),
    ],
)
async def test_a_resolver_that_finds_nonsense(given: Any, wrong: str) -> None:
    async with Runtime(MemoryStore(), resolve=lambda name: given) as runtime:
        with pytest.raises(UsageError) as refused:
            await runtime.open("mars")
        assert str(refused.value) == wrong


async def test_a_resolver_that_hangs_is_given_up_and_holds_up_nobody_else() -> None:
    clock = ManualClock()

    async def resolve(name: str) -> Agent[Any] | None:
        if name == "mars":
            await asyncio.Event().wait()
        return agent(name)

    async with Runtime(MemoryStore(), resolve=resolve, model=Told().model, clock=clock) as runtime:
        hanging = asyncio.ensure_future(runtime.open("mars"))
        await soon(runtime.open("venus"))
        await turned(clock, hanging.done)
        with pytest.raises(UsageError, match="it took longer than 30 s"):
            await hanging


async def test_without_a_resolver_only_known_agents_are_swept_for(store: str | Store) -> None:
    await left_behind(store, "mars", "m")
    async with Runtime(store, agents=[CLERK], model=Told().model) as runtime:
        session = await runtime.open(CLERK, id="s")
        await soon(session.run("go"))
        page = await runtime._host.world.store.list(SessionQuery(agent="mars"))  # pyright: ignore[reportPrivateUsage]
        assert [row.owner for row in page.rows] == [None]


async def test_leaving_does_not_wait_for_a_resolver() -> None:
    asked = asyncio.Event()

    async def resolve(name: str) -> Agent[Any] | None:
        asked.set()
        await asyncio.Event().wait()
        return None

    async with Runtime(MemoryStore(), resolve=resolve, model=Told().model) as runtime:
        hanging = asyncio.ensure_future(runtime.open("mars"))
        await soon(asked.wait())
    with pytest.raises(asyncio.CancelledError):
        await soon(hanging)
