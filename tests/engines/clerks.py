"""The agents of the trials with workers: their tools write what they do to files that no kill takes back.

Loaded by `perdure worker`; the folder of the trial is in the environment. What a driver appended, and under which
epoch, is written down as well, after the store said that it holds.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import msgspec

from perdure import Agent, Limits, ToolContext, tool
from perdure.core.messages import AssistantMessage, Text, UserMessage
from perdure.ports import Batch, ModelRequest
from perdure.stores.postgres import PostgresStore
from perdure.testing import ScriptedModel, call
from tests.crash.ledger import write_line

FOLDER = Path(os.environ.get("PERDURE_TRIAL", "."))
DEEDS = "deeds.jsonl"
APPENDS = "appends.jsonl"
PAUSE = float(os.environ.get("PERDURE_TRIAL_PAUSE", "0.05"))


class Deed(msgspec.Struct, frozen=True, omit_defaults=True):
    what: str
    tool: str
    session: str
    call: int
    attempt: int
    item: str
    key: str
    worker: int


class Append(msgspec.Struct, frozen=True):
    session: str
    expect: int
    entries: int
    epoch: int
    worker: int


def write(what: str, name: str, item: str, ctx: ToolContext[Any, Any]) -> None:
    deed = Deed(what, name, ctx.session, ctx.call, ctx.attempt, item, ctx.idempotency_key, os.getpid())
    write_line(FOLDER / DEEDS, deed)


@tool(effect="idempotent")
async def charge(item: str, ctx: ToolContext[Any, Any]) -> str:
    """Charges an item; the bank knows its keys."""
    write("start", "charge", item, ctx)
    await asyncio.sleep(PAUSE)
    write("effect", "charge", item, ctx)
    return f"charged {item}"


@tool(on_unknown="tell")
async def mail(item: str, ctx: ToolContext[Any, Any]) -> str:
    """Sends a mail, at most once."""
    write("start", "mail", item, ctx)
    await asyncio.sleep(PAUSE)
    return f"sent {item}"


@tool(effect="read")
async def look(item: str) -> str:
    """Looks something up."""
    return f"seen {item}"


@tool(effect="idempotent")
async def explode(item: str, ctx: ToolContext[Any, Any]) -> str:
    """Kills the process that carries it out."""
    write("start", "explode", item, ctx)
    await asyncio.sleep(PAUSE / 2)
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


def answer(request: ModelRequest) -> Any:
    """So many turns as the job says: a function of the conversation alone."""
    turns, wanted, job = 0, 0, 0
    for message in request.messages:
        match message:
            case UserMessage(parts=(Text(text=text),)) if text.startswith("work "):
                turns, wanted, job = 0, int(text[5:]), job + 1
            case UserMessage(parts=(Text(text="explode"),)):
                return [call("explode", item="bomb")]
            case UserMessage(parts=(Text(text="charge"),)):
                return [call("charge", item="one")] if len(request.messages) == 1 else "charged"
            case AssistantMessage():
                turns += 1
            case _:
                pass
    if turns >= wanted:
        return f"done {job}"
    item = f"{job}.{turns}"
    return [call("charge", item=item), call("mail", item=item), call("look", item=item)]


clerk = Agent(
    name="clerk",
    instructions="You work.",
    model=ScriptedModel(answer),
    tools=[charge, mail, look, explode],
    limits=Limits(turns=1000),
)

_append = PostgresStore.append


async def _written(self: PostgresStore, batch: Batch) -> None:
    await _append(self, batch)
    if batch.epoch is not None:
        entries = len(batch.entries)
        write_line(FOLDER / APPENDS, Append(batch.session, batch.expect, entries, batch.epoch, os.getpid()))


if "PERDURE_TRIAL" in os.environ:
    PostgresStore.append = _written  # type: ignore[method-assign]
