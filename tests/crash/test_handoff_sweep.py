"""Three agents that hand over to each other, killed at every commit: one history, nothing done twice, nothing lost."""

from __future__ import annotations

from typing import Any

from perdure import Agent, Limits, Runtime, ToolContext, tool
from perdure.core.messages import AssistantMessage
from perdure.core.transcript import unpaired
from perdure.events import AgentPinned, CallEnded, RunEnded
from perdure.handoffs import handoff, last_messages
from perdure.plugins import StateKey
from perdure.ports import ModelRequest, Store
from perdure.stores.sqlite import SqliteStore
from perdure.testing import ScriptedModel, call, crash_sweep
from perdure.tools import frontend, per_run

PAID = StateKey("paid", int, scope="run", default=0, reducer=lambda one, other: one + other)


@tool(effect="idempotent")
async def pay(turn: int, ctx: ToolContext[Any, Any]) -> str:
    """Pay."""
    ctx.set(PAID, 1)
    return f"paid in turn {turn}"


def made(ctx: ToolContext[Any, Any]) -> list[Any]:
    return [pay]


TURNS: list[tuple[str, list[Any] | str]] = [
    ("clerk", [call("pay", turn=1), call("hand_off", to="billing")]),
    ("billing", [call("pay", turn=2), call("hand_off", to="refunds")]),
    ("refunds", [call("pay", turn=3), call("hand_off", to="clerk")]),
    ("clerk", "Round."),
    ("refunds", "For one run."),
    ("billing", "For good."),
]


def team() -> list[Agent[Any]]:
    left = dict(enumerate(TURNS))

    def answer(request: ModelRequest) -> Any:
        # The filter of billing leaves two messages; how far they are, the tools' results say.
        text = str([message for message in request.messages if not isinstance(message, AssistantMessage)])
        who = request.instructions
        names = [spec.name for spec in request.tools]
        if "And now?" in text:
            return left[5][1]
        if "One more" in text:
            assert who == "refunds"
            return left[4][1]
        assert "pick" in names, "the front-end tool of the run is there in each of its turns"
        assert "pay" in names
        turn = max((number for number in (1, 2, 3) if f"paid in turn {number}" in text), default=0)
        assert who == TURNS[turn][0]
        return left[turn][1]

    model = ScriptedModel(answer)
    clerk = Agent(name="clerk", instructions="clerk", model=model, tools=[pay], handoffs=["billing"])
    keep = handoff("refunds", filter=last_messages(2))
    billing = Agent(name="billing", instructions="billing", model=model, tools=[per_run(made)], handoffs=[keep])
    refunds = Agent(name="refunds", instructions="refunds", model=model, tools=[pay], handoffs=[clerk])
    return [clerk, billing, refunds]


async def scenario(store: Store) -> None:
    agents = team()
    async with Runtime(store, agents=agents) as runtime:
        session = await runtime.open(agents[0], id="s")
        budget = Limits(turns=4)
        result = await session.run("go", key="go", tools=[frontend("pick")], limits=budget)
        assert (result.output, result.turns) == ("Round.", 4)
        result = await session.run("One more", key="more", agent="refunds")
        assert result.output == "For one run."
        await session.set_agent("billing")
        result = await session.run("And now?", key="now")
        assert result.output == "For good."


async def judge(store: Store) -> list[Any]:
    async with Runtime(store, engine=None) as runtime:
        session = await runtime.session("s")
        events = [record.event for record in await session.records()]
        ends = [event.call for event in events if isinstance(event, CallEnded)]
        assert len(ends) == len(set(ends)) == 6
        assert [end.output for end in events if isinstance(end, RunEnded)] == ["Round.", "For one run.", "For good."]
        assert unpaired(session.state.history) == []
        assert session.agent == "billing"
        who = [event.spec.name for event in events if isinstance(event, AgentPinned)]
        assert who == ["clerk", "billing", "refunds", "clerk", "refunds", "billing"]
        return list(await session.history())


async def test_every_crash_leaves_the_same_conversation(record_property: Any) -> None:
    histories: list[list[Any]] = []
    async for crash in crash_sweep(scenario, open_store=lambda folder: SqliteStore(folder / "x.db")):
        histories.append(await judge(SqliteStore(crash.folder / "x.db")))
        assert histories[-1] == histories[0], crash.name
    assert len(histories) > 40
    record_property("figure: crashes of a story of hand-offs", len(histories))
