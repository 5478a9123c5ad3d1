"""Agents for the command line's tests. Their tools write to a ledger in the current folder, outside of the store."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from perdure import Agent, Limits, ModelError, ToolContext, ToolError, tool
from perdure.core.messages import AssistantMessage
from perdure.ports import ModelRequest
from perdure.testing import Reply, ScriptedModel, call
from perdure.testing.replies import Answer

LEDGER = Path("ledger.txt")
JOBS = 12

FINAL = """\
# Done

Order **7** is billed:

1. charged
2. mailed

```python
def total(cents: int) -> float:

    return cents / 100
```

All is *well*.
"""


def write(*words: object) -> None:
    """One line in one write: there whole or not at all."""
    file = os.open(LEDGER, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, (" ".join(map(str, words)) + "\n").encode())
    os.close(file)


@tool(effect="idempotent")
async def charge(order: str, cents: int, ctx: ToolContext) -> str:
    """Charge an order."""
    ctx.progress("talking to the bank", 0.3)
    write("charge", order, cents)
    return f"charged {cents} cents"


@tool(effect="once", ask=True)
async def mail(to: str, text: str) -> str:
    """Mail somebody."""
    print("a tool prints")
    write("mail", to, len(text))
    return "sent"


@tool(effect="idempotent")
async def wait(seconds: float) -> str:
    """Take time."""
    write("wait")
    await asyncio.sleep(seconds)
    write("waited")
    return "waited"


@tool(effect="idempotent")
def block(seconds: float) -> str:
    """Take time in a thread, which cannot be killed."""
    write("block")
    time.sleep(seconds)
    return "blocked"


@tool
async def undeclared() -> str:
    """Say nothing of its effect."""
    raise ToolError("it did not work")


def price(usage: object) -> float:
    return 0.0015


clerk = Agent(
    name="clerk",
    tools=[charge, mail],
    model=ScriptedModel(
        [
            Reply("I will **charge** order 7.", call("charge", order="7", cents=990)),
            [call("mail", to="ann@example.org", text="Dear Ann, your order is billed, and it is on its way to you.")],
            Reply(FINAL, chunk=7),
            "You are welcome.",
        ],
        cost=price,
    ),
)

greeter = Agent(name="greeter", model=ScriptedModel(lambda request: "**Hello** there."))

slow = Agent(name="slow", tools=[wait], model=ScriptedModel([[call("wait", seconds=30)], "done", "done again"]))

stubborn = Agent(name="stubborn", tools=[block], model=ScriptedModel([[call("block", seconds=60)]]))

limited = Agent(
    name="limited", tools=[undeclared], limits=Limits(turns=1), model=ScriptedModel([[call("undeclared")], "ok"])
)

broken = Agent(name="broken", model=ScriptedModel([ModelError("no such key", kind="auth")]))

nasty = Agent(
    name="nasty",
    tools=[mail],
    model=ScriptedModel([[call("mail", to="\x1b[2Jann", text="\u202egnp.exe")], "red \x1b[31m alert \x9b31m"]),
)


@tool(effect="idempotent")
async def pay(job: int, ctx: ToolContext) -> str:
    """Pay for a job; whoever is paid knows the key."""
    await asyncio.sleep(0.002)
    write("pay", job, ctx.idempotency_key)
    await asyncio.sleep(0.004)
    return f"paid {job}"


@tool(effect="once")
async def post(job: int) -> str:
    """Post a letter; it cannot be taken back."""
    await asyncio.sleep(0.002)
    write("post", job)
    await asyncio.sleep(0.004)
    return f"posted {job}"


def next_job(request: ModelRequest) -> Answer:
    done = sum(isinstance(message, AssistantMessage) for message in request.messages)
    return [call("pay", job=done), call("post", job=done)] if done < JOBS else f"All {JOBS} jobs are done."


busy = Agent(name="busy", tools=[pay, post], model=ScriptedModel(next_job))


def many_jobs_then_mail(request: ModelRequest) -> Answer:
    done = sum(isinstance(message, AssistantMessage) for message in request.messages)
    if done > JOBS:
        return "done"
    return call("pay", job=done) if done < JOBS else call("mail", to="ann", text="paid")


long = Agent(name="long", tools=[pay, mail], model=ScriptedModel(many_jobs_then_mail))
