"""Stop and cancel: at any point, in time, exactly once, and honest about what nobody knows."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from perdure import Agent, Limits, ModelError, Refused, Run, Runtime, Session, TextDelta, ToolContext, tool
from perdure.core.messages import Usage
from perdure.events import (
    CallEnded,
    CallStarted,
    CallSuspended,
    ModelCalled,
    ModelFailed,
    Noted,
    RunEnded,
    StopRequested,
)
from perdure.ports import ModelRequest, ModelResponse, Store
from perdure.testing import Reply, ScriptedModel, call
from tests.runtime.scenes import crashing, events, kinds, seen, soon, told, until

IN_TIME = 5.0
"""Seconds within which a cancelled run has ended."""


def clerk(*answers: Any, tools: Any = (), **options: Any) -> Agent[str]:
    return Agent(name="clerk", model=ScriptedModel(list(answers)), tools=list(tools), **options)


async def result_of(run: Run[Any]) -> Any:
    return await soon(_settled(run))


async def _settled(run: Run[Any]) -> Any:
    return await run


async def cancelled(session: Session[Any], run: Run[Any]) -> Any:
    """Cancels, and checks what holds for every cancelled run."""
    started = time.monotonic()
    await session.cancel(by="ops")
    result = await result_of(run)
    assert time.monotonic() - started < IN_TIME
    assert (result.reason, result.detail) == ("cancelled", "by ops")
    assert len(await events(session, RunEnded)) == 1
    assert session.state.run is None
    return result


# Cancel


@pytest.mark.parametrize(("effect", "outcome"), [("read", "cancelled"), ("idempotent", "unknown"), ("once", "unknown")])
async def test_cancel_ends_an_async_tool(store: str | Store, effect: Any, outcome: str) -> None:
    cleaned = asyncio.Event()

    @tool(effect=effect)
    async def work() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()
        return "never"

    agent = clerk([call("work")], tools=[work])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("go")
        await seen(session, CallStarted)
        await cancelled(session, run)
        assert cleaned.is_set()
        (ended,) = await events(session, CallEnded)
        assert (ended.outcome, ended.in_doubt) == (outcome, outcome == "unknown")


async def test_cancel_leaves_a_tool_behind_that_will_not_end(store: str | Store) -> None:
    release = asyncio.Event()

    @tool
    async def stubborn() -> str:
        while not release.is_set():
            with suppress(asyncio.CancelledError):
                await release.wait()
        return "too late"

    agent = clerk([call("stubborn")], "Next.", tools=[stubborn])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("go")
        await seen(session, CallStarted)
        await cancelled(session, run)
        (ended,) = await events(session, CallEnded)
        assert (ended.outcome, ended.in_doubt) == ("unknown", True)
        release.set()
        assert (await soon(session.run("next"))).output == "Next."
        assert len(await events(session, CallEnded)) == 1, "what a left-behind tool says is not a fact any more"


async def test_cancel_leaves_a_blocked_thread_behind(store: str | Store) -> None:
    release = threading.Event()
    told_so: list[bool] = []

    @tool
    def block(ctx: ToolContext[Any, Any]) -> str:
        release.wait(30)
        told_so.append(ctx.cancelled)
        return "too late"

    agent = clerk([call("block")], "Next.", tools=[block])
    try:
        async with Runtime(store, agents=[agent]) as runtime:
            session = await runtime.open(agent, id="x")
            run = await session.start("go")
            await seen(session, CallStarted)
            await cancelled(session, run)
            assert [end.outcome for end in await events(session, CallEnded)] == ["unknown"]
            assert (await soon(session.run("next"))).output == "Next."
            release.set()
            await until(lambda: told_so)
            assert told_so == [True]
    finally:
        release.set()


async def test_a_sync_tool_that_heeds_the_cancel_ends_well(store: str | Store) -> None:
    @tool
    def work(ctx: ToolContext[Any, Any]) -> str:
        deadline = time.monotonic() + 30
        while not ctx.cancelled and time.monotonic() < deadline:
            time.sleep(0.005)
        return "stopped half way"

    agent = clerk([call("work")], tools=[work])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("go")
        await seen(session, CallStarted)
        await cancelled(session, run)
        assert await told(session) == [("work", "ok", "stopped half way")]


async def test_an_async_tool_may_end_well_when_it_is_cancelled(memory: Store) -> None:
    @tool
    async def work() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "rolled back"
        return "never"

    agent = clerk([call("work")], tools=[work])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        run = await session.start("go")
        await seen(session, CallStarted)
        await cancelled(session, run)
        assert await told(session) == [("work", "ok", "rolled back")]


class Hanging:
    """A model that shows a little and then never ends, whatever it is told."""

    name = "hanging"

    def __init__(self, *, stubborn: bool) -> None:
        self.stubborn = stubborn
        self.release = asyncio.Event()

    async def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        yield TextDelta("Let me")
        while not self.release.is_set():
            try:
                await self.release.wait()
            except asyncio.CancelledError:
                if not self.stubborn:
                    raise
        yield ModelResponse(())

    def cost(self, usage: Usage) -> float | None:
        return None


@pytest.mark.parametrize("stubborn", [False, True])
async def test_cancel_ends_a_model_that_hangs(store: str | Store, stubborn: bool) -> None:
    model = Hanging(stubborn=stubborn)
    agent = Agent(name="clerk", model=model)
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("go")
        await seen(session, ModelCalled)
        await cancelled(session, run)
        assert [failed.kind for failed in await events(session, ModelFailed)] == ["stopped"]
        model.release.set()
        await asyncio.sleep(0)


async def test_cancel_between_two_attempts_does_not_wait_for_the_next(store: str | Store) -> None:
    agent = clerk(ModelError.rate_limited(retry_after=50), "Never.")
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("go")
        await seen(session, Noted)
        await cancelled(session, run)


async def test_cancel_of_a_run_that_waits(store: str | Store) -> None:
    @tool(ask=True)
    async def act() -> str:
        return "never"

    agent = clerk([call("act"), call("act")], tools=[act])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("go")
        await seen(session, CallSuspended, 2)
        await cancelled(session, run)
        assert [outcome for _, outcome, _ in await told(session)] == ["cancelled", "cancelled"]
        assert await session.pending() == ()


async def test_cancel_ends_all_calls_each_by_its_effect(store: str | Store) -> None:
    @tool(effect="read")
    async def watch() -> str:
        await asyncio.Event().wait()
        return "never"

    @tool
    async def act() -> str:
        await asyncio.Event().wait()
        return "never"

    @tool(effect="read")
    async def quick() -> str:
        return "done"

    @tool(ask=True)
    async def ask() -> str:
        return "never"

    @tool(sequential=True)
    async def last() -> str:
        return "never"

    names = ["watch", "act", "quick", "ask", "last"]
    agent = clerk([call(name) for name in names], tools=[watch, act, quick, ask, last])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("go")
        await seen(session, CallEnded)
        await cancelled(session, run)
        assert [(name, outcome) for name, outcome, _ in await told(session)] == [
            ("watch", "cancelled"),
            ("act", "unknown"),
            ("quick", "ok"),
            ("ask", "cancelled"),
            ("last", "cancelled"),
        ]


@pytest.mark.parametrize("how", ["stop", "cancel"])
async def test_an_input_that_was_just_accepted_can_be_ended(store: str | Store, how: str) -> None:
    agent = Agent(name="clerk", model=Hanging(stubborn=False))
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("go")
        assert session.state.run is None, "nobody has started it yet"
        await getattr(session, how)(by="ops")
        assert (await result_of(run)).detail == "by ops"
        assert len(await events(session, RunEnded)) == 1


@pytest.mark.parametrize("how", ["stop", "cancel"])
async def test_an_input_that_nobody_has_started_can_be_ended(store: str | Store, how: str) -> None:
    model = ScriptedModel(lambda _: "Next.")
    agent = Agent(name="clerk", model=model)
    async with Runtime(store, agents=[agent], engine=None) as asking:
        session = await asking.open(agent, id="x")
        run = await session.start("go")
        queued = await session.start("next")
        await getattr(session, how)(by="ops")
        async with Runtime(store, agents=[agent]):
            result = await result_of(run)
            assert (result.detail, result.turns) == ("by ops", 0)
            assert (await result_of(queued)).output == "Next.", "it ends one run, not the session"
    assert len(model.requests) == 1


async def test_a_session_goes_on_after_a_cancel(store: str | Store) -> None:
    agent = Agent(name="clerk", model=Hanging(stubborn=False))
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("go")
        await seen(session, ModelCalled)
        queued = await session.start("next", model=ScriptedModel(["Next."], name="other"))
        await session.cancel()
        assert (await result_of(run)).reason == "cancelled"
        assert (await result_of(queued)).output == "Next.", "queued inputs are not cancelled with the run"


async def test_cancel_from_a_process_that_does_not_drive_is_heard(store: str | Store) -> None:
    agent = Agent(name="clerk", model=Hanging(stubborn=False))
    async with Runtime(store, agents=[agent]) as driving, Runtime(store, engine=None) as other:
        session = await driving.open(agent, id="x")
        run = await session.start("go")
        await seen(session, ModelCalled)
        await (await other.session("x")).cancel(by="the other")
        result = await result_of(run)
        assert (result.reason, result.detail) == ("cancelled", "by the other")


async def test_a_cancel_that_nobody_heard_is_obeyed_by_the_next_driver(store: str | Store) -> None:
    started: list[int] = []

    @tool
    async def act() -> str:
        started.append(1)
        await asyncio.Event().wait()
        return "never"

    @tool(effect="read")
    async def watch() -> str:
        await asyncio.Event().wait()
        return "never"

    agent = clerk([call("act"), call("watch")], tools=[act, watch])
    async with crashing(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        await session.start("go", key="k")
        await seen(session, CallStarted, 2)
    async with Runtime(store, engine=None) as runtime:
        await (await runtime.session("x")).cancel(by="ops")
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.session("x")
        result = await soon(session.run("go", key="k"))
        assert result.reason == "cancelled"
        assert [(name, outcome) for name, outcome, _ in await told(session)] == [
            ("act", "unknown"),
            ("watch", "cancelled"),
        ]
        assert started == [1]


# Stop


async def test_stop_lets_tools_in_flight_finish(store: str | Store) -> None:
    release = asyncio.Event()

    @tool
    async def work() -> str:
        await release.wait()
        return "finished"

    model = ScriptedModel([[call("work"), call("work")], "Never."])
    agent = Agent(name="clerk", model=model, tools=[work], concurrency=1)
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("go")
        await seen(session, CallStarted)
        await session.stop(by="ops")
        await seen(session, CallEnded, call=2, outcome="cancelled")
        assert session.state.run is not None, "it waits for the tool that runs"
        release.set()
        result = await result_of(run)
        assert (result.reason, result.detail) == ("stopped", "by ops")
        assert [(name, outcome) for name, outcome, _ in await told(session)] == [("work", "ok"), ("work", "cancelled")]
    assert len(model.requests) == 1, "no new turn"


async def test_stop_breaks_off_the_models_stream(store: str | Store) -> None:
    agent = Agent(name="clerk", model=Hanging(stubborn=False))
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("go")
        await seen(session, ModelCalled)
        await session.stop()
        result = await result_of(run)
        assert (result.reason, result.detail) == ("stopped", "")
        assert len(await session.history()) == 1, "half an answer is no answer"


async def test_stop_cancels_what_waits_for_a_decision(memory: Store) -> None:
    @tool(ask=True)
    async def act() -> str:
        return "never"

    agent = clerk([call("act")], tools=[act])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        run = await session.start("go")
        await seen(session, CallSuspended)
        await session.stop()
        assert (await result_of(run)).reason == "stopped"
        assert [outcome for _, outcome, _ in await told(session)] == ["cancelled"]


async def test_stop_then_cancel_escalates(store: str | Store) -> None:
    @tool
    async def work() -> str:
        await asyncio.Event().wait()
        return "never"

    agent = clerk([call("work")], tools=[work])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("go")
        await seen(session, CallStarted)
        await session.stop(by="ann")
        await session.stop(by="ann")
        await cancelled(session, run)
        assert [(stop.cause, stop.by) for stop in await events(session, StopRequested)] == [
            ("stop", "ann"),
            ("cancel", "ops"),
        ]


async def test_cancel_then_stop_stays_cancelled(memory: Store) -> None:
    agent = Agent(name="clerk", model=Hanging(stubborn=True))
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        run = await session.start("go")
        await seen(session, ModelCalled)
        await session.cancel(by="ops")
        await session.stop(by="ann")
        await session.cancel(by="ben")
        agent.model.release.set()  # type: ignore[union-attr]
        assert (await result_of(run)).detail == "by ops"
        assert len(await events(session, StopRequested)) == 1


async def test_there_must_be_something_to_end(store: str | Store) -> None:
    agent = clerk("Done.")
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        for _ in range(2):
            before = await kinds(session)
            with pytest.raises(Refused, match="no open run"):
                await session.stop()
            with pytest.raises(Refused, match="no open run"):
                await session.cancel()
            assert await kinds(session) == before
            await session.run("go")


@pytest.mark.parametrize("how", ["stop", "cancel"])
async def test_a_run_that_was_ended_can_go_on(store: str | Store, how: str) -> None:
    release = asyncio.Event()

    async def answer(request: ModelRequest) -> str:
        await release.wait()
        return "Done after all."

    agent = Agent(name="clerk", model=ScriptedModel(answer))
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("go")
        await seen(session, ModelCalled)
        await getattr(session, how)()
        await result_of(run)
        release.set()
        result = await soon(session.resume())
        assert (result.run, result.output) == (2, "Done after all.")
        again = await result_of(run)
        assert again.reason in ("stopped", "cancelled"), "the first run stays as it ended"


# Other ends


async def test_every_end_has_its_reason_and_detail(memory: Store) -> None:
    refusing = Reply("I will not.", stop="refusal")
    cut = Reply("Once upon a", stop="length")
    for answer, reason, detail in [
        ("Done.", "completed", ""),
        (refusing, "refusal", "I will not."),
        (cut, "completed", "the answer was cut at the model's output limit"),
        (ModelError("no such key", kind="auth"), "failed", "auth: no such key"),
        (ValueError("a bug"), "failed", "internal: ValueError: a bug"),
        ([call("nobody")], "limit", "turns"),
    ]:
        agent = clerk(answer, limits=Limits(turns=1))
        async with Runtime(memory, agents=[agent]) as runtime:
            session = await runtime.open(agent)
            result = await soon(session.run("go"))
            assert (result.reason, result.detail) == (reason, detail)
            (ended,) = await events(session, RunEnded)
            assert (ended.run, ended.reason, ended.detail) == (1, reason, detail)


async def test_cancelling_at_any_moment_ends_exactly_once(memory: Store) -> None:
    """Every number of loop ticks after the start is a moment: none may end a run twice, or never."""

    @tool(effect="read")
    async def look(at: int) -> str:
        await asyncio.sleep(0)
        return "fine"

    agent = Agent(
        name="clerk",
        model=ScriptedModel(lambda r: "Done." if len(r.messages) > 4 else [call("look", at=n) for n in (1, 2)]),
        tools=[look],
    )
    reasons: set[str] = set()
    async with Runtime(memory, agents=[agent]) as runtime:
        for ticks in range(60):
            session = await runtime.open(agent)
            run = await session.start("go")
            for _ in range(ticks):
                await asyncio.sleep(0)
            with suppress(Refused):
                await (session.cancel() if ticks % 2 else session.stop())
            reasons.add((await result_of(run)).reason)
            assert len(await events(session, RunEnded)) == 1
    assert {"completed", "cancelled", "stopped"} <= reasons
