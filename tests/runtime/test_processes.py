"""Several Runtimes on one store, in one process and in several: one drives, all may ask."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, NotFound, Record, Runtime, tool
from perdure.events import CallStarted, CallSuspended, ModelCalled, RunEnded, RunResumed
from perdure.ports import Store
from perdure.testing import ManualClock, Reply, ScriptedModel, call
from tests.runtime.scenes import check_log, check_store, collect, events, seen, soon, told, until


async def result_of(run: Any) -> Any:
    async def settled() -> Any:
        return await run

    return await soon(settled())


async def test_one_submits_and_follows_while_the_other_drives(store: str | Store) -> None:
    @tool(ask=True)
    async def act() -> str:
        return "done"

    agent = Agent(name="clerk", model=ScriptedModel([[call("act")], Reply("Done.", chunk=1)]), tools=[act])
    async with Runtime(store, agents=[agent]) as driving, Runtime(store, agents=[agent], engine=None) as asking:
        session = await asking.open(agent, id="x")
        items: list[Any] = []
        reading = collect(session.stream(), items)
        run = await session.start("go")
        result = await result_of(run)
        assert result.reason == "waiting"
        await session.decide(result.pending[0].id, "approve", by="afar")
        assert (await result_of(run)).output == "Done."
        watched = await driving.session("x")
        assert await watched.records() == await session.records()
        await until(lambda: any(isinstance(i, Record) and isinstance(i.event, RunEnded) for i in items))
        reading.cancel()
        records = [item for item in items if isinstance(item, Record)]
        check_log(records)
        assert records == await session.records()


async def test_without_a_driver_nothing_is_driven(store: str | Store) -> None:
    agent = Agent(name="clerk", model=ScriptedModel(["Done."]))
    async with Runtime(store, agents=[agent], engine=None) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("go")
        await asyncio.sleep(0.05)
        assert run.run is None
        assert agent.model.requests == []  # type: ignore[union-attr]


async def test_two_drivers_share_the_work_and_none_is_done_twice(store: str | Store) -> None:
    ledger: list[str] = []

    @tool
    async def work(name: str) -> str:
        ledger.append(name)
        await asyncio.sleep(0.001)
        return name

    def answer(request: Any) -> Any:
        number = request.messages[0].parts[0].text
        return "Done." if len(request.messages) > 4 else [call("work", name=f"{number}-{len(request.messages)}")]

    agent = Agent(name="clerk", model=ScriptedModel(answer), tools=[work])
    async with Runtime(store, agents=[agent]) as one, Runtime(store, agents=[agent]) as two:
        runs: list[Any] = []
        for number in range(20):
            session = await (one, two)[number % 2].open(agent, id=str(number))
            runs.append(session.run(str(number)))
        results = await soon(asyncio.gather(*runs))
        assert {result.output for result in results} == {"Done."}
        for number in range(20):
            session = await one.session(str(number))
            assert await events(session, RunResumed) == []
    assert sorted(ledger) == sorted({f"{number}-{turn}" for number in range(20) for turn in (1, 3)})


async def test_commands_to_one_runtime_reach_the_driver_of_the_other(store: str | Store) -> None:
    started = asyncio.Event()

    @tool(effect="read")
    async def hang() -> str:
        started.set()
        await asyncio.Event().wait()
        return "never"

    agent = Agent(name="clerk", model=ScriptedModel([[call("hang")], "Next.", "More."]), tools=[hang])
    async with Runtime(store, agents=[agent]) as one:
        session = await one.open(agent, id="x")
        run = await session.start("go")
        await soon(started.wait())
        async with Runtime(store, agents=[agent]) as two:
            other = await two.session("x")
            queued = await other.start("next")
            await other.cancel(by="two")
            assert (await result_of(run)).detail == "by two"
            assert (await result_of(queued)).output == "Next."
            assert await events(other, RunResumed) == [], "a living owner's session is left alone"
        assert (await soon(session.run("more"))).output == "More."


async def test_a_living_owners_session_is_not_taken_at_start_up(store: str | Store) -> None:
    release = asyncio.Event()
    asked: list[int] = []

    async def answer(_: object) -> str:
        asked.append(1)
        await release.wait()
        return "Done."

    agent = Agent(name="clerk", model=ScriptedModel(answer))
    async with Runtime(store, agents=[agent]) as one:
        session = await one.open(agent, id="x")
        run = await session.start("go")
        await seen(session, ModelCalled)
        for _ in range(3):
            async with Runtime(store, agents=[agent]):
                await asyncio.sleep(0)
        release.set()
        assert (await result_of(run)).output == "Done."
    assert asked == [1]


async def test_a_session_that_is_deleted_elsewhere_is_let_go(
    store: str | Store, caplog: pytest.LogCaptureFixture
) -> None:
    @tool(ask=True)
    async def act() -> str:
        return "done"

    agent = Agent(name="clerk", model=ScriptedModel([[call("act")]]), tools=[act])
    clock = ManualClock()
    async with Runtime(store, agents=[agent], clock=clock) as one, Runtime(store, engine=None) as two:
        session = await one.open(agent, id="x")
        (pending,) = (await soon(session.run("go"))).pending
        await (await two.session("x")).delete()
        with pytest.raises(NotFound):
            await session.decide(pending.id, "approve")
        with pytest.raises(NotFound):
            await session.history()
        one._host.submit(session.uid)  # pyright: ignore[reportPrivateUsage] - as a late fast path would
        for _ in range(10):
            await clock.advance(1)
            await asyncio.sleep(0.002)
        assert [row async for row in one.sessions()] == []
    assert caplog.records == []


async def test_who_drives_a_session_can_be_asked(store: str | Store) -> None:
    release = asyncio.Event()

    async def answer(_: object) -> str:
        await release.wait()
        return "Done."

    agent = Agent(name="clerk", model=ScriptedModel(answer))
    async with Runtime(store, agents=[agent]) as one, Runtime(store, engine=None) as two:
        session = await one.open(agent, id="x")
        assert await two.driver_of(await two.session("x")) is None
        run = await session.start("go")
        await seen(session, ModelCalled)
        driver = await two.driver_of(await two.session("x"))
        assert driver is not None
        assert driver == await one.driver_of(session)
        release.set()
        await result_of(run)


# Real processes

WORKER = """
import asyncio, os, sys
from perdure import Agent, Runtime, ToolContext, tool
from perdure.testing import ScriptedModel, call

