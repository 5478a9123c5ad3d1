"""Every kind of call × everything that can happen to it: each cell has one defined outcome, and no cell is empty."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, Conflict, PerdureError, Refused, Runtime, Session, ToolContext, tool
from perdure.events import CallEnded, CallStarted
from perdure.ports import Store
from perdure.runtime.questions import Question
from perdure.runtime.wishes import Prepared
from perdure.stores.sqlite import SqliteStore
from perdure.testing import ManualClock, ScriptedModel, call
from perdure.testing.children import KILLED, in_child
from perdure.testing.faults import FaultPoints, crash_at, fault_point
from tests.runtime.scenes import check_log, crashing, soon, turned, until

# `ok 1`: the call's outcome and how often its effect happened. `Refused`, `Conflict`: the error that the decision
# meets, which changes nothing; afterwards the call is settled as the column `restart` says.
#
# listening is a call that is being prepared, listen one whose prepared form waits for approval. An edit of the latter
# prepares it again, with the new arguments. The three kinds at the end wait for no decision: a crash "before" is one
# before their intent is committed, one "between" comes between the intent and the effect. Of a call in doubt a person
# tells the truth: it happened (answer), or it did not (retry).
TABLE = """
           approve     deny       edit        answer      retry       cancel         stop
approval   | ok 1      | denied 0 | ok 1      | ok 0      | Refused   | cancelled 0  | cancelled 0
question   | Refused   | denied 0 | Refused   | ok 0      | Refused   | cancelled 0  | cancelled 0
frontend   | Refused   | denied 0 | Refused   | ok 0      | Refused   | cancelled 0  | cancelled 0
external   | Refused   | denied 0 | Refused   | ok 0      | Refused   | cancelled 0  | cancelled 0
unknown    | Refused   | error 1  | Refused   | ok 1      | ok 2      | unknown 1    | unknown 1
listen     | ok 1      | denied 0 | ok 1      | ok 0      | Refused   | cancelled 0  | cancelled 0
listening  | Conflict  | Conflict | Conflict  | Conflict  | Conflict  | cancelled 0  | cancelled 0
operation  | Conflict  | Conflict | Conflict  | Conflict  | Conflict  | unknown 1    | ok 1
function   | Conflict  | Conflict | Conflict  | Conflict  | Conflict  | unknown 1    | ok 1

           expire      crash_before crash_between crash_after crash_ended restart
