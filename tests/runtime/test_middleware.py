"""Middleware: one signature around model calls, checks and tools."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from perdure import Agent, Policy, Runtime, tool
from perdure.core.actions import CallModel, CheckCall, RunTool
from perdure.core.messages import AssistantMessage, Text
from perdure.events import CallChecked, CallEnded, CallStarted, ModelFailed, ModelResponded, RunEnded
from perdure.ports import Store
from perdure.testing import ScriptedModel, call
from tests.runtime.scenes import events, seen, soon, told


@tool
async def act(what: str = "it") -> str:
    """Act."""
    return f"{what} is done"


def clerk(*answers: Any, **options: Any) -> Agent[str]:
    options = {"tools": [act], **options}
    return Agent(name="clerk", model=ScriptedModel(list(answers)), **options)


async def test_middleware_sees_every_action_and_its_event(store: str | Store) -> None:
    log: list[tuple[str, str]] = []

    async def observe(action: Any, perform: Any) -> Any:
        event = await perform(action)
        log.append((type(action).__name__, type(event).__name__))
        return event

    agent = clerk([call("act")], "Done.")
    async with Runtime(store, agents=[agent], middleware=[observe]) as runtime:
        session = await runtime.open(agent, id="x")
        assert (await session.run("go")).output == "Done."
    assert log == [
        ("CallModel", "ModelResponded"),
        ("CheckCall", "CallChecked"),
        ("RunTool", "CallEnded"),
        ("CallModel", "ModelResponded"),
        ("EndRun", "RunEnded"),
    ]


async def test_the_runtimes_middleware_is_outside_the_agents_and_the_first_is_outermost(memory: Store) -> None:
    order: list[str] = []

    def layer(name: str) -> Any:
        async def middleware(action: Any, perform: Any) -> Any:
            order.append(f"{name} in")
            event = await perform(action)
            order.append(f"{name} out")
            return event

        return middleware

    agent = clerk("Done.", middleware=[layer("agent 1"), layer("agent 2")])
    async with Runtime(memory, agents=[agent], middleware=[layer("runtime 1"), layer("runtime 2")]) as runtime:
        await (await runtime.open(agent)).run("go")
    through = [
        "runtime 1 in",
        "runtime 2 in",
        "agent 1 in",
        "agent 2 in",
        "agent 2 out",
        "agent 1 out",
        "runtime 2 out",
        "runtime 1 out",
    ]
    assert order == through * 2, "the model's call, and the end of the run"


async def test_an_agents_middleware_is_its_own(memory: Store) -> None:
    names: list[str] = []

    async def note(action: Any, perform: Any) -> Any:
        names.append(type(action).__name__)
        return await perform(action)

    with_it = clerk("One.", middleware=[note])
    without = Agent(name="other", model=ScriptedModel(["Two."]))
    async with Runtime(memory, agents=[with_it, without]) as runtime:
        await (await runtime.open(without)).run("go")
        assert names == []
        await (await runtime.open(with_it)).run("go")
        assert names == ["CallModel", "EndRun"]


async def test_middleware_may_change_what_comes_back(store: str | Store) -> None:
    async def redact(action: Any, perform: Any) -> Any:
        event = await perform(action)
        if isinstance(event, CallEnded):
            return replace(event, parts=(Text("[redacted]"),))
        if isinstance(event, ModelResponded) and not event.message.calls:
            return replace(event, message=AssistantMessage((Text(event.message.text.upper()),)))
        return event

    agent = clerk([call("act", what="secret")], "Done.", middleware=[redact])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        assert (await session.run("go")).output == "DONE."
        assert await told(session) == [("act", "ok", "[redacted]")]


async def test_middleware_may_change_what_goes_in(memory: Store) -> None:
    async def rewrite(action: Any, perform: Any) -> Any:
        if isinstance(action, RunTool):
            action = replace(action, arguments='{"what":"something else"}')
        return await perform(action)

    agent = clerk([call("act")], "Done.", middleware=[rewrite])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        await session.run("go")
        assert await told(session) == [("act", "ok", "something else is done")]


async def test_arguments_that_middleware_spoils_do_not_reach_the_tool(memory: Store) -> None:
    async def spoil(action: Any, perform: Any) -> Any:
        if isinstance(action, RunTool):
            action = replace(action, arguments='{"what":7}')
        return await perform(action)

    agent = clerk([call("act")], "Done.", middleware=[spoil])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        await session.run("go")
        ((_, outcome, text),) = await told(session)
        assert outcome == "error"
        assert "was not started" in text
        assert [end.in_doubt for end in await events(session, CallEnded)] == [False]


async def test_middleware_may_answer_by_itself(store: str | Store) -> None:
    async def cached(action: Any, perform: Any) -> Any:
        match action:
            case CallModel(turn=1):
                return await perform(action)
            case CallModel():
                return ModelResponded(AssistantMessage((Text("From the cache."),)))
            case CheckCall(call=number):
                return CallChecked(number, "allow", "cache")
            case RunTool(call=number):
                return CallEnded(number, "ok", (Text("cached"),))
            case _:
                raise AssertionError

    agent = clerk([call("act")], middleware=[cached], policy=Policy(deny=["*"]))
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        assert (await session.run("go")).output == "From the cache."
        assert await told(session) == [("act", "ok", "cached")]


async def test_calls_that_middleware_makes_up_are_numbered_like_others(memory: Store) -> None:
    async def eager(action: Any, perform: Any) -> Any:
        if isinstance(action, CallModel) and action.turn < 3:
            return ModelResponded(AssistantMessage((call("act", what="a"), call("act", what="b"))))
        return await perform(action)

    agent = Agent(name="clerk", model=ScriptedModel(lambda _: "Done."), tools=[act], middleware=[eager])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        assert (await soon(session.run("go"))).output == "Done."
        assert [end.call for end in await events(session, CallEnded)] == [1, 2, 3, 4]


async def test_middleware_may_veto(store: str | Store) -> None:
    async def veto(action: Any, perform: Any) -> Any:
        if isinstance(action, CheckCall):
            return CallChecked(action.call, "deny", "budget", "too expensive today")
        return await perform(action)

    agent = clerk([call("act")], "I see.", middleware=[veto])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        assert (await session.run("go")).output == "I see."
        assert await told(session) == [("act", "denied", "The call is not allowed (budget): too expensive today")]
        assert await events(session, CallStarted) == []


async def test_middleware_may_try_again(memory: Store) -> None:
    failures: list[str] = []

    async def stubborn(action: Any, perform: Any) -> Any:
        event = await perform(action)
        if isinstance(event, CallEnded) and event.outcome == "error":
            failures.append(event.outcome)
            event = await perform(action)
        return event

    attempts: list[int] = []

    @tool(effect="read")
    async def flaky() -> str:
        attempts.append(1)
        if len(attempts) == 1:
            raise OSError("try again")
        return "fine"

    agent = clerk([call("flaky")], "Done.", tools=[flaky], middleware=[stubborn])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        await session.run("go")
        assert await told(session) == [("flaky", "ok", "fine")]
    assert failures == ["error"]


@pytest.mark.parametrize("error", [ValueError("a bug"), SystemExit(1), asyncio.CancelledError()])
@pytest.mark.parametrize("where", [CallModel, CheckCall, RunTool])
async def test_middleware_that_fails_is_a_fact_and_nobody_else_is_hurt(
    memory: Store, where: type, error: BaseException
) -> None:
    async def fail(action: Any, perform: Any) -> Any:
        if isinstance(action, where):
            raise error
        return await perform(action)

    agent = clerk([call("act")], "I see.", middleware=[fail])
    neighbour = Agent(name="neighbour", model=ScriptedModel(["Fine."]))
    async with Runtime(memory, agents=[agent, neighbour]) as runtime:
        session = await runtime.open(agent)
        result = await soon(session.run("go"))
        if where is CallModel:
            assert result.reason == "failed"
            assert [failed.kind for failed in await events(session, ModelFailed)] == ["internal"]
        else:
            assert result.output == "I see."
            outcome = "denied" if where is CheckCall else "error"
            assert [told_outcome for _, told_outcome, _ in await told(session)] == [outcome]
        assert (await (await runtime.open(neighbour)).run("go")).output == "Fine."
        assert len(await events(session, RunEnded)) == 1


@pytest.mark.parametrize(
    "answer",
    [
        None,
        "text",
        ModelResponded(AssistantMessage((Text("wrong kind"),))),
        CallEnded(99, "ok"),
        CallEnded(1, "ok", (Text(object()),)),  # type: ignore[arg-type]
        CallEnded(1, "splendid"),  # type: ignore[arg-type]
    ],
)
async def test_an_answer_that_does_not_fit_never_reaches_the_log(memory: Store, answer: Any) -> None:
    async def wrong(action: Any, perform: Any) -> Any:
        return answer if isinstance(action, RunTool) else await perform(action)

    agent = clerk([call("act")], "I see.", middleware=[wrong])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        assert (await soon(session.run("go"))).output == "I see."
        assert [outcome for _, outcome, _ in await told(session)] == ["error"]


async def test_middleware_that_hangs_can_be_cancelled(memory: Store) -> None:
    async def hang(action: Any, perform: Any) -> Any:
        if isinstance(action, RunTool):
            await asyncio.Event().wait()
        return await perform(action)

    agent = clerk([call("act")], middleware=[hang])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        run = await session.start("go")
        await seen(session, CallStarted)
        await session.cancel()
        assert (await run).reason == "cancelled"
        assert [outcome for _, outcome, _ in await told(session)] == ["unknown"]


async def test_a_middleware_that_is_not_async_is_isolated_too(memory: Store) -> None:
    def wrong(action: Any, perform: Any) -> Any:
        return None

    agent = clerk("Never.", middleware=[wrong])
    async with Runtime(memory, agents=[agent]) as runtime:
        result = await soon((await runtime.open(agent)).run("go"))
        assert result.reason == "failed"
