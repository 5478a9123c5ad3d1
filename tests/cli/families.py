"""Agents with sub-agents for the command line's tests; their tools write to a ledger in the current folder."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from perdure import Agent, Limits, ToolContext, tool
from perdure.core.messages import ToolMessage
from perdure.ports import ModelRequest
from perdure.testing import Reply, ScriptedModel, call
from perdure.testing.replies import Answer
from perdure.tools import send_message
from tests.cli.agents import mail, price, undeclared, wait, write

WAITED = float(os.environ.get("SCOUT_SECONDS", "0"))


@tool(effect="read")
async def lookup(topic: str) -> str:
    """Look something up."""
    write("lookup", topic)
    return f"{topic}: all there is to know"


def task_of(request: ModelRequest) -> str:
    return request.messages[0].parts[0].text  # type: ignore[union-attr]


def turn_of(request: ModelRequest) -> int:
    return sum(isinstance(message, ToolMessage) for message in request.messages)


def research(request: ModelRequest) -> Answer:
    topic = task_of(request)
    if turn_of(request) == 0:
        return Reply("I will look.", call("lookup", topic=topic))
    return f"Of {topic} I know all."


researcher = Agent(name="researcher", tools=[lookup], model=ScriptedModel(research, cost=price))

lead = Agent(
    name="lead",
    tools=[researcher],
    limits=Limits(cost_usd=1.0),
    model=ScriptedModel(
        [[call("researcher", input="cats"), call("researcher", input="dogs")], "Cats and dogs."], cost=price
    ),
)


def write_to(request: ModelRequest) -> Answer:
    if turn_of(request) == 0:
        return call("mail", to=task_of(request), text="Dear friend, this is a letter.")
    return "The letter is sent."


postman = Agent(name="postman", tools=[mail], model=ScriptedModel(write_to, cost=price))

secretary = Agent(
    name="secretary",
    tools=[postman],
    model=ScriptedModel(
        lambda request: call("postman", input=task_of(request)) if turn_of(request) == 0 else "It is in the post.",
        cost=price,
    ),
)

chief = Agent(
    name="chief",
    tools=[secretary],
    model=ScriptedModel([[call("secretary", input="ann@example.org")], "All is arranged."], cost=price),
)

sleeper = Agent(
    name="sleeper",
    tools=[wait],
    model=ScriptedModel(lambda request: call("wait", seconds=30) if turn_of(request) == 0 else "Awake."),
)

night = Agent(name="night", tools=[sleeper], model=ScriptedModel([[call("sleeper", input="sleep")], "Good morning."]))

vague = Agent(name="vague", tools=[undeclared])
boss = Agent(name="boss", tools=[vague.as_tool()], model=ScriptedModel(["ok"]))

writer = Agent(
    name="writer",
    tools=[send_message()],
    model=ScriptedModel([[call("send_message", to="nobody", text="Are you there?")], "I have written."]),
)


@tool(effect="idempotent")
async def send_out(name: str, ctx: ToolContext) -> str:
    """Send somebody out; there will be news."""
    ctx.start_child(name, "scout", "Look around.")
    return f"{name} is on the way"


def scouting(request: ModelRequest) -> Answer:
    return call("wait", seconds=WAITED) if turn_of(request) == 0 else "All is quiet."


scout = Agent(name="scout", tools=[wait], model=ScriptedModel(scouting))


async def camping(request: ModelRequest) -> Answer:
    told = request.messages[-1]
    if isinstance(told, ToolMessage):
        for _ in range(1000 if WAITED else 0):
            if Path("ledger.txt").exists():
                break
            await asyncio.sleep(0.01)
        return "The scout is out."
    return call("send_out", name="ranger") if len(request.messages) == 1 else f"Heard: {told.parts[-1].text}"  # type: ignore[union-attr]


camp = Agent(name="camp", tools=[send_out, scout], model=ScriptedModel(camping))

ward = Agent(
    name="ward",
    tools=[sleeper],
    model=ScriptedModel([[call("sleeper", input=f"bed {number}") for number in range(8)], "Good morning."]),
)
