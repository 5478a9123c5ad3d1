"""A family of agents for the crash sweep: three deep, four wide, through work, a cancel and a budget that runs out.

Rule 1: it works to its end from wherever the logs stand. Rule 2: what an agent says depends on its conversation alone.
Rule 3: what tools do and what models are paid is written outside of the store.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import apsw
import msgspec

from perdure import Agent, Limits, Pending, Run, Runtime, Session, ToolContext, tool
from perdure.core.fold import fold
from perdure.core.messages import AssistantMessage, Text, ToolMessage, Usage, UserMessage
from perdure.core.specs import ModelSettings
from perdure.core.state import SessionState
from perdure.core.views import summarise
from perdure.core.window import estimate_message
from perdure.events import CallEnded, CallStarted, InputAccepted, RunEnded
from perdure.ports import ModelRequest, Record, SessionQuery, SessionRow, Store
from perdure.stores import sqlite_reads
from perdure.testing import Reply, ScriptedModel, call
from perdure.testing.faults import fault_point
from tests.crash.ledger import ACKS, LEDGER, Ack, Deed, read_lines, write_line
from tests.runtime.scenes import check_log

WIDTH = 4
DEPTH = 3
LEVELS = ("root", "lead", "worker", "helper")
TOKENS = 2_400
"""What the whole family may spend in its last run."""
SPEECH = 100
IN_TIME = 5.0
STORY = DEPTH * WIDTH
"""The children of one run; when the budget runs out, there are fewer."""
PAID = Path("paid.jsonl")
MANY = 1000


class Paid(msgspec.Struct, frozen=True):
    """What a model was asked for: nobody takes that back."""

    story: str
    tokens: int


def has_children(path: str) -> bool:
    """The first of each level has children of its own."""
    level = path.count(".") if path else 0
    return level < DEPTH and set(path) <= {"0", "."}


def below(path: str) -> list[str]:
    return [f"{path}.{number}" for number in range(WIDTH)]


def leaves(path: str = "0") -> list[str]:
    return [leaf for child in below(path) for leaf in leaves(child)] if has_children(path) else [path]


def answer_of(path: str) -> str:
    """What the agent at a place says when its work is done, and everybody below has said so too."""
    return f"{path}({' '.join(answer_of(child) for child in below(path))})" if has_children(path) else path


def speak(request: ModelRequest) -> Any:
    """A function of the conversation: the newest task, and the turns since."""
    story, path, turns = "", "", 0
    results: list[str] = []
    for message in request.messages:
        match message:
            case UserMessage(parts=(Text(text=text),)):
                story, path = text.split(" ")
                turns, results = 0, []
            case AssistantMessage():
                turns += 1
            case ToolMessage():
                results = [part.text for r in message.results for part in r.parts if isinstance(part, Text)]
            case _:
                pass
    room = min(SPEECH, request.settings.max_tokens or SPEECH)
    usage = Usage(sum(estimate_message(message) for message in request.messages), room)
    write_line(PAID, Paid(story, usage.total))
    return Reply(*_say(story, path, turns, results), usage=usage)


def _say(story: str, path: str, turns: int, results: list[str]) -> list[Any]:
    if has_children(path):
        name = LEVELS[path.count(".") + 1]
        calls = [call(name, input=f"{story} {child}") for child in below(path)]
        return [f"{path}({' '.join(results)})"] if turns else list(calls)
    match story, turns:
        case "work", 0:
            return [call("charge", item=path), call("refund" if path.endswith(".1") else "mail", item=path)]
        case "hold", 0:
            return [call("hold", item=path)]
        case "spend", _:
            return [call("look", item=f"{path} {turns}")]
        case _:
            return [path]


def _deed(what: Any, name: str, item: str, ctx: ToolContext) -> None:
    write_line(LEDGER, Deed(what, name, item, ctx.call, ctx.attempt, ctx.idempotency_key))


async def _act(name: str, item: str, ctx: ToolContext) -> str:
    _deed("start", name, item, ctx)
    fault_point(f"{name} has started")
    await asyncio.sleep(0)
    _deed("effect", name, item, ctx)
    fault_point(f"{name} has taken effect")
    return f"{name} {item}"


@tool(effect="read")
async def look(item: str) -> str:
    """Look something up."""
    return item


@tool(effect="idempotent")
async def charge(item: str, ctx: ToolContext) -> str:
    """Charge, under the runtime's key."""
    return await _act("charge", item, ctx)


@tool
async def mail(item: str, ctx: ToolContext) -> str:
    """Send a mail: at most once."""
    return await _act("mail", item, ctx)


@tool(effect="idempotent", ask=True)
async def refund(item: str, ctx: ToolContext) -> str:
    """Pay back, if somebody approves."""
    return await _act("refund", item, ctx)


