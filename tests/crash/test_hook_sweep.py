"""Hooks, shared keys and directives, killed at every commit: what they changed counts once, and the run ends."""

from __future__ import annotations

from typing import Any

from perdure import Agent, Runtime, Session, ToolContext, tool
from perdure.core.events import StateChanged
from perdure.events import InputAccepted, Noted, RunEnded
from perdure.plugins import Emit, Guardrail, Hooks, Plugin, StateKey
from perdure.ports import Store
from perdure.runtime.shared_state import SHARED
from perdure.stores.sqlite import SqliteStore
from perdure.testing import ScriptedModel, call, crash_sweep

TOTAL = StateKey("total", int, scope="shared", default=0, reducer=lambda one, other: one + other)
PAID = StateKey("paid", int, default=0, reducer=lambda one, other: one + other)
GATES = StateKey("gates", int, default=0, reducer=lambda one, other: one + other)


@tool(effect="idempotent")
async def pay(order: str, ctx: ToolContext) -> str:
    """Pay an order."""
    ctx.set(TOTAL, 1)
    ctx.set(PAID, 1)
    ctx.note("paid", {"order": order})
    return "paid"


async def gate(moment: Any) -> Emit:
    moment.here.set(GATES, 1)
    moment.here.set(TOTAL, 10)
    return Emit("gated")


async def push(moment: Any) -> str | None:
    return "Go on." if moment.text == "Not yet." else None


def make_clerk() -> Agent:
    hooks = Hooks(tool_gate=gate, natural_end=push, turn_start=lambda moment: None)
    plugin = Plugin(name="paying", tools=[pay], keys=[TOTAL, PAID, GATES], hooks=[hooks])
    return Agent(
        name="clerk",
        model=ScriptedModel([[call("pay", order="7")], "Not yet.", "Done."]),
        plugins=[plugin],
        guardrails=[Guardrail(input=lambda moment: True, output=lambda moment: True)],
    )


async def scenario(store: Store) -> None:
    clerk = make_clerk()
    async with Runtime(store, agents=[clerk]) as runtime:
        session = await runtime.open(clerk, id="order-7")
        result = await session.run("Bill order 7", key="bill")
        assert result.output == "Done."


async def of(session: Session[Any], kind: type, /, **fields: object) -> list[Any]:
    events = [record.event for record in await session.records()]
    return [e for e in events if isinstance(e, kind) and all(getattr(e, n) == v for n, v in fields.items())]


async def judge(store: Store) -> None:
    async with Runtime(store, engine=None) as runtime:
        session = await runtime.session("order-7")
        assert PAID.read(session.state) == 1
        assert GATES.read(session.state) == 1
        assert len(await of(session, Noted, kind="paid")) == 1
        assert len(await of(session, Noted, kind="gated")) == 1
        assert len(await of(session, InputAccepted, by="natural_end")) == 1
        assert [end.output for end in await of(session, RunEnded)] == ["Done."]
        shared = await runtime.session(SHARED)
        assert TOTAL.read(shared.state) == 11, "the tool's and the gate's, each once"
        assert len(await of(shared, StateChanged)) == 2


async def test_every_crash_is_survived() -> None:
    count = 0
    async for crash in crash_sweep(scenario, open_store=lambda folder: SqliteStore(folder / "x.db")):
        await judge(SqliteStore(crash.folder / "x.db"))
        count += 1
    assert count > 40
