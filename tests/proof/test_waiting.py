"""Waiting costs nothing and loses nothing: a month of it over fifty restarts, and ten thousand sessions at once."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from perdure import Agent, Runtime, ToolContext, tool
from perdure.events import CallDecided, CallEnded, CallSuspended
from perdure.ports import Store
from perdure.runtime.wishes import Prepared
from perdure.stores.sqlite import SqliteStore
from perdure.testing import ManualClock, ScriptedModel, call
from perdure.tools import ask_user, frontend
from tests.runtime.scenes import check_store, crashing, events, soon, until

RESTARTS = 50
DAY = 86_400.0
DAYS = 30
SHOW = frontend("show", "Show it.", response={"type": "boolean"})


class CountingStore:
    """A store that counts what would tell of a wake-up: claims, appends and releases."""

    def __init__(self, path: Path, counts: Counter[str]) -> None:
        self._store = SqliteStore(path)
        self._counts = counts

    def __getattr__(self, name: str) -> Any:
        if name in ("claim", "append", "release", "runnable"):
            self._counts[name] += 1
        return getattr(self._store, name)


class Office:
    """One agent whose calls wait in every way there is, and the ledger of what it did."""

    def __init__(self) -> None:
        self.ledger: list[str] = []
        self.died = asyncio.Event()

        @tool(effect="once", ask=True)
        async def pay(item: str) -> str:
            """Pay."""
            self.ledger.append(f"pay {item}")
            return "paid"

        @tool(effect="once", ask=True)
        async def buy(item: str, ctx: ToolContext[Any, Any]) -> str:
            """Buy."""
            assert ctx.prepared is not None
            self.ledger.append(f"buy {item}")
            return "bought"

        @buy.listen
        async def quote(item: str) -> Any:
            yield Prepared({"price": 7}, "1", ready=True)

        @tool(effect="once", kind="external")
        def ship(item: str) -> str:
            """Ship."""
            raise AssertionError("nobody calls it")

        @tool(effect="once")
        async def mail(item: str) -> str:
            """Mail; the first process that does it dies."""
            self.ledger.append(f"mail {item}")
            self.died.set()
            await asyncio.Event().wait()
            return "mailed"

        questions = [{"question": "Sure?"}]
        self.calls = {
            "approval": call("pay", item="a"),
            "listen": call("buy", item="b"),
            "external": call("ship", item="c"),
            "question": call("ask_user", questions=questions),
            "frontend": call("show"),
            "unknown": call("mail", item="d"),
        }
        self.model = ScriptedModel(self._answer)
        self.agent = Agent(name="clerk", model=self.model, tools=[pay, buy, ship, mail, ask_user()])

    def _answer(self, request: Any) -> Any:
        if len(request.messages) > 1:
            return "Done."
        return [self.calls[request.messages[0].parts[0].text]]

    @property
    def requests(self) -> int:
        return len(self.model.requests)


ANSWERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "approval": ("approve", {}),
    "external": ("answer", {"value": "shipped"}),
    "question": ("answer", {"value": ["yes"]}),
    "frontend": ("answer", {"value": True}),
    "unknown": ("answer", {"value": "it was mailed"}),
}


async def within_a_second(clock: ManualClock, done: Callable[[], bool]) -> None:
    """Turns the clock on by one second at most; files need real time, which the test has."""
    for _ in range(2):
        await clock.advance(0.5)
        for _ in range(1_500):
            if done():
                return
            await asyncio.sleep(0.002)
    await until(done)


async def test_a_month_of_waiting_with_fifty_restarts(tmp_path: Path, record_property: Callable[..., None]) -> None:
    office, clock, counts = Office(), ManualClock(), Counter[str]()
    agent, path = office.agent, tmp_path / "x.db"
    async with crashing(f"sqlite:{path}", agents=[agent], clock=clock) as runtime:
        for name in office.calls:
            session = await runtime.open(agent, id=name)
            run = await session.start(name, key="k", tools=[SHOW] if name == "frontend" else [])
            if name == "unknown":
                await soon(office.died.wait())
            else:
                assert (await soon(run)).reason == "waiting"
    async with crashing(f"sqlite:{path}", agents=[agent], clock=clock) as runtime:
        doubtful = await runtime.session("unknown")
        (pending,) = (await soon(doubtful.run("unknown", key="k"))).pending
        assert pending.kind == "unknown"
        shown = sorted(await runtime.pending(), key=lambda item: item.session)
    assert len(shown) == 6
    before, requests, began = list(office.ledger), office.requests, clock.now()
    assert before == ["mail d"]

    for _ in range(RESTARTS):
        store = cast(Store, CountingStore(path, counts))
        async with crashing(store, agents=[agent], clock=clock) as runtime:
            await clock.advance(DAYS * DAY / RESTARTS)
            assert sorted(await runtime.pending(), key=lambda item: item.session) == shown
    assert clock.now() - began == pytest.approx(DAYS * DAY)
    assert counts["runnable"] >= RESTARTS, "each process looked for work"
    assert (counts["claim"], counts["append"], counts["release"]) == (0, 0, 0), "and found none"
    assert (office.requests, office.ledger) == (requests, before)

    async with Runtime(f"sqlite:{path}", agents=[agent], clock=clock) as runtime:
        for number, item in enumerate(shown):
            decision, more = ANSWERS[item.kind]
            session = await runtime.session(item.session)
            decided_at = clock.now()
            if number % 2:
                # Somebody else's process decides: this one finds it at its next look, twice a second.
                async with Runtime(f"sqlite:{path}", engine=None, clock=clock) as other:
                    await (await other.session(item.session)).decide(item.id, decision, by="ann", **more)
                await within_a_second(clock, lambda: session.state.run is None)  # noqa: B023 - awaited in this round
            else:
                await session.decide(item.id, decision, by="ann", **more)
                await until(lambda: session.state.run is None)  # noqa: B023 - as above
            assert session.state.ended[-1].output == "Done."
            (ended,) = [record for record in await session.records() if isinstance(record.event, CallEnded)]
            assert cast(Any, ended.event).outcome == "ok"
            assert 0 <= ended.at - decided_at <= 1
            assert len(await events(session, CallSuspended)) == 1
            assert len(await events(session, CallDecided)) == 1
    assert sorted(office.ledger) == ["buy b", "mail d", "pay a"]
    assert office.requests == requests + 6
    await check_store(f"sqlite:{path}")
    record_property("figure: restarts while calls wait", RESTARTS)


async def test_an_expiry_wakes_at_its_time_and_not_before(tmp_path: Path) -> None:
    """The one thing that may wake a waiting session by itself, after a month and over restarts."""
    ran: list[int] = []

    @tool(effect="once", ask=True, expires=DAYS * DAY)
    async def pay() -> str:
        """Pay."""
        ran.append(1)
        return "paid"

    clock, counts = ManualClock(), Counter[str]()
    agent = Agent(name="clerk", model=ScriptedModel([[call("pay")], "Done."]), tools=[pay])
    async with crashing(f"sqlite:{tmp_path / 'x.db'}", agents=[agent], clock=clock) as runtime:
        (pending,) = (await soon((await runtime.open(agent, id="x")).run("go", key="k"))).pending
    due = pending.expires_at
    assert due == clock.now() + DAYS * DAY
    for _ in range(10):
        async with crashing(cast(Store, CountingStore(tmp_path / "x.db", counts)), agents=[agent], clock=clock):
            await clock.advance((DAYS * DAY - 10) / 10)
    assert counts["claim"] == 0
    async with Runtime(f"sqlite:{tmp_path / 'x.db'}", agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent, id="x")
        assert len(await session.pending()) == 1
        await clock.advance(due - clock.now())
        # A look for work that began before its time may be under way still.
        await asyncio.sleep(0.1)
        await within_a_second(clock, lambda: session.state.run is None)
        (decided,) = [record for record in await session.records() if isinstance(record.event, CallDecided)]
        assert due <= decided.at <= due + 1
    assert ran == []


MEMORY = """
import asyncio, gc, json, sys, time
from perdure import Agent, Runtime, tool
from perdure.testing import ScriptedModel, call