def note(line):
    with open("ledger.txt", "a") as file:
        file.write(line + "\\n")
        file.flush()
        os.fsync(file.fileno())

@tool(effect="idempotent")
async def pay(cents: int, ctx: ToolContext) -> str:
    note(f"pay {ctx.idempotency_key}")
    if os.environ.get("HANG"):
        await asyncio.sleep(3600)
    return "paid"

@tool
async def post(to: str) -> str:
    note(f"post {to}")
    if os.environ.get("HANG"):
        await asyncio.sleep(3600)
    return "posted"

script = [[call("pay", cents=5), call("post", to="bob")], "Done."]
agent = Agent(name="clerk", model=ScriptedModel(script), tools=[pay, post])

async def main():
    async with Runtime("sqlite:work.db", agents=[agent]):
        print("ready", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

asyncio.run(main())
"""


class Worker:
    """A process that drives what is in work.db, until it is told to leave or killed."""

    def __init__(self, folder: Path, **environment: str) -> None:
        (folder / "worker.py").write_text(WORKER)
        self.process = subprocess.Popen(
            [sys.executable, "worker.py"],
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate(timeout=20)

    def leave(self) -> int:
        self.process.communicate(timeout=20)
        return self.process.returncode


async def test_a_process_that_is_killed_is_followed_by_another(tmp_path: Path) -> None:
    """Submitted from one process, driven in a second, which is killed inside its tools, and finished by a third."""
    store = f"sqlite:{tmp_path / 'work.db'}"
    ledger = tmp_path / "ledger.txt"

    @tool(effect="idempotent")
    async def pay(cents: int) -> str:
        return "only described here"

    agent = Agent(name="clerk", model=ScriptedModel(["Never."]), tools=[pay])
    async with Runtime(store, agents=[agent], engine=None) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("go", key="k")
        first = Worker(tmp_path, HANG="1")
        try:
            await seen(session, CallStarted, 2)
            await until(lambda: ledger.exists() and len(ledger.read_text().splitlines()) == 2)
        finally:
            first.kill()
        second = Worker(tmp_path)
        try:
            pause = await seen(session, CallSuspended)
            assert pause.kind == "unknown"
            result = await result_of(run)
            (pending,) = result.pending
            assert (pending.tool, pending.arguments) == ("post", {"to": "bob"})
            await session.decide(pending.id, "answer", value="bob has it", by="ops")
            assert (await result_of(run)).output == "Done."
        finally:
            assert second.leave() == 0
        assert [(name, outcome, text) for name, outcome, text in await told(session)] == [
            ("pay", "ok", "paid"),
            ("post", "ok", "bob has it"),
        ]
        assert len(await events(session, RunResumed)) == 1
        lines = ledger.read_text().splitlines()
        assert [line for line in lines if line.startswith("post")] == ["post bob"], "started once"
        paid = [line for line in lines if line.startswith("pay")]
        assert len(paid) == 2
        assert len(set(paid)) == 1, "repeated with the same key"
    await check_store(store)
