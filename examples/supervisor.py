"""A supervisor hands a question to several workers at once, and makes one answer of theirs.

    python examples/supervisor.py [--model openai:gpt-5-mini]

Each worker is a sub-agent: a session of its own, below the supervisor's. All of them share the supervisor's budget.
Kill this at any moment and run it again: workers that have answered are not asked again.
"""

import argparse
import asyncio

from perdure import Agent, Limits, Record, Runtime, tool
from perdure.events import CallEnded, FromChild
from perdure.testing import ScriptedModel, call

BOOKS = {"rent": 1200, "wages": 5400, "power": 310}


@tool(effect="read")
def look_up(topic: str) -> str:
    """Look up in the books what was spent on a topic."""
    return f"{BOOKS[topic]} euros"


def play_worker(request):
    """What a model would do: look the topic up, then answer."""
    task, *rest = request.messages
    topic = task.parts[0].text
    return f"{topic}: {rest[-1].results[0].parts[0].text}" if rest else call("look_up", topic=topic)


worker = Agent(
    name="worker",
    instructions="You find out what was spent on one topic, and say so in one line.",
    model=ScriptedModel(play_worker),
    tools=[look_up],
)
supervisor = Agent(
    name="supervisor",
    instructions=f"Ask one worker for each of {', '.join(BOOKS)}, all at once; then say what was spent most on.",
    model=ScriptedModel([[call("worker", input=topic) for topic in BOOKS], "Most was spent on wages: 5400 euros."]),
    tools=[worker.as_tool(limits=Limits(turns=5), timeout=300)],
    limits=Limits(cost_usd=0.50, children=20),  # of all of them together
    concurrency=8,  # so many workers at once
)


async def main(store: str, model: str | None) -> None:
    async with Runtime(store, agents=[supervisor], model=model) as runtime:
        session = await runtime.open(supervisor, id="spending")
        run = await session.start("What did we spend most on?", key="spending")
        async for item in run.stream():  # what the workers do comes wrapped, with whose it is
            match item:
                case FromChild(agent=agent, call=number, item=Record(event=CallEnded(parts=(found, *_)))):
                    print(f"  {agent} {number} found {found.text}")
                case _:
                    pass
        result = await run
        print(result.output)
        print(f"{len(await session.children())} workers, {result.usage.total} tokens in all")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="A supervisor with workers.")
    options.add_argument("--store", default="sqlite:supervisor.db")
    options.add_argument("--model", help="a real one for all agents, such as openai:gpt-5-mini")
    asyncio.run(main(**vars(options.parse_args())))
