"""The scenario of the crash sweep: a session of 50 turns, 158 calls in groups of 4, 3 approvals and a cancelled job.

Rule 1: it works to its end from wherever the log stands. Rule 2: what it decides depends on the call alone. Rule 3: it
writes an ack as soon as a command was acknowledged, and its tools write what they do, outside of the store.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

from perdure import Agent, Pending, Record, Refused, Run, Runtime, Session, ToolContext, tool
from perdure.core.codec import digest_of, encode_json
from perdure.core.messages import AssistantMessage, Text, ToolCall, UserMessage
from perdure.core.shared import Buffer, Index
from perdure.core.state import SessionState
from perdure.events import CallStarted, CallSuspended, ModelResponded
from perdure.ports import ModelRequest, Store
from perdure.testing import ScriptedModel, call
from perdure.testing.faults import fault_point
from tests.crash.ledger import ACKS, LEDGER, Ack, Deed, write_line

JOBS = ("a", "b", "c", "d", "e", "f")
CANCELLED = "x"
TURNS = 50
CALLS = 158

DECISIONS = {"a2.0": "approve", "c2.0": "edit", "e2.0": "deny"}
"""What becomes of the three refunds, by item."""

SHAPES = (
    ("look", "charge", "mail", "look"),
    ("charge", "charge", "mail", "ship"),
    ("post", "look", "charge", "mail"),
    ("look", "mail", "charge", "mail"),
    ("ship", "look", "charge", "mail"),
    ("charge",),
    ("mail", "mail", "look", "charge"),
)


def _plan(job: str) -> list[list[ToolCall]]:
    turns = [
        [call(name, item=f"{job}{turn}.{index}") for index, name in enumerate(shape)]
        for turn, shape in enumerate(SHAPES if job != CANCELLED else SHAPES[:2])
    ]
    if job == CANCELLED:
        turns[1][0] = call("hold", item=f"{job}1.0")
    elif f"{job}2.0" in DECISIONS:
        turns[2][0] = call("refund", item=f"{job}2.0", cents=990)
    return turns


PLAN = {job: _plan(job) for job in (*JOBS, CANCELLED)}


def answer(request: ModelRequest) -> Any:
    """The next turn of the newest job: a function of the conversation alone."""
    job, turns = "", 0
    for message in request.messages:
        match message:
            case UserMessage(parts=(Text(text=text),)) if text.startswith("job "):
                job, turns = text[4:], 0
            case AssistantMessage():
                turns += 1
            case _:
                pass
    plan = PLAN[job]
    return plan[turns] if turns < len(plan) else f"Job {job} is done."


def _write(what: Any, name: str, item: str, ctx: ToolContext, cents: int = 0) -> None:
    write_line(LEDGER, Deed(what, name, item, ctx.call, ctx.attempt, ctx.idempotency_key, cents))


async def _act(name: str, item: str, ctx: ToolContext, cents: int = 0) -> str:
    """What every tool that acts does: it takes a moment, and takes effect in the middle of it."""
    fault_point(f"before {name} starts")
    _write("start", name, item, ctx)
    fault_point(f"{name} has started")
    await asyncio.sleep(ctx.call % 3 * 0.0005)
    _write("effect", name, item, ctx, cents)
    fault_point(f"{name} has taken effect")
    await asyncio.sleep(0)
    _write("end", name, item, ctx)
    fault_point(f"after {name} ends")
    return f"{name} {item}"


@tool(effect="read")
def look(item: str, ctx: ToolContext) -> str:
    """Look something up; in a thread, as it is not async."""
    fault_point("before look starts")
    _write("start", "look", item, ctx)
    fault_point("look has started")
    _write("end", "look", item, ctx)
    fault_point("after look ends")
    return f"look {item}"


@tool(effect="idempotent")
async def charge(item: str, ctx: ToolContext) -> str:
    """Charge, under the runtime's key."""
    return await _act("charge", item, ctx)


@tool(effect="idempotent", key=lambda item: f"ship-{item}")
async def ship(item: str, ctx: ToolContext) -> str:
    """Ship, under a business key."""
    return await _act("ship", item, ctx)


@tool
async def mail(item: str, ctx: ToolContext) -> str:
    """Send a mail: at most once."""
    return await _act("mail", item, ctx)