HELD: Counter[str] = Counter()
"""What is held in this process."""


@tool(effect="read")
async def hold(item: str, ctx: ToolContext) -> str:
    """Goes on until it is cancelled."""
    HELD[item] += 1
    try:
        await asyncio.Event().wait()
    finally:
        HELD[item] -= 1
    return "never"


def make_root() -> Agent[Any]:
    tools: list[Any] = [look, charge, mail, refund, hold]
    settings = ModelSettings(max_tokens=SPEECH)
    agent: Agent[Any] | None = None
    for name in reversed(LEVELS):
        children = [agent] if agent is not None else []
        agent = Agent(name=name, model=ScriptedModel(speak), tools=[*tools, *children], settings=settings)
    assert agent is not None
    return agent


ROOT = make_root()


async def scenario(store: Store) -> None:
    async with Runtime(store, agents=[ROOT]) as runtime:
        session = await runtime.open(ROOT, id="root")
        result = await _settle(session, await _start(session, "work"))
        assert result.output == answer_of("0"), result
        await _cancel(runtime, session, await _start(session, "hold"))
        result = await _settle(session, await _start(session, "spend", limits=Limits(tokens=TOKENS)))
        assert result.reason in ("limit", "completed"), result


async def _start(session: Session[Any], story: str, **options: Any) -> Run[Any]:
    run = await session.start(f"{story} 0", key=story, **options)
    write_line(ACKS, Ack("input", story))
    return run


async def _settle(session: Session[Any], run: Run[Any]) -> Any:
    result = await run
    while result.pending:
        for pending in result.pending:
            await _decide(session, pending)
        result = await run
    return result


async def _decide(session: Session[Any], pending: Pending) -> None:
    """From the root, whoever below waits for it."""
    if pending.kind == "approval":
        await session.decide(pending.id, "approve", by="scenario", id=pending.id)
    else:
        await session.decide(pending.id, "answer", value=f"mail {pending.arguments['item']}", by="scenario")
    write_line(ACKS, Ack("decision", pending.id, pending.session))


async def _cancel(runtime: Runtime, session: Session[Any], run: Run[Any]) -> None:
    """As soon as all hold; the end of the parent is the end of everybody."""
    wanted = set(leaves())
    while not _is_ending(session, run) and {item for item, count in HELD.items() if count} != wanted:
        await asyncio.sleep(0.002)
    began = monotonic()
    if not _is_ending(session, run):
        await session.cancel(by="scenario")
        write_line(ACKS, Ack("cancel", "hold"))
    assert (await run).reason == "cancelled"
    assert monotonic() - began < IN_TIME, "the cancel took too long"
    ended = monotonic()
    while alive := [row.id async for row in runtime.sessions(children=True) if row.status != "idle"]:
        assert monotonic() - ended < IN_TIME, f"alive after the parent's end: {alive}"
        await asyncio.sleep(0.005)
    assert not any(HELD.values()), HELD


def _is_ending(session: Session[Any], run: Run[Any]) -> bool:
    state = session.state
    return run.run is not None and (state.run is None or state.run.run != run.run or state.run.stop is not None)


RESTARTS = 10


async def waiting(store: Store) -> None:
    """Dies as soon as somebody far below waits for an approval, ten times; then it is given."""
    async with Runtime(store, agents=[ROOT]) as runtime:
        session = await runtime.open(ROOT, id="root")
        run = await _start(session, "work")
        result = await run
        while any(pending.kind != "approval" for pending in result.pending):
            for pending in result.pending:
                if pending.kind != "approval":
                    await _decide(session, pending)
            result = await run
        died = Path("died.txt").read_text() if Path("died.txt").exists() else ""
        ids = " ".join(sorted(pending.id for pending in result.pending))
        if died.count("\n") < RESTARTS:
            Path("died.txt").write_text(f"{died}{ids}\n")
            os.kill(os.getpid(), signal.SIGKILL)
        assert (await _settle(session, run)).output == answer_of("0")


# The judge


class Member(msgspec.Struct, frozen=True):
    row: SessionRow
    records: list[Record]
    state: SessionState

    def all(self, kind: type) -> list[Any]:
        return [record.event for record in self.records if isinstance(record.event, kind)]