approval   | denied 0  | ok 1       | ok 1        | ok 1      | ok 1      | ok 1
question   | denied 0  | ok 0       | ok 0        | ok 0      | ok 0      | ok 0
frontend   | denied 0  | ok 0       | ok 0        | ok 0      | ok 0      | ok 0
external   | denied 0  | ok 0       | ok 0        | ok 0      | ok 0      | ok 0
unknown    | ok 1      | ok 1       | ok 1        | ok 1      | ok 1      | ok 1
listen     | denied 0  | ok 1       | ok 1        | ok 1      | ok 1      | ok 1
listening  | error 0   | ok 1       | ok 1        | ok 1      | ok 1      | ok 1
operation  | timeout 1 | ok 1       | ok 1        | ok 1      | ok 1      | ok 1
function   | timeout 1 | ok 1       | ok 1        | ok 1      | ok 1      | ok 1
"""

KINDS = ("approval", "question", "frontend", "external", "unknown", "listen", "listening", "operation", "function")
DECISIONS = ("approve", "deny", "edit", "answer", "retry")
CRASHES = ("crash_before", "crash_between", "crash_after", "crash_ended")
EVENTS = (*DECISIONS, "cancel", "stop", "expire", *CRASHES, "restart")
ERRORS: dict[str, type[PerdureError]] = {"Refused": Refused, "Conflict": Conflict}
UNDER_WAY = ("listening", "operation", "function")
HANDED_IN = ("question", "frontend", "external")
SECONDS = 60


def read_table() -> dict[tuple[str, str], str]:
    cells: dict[tuple[str, str], str] = {}
    for block in TABLE.strip().split("\n\n"):
        head, *rows = block.strip().splitlines()
        for row in rows:
            kind, *columns = (cell.strip() for cell in row.split("|"))
            cells |= {(kind, event): cell for event, cell in zip(head.split(), columns, strict=True)}
    return cells


CELLS = read_table()


def test_no_cell_is_empty() -> None:
    assert set(CELLS) == set(product(KINDS, EVENTS))
    assert len(CELLS) == 117
    for cell in CELLS.values():
        assert cell in ERRORS or re.fullmatch(r"(ok|denied|cancelled|unknown|error|timeout) [012]", cell)


class Place:
    """A folder with a store and a ledger that no crash takes back; `gate` holds what is under way."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder, self.kind = folder, kind
        self.gate = asyncio.Event()
        self.reached = 0

    @property
    def effects(self) -> list[str]:
        ledger = self.folder / "ledger.txt"
        return ledger.read_text().split() if ledger.exists() else []

    async def act(self, item: str) -> None:
        fault_point("before the effect")
        with (self.folder / "ledger.txt").open("a") as ledger:
            ledger.write(f"{item}\n")
        fault_point("after the effect")

    async def hold(self) -> None:
        self.reached += 1
        fault_point("held")
        await self.gate.wait()

    def agent(self) -> Agent[str]:
        questions = [{"question": "Sure?"}]
        asked = {"questions": questions} if self.kind == "question" else {"item": "a"}
        model = ScriptedModel([[call("work", **asked)], "Done."])
        return Agent(name="clerk", model=model, tools=[self.tool()])

    def tool(self) -> Any:
        kind, options = self.kind, dict[str, Any](effect="once", name="work")
        if kind == "question":

            @tool(kind="question", expires=SECONDS, **options)
            def ask(questions: list[Question]) -> list[str]:
                """Ask."""
                raise AssertionError("nobody calls it")

            return ask
        if kind in ("frontend", "external"):

            @tool(kind=kind, expires=SECONDS, **options)
            def elsewhere(item: str) -> str:
                """Work elsewhere."""
                raise AssertionError("nobody calls it")

            return elsewhere
        if kind in ("approval", "listen"):
            options |= {"ask": True, "expires": SECONDS}
        if kind in ("operation", "function"):
            options |= {"timeout": SECONDS}

        @tool(**options)
        async def work(item: str, ctx: ToolContext[Any, Any]) -> str:
            """Work."""
            if kind.startswith("listen"):
                assert ctx.prepared is not None
                assert ctx.prepared.snapshot == {"for": item}
            await self.act(item)
            if kind in ("function", "unknown") and len(self.effects) == 1:
                await self.hold()
            return "op-1" if kind == "operation" else "done"

        if kind.startswith("listen"):

            @work.listen
            async def prepare(item: str) -> Any:
                yield Prepared({}, "0")
                if kind == "listening":
                    await self.hold()
                yield Prepared({"for": item}, item, ready=True)

        if kind == "operation":

            @work.check
            async def follow(operation: str, ctx: ToolContext[Any, Any]) -> str:
                assert operation == "op-1"
                await self.hold()
                return "done"

        return work

    def url(self) -> str:
        return f"sqlite:{self.folder / 'x.db'}"

    async def waits(self, session: Session[Any], held: int = 0) -> None:
        """Until the call waits for a decision, or goes on held back."""
        if self.kind in UNDER_WAY:
            await until(lambda: self.reached > held or _pauses(session))
        else:
            await until(lambda: _pauses(session))

    async def settle(self, session: Session[Any]) -> Any:
        """Whatever is left is decided as somebody would who knows the truth; the end of the run."""
        self.gate.set()
        run = await session.start("go", key="k")
        result = await soon(run)
        while result.pending:
            (pending,) = result.pending
            decision, more = self.choice(pending.kind)
            await session.decide(pending.id, decision, **more)
            result = await soon(run)
        return result

    def choice(self, pause: str) -> tuple[Any, dict[str, Any]]:
        if pause == "approval":
            return "approve", {}
        if pause == "unknown" and not self.effects:
            return "retry", {}
        return "answer", {"value": ["yes"] if pause == "question" else "done"}

    async def begun(self) -> None:
        """A call that is in doubt needs a process that died over it."""
        if self.kind != "unknown":
            return
        agent = self.agent()
        async with crashing(self.url(), agents=[agent]) as runtime:
            session = await runtime.open(agent, id="x")
            await session.start("go", key="k")
            await until(lambda: self.reached)
            await until(lambda: session.state.run and session.state.run.calls[0].status == "started")

    async def judge(self, expected: str) -> None:
        """The laws of the log, exactly one outcome, and the effect as often as the table says."""
        store = SqliteStore(self.folder / "x.db")
        await store.open()
        try:
            row = await store.find("", "x")
            assert row is not None
            records = await store.read(row.uid)
        finally:
            await store.close()
        check_log(records)
        ends = [record.event for record in records if isinstance(record.event, CallEnded)]
        assert [f"{end.outcome} {len(self.effects)}" for end in ends] == [expected]
        if self.kind in HANDED_IN:
            assert not any(isinstance(record.event, CallStarted) for record in records), "nothing ran here"


def _pauses(session: Session[Any]) -> bool:
    run = session.state.run
    return bool(run and run.calls and run.calls[0].pause)


def cells(*events: str) -> list[tuple[str, str]]:
    return list(product(KINDS, events))


