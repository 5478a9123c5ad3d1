"""Tool calls at run time: side by side, in order, in time, and every outcome a truthful result."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from perdure import Agent, Image, Runtime, ToolContext, ToolError, tool
from perdure.core.messages import Media, ToolCall, ToolMessage, Usage
from perdure.events import CallChecked, CallEnded, CallStarted, RunEnded
from perdure.ports import ModelResponse, Store
from perdure.testing import ManualClock, Reply, ScriptedModel, call
from tests.runtime.scenes import collect, crashing, events, seen, soon, told, turned, until

PNG = b"\x89PNG\r\n\x1a\n" + b"0" * 16


def clerk(*answers: Any, tools: Any, **options: Any) -> Agent[str]:
    return Agent(name="clerk", model=ScriptedModel(list(answers)), tools=list(tools), **options)


# Side by side


async def test_calls_of_one_turn_run_in_parallel(store: str | Store) -> None:
    together = asyncio.Barrier(4)

    @tool
    async def meet(name: str) -> str:
        await together.wait()
        return f"{name} met"

    agent = clerk([call("meet", name=name) for name in "abcd"], "Done.", tools=[meet])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        assert (await soon(session.run("go"))).output == "Done."
        assert await told(session) == [("meet", "ok", f"{name} met") for name in "abcd"]


async def test_sync_calls_run_in_parallel_too(store: str | Store) -> None:
    together = threading.Barrier(4)

    @tool
    def meet(name: str) -> str:
        together.wait(20)
        return f"{name} met"

    agent = clerk([call("meet", name=name) for name in "abcd"], "Done.", tools=[meet])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        assert (await soon(session.run("go"))).output == "Done."


async def test_results_are_in_call_order_whatever_finishes_first(store: str | Store) -> None:
    turns = [asyncio.Event() for _ in range(4)]
    turns[3].set()

    @tool(effect="read")
    async def wait(number: int) -> str:
        await turns[number].wait()
        if number:
            turns[number - 1].set()
        return str(number)

    agent = clerk([call("wait", number=number) for number in range(4)], "Done.", tools=[wait])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        await soon(session.run("go"))
        assert [ended.call for ended in await events(session, CallEnded)] == [4, 3, 2, 1]
        assert [text for _, _, text in await told(session)] == ["0", "1", "2", "3"]


async def test_a_sequential_tool_waits_for_the_calls_before_it_and_holds_those_after(store: str | Store) -> None:
    running: set[str] = set()
    seen_beside: dict[str, set[str]] = {}

    async def note(name: str) -> str:
        seen_beside[name] = set(running)
        running.add(name)
        await asyncio.sleep(0.01)
        running.remove(name)
        return name

    @tool(effect="read")
    async def free(name: str) -> str:
        return await note(name)

    @tool(effect="read", sequential=True)
    async def alone(name: str) -> str:
        return await note(name)

    agent = clerk(
        [
            call("free", name="a"),
            call("free", name="b"),
            call("alone", name="c"),
            call("alone", name="d"),
            call("free", name="e"),
        ],
        "Done.",
        tools=[free, alone],
    )
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        assert (await soon(session.run("go"))).output == "Done."
        assert [text for _, _, text in await told(session)] == list("abcde")
    assert seen_beside == {"a": set(), "b": {"a"}, "c": set(), "d": set(), "e": set()}


async def test_no_more_calls_at_once_than_the_agent_allows(store: str | Store) -> None:
    running, most = 0, 0

    @tool(effect="read")
    async def work(number: int) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.003)
        running -= 1
        return str(number)

    agent = clerk([call("work", number=number) for number in range(7)], "Done.", tools=[work], concurrency=3)
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        assert (await soon(session.run("go"))).output == "Done."
        assert [text for _, _, text in await told(session)] == [str(number) for number in range(7)]
    assert most == 3


async def test_sync_tools_do_not_block_the_loop(memory: Store) -> None:
    release = threading.Event()

    @tool(effect="read")
    def block() -> str:
        assert release.wait(20)
        return "free"

    agent = clerk([call("block")], "Done.", tools=[block])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        run = await session.start("go")
        await seen(session, CallStarted)
        for _ in range(100):
            await asyncio.sleep(0)
        other = Agent(name="other", model=ScriptedModel(["Meanwhile."]))
        assert (await (await runtime.open(other)).run("go")).output == "Meanwhile."
        release.set()
        assert (await run).output == "Done."


# Outcomes


async def test_errors_of_tools_are_results(store: str | Store) -> None:
    @tool
    async def refuse() -> str:
        raise ToolError("nothing to charge")

    @tool
    async def fail() -> str:
        raise KeyError("cents")

    @tool(effect="read")
    async def fail_reading() -> str:
        raise KeyError("cents")

    @tool
    def fail_in_a_thread() -> str:
        raise OSError("no\nnetwork")

    @tool
    async def leave() -> str:
        raise SystemExit(3)

    @tool
    def leave_in_a_thread() -> str:
        raise SystemExit(3)

    @tool
    async def cancel_itself() -> str:
        raise asyncio.CancelledError

    @tool
    async def return_nonsense() -> Any:
        return object()

    tools = [refuse, fail, fail_reading, fail_in_a_thread, leave, leave_in_a_thread, cancel_itself, return_nonsense]
    agent = clerk([call(item.name) for item in tools], "I see.", tools=tools)
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        assert (await soon(session.run("go"))).output == "I see."
        texts = {name: (outcome, text) for name, outcome, text in await told(session)}
        assert texts["refuse"] == ("error", "nothing to charge")
        assert texts["fail"] == ("error", "fail failed: KeyError: 'cents'. It may have taken effect.")
        assert texts["fail_reading"] == ("error", "fail_reading failed: KeyError: 'cents'.")
        assert texts["fail_in_a_thread"] == (
            "error",
            "fail_in_a_thread failed: OSError: no network. It may have taken effect.",
        )
        assert texts["leave"][0] == texts["leave_in_a_thread"][0] == "error"
        assert "SystemExit" in texts["leave"][1]
        assert "SystemExit" in texts["leave_in_a_thread"][1]
        assert texts["cancel_itself"][0] == "error"
        assert "cannot be written as JSON" in texts["return_nonsense"][1]
        doubts = {end.call: end.in_doubt for end in await events(session, CallEnded)}
        assert [doubts[number] for number in range(1, 9)] == [False, True, False, True, True, True, True, True]


async def test_what_a_model_asks_wrongly_is_a_result_too(store: str | Store) -> None:
    started: list[Any] = []

    @tool
    async def charge(order: str, cents: int) -> str:
        started.append((order, cents))
        return "charged"

    wrong = [
        ToolCall(0, "charge", '{"order": "7", "cents": 99'),
        ToolCall(0, "charge", "not json"),
        ToolCall(0, "charge", '["7", 990]'),
        ToolCall(0, "charge", ""),
        call("charge", order="7"),
        call("charge", order="7", cents="990"),
        call("charge", order="7", cents=990, tip=1),
        call("refund", order="7"),
        ToolCall(0, "", "{}"),
        ToolCall(0, "charge", '{"order": "7", "cents": 1e400}'),
        ToolCall(0, "charge", "[" * 100_000),
        ToolCall(0, "charge", '{"order": "7", "cents": ' + "9" * 5000 + "}"),
    ]
    agent = clerk([*wrong, call("charge", order="8", cents=1)], "I see.", tools=[charge])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        assert (await soon(session.run("go"))).output == "I see."
        results = await told(session)
        assert [outcome for _, outcome, _ in results] == ["error"] * len(wrong) + ["ok"]
        assert started == [("8", 1)], "what does not fit never reaches the tool"
        texts = [text for _, _, text in results]
        assert "not valid JSON" in texts[0]
        assert "`cents` is missing" in texts[4]
        assert "`cents`: Expected `int`, got `str`" in texts[5]
        assert "no argument `tip`" in texts[6]
        assert texts[7] == "There is no tool 'refund'; the tools are: charge."
        assert {check.verdict for check in (await events(session, CallChecked))[:-1]} == {"invalid"}


@pytest.mark.parametrize(("effect", "in_doubt"), [("read", False), ("idempotent", True), ("once", True)])
async def test_a_call_that_takes_too_long_times_out(store: str | Store, effect: Any, in_doubt: bool) -> None:
    clock = ManualClock()

    @tool(effect=effect, timeout=30)
    async def slow(ctx: ToolContext[Any, Any]) -> str:
        assert ctx.deadline == clock.now() + 30
        await asyncio.Event().wait()
        return "never"

    agent = clerk([call("slow")], "I see.", tools=[slow])
    async with Runtime(store, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("go")
        await seen(session, CallStarted)
        await clock.advance(29)
        assert session.state.run is not None
        await turned(clock, lambda: session.state.run is None)
        assert (await run).output == "I see."
        ((_, outcome, text),) = await told(session)
        assert outcome == "timeout"
        assert ("may have taken effect" in text) == in_doubt
        (ended,) = await events(session, CallEnded)
        assert ended.in_doubt == in_doubt


async def test_a_sync_call_times_out_and_its_thread_is_left_behind(memory: Store) -> None:
    clock = ManualClock()
    release = threading.Event()

    @tool(timeout=30)
    def slow() -> str:
        release.wait(20)
        return "too late"

    agent = clerk([call("slow")], "I see.", tools=[slow])
    try:
        async with Runtime(memory, agents=[agent], clock=clock) as runtime:
            session = await runtime.open(agent)
            run = await session.start("go")
            await seen(session, CallStarted)
            await turned(clock, lambda: session.state.run is None)
            assert (await run).output == "I see."
            assert [outcome for _, outcome, _ in await told(session)] == ["timeout"]
    finally:
        release.set()


async def test_a_call_in_time_does_not_time_out(memory: Store) -> None:
    clock = ManualClock()

    @tool(timeout=30)
    async def quick() -> str:
        return "done"

    agent = clerk([call("quick")], "Done.", tools=[quick])
    async with Runtime(memory, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent)
        await session.run("go")
        await clock.advance(100)
        assert await told(session) == [("quick", "ok", "done")]


# Results


async def test_results_may_be_text_json_or_pictures(store: str | Store) -> None:
    @tool(effect="read")
    async def text() -> str:
        return "plain"

    @tool(effect="read")
    async def data() -> dict[str, Any]:
        return {"b": [1, 2.5, None], "a": True}

    @tool(effect="read")
    async def nothing() -> None:
        return None

    @tool(effect="read")
    async def picture() -> list[Any]:
        return ["here it is", Image(PNG, name="r.png")]

    @tool(effect="read")
    async def kept(ctx: ToolContext[Any, Any]) -> Any:
        return ctx.artifacts.put(b"a,b", "text/csv", "t.csv")

    tools = [text, data, nothing, picture, kept]
    agent = clerk([call(item.name) for item in tools], "Done.", tools=tools)
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        assert (await soon(session.run("go"))).output == "Done."
        results = next(m for m in await session.history() if isinstance(m, ToolMessage)).results
        texts = [[getattr(part, "text", None) for part in result.parts] for result in results]
        assert texts[0] == ["plain"]
        assert texts[1] == ['{"b":[1,2.5,null],"a":true}']
        assert texts[2] == ["Done; the call returned no value (null)."]
        image, file = results[3].parts[1], results[4].parts[0]
        assert isinstance(image, Media)
        assert isinstance(file, Media)
        assert (image.kind, image.media_type, image.name) == ("image", "image/png", "r.png")
        assert (file.kind, file.media_type, file.name, file.size) == ("document", "text/csv", "t.csv", 3)
        artifacts = runtime._host.world.store  # pyright: ignore[reportPrivateUsage] - no public view of artifacts yet
        assert await artifacts.load_artifact(session.uid, image.artifact) == PNG
        assert await artifacts.load_artifact(session.uid, file.artifact) == b"a,b"


async def test_a_tool_reads_what_another_call_kept(store: str | Store) -> None:
    digests: list[str] = []

    @tool(effect="read")
    async def keep(ctx: ToolContext[Any, Any]) -> Any:
        kept = ctx.artifacts.put(b"the rest", "text/plain")
        digests.append(kept.digest)
        return kept

    @tool(effect="read")
    async def read_back(ctx: ToolContext[Any, Any]) -> str:
        return (await ctx.artifacts.get(digests[0])).decode()

    agent = clerk([call("keep")], [call("read_back")], "Done.", tools=[keep, read_back])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        await soon(session.run("go"))
        assert (await told(session))[1] == ("read_back", "ok", "the rest")


async def test_what_a_tool_sees_of_its_call(store: str | Store) -> None:
    contexts: list[ToolContext[Any, Any]] = []

    @tool
    async def peek(ctx: ToolContext[Any, Any]) -> str:
        contexts.append(ctx)
        return "ok"

    agent = clerk([call("peek"), call("peek")], "Done.", tools=[peek])
    async with Runtime(store, agents=[agent], deps="deps") as runtime:
        session = await runtime.open(agent, id="x", tenant="acme", data=[1])
        await soon(session.run("go"))
        first, second = contexts
        assert (first.session, first.tenant, first.deps, first.data) == ("x", "acme", "deps", [1])
        assert (first.call, second.call, first.run, first.attempt) == (1, 2, 1, 1)
        assert first.deadline is None
        assert first.state.run is not None
        assert len(first.state.history) == 2
        assert first.idempotency_key != second.idempotency_key
        assert not first.cancelled


# Keys


async def test_the_idempotency_key_is_the_same_after_a_crash(store: str | Store) -> None:
    keys: list[tuple[str, int]] = []

    @tool(effect="idempotent")
    async def pay(cents: int, ctx: ToolContext[Any, Any]) -> str:
        keys.append((ctx.idempotency_key, ctx.attempt))
        if len(keys) < 3:
            await asyncio.Event().wait()
        return "paid"

    agent = clerk([call("pay", cents=5)], "Done.", tools=[pay])
    for crash in (1, 2):
        async with crashing(store, agents=[agent]) as runtime:
            session = await runtime.open(agent, id="x")
            await session.start("go", key="k")
            await until(lambda crash=crash: len(keys) == crash)
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        assert (await soon(session.run("go", key="k"))).output == "Done."
        assert [start.key for start in await events(session, CallStarted)] == [keys[0][0]] * 3
    assert len({key for key, _ in keys}) == 1
    assert [attempt for _, attempt in keys] == [1, 2, 3]


async def test_a_read_is_run_again_after_a_crash(store: str | Store) -> None:
    started: list[int] = []

    @tool(effect="read")
    async def look() -> str:
        started.append(1)
        if len(started) == 1:
            await asyncio.Event().wait()
        return "fine"

    agent = clerk([call("look")], "Done.", tools=[look])
    async with crashing(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        await session.start("go", key="k")
        await until(lambda: started)
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        assert (await soon(session.run("go", key="k"))).output == "Done."
        assert len(started) == 2


async def test_finished_calls_are_never_run_again(store: str | Store) -> None:
    started: list[str] = []

    @tool(effect="idempotent")
    async def work(name: str) -> str:
        started.append(name)
        if name == "slow" and started.count("slow") == 1:
            await asyncio.Event().wait()
        return name

    agent = clerk([call("work", name="quick"), call("work", name="slow")], "Done.", tools=[work])
    async with crashing(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        await session.start("go", key="k")
        await seen(session, CallEnded)
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        assert (await soon(session.run("go", key="k"))).output == "Done."
    assert started == ["quick", "slow", "slow"]


async def test_a_business_key_replaces_the_made_up_one(store: str | Store) -> None:
    keys: list[str] = []

    def by_order(order: str, cents: int) -> str | None:
        return f"order-{order}" if cents else None

    @tool(effect="idempotent", key=by_order)
    async def pay(order: str, ctx: ToolContext[Any, Any], cents: int = 1) -> str:
        keys.append(ctx.idempotency_key)
        return "paid"

    agent = clerk([call("pay", order="7"), call("pay", order="7", cents=0)], "Done.", tools=[pay])
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        assert (await soon(session.run("go"))).output == "Done."
        assert keys[0] == "order-7"
        assert len(keys[1]) == 32, "None leaves it to the runtime"
        assert [start.key for start in await events(session, CallStarted)] == keys


async def test_a_left_behind_tool_shows_nothing_more(memory: Store) -> None:
    clock = ManualClock()
    release = threading.Event()
    shown: list[Any] = []

    @tool(effect="read", timeout=5)
    def slow(ctx: ToolContext[Any, Any]) -> str:
        release.wait(20)
        ctx.progress("too late")
        done.set()
        return "too late"

    done = threading.Event()
    agent = clerk([call("slow")], "I see.", tools=[slow])
    async with Runtime(memory, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent)
        run = await session.start("go")
        reading = collect(session.stream(), shown)
        await seen(session, CallStarted)
        await turned(clock, lambda: session.state.run is None)
        release.set()
        await until(done.is_set)
        for _ in range(10):
            await asyncio.sleep(0)
        reading.cancel()
        assert (await run).output == "I see."
    assert "ToolProgressed" not in [type(item).__name__ for item in shown]


async def test_the_models_own_ids_go_back_to_it(memory: Store) -> None:
    @tool(effect="read")
    async def look() -> str:
        return "fine"

    answer = Reply(ToolCall(0, "look", "{}", id="toolu_1"), ToolCall(0, "look", "{}", id="toolu_1"))
    agent = clerk(answer, "Done.", tools=[look])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        assert (await soon(session.run("go"))).output == "Done.", "ids that the model repeats confuse nobody"
        results = next(m for m in await session.history() if isinstance(m, ToolMessage)).results
        assert [(result.call, result.id) for result in results] == [(1, "toolu_1"), (2, "toolu_1")]
        assert len(await events(session, RunEnded)) == 1


async def test_time_a_call_took_is_in_the_log(memory: Store) -> None:
    @tool(effect="read")
    def look() -> str:
        time.sleep(0.02)
        return "fine"

    agent = clerk([call("look")], "Done.", tools=[look])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        await session.run("go")
        (ended,) = await events(session, CallEnded)
        assert ended.seconds >= 0.02


async def test_a_call_that_was_cut_behind_its_name_is_not_one_without_arguments(memory: Store) -> None:
    wiped: list[str] = []

    @tool(effect="once")
    async def wipe(path: str = "/everything") -> str:
        """Wipe."""
        wiped.append(path)
        return "wiped"

    cut = ModelResponse((ToolCall(0, "wipe", ""),), "length", Usage(1, 1))
    agent = Agent(name="clerk", model=ScriptedModel([cut, "Done."]), tools=[wipe])
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        assert (await soon(session.run("go"))).output == "Done."
        assert wiped == []
        assert [outcome for _, outcome, _ in await told(session)] == ["error"]