def gather(folder: Path) -> dict[str, Member]:
    """All sessions of the store, by uid."""
    connection = apsw.Connection(str(folder / "sweep.db"), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        if not connection.execute("SELECT count(*) FROM sqlite_schema").get:
            return {}
        rows = sqlite_reads.page(connection, SessionQuery(limit=MANY), None).rows
        logs = {row.uid: sqlite_reads.read(connection, row.uid, 0, None) for row in rows}
    finally:
        connection.close()
    return {row.uid: Member(row, logs[row.uid], fold([r.event for r in logs[row.uid]])) for row in rows}


def check_death(folder: Path) -> list[str]:
    """Right after a kill: what was acknowledged is in a log."""
    family = gather(folder) if (folder / "sweep.db").exists() else {}
    keys = {event.key for member in family.values() for event in member.all(InputAccepted)}
    decided = {f"{uid}-{place}" for uid, member in family.items() for place in _decided(member)}
    broken: list[str] = []
    for ack in read_lines(folder / ACKS, Ack):
        if ack.what == "input" and ack.name not in keys:
            broken.append(f"the acknowledged input {ack.name} is lost")
        if ack.what == "decision" and ack.name not in decided:
            broken.append(f"the acknowledged decision {ack.name} is lost")
    return broken


def _decided(member: Member) -> list[str]:
    from perdure.events import CallDecided

    return [f"{event.call}-{event.pause}" for event in member.all(CallDecided)]


def check_family(folder: Path, *, stories: int = 3) -> list[str]:
    family = gather(folder)
    broken = [*_check_logs(family), *_check_ends(family), *_check_deeds(folder)]
    if len(family) < (STORY + 1 if stories == 1 else 2 * STORY + WIDTH + 1):
        broken.append(f"there are only {len(family)} sessions")
    spent = [paid.tokens for paid in read_lines(folder / PAID, Paid) if paid.story == "spend"]
    if sum(spent) > TOKENS + max(spent, default=0):
        broken.append(f"{sum(spent)} tokens were paid of {TOKENS}")
    root = next(member for member in family.values() if member.row.id == "root")
    if stories == 3 and root.state.ended[-1].usage.total < sum(spent):
        broken.append(f"{sum(spent)} tokens were paid, and {root.state.ended[-1].usage.total} are in the account")
    return broken


def _check_logs(family: dict[str, Member]) -> Iterator[str]:
    for member in family.values():
        try:
            check_log(member.records)
        except AssertionError as error:
            yield f"{member.row.id}: {error}"
        if member.row.summary != summarise(member.state):
            yield f"{member.row.id}: the row does not fit the log"
        state = member.state
        if member.row.status != "idle" or state.queue or state.owed or state.outbox or state.dead:
            yield f"{member.row.id} is {member.row.status} at the end, or owes something"


def _check_ends(family: dict[str, Member]) -> Iterator[str]:
    """Every call of a child has one end, which is what that child's only run came to."""
    for member in family.values():
        children = {event.call: event.child for event in member.all(CallStarted) if event.child}
        ends = {event.call: event for event in member.all(CallEnded)}
        for ordinal, uid in children.items():
            child = family.get(uid)
            if child is None:
                yield f"{member.row.id}: the child of call {ordinal} is missing"
                continue
            runs, ended = child.all(RunEnded), ends[ordinal]
            if len(runs) != 1:
                yield f"{child.row.id} has {len(runs)} ends"
            elif runs[0].reason == "completed" and (ended.outcome, ended.parts) != ("ok", (Text(runs[0].output),)):
                yield f"{member.row.id}: the result of {child.row.id} is lost: {ended}"
            elif (runs[0].reason == "completed") != (ended.outcome == "ok"):
                yield f"{member.row.id}: call {ordinal} is {ended.outcome}, its child {runs[0].reason}"
            if ended.spent is None or ended.spent.usage != child.state.ended[0].usage:
                yield f"{member.row.id}: what {child.row.id} has used is not what is counted"


def _check_deeds(folder: Path) -> Iterator[str]:
    """Each charge and refund under one key, each mail started at most once, and nothing forgotten."""
    deeds = read_lines(folder / LEDGER, Deed)
    keys: dict[tuple[str, str], set[str]] = {}
    for deed in deeds:
        if deed.what == "effect" and deed.tool != "mail":
            keys.setdefault((deed.tool, deed.item), set()).add(deed.key)
    yield from (f"{tool} {item} has {len(own)} keys" for (tool, item), own in keys.items() if len(own) != 1)
    used = Counter(key for own in keys.values() for key in own)
    yield from (f"the key {key} is used by {count}" for key, count in used.items() if count != 1)
    started = Counter(deed.item for deed in deeds if deed.what == "start" and deed.tool == "mail")
    yield from (f"mail {item} was started {count} times" for item, count in started.items() if count > 1)
    refunds = {leaf for leaf in leaves() if leaf.endswith(".1")}
    wanted = {("charge", leaf) for leaf in leaves()} | {("refund", leaf) for leaf in refunds}
    # A mail in doubt may never have been started: the person who was asked said that it had arrived.
    if keys.keys() != wanted or not started.keys() <= set(leaves()) - refunds:
        yield f"done: {sorted(keys)}, mailed: {sorted(started)}"
