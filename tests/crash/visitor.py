"""A driver at work and a second process that lists, reads, sends, decides and stops beside it.

Rule: the visitor may have an engine of its own, and still it drives nothing that somebody living owns. What it was told
is done, it writes down outside of the store.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import apsw

from perdure import Agent, Runtime, Session, ToolContext, tool
from perdure.core.fold import fold
from perdure.core.messages import AssistantMessage, Text, UserMessage
from perdure.core.transcript import transcript, unpaired
from perdure.events import CallEnded, Event, RunEnded, RunResumed
from perdure.ports import ModelRequest, SessionRow
from perdure.stores import sqlite_reads
from perdure.stores.sqlite import SqliteStore
from perdure.testing import ScriptedModel, call
from perdure.testing.children import in_child
from tests.crash.ledger import ACKS, LEDGER, Ack, Deed, read_lines, write_line

PATIENCE = 30.0
DONE = Path("done")


@tool(effect="read")
async def work(ctx: ToolContext) -> str:
    """Keeps the driver busy until the visitor is done."""
    deadline = time.monotonic() + PATIENCE
    while not DONE.exists() and time.monotonic() < deadline:
        await asyncio.sleep(0.001)
    return "worked"


@tool(effect="read")
async def glance() -> str:
    """A short turn, so that the log moves while the visitor looks."""
    await asyncio.sleep(0.002)
    return "seen"


@tool(ask=True)
async def pay(item: str, ctx: ToolContext) -> str:
    """Asks before it acts."""
    write_line(LEDGER, Deed("effect", "pay", item, ctx.call, ctx.attempt, ctx.idempotency_key))
    return f"paid {item}"


def answer(request: ModelRequest) -> Any:
    """The first job asks for three payments and works; whatever comes later is acknowledged after a glance."""
    last = request.messages[-1]
    answers = sum(isinstance(message, AssistantMessage) for message in request.messages)
    if answers == 0:
        return [call("work"), *(call("pay", item=f"{number}") for number in range(3))]
    return [call("glance")] if isinstance(last, UserMessage) else "Done."


AGENT = Agent(name="busy", model=ScriptedModel(answer), tools=[work, glance, pay])


async def drive(path: Path) -> None:
    logging.getLogger("perdure").addHandler(logging.FileHandler("errors.log", delay=True))
    async with Runtime(SqliteStore(path), agents=[AGENT]) as runtime:
        session = await runtime.open(AGENT, id="s")
        await session.start("go", key="go")
        deadline = time.monotonic() + PATIENCE
        while not (DONE.exists() and await _is_idle(session)) and time.monotonic() < deadline:
            await asyncio.sleep(0.005)


async def _is_idle(session: Session[Any]) -> bool:
    await session.history()
    return session.state.run is None and not session.state.queue


async def visit(path: Path, seed: int) -> None:
    """Everything a second process may do, in random order; the stop comes last, if it comes."""
    chance = Random(seed)
    engine = chance.choice(("local", None))
    async with Runtime(SqliteStore(path), agents=[AGENT], engine=engine) as runtime:
        session = await _find(runtime)
        pending = await session.pending()
        steps = ["decide"] * 3 + ["join", "queue"] * 2 + ["look"] * 4
        chance.shuffle(steps)
        for number, step in enumerate(steps):
            await asyncio.sleep(chance.choice((0, 0, 0.001, 0.005)))
            if step == "decide":
                item = pending[steps[:number].count("decide")]
                decision = chance.choice(("approve", "deny"))
                await session.decide(item.id, decision, by="visitor")
                write_line(ACKS, Ack("decision", str(item.call), decision))
            elif step == "look":
                await _look(runtime, session)
            else:
                await session.send(f"input {number}", busy=step, key=f"input-{number}")
                write_line(ACKS, Ack("input", f"input-{number}"))
        if chance.random() < 0.5:
            await (session.stop if chance.random() < 0.5 else session.cancel)(by="visitor")
            write_line(ACKS, Ack("cancel", "1"))
        DONE.touch()


async def _find(runtime: Runtime) -> Session[Any]:
    """The session, as soon as it waits for its three decisions."""
    deadline = time.monotonic() + PATIENCE
    while len(await runtime.pending()) < 3 and time.monotonic() < deadline:
        await asyncio.sleep(0.002)
    return await runtime.session("s")


async def _look(runtime: Runtime, session: Session[Any]) -> None:
    assert [row.id async for row in runtime.sessions(status="running")] == ["s"]
    records = await session.records()
    assert [record.seq for record in records] == list(range(1, len(records) + 1))
    await session.history()
    await session.usage()


async def visit_a_driver(folder: Path, seed: int) -> list[str]:
    """One trial; what is broken."""
    folder.mkdir()
    path = folder / "visited.db"
    driver = asyncio.create_task(in_child(folder, lambda: asyncio.run(drive(path))))
    try:
        visitor = await in_child(folder, lambda: asyncio.run(visit(path, seed)))
        if visitor != 0 or await driver != 0:
            return [f"the visitor ended with {visitor}, or the driver failed: {(folder / 'trace.txt').read_text()}"]
    finally:
        driver.cancel()
    return check_visited(folder)


def check_visited(folder: Path) -> list[str]:
    connection = apsw.Connection(str(folder / "visited.db"), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        row = sqlite_reads.find(connection, "", "s")
        assert row is not None
        events = [record.event for record in sqlite_reads.read(connection, row.uid, 0, None)]
    finally:
        connection.close()
    acks = read_lines(folder / ACKS, Ack)
    paid = {deed.call for deed in read_lines(folder / LEDGER, Deed)}
    return [*_check_undisturbed(folder, row, events), *_check_acted_on(events, acks, paid)]


def _check_undisturbed(folder: Path, row: SessionRow, events: list[Event]) -> Iterator[str]:
    if row.epoch != 1:
        yield f"the driver lost the session: its epoch is {row.epoch}"
    if any(isinstance(event, RunResumed) for event in events):
        yield "the run was resumed although its driver lived"
    if (folder / "errors.log").exists():
        yield f"errors were logged: {(folder / 'errors.log').read_text()}"
    if row.status != "idle":
        yield f"the session is {row.status}"


def _check_acted_on(events: list[Event], acks: list[Ack], paid: set[int]) -> Iterator[str]:
    state = fold(events)
    said = [message.parts for message in transcript(state) if isinstance(message, UserMessage)]
    ends = {event.call: event.outcome for event in events if isinstance(event, CallEnded)}
    reasons = {event.run: event.reason for event in events if isinstance(event, RunEnded)}
    if unpaired(transcript(state)) or len(reasons) != state.runs:
        yield f"a call has no result or a run no end: {ends}, {reasons}"
    if len(acks) < 7:
        yield f"the visitor was acknowledged {len(acks)} commands only"
    for ack in acks:
        match ack.what:
            case "input":
                if said.count((Text(ack.name.replace("-", " ")),)) != 1:
                    yield f"{ack.name} was not read exactly once"
            case "decision":
                outcome, did = ends[int(ack.name)], int(ack.name) in paid
                if not _is_obeyed(ack.value, outcome, did):
                    yield f"call {ack.name} was decided {ack.value}, but ended {outcome}, effect {did}"
            case "cancel":
                if reasons[1] not in ("stopped", "cancelled"):
                    yield f"run 1 was stopped, but ended {reasons[1]}"


def _is_obeyed(decision: str, outcome: str, did: bool) -> bool:
    if decision == "deny":
        return outcome == "denied" and not did
    # A stop may have come before the driver could act on an approval, or in the middle of it.
    return outcome in ("ok", "unknown") or (outcome == "cancelled" and not did)