@tool(on_unknown="tell")
async def post(item: str, ctx: ToolContext) -> str:
    """Post a letter: at most once, and nobody is asked whether it went."""
    return await _act("post", item, ctx)


@tool(effect="idempotent", ask=True)
async def refund(item: str, cents: int, ctx: ToolContext) -> str:
    """Pay back, if somebody approves."""
    return await _act("refund", item, ctx, cents)


@tool
async def hold(item: str, ctx: ToolContext) -> str:
    """Takes effect, then goes on until it is cancelled."""
    await _act("hold", item, ctx)
    await ctx.wait_cancelled()
    return "released"


AGENT = Agent(
    name="clerk",
    instructions="You do jobs.",
    model=ScriptedModel(answer),
    tools=[look, charge, ship, mail, post, refund, hold],
)


async def scenario(store: Store) -> None:
    for name in ("perdure", "asyncio"):
        logging.getLogger(name).addHandler(logging.FileHandler("errors.log", delay=True))
    async with Runtime(store, agents=[AGENT]) as runtime:
        session = await runtime.open(AGENT, id="order")
        await _settle(session, await _start(session, "a"))
        job = await _start(session, "b")
        await _note(session, "b")
        await _settle(session, job)
        jobs = [await _start(session, name) for name in ("c", "d")]
        await _note(session, "c")
        for job in jobs:
            await _settle(session, job)
        await _cancel(session, await _start(session, CANCELLED))
        for name in ("e", "f"):
            await _settle(session, await _start(session, name))
        await session.history()
        Path("state.txt").write_text(digest_state(session.state))


def digest_state(state: SessionState) -> str:
    """Over every field; what a state shares with others is spelled out."""
    fields = {name: getattr(state, name) for name in state.__struct_fields__}
    for name, value in fields.items():
        if isinstance(value, Buffer):
            fields[name] = value[:]
        elif isinstance(value, Index):
            fields[name] = repr(value)
    return digest_of(encode_json(fields))


async def _start(session: Session[Any], job: str) -> Run[Any]:
    run = await session.start(f"job {job}", key=f"job-{job}")
    write_line(ACKS, Ack("input", f"job-{job}"))
    return run


async def _note(session: Session[Any], job: str) -> None:
    """Joins the job that runs, or is a run of its own if that has ended meanwhile."""
    await session.send(f"note on {job}", key=f"note-{job}")
    write_line(ACKS, Ack("input", f"note-{job}"))


async def _settle(session: Session[Any], run: Run[Any]) -> None:
    result = await run
    while result.pending:
        for pending in result.pending:
            await _decide(session, pending)
        result = await run
    assert result.reason == "completed", result


async def _decide(session: Session[Any], pending: Pending) -> None:
    decision, more = decide(pending)
    await session.decide(pending.id, decision, by="scenario", **more)
    write_line(ACKS, Ack("decision", pending.id, decision))


def decide(pending: Pending) -> tuple[Any, dict[str, Any]]:
    if pending.kind == "approval":
        item = pending.arguments["item"]
        decision = DECISIONS[item]
        return decision, {"arguments": {"item": item, "cents": 495}} if decision == "edit" else {}
    decision = ("answer", "deny", "retry")[pending.call % 3]
    return decision, {"value": "it happened"} if decision == "answer" else {}


async def _cancel(session: Session[Any], run: Run[Any]) -> None:
    """Cancels the job as soon as `hold` was started, by whichever process."""
    held = 0
    async for item in run.stream():
        match item:
            case Record(event=ModelResponded(message=message)):
                held = next((call.call for call in message.calls if call.name == "hold"), 0)
            case Record(event=CallStarted(call=ordinal)) if ordinal == held:
                # A process before this one may have cancelled it: then it ends now, or the next job is under way.
                if session.state.run and session.state.run.run == run.run:
                    with suppress(Refused):
                        await session.cancel(by="scenario")
                        write_line(ACKS, Ack("cancel", str(run.run)))
            case Record(event=CallSuspended()) if not held:
                for pending in await session.pending():
                    await _decide(session, pending)
            case _:
                pass
    assert (await run).reason == "cancelled"
