"""Tools in the background: the model goes on at once and is told of the outcome; the run waits for what is left."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import Agent, Limits, NotFound, Runtime, ToolContext, ToolError, tool
from perdure.core.transcript import unpaired
from perdure.events import CallAdvanced, CallEnded, CallStarted, ModelCalled
from perdure.ports import Store
from perdure.testing import ScriptedModel, call
from tests.runtime.scenes import crashing, events, said, seen, soon, told, until


class Oven:
    """Bakes in its own time."""

    def __init__(self) -> None:
        self.baking: list[str] = []
        self.cancelled: list[str] = []
        self.ready = asyncio.Event()

    def tool(self, **options: Any) -> Any:
        @tool(background=True, **{"effect": "read", **options})
        async def bake(what: str, ctx: ToolContext[Any, Any]) -> str:
            """Bake something."""
            self.baking.append(what)
            ctx.progress("in the oven")
            try:
                await self.ready.wait()
            except asyncio.CancelledError:
                self.cancelled.append(what)
                raise
            if what == "stone":
                raise ToolError("it does not rise")
            return f"{what} is done"

        return bake


@tool(effect="read")
async def look(what: str) -> str:
    """Look."""
    return f"saw {what}"


def baker(oven: Oven, *answers: Any, **options: Any) -> Agent[str]:
    tools = [oven.tool(**options.pop("tool", {})), look]
    return Agent(name="baker", model=ScriptedModel(list(answers)), tools=tools, **options)


async def test_the_model_goes_on_and_is_told_when_it_is_done(store: str | Store) -> None:
    oven = Oven()
    agent = baker(
        oven, [call("bake", what="bread"), call("look", what="a")], [call("look", what="b")], "Waiting.", "Eat!"
    )
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("go")
        await seen(session, ModelCalled, 3)
        assert session.background() == {"bake-1": "bake"}
        assert (await told(session))[0][2].startswith("Started in the background as bake-1.")
        await until(lambda: session.state.run and session.state.run.response and not session.state.run.awaiting)
        oven.ready.set()
        assert (await soon(run)).output == "Eat!"
        assert (await said(session))[-1] == "[bake-1 ended: ok] bread is done"
        assert [advanced.background for advanced in await events(session, CallAdvanced)] == [True]
        assert session.background() == {}
        assert unpaired(session.state.history) == []
        assert len(await events(session, CallEnded)) == 3, "one outcome each"


async def test_a_run_that_only_waits_for_the_background_stays_open(memory: Store) -> None:
    oven = Oven()
    agent = baker(oven, call("bake", what="bread"), "Nothing to do.", "Eat!")
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        run = await session.start("go")
        await seen(session, ModelCalled, 2)
        await until(lambda: session.state.run and not session.state.run.awaiting)
        assert len(session.state.ended) == 0
        await session.send("and butter", busy="join")
        await seen(session, ModelCalled, 3)
        oven.ready.set()
        result = await soon(run)
        assert result.reason in ("completed", "failed")


@pytest.mark.parametrize(("what", "outcome"), [("bread", "ok"), ("stone", "error")])
async def test_success_and_failure_are_told(memory: Store, what: str, outcome: str) -> None:
    oven = Oven()
    oven.ready.set()
    agent = baker(oven, call("bake", what=what), "Hm.", "Done.")
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        assert (await soon(session.run("go"))).output in ("Hm.", "Done.")
        heard = (await said(session))[-1]
        assert heard.startswith(f"[bake-1 ended: {outcome}]")


@pytest.mark.parametrize(
    ("effect", "baked", "outcome"), [("read", 2, "ok"), ("idempotent", 2, "ok"), ("once", 1, "unknown")]
)
async def test_after_a_crash_each_follows_its_effect(store: str | Store, effect: str, baked: int, outcome: str) -> None:
    oven = Oven()
    agent = baker(oven, call("bake", what="bread"), "Waiting.", "Done.", tool={"effect": effect})
    async with crashing(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        await session.start("go", key="k")
        await until(lambda: oven.baking)
        await until(lambda: session.state.run and session.state.run.turn == 2 and not session.state.run.awaiting)
    oven.ready.set()
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        assert (await soon(session.run("go", key="k"))).output == "Done."
        assert (await said(session))[-1].startswith(f"[bake-1 ended: {outcome}]")
        assert len(await events(session, CallStarted)) == baked
    assert len(oven.baking) == baked


async def test_one_or_all_can_be_cancelled(memory: Store) -> None:
    oven = Oven()
    calls = [call("bake", what="a"), call("bake", what="b"), call("bake", what="c")]
    agent = baker(oven, calls, "Waiting.", "Still.", "Done.")
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        run = await session.start("go")
        await until(lambda: len(oven.baking) == 3)
        with pytest.raises(NotFound, match="bake-9"):
            await session.cancel_background("bake-9")
        await session.cancel_background("bake-2", by="ops")
        await until(lambda: oven.cancelled == ["b"])
        await session.cancel_background()
        await until(lambda: len(oven.cancelled) == 3)
        assert (await soon(run)).reason == "completed"
        news = [text for text in await said(session) if "ended" in text]
        assert sum(text.count("ended: cancelled") for text in news) == 3


@pytest.mark.parametrize("how", ["cancel", "stop"])
async def test_the_end_of_a_run_ends_its_background(store: str | Store, how: str) -> None:
    oven = Oven()
    agent = baker(oven, call("bake", what="bread"), "Waiting.")
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("go")
        await until(lambda: oven.baking)
        await (session.cancel() if how == "cancel" else session.stop())
        if how == "stop":
            oven.ready.set()
        assert (await soon(run)).reason == ("cancelled" if how == "cancel" else "stopped")
        assert [end.outcome for end in await events(session, CallEnded)] == ["cancelled" if how == "cancel" else "ok"]
    assert oven.cancelled == (["bread"] if how == "cancel" else [])


async def test_a_limit_ends_the_background_too(memory: Store) -> None:
    oven = Oven()
    agent = baker(oven, call("bake", what="bread"), call("look", what="x"), limits=Limits(turns=2))
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        result = await soon(session.run("go"))
        assert (result.reason, result.detail) == ("limit", "turns")
        assert oven.cancelled == ["bread"]


async def test_a_fork_leaves_the_background_to_its_parent(memory: Store) -> None:
    oven = Oven()
    agent = baker(oven, call("bake", what="bread"), "Waiting.", "Done.")
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        run = await session.start("go")
        await until(lambda: oven.baking)
        fork = await session.fork()
        assert fork.background() == {}
        oven.ready.set()
        await soon(run)
