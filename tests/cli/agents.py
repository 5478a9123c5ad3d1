"""Agents for the command line's tests. Their tools write to a ledger in the current folder, outside of the store."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

from perdure import Agent, Limits, ModelError, Policy, ToolContext, ToolError, tool
from perdure.core.messages import AssistantMessage
from perdure.core.specs import Window
from perdure.ports import ModelRequest
from perdure.runtime.compaction import PROMPT
from perdure.runtime.wishes import Prepared
from perdure.testing import Reply, ScriptedModel, call
from perdure.testing.replies import Answer
from perdure.tools import ask_user

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


def talk(request: ModelRequest) -> Answer:
    return "They talked." if request.instructions == PROMPT else "words " * 200


talker = Agent(name="talker", model=ScriptedModel(talk, cost=price), window=Window(keep_last=2))

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


# Calls that wait for more than a yes

SIZE = {"question": "Which size?", "options": ["small", "large"]}
EXTRAS = {"question": "Which extras?", "options": ["bell", "light", "rack"], "multiple": True}
COLOUR = {"question": "Which colour?", "options": ["red"], "free_text": True}
NOTE = {"question": "Anything else?", "optional": True}


def told(request: ModelRequest) -> Answer:
    """Says what the tool told."""
    last = request.messages[-1]
    return f"Told: {last.results[0].parts[0].text}"  # type: ignore[union-attr]


def asks(*questions: dict[str, object]) -> ScriptedModel:
    return ScriptedModel(
        lambda request: call("ask_user", questions=[*questions]) if len(request.messages) == 1 else told(request)
    )


shop = Agent(name="shop", tools=[ask_user()], model=asks(SIZE, EXTRAS, COLOUR, NOTE))
sizes = Agent(name="sizes", tools=[ask_user()], model=asks(SIZE))
extras = Agent(name="extras", tools=[ask_user()], model=asks(EXTRAS))
notes = Agent(name="notes", tools=[ask_user()], model=asks(NOTE))

careful = Agent(name="careful", tools=[ask_user()], policy=Policy(ask=["ask_user"]), model=asks(SIZE))


@tool(kind="external")
def weigh(parcel: str) -> dict[str, int]:
    """Weigh a parcel; somebody at the scales does it."""
    raise NotImplementedError


@tool(kind="frontend")
def pick(title: str) -> str:
    """Let the user pick a file."""
    raise NotImplementedError


@tool(kind="question", effect="read")
def confirm(text: str) -> bool:
    """Have something confirmed."""
    raise NotImplementedError


scales = Agent(
    name="scales",
    tools=[weigh],
    model=ScriptedModel(lambda request: call("weigh", parcel="p1") if len(request.messages) == 1 else told(request)),
)
picker = Agent(
    name="picker",
    tools=[pick],
    model=ScriptedModel(lambda request: call("pick", title="Pick") if len(request.messages) == 1 else told(request)),
)
confirmer = Agent(
    name="confirmer",
    tools=[confirm],
    model=ScriptedModel(lambda request: call("confirm", text="Go?") if len(request.messages) == 1 else told(request)),
)


@tool(effect="once", ask=True)
async def transfer(to: str, ctx: ToolContext) -> str:
    """Transfer what is left."""
    write("transfer", to, ctx.prepared and ctx.prepared.snapshot["cents"])
    return "transferred"


@transfer.listen
async def quote(to: str) -> AsyncIterator[Prepared]:
    yield Prepared({"cents": 1}, "r1")
    yield Prepared({"cents": 990, "fee": "10 cents"}, "r2", ready=True)


banker = Agent(
    name="banker", tools=[transfer], model=ScriptedModel([[call("transfer", to="ann")], "The money is there."])
)


@tool(effect="once")
async def develop(film: str) -> str:
    """Start an operation elsewhere."""
    write("develop", film)
    return f"op-{film}"


@develop.check
async def developed(operation: str, ctx: ToolContext) -> str:
    while not Path("developed").exists():
        await asyncio.sleep(0.02)
    return f"{operation} is developed"


lab = Agent(name="lab", tools=[develop], model=ScriptedModel([[call("develop", film="7")], "Here are the pictures."]))


@tool(effect="once")
async def launch(seconds: float) -> str:
    """Take time over something that happens once."""
    write("launch")
    await asyncio.sleep(seconds)
    return "launched"


@tool(effect="once")
async def erase(what: str) -> str:
    """Erase something."""
    raise NotImplementedError


audited = Agent(
    name="audited",
    tools=[mail, erase, ask_user(), wait, launch],
    policy=Policy(deny=["erase"]),
    model=ScriptedModel(
        [
            [
                call("erase", what="all"),
                call("mail", to="ann", text="yes"),
                call("mail", to="bob", text="no"),
                call("ask_user", questions=[SIZE]),
            ],
            [call("wait", seconds=1), call("launch", seconds=1)],
            "Done.",
        ]
    ),
)
