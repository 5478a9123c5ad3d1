"""Code without a loop: `with Runtime(…)` and run_sync."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, Conflict, Limits, Pending, Runtime, StoreError, ToolContext, UsageError, tool
from perdure.testing import ScriptedModel, call


def clerk(*answers: Any, **options: Any) -> Agent[str]:
    return Agent(name="clerk", model=ScriptedModel(list(answers)), **options)


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory:" if request.param == "memory" else f"sqlite:{tmp_path / 'x.db'}"


def test_a_script_without_a_loop(url: str) -> None:
    agent = clerk("One.", "Two.")
    with Runtime(url, agents=[agent]) as runtime:
        assert runtime.run_sync(agent, "one", id="x").output == "One."
        assert runtime.run_sync(agent, "two", id="x", key="k").output == "Two."
        assert runtime.run_sync(agent, "two", id="x", key="k").run == 2


def test_a_script_that_is_run_again_goes_on_where_it_was(tmp_path: Path) -> None:
    model = ScriptedModel(["One.", "Two."])
    agent = Agent(name="clerk", model=model)
    for _ in range(2):
        with Runtime(f"sqlite:{tmp_path / 'x.db'}", agents=[agent]) as runtime:
            outputs = [runtime.run_sync(agent, text, id="x", key=text).output for text in ("one", "two")]
            assert outputs == ["One.", "Two."]
    assert len(model.requests) == 2


def test_options_go_through(url: str) -> None:
    @tool(ask=True)
    def act(ctx: ToolContext[Any, dict[str, str]]) -> str:
        return f"done for {ctx.data['user']}"

    asked: list[Pending] = []

    def ask(pending: Pending) -> str:
        asked.append(pending)
        return "approve"

    agent = Agent(name="clerk", model=ScriptedModel([[call("act")], "Done."]), tools=[act])
    with Runtime(url, agents=[agent]) as runtime:
        result = runtime.run_sync(
            agent,
            "go",
            id="x",
            tenant="acme",
            data={"user": "u7"},
            metadata={"order": "7"},
            on_pending=ask,
            limits=Limits(turns=3),
        )
        assert result.output == "Done."
        assert [pending.tool for pending in asked] == ["act"]


def test_inside_a_program_that_has_a_loop() -> None:
    async def main() -> str:
        agent = clerk("Done.")
        with Runtime("memory:", agents=[agent]) as runtime:
            return runtime.run_sync(agent, "go").output

    assert asyncio.run(main()) == "Done."


def test_from_several_threads_at_once(url: str) -> None:
    together = threading.Barrier(6)

    @tool(effect="read")
    def meet() -> str:
        together.wait(20)
        return "met"

    agent = Agent(
        name="clerk",
        model=ScriptedModel(lambda r: "Done." if len(r.messages) > 2 else [call("meet")]),
        tools=[meet],
    )
    with Runtime(url, agents=[agent]) as runtime, ThreadPoolExecutor(6) as pool:
        outputs = list(pool.map(lambda n: runtime.run_sync(agent, "go", id=str(n)).output, range(6)))
    assert outputs == ["Done."] * 6


def test_in_a_thread_of_its_own(url: str) -> None:
    outputs: list[str] = []

    def work() -> None:
        agent = clerk("Done.")
        with Runtime(url, agents=[agent]) as runtime:
            outputs.append(runtime.run_sync(agent, "go").output)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(20)
    assert outputs == ["Done."]


def test_errors_come_to_the_caller(url: str) -> None:
    agent = clerk("One.")
    with Runtime(url, agents=[agent]) as runtime:
        with pytest.raises(UsageError, match="input is empty"):
            runtime.run_sync(agent, "", id="x")
        runtime.run_sync(agent, "one", id="x", key="k")
        with pytest.raises(Conflict):
            runtime.run_sync(agent, "other", id="x", key="k")
        with pytest.raises(TypeError):
            runtime.run_sync(agent, "one", id="x", nonsense=True)


def test_a_store_that_cannot_be_opened_leaves_no_thread(tmp_path: Path) -> None:
    before = threading.active_count()
    with pytest.raises(StoreError), Runtime(f"sqlite:{tmp_path}/no/such/folder/x.db"):
        pass
    assert threading.active_count() == before


def test_the_thread_ends_with_the_block(url: str) -> None:
    agent = clerk("Done.")
    with Runtime(url, agents=[agent]) as runtime:
        runtime.run_sync(agent, "go")
        assert "perdure-loop" in [thread.name for thread in threading.enumerate()]
    assert "perdure-loop" not in [thread.name for thread in threading.enumerate()]


def test_an_exception_in_the_block_closes_the_runtime(url: str) -> None:
    agent = clerk("Done.")
    with pytest.raises(ZeroDivisionError), Runtime(url, agents=[agent]):
        raise ZeroDivisionError
    assert "perdure-loop" not in [thread.name for thread in threading.enumerate()]


def test_run_sync_needs_the_block(url: str) -> None:
    agent = clerk("Done.")
    runtime = Runtime(url, agents=[agent])
    with pytest.raises(UsageError, match="run_sync needs `with Runtime"):
        runtime.run_sync(agent, "go")
    with runtime:
        assert runtime.run_sync(agent, "go").output == "Done."
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UsageError, match="run_sync needs `with Runtime"):
            runtime.run_sync(agent, "go")


async def test_run_sync_in_async_code_says_what_to_do() -> None:
    agent = clerk("Done.")
    async with Runtime("memory:", agents=[agent]) as runtime:
        with pytest.raises(UsageError, match=r"in async code use session\.run"):
            runtime.run_sync(agent, "go")


def test_run_sync_inside_an_async_tool_says_so_instead_of_hanging() -> None:
    inner = Agent(name="inner", model=ScriptedModel(["Inner."]))

    @tool(effect="read")
    async def nest() -> str:
        return runtime.run_sync(inner, "go").output

    agent = clerk([call("nest")], "Done.", tools=[nest])
    with Runtime("memory:", agents=[agent, inner]) as runtime:
        result = runtime.run_sync(agent, "go", id="x")
        assert result.output == "Done."
        assert "run_sync" in str(agent.model.requests[1].messages[2])  # type: ignore[union-attr]


def test_run_sync_inside_a_sync_tool_works() -> None:
    inner = Agent(name="inner", model=ScriptedModel(["Inner."]))

    @tool(effect="read")
    def nest() -> str:
        return runtime.run_sync(inner, "go").output

    agent = clerk([call("nest")], "Done.", tools=[nest])
    with Runtime("memory:", agents=[agent, inner]) as runtime:
        assert runtime.run_sync(agent, "go").output == "Done."
        assert "Inner." in str(agent.model.requests[1].messages[2])  # type: ignore[union-attr]


def test_leaving_with_work_under_way_leaves_no_task_behind(caplog: pytest.LogCaptureFixture) -> None:
    release = threading.Event()

    @tool
    async def stubborn() -> str:
        started.set()
        while not release.is_set():
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                if left.is_set():
                    raise
                left.set()
        return "never"

    left, started = threading.Event(), threading.Event()
    agent = clerk([call("stubborn")], tools=[stubborn])
    runtime = Runtime("memory:", agents=[agent], grace=0)
    with runtime:
        waiter = threading.Thread(target=_ignore, args=(lambda: runtime.run_sync(agent, "go"),))
        waiter.start()
        assert started.wait(20)
    waiter.join(20)
    assert not waiter.is_alive(), "who waits is told when the runtime closes"
    del waiter
    gc.collect()
    assert [record.getMessage() for record in caplog.records] == [], "asyncio complains of tasks that never ended"


def _ignore(work: Any) -> None:
    try:
        work()
    except Exception:
        return