path, total = sys.argv[1], int(sys.argv[2])


@tool(effect="once", ask=True)
async def pay(cents: int) -> str:
    "Pay."
    return "paid"


class Model(ScriptedModel):
    async def stream(self, request):
        async for item in super().stream(request):
            yield item
        self.requests.clear()
        self._counts.clear()


def resident():
    gc.collect()
    return int(open("/proc/self/statm").read().split()[1]) * 4096


async def main():
    agent = Agent(name="clerk", model=Model(lambda request: [call("pay", cents=5)]), tools=[pay])
    async with Runtime(path, agents=[agent]) as runtime:
        async def wait(number):
            session = await runtime.open(agent, id=f"s{number}")
            result = await session.run("go")
            assert result.reason == "waiting", result
            return session

        for number in range(100):
            await wait(f"warm-{number}")
        base, began, held = resident(), time.monotonic(), []
        for first in range(0, total, 100):
            held += await asyncio.gather(*(wait(number) for number in range(first, first + 100)))
        seconds = time.monotonic() - began
        with_handles = resident() - base
        waiting = len(await runtime.pending()) - 100
        held.clear()
        print(json.dumps({"waiting": waiting, "held": with_handles, "seconds": seconds, "left": resident() - base}))


asyncio.run(main())
"""

SESSIONS = 10_000
ALLOWED = 100 * 1024 * 1024


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_ten_thousand_waiting_sessions_stay_small(tmp_path: Path, record_property: Callable[..., None]) -> None:
    """In a process of its own, above what it needs with a hundred; every session's handle is held all the while."""
    command = [sys.executable, "-c", MEMORY, f"sqlite:{tmp_path / 'x.db'}", str(SESSIONS)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["waiting"] == SESSIONS
    assert found["held"] < ALLOWED, found
    record_property("figure: waiting sessions in one process", SESSIONS)
    record_property("figure: KB per waiting session whose handle is held", found["held"] // SESSIONS // 1024)