@pytest.mark.parametrize(("kind", "event"), cells(*DECISIONS))
async def test_decisions(kind: str, event: Any, tmp_path: Path) -> None:
    place, expected = Place(tmp_path, kind), CELLS[kind, event]
    await place.begun()
    agent = place.agent()
    async with Runtime(place.url(), agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        await session.start("go", key="k")
        await place.waits(session)
        pause = session.state.run.calls[0].pauses if session.state.run else 0
        more: dict[str, Any] = {"arguments": {"item": "b"}} if event == "edit" else {}
        if event == "answer":
            more = {"value": ["yes"] if kind == "question" else "done"}
        deciding = session.decide(f"{session.uid}-1-{pause or 1}", event, **more)
        if error := ERRORS.get(expected):
            before, pending = await session.records(), await session.pending()
            with pytest.raises(error):
                await deciding
            assert await session.records() == before
            assert await session.pending() == pending
            expected = CELLS[kind, "restart"]
        else:
            await deciding
        assert (await place.settle(session)).output == "Done."
    await place.judge(expected)
    assert set(place.effects) <= ({"b"} if event == "edit" and pause and kind != "unknown" else {"a"})


@pytest.mark.parametrize(("kind", "event"), cells("cancel", "stop"))
async def test_ends_of_the_run(kind: str, event: str, tmp_path: Path) -> None:
    place = Place(tmp_path, kind)
    await place.begun()
    agent = place.agent()
    async with Runtime(place.url(), agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        run = await session.start("go", key="k")
        await place.waits(session)
        await getattr(session, event)(by="ops")
        if event == "stop":
            place.gate.set()
        result = await soon(run)
        assert (result.reason, result.detail) == ("cancelled" if event == "cancel" else "stopped", "by ops")
        assert len(agent.model.requests) == (0 if kind == "unknown" else 1)  # type: ignore[union-attr]
    await place.judge(CELLS[kind, event])


@pytest.mark.parametrize("kind", KINDS)
async def test_expiry(kind: str, tmp_path: Path) -> None:
    place, clock = Place(tmp_path, kind), ManualClock()
    await place.begun()
    agent = place.agent()
    async with Runtime(place.url(), agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent, id="x")
        await session.start("go", key="k")
        await place.waits(session)
        if kind == "unknown":
            await clock.advance(30 * 86_400)
            assert [item.kind for item in await session.pending()] == ["unknown"], "the truth does not expire"
        else:
            await clock.advance(SECONDS / 2 - 1)
            assert session.state.run is not None
            await turned(clock, lambda: session.state.run is None, 10)
        assert (await place.settle(session)).output == "Done."
    await place.judge(CELLS[kind, "expire"])


@pytest.mark.parametrize("kind", KINDS)
async def test_restarts_while_it_waits(kind: str, tmp_path: Path) -> None:
    place = Place(tmp_path, kind)
    await place.begun()
    agent = place.agent()
    shown: list[Any] = []
    for _ in range(3):
        # Before it is opened: who picks the session up may come there at once.
        held = place.reached
        async with crashing(place.url(), agents=[agent]) as runtime:
            session = await runtime.open(agent, id="x")
            await session.start("go", key="k")
            await place.waits(session, held)
            if kind in ("operation", "function"):
                await until(lambda: session.state.run and session.state.run.calls[0].attempts)  # noqa: B023
            shown.append(await session.pending())
    if kind not in UNDER_WAY:
        assert len(shown[0]) == 1
        assert shown[0] == shown[1] == shown[2]
    async with Runtime(place.url(), agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        assert (await place.settle(session)).output == "Done."
    await place.judge(CELLS[kind, "restart"])


class DieAt(FaultPoints):
    """Kills the process at the first point whose name fits."""

    def __init__(self, pattern: str) -> None:
        super().__init__()
        self._pattern = re.compile(pattern)

    def reach(self, name: str) -> None:
        if self._pattern.match(name):
            os.kill(os.getpid(), signal.SIGKILL)


def point_of(kind: str, event: str) -> str:
    """Where the process is killed."""
    if event == "crash_ended":
        return "after .*CallEnded"
    if event == "crash_after":
        return "after the effect" if kind in ("approval", "listen", *UNDER_WAY) else "before .*CallEnded"
    if kind in UNDER_WAY:
        before = "held" if kind == "listening" else "before .*CallStarted"
        return before if event == "crash_before" else "before the effect"
    return "before .*CallDecided" if event == "crash_before" else "after .*CallDecided"


@pytest.mark.parametrize(("kind", "event"), cells(*CRASHES))
async def test_crashes(kind: str, event: str, tmp_path: Path) -> None:
    """Each life is a process of its own, and the crash a SIGKILL."""
    place = Place(tmp_path, kind)

    async def live(store: Store) -> None:
        agent = place.agent()
        async with Runtime(store, agents=[agent]) as runtime:
            assert (await place.settle(await runtime.open(agent, id="x"))).output == "Done."

    async def killed_at(pattern: str) -> bool:
        def work() -> None:
            asyncio.run(live(crash_at(SqliteStore(tmp_path / "x.db"), DieAt(pattern))))

        return await in_child(tmp_path, work) == KILLED

    def finish() -> None:
        asyncio.run(live(SqliteStore(tmp_path / "x.db")))

    if kind == "unknown":
        assert await killed_at("held")
    assert await killed_at(point_of(kind, event)), "it has to come to the point"
    assert await in_child(tmp_path, finish) == 0, (tmp_path / "trace.txt").read_text()
    await place.judge(CELLS[kind, event])
