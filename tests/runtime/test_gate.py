"""The gate: what a policy says about a call becomes an event, and the run goes on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import Agent, Policy, Runtime, tool
from perdure.events import CallChecked, CallSuspended, RunEnded
from perdure.ports import Store
from perdure.runtime.policy import CallView
from perdure.testing import ScriptedModel, call
from tests.runtime.scenes import events, seen, soon, told

ledger: list[str] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    ledger.clear()


@tool(effect="read")
async def read_file(path: str) -> str:
    ledger.append(path)
    return "text"


@tool
async def write_file(path: str) -> str:
    ledger.append(path)
    return "written"


def is_secret(view: CallView) -> bool:
    return "secret" in view.arguments["path"]


async def is_secret_later(view: CallView) -> bool:
    await asyncio.sleep(0)
    return is_secret(view)


def breaks(_: CallView) -> bool:
    raise KeyError("nobody wrote this rule well")


async def breaks_later(_: CallView) -> bool:
    raise KeyError("nobody wrote this rule well")


def leaves(_: CallView) -> bool:
    raise SystemExit(1)


async def verdict(store: str | Store, policy: Policy, name: str = "write_file", path: str = "a.txt") -> CallChecked:
    """What becomes of one call under a policy."""
    model = ScriptedModel([[call(name, path=path)], "Done."])
    agent = Agent(name="clerk", model=model, tools=[read_file, write_file], policy=policy)
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        result = await soon(session.run("go"))
        (checked,) = await events(session, CallChecked)
        assert result.reason == ("waiting" if checked.verdict == "ask" else "completed")
        assert bool(ledger) == (checked.verdict == "allow")
        return checked


@pytest.mark.parametrize(
    ("policy", "name", "path", "expected", "rule"),
    [
        (Policy(), "write_file", "a", "allow", ""),
        (Policy(ask=["write_file"]), "write_file", "a", "ask", "ask: write_file"),
        (Policy(ask=["write_file"]), "read_file", "a", "allow", ""),
        (Policy(ask=["write_*"]), "write_file", "a", "ask", "ask: write_*"),
        (Policy(deny=["*"]), "read_file", "a", "deny", "deny: *"),
        (Policy(allow=["write_file"], ask=["write_*"]), "write_file", "a", "ask", "ask: write_*"),
        (Policy(allow=["*"], ask=["*"], deny=["write_*"]), "write_file", "a", "deny", "deny: write_*"),
        (Policy(deny=[is_secret]), "write_file", "secret", "deny", "deny: is_secret"),
        (Policy(deny=[is_secret]), "write_file", "plain", "allow", ""),
        (Policy(ask=[is_secret_later]), "write_file", "secret", "ask", "ask: is_secret_later"),
        (Policy(deny=[is_secret_later]), "write_file", "secret", "deny", "deny: is_secret_later"),
        (Policy(ask=[is_secret_later]), "write_file", "plain", "allow", ""),
        (Policy(allow=[breaks]), "write_file", "a", "deny", "allow: breaks"),
        (Policy(ask=[breaks]), "write_file", "a", "deny", "ask: breaks"),
        (Policy(deny=[breaks_later]), "write_file", "a", "deny", "deny: breaks_later"),
        (Policy(ask=[leaves]), "write_file", "a", "deny", "check"),
    ],
)
async def test_verdicts(memory: Store, policy: Policy, name: str, path: str, expected: str, rule: str) -> None:
    checked = await verdict(memory, policy, name, path)
    assert (checked.verdict, checked.rule) == (expected, rule)


async def test_a_denial_is_a_result_that_the_model_sees(store: str | Store) -> None:
    model = ScriptedModel([[call("write_file", path="a")], "I see."])
    agent = Agent(name="clerk", model=model, tools=[write_file], policy=Policy(deny=["write_*"]))
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        assert (await session.run("go")).output == "I see."
        assert await told(session) == [
            ("write_file", "denied", "The call is not allowed (deny: write_*): The rule 'write_*' forbids it.")
        ]


async def test_a_failing_rule_says_so(store: str | Store) -> None:
    model = ScriptedModel([[call("write_file", path="a")], "I see."])
    agent = Agent(name="clerk", model=model, tools=[write_file], policy=Policy(ask=[breaks]))
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        assert (await session.run("go")).output == "I see."
        ((_, outcome, text),) = await told(session)
        assert outcome == "denied"
        assert "could not be checked" in text


async def test_a_predicate_sees_the_call(memory: Store) -> None:
    views: list[CallView] = []

    def look(view: CallView) -> bool:
        views.append(view)
        return False

    model = ScriptedModel([[call("write_file", path="a")], "Done."])
    agent = Agent(name="clerk", model=model, tools=[write_file], policy=Policy(deny=[look]))
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x", tenant="acme", data={"user": "u7"})
        await session.run("go")
    assert views == [CallView("write_file", {"path": "a"}, "once", "x", "acme", {"user": "u7"})]


async def test_a_tool_may_ask_by_itself_or_by_a_predicate(memory: Store) -> None:
    @tool(ask=lambda view: view.arguments["cents"] > 100)
    async def pay(cents: int) -> str:
        return f"paid {cents}"

    model = ScriptedModel([[call("pay", cents=5), call("pay", cents=500)], "Done."])
    agent = Agent(name="clerk", model=model, tools=[pay])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        (pending,) = (await session.run("go")).pending
        assert pending.arguments == {"cents": 500}
        await session.decide(pending.id, "approve")
        await seen(session, RunEnded, reason="completed")


async def test_a_check_under_way_holds_neither_its_siblings_nor_a_cancel(store: str | Store) -> None:
    async def never(view: CallView) -> bool:
        if view.name == "write_file":
            await asyncio.Event().wait()
        return False

    model = ScriptedModel([[call("read_file", path="a"), call("write_file", path="b")]])
    agent = Agent(name="clerk", model=model, tools=[read_file, write_file], policy=Policy(deny=[never]))
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("go")
        await seen(session, CallChecked, call=1)
        await session.cancel()
        result = await soon(_result(run))
        assert result.reason == "cancelled"
        assert [name for name, outcome, _ in await told(session) if outcome == "cancelled"][-1] == "write_file"
        assert "b" not in ledger
        # The session is free at once: what the rule says later is nobody's business any more.
        await session.delete()


async def _result(run: Any) -> Any:
    return await run


async def test_calls_are_asked_about_once_they_are_valid(memory: Store) -> None:
    model = ScriptedModel([[call("write_file", wrong="a")], "I see."])
    agent = Agent(name="clerk", model=model, tools=[write_file], policy=Policy(ask=["*"]))
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        assert (await session.run("go")).output == "I see."
        assert await events(session, CallSuspended) == []
