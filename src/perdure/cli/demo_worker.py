"""The process that `perdure demo` kills: a clerk whose tools write to a ledger outside of the store.

Run by the demo as `python -m perdure.cli.demo_worker FOLDER`. The bank and the mail are slow at first, so that there is
a middle to be killed in.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from perdure.runtime.agent import Agent
from perdure.runtime.context import ToolContext
from perdure.runtime.tools import tool
from perdure.testing.replies import call
from perdure.testing.scripted import ScriptedModel
from perdure.wiring import Runtime

SESSION, KEY, INPUT = "order-7", "bill", "Bill order 7 and tell Ann."
SLOW, QUICK = 30.0, 0.7
PATIENCE = 120.0


class Ledger:
    """What the outside world remembers: one line per thing that really happened."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._path.read_text().splitlines()] if self._path.exists() else []

    def write(self, what: str, key: str) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps({"what": what, "key": key, "process": os.getpid()}) + "\n")
            file.flush()
            os.fsync(file.fileno())


@tool(effect="read")
async def look_up(order: str) -> str:
    """Look an order up."""
    return f"order {order}: 990 cents, customer Ann"


@tool(effect="idempotent")
async def reserve(order: str, ctx: ToolContext[Ledger, None]) -> str:
    """Reserve the goods."""
    ctx.deps.write(f"reserved {order}", ctx.idempotency_key)
    return "reserved"


@tool(effect="idempotent")
async def charge(order: str, cents: int, ctx: ToolContext[Ledger, None]) -> str:
    """Charge the customer; the bank knows the key and takes the money once."""
    if not any(line["key"] == ctx.idempotency_key for line in ctx.deps.lines()):
        ctx.deps.write(f"charged {order} {cents} cents", ctx.idempotency_key)
    await asyncio.sleep(SLOW if ctx.attempt == 1 else QUICK)
    return f"charged {cents} cents"


@tool(effect="once")
async def mail(to: str, ctx: ToolContext[Ledger, None]) -> str:
    """Send mail."""
    ctx.deps.write(f"mailed {to}", ctx.idempotency_key)
    await asyncio.sleep(SLOW)
    return "sent"


@tool(effect="once", ask=True)
async def ship(order: str, ctx: ToolContext[Ledger, None]) -> str:
    """Ship the goods; somebody has to approve it."""
    ctx.deps.write(f"shipped {order}", ctx.idempotency_key)
    return "on its way"


def clerk() -> Agent[str]:
    model = ScriptedModel(
        [
            [call("look_up", order="7")],
            [call("reserve", order="7"), call("charge", order="7", cents=990), call("mail", to="ann@example.org")],
            [call("ship", order="7")],
            "Order **7** is billed, Ann knows, and the goods are on their way.",
        ]
    )
    return Agent(name="clerk", model=model, tools=[look_up, reserve, charge, mail, ship])


async def work(folder: Path) -> None:
    agent = clerk()
    async with Runtime(f"sqlite:{folder / 'demo.db'}", agents=[agent], deps=Ledger(folder / "ledger.jsonl")) as runtime:
        session = await runtime.open(agent, id=SESSION)
        run = await session.start(INPUT, key=KEY)
        # Nobody decides any more if the demo itself was killed: then this process ends too.
        async with asyncio.timeout(PATIENCE):
            async for _ in run.stream():
                pass


if __name__ == "__main__":
    asyncio.run(work(Path(sys.argv[1])))
