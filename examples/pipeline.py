"""A pipeline: each agent works on what the one before it made.

    python examples/pipeline.py [--model openai:gpt-5-mini]

There is nothing to learn but `key=`: the same key is the same run, so that an ordinary script is a durable workflow.
Kill it between two stages, or in the middle of one, and run it again: what is finished returns at once.
"""

import argparse
import asyncio

from perdure import Agent, Runtime
from perdure.testing import ScriptedModel

STAGES = [
    Agent(
        name="planner",
        instructions="Plan a short text about the subject: three points, one a line.",
        model=ScriptedModel(["1. what rain is\n2. where it falls\n3. why we need it"]),
    ),
    Agent(
        name="writer",
        instructions="Write one sentence for each point.",
        model=ScriptedModel(["Rain is water that falls. It falls nearly everywhere. Without it nothing grows."]),
    ),
    Agent(
        name="editor",
        instructions="Make it shorter without losing anything.",
        model=ScriptedModel(["Rain is water that falls nearly everywhere, and without it nothing grows."]),
    ),
]


async def write_about(runtime: Runtime, subject: str) -> str:
    text = subject
    for agent in STAGES:
        session = await runtime.open(agent, id=f"{subject}-{agent.name}", metadata={"subject": subject})
        text = (await session.run(text, key="stage")).output  # raises RunIncomplete if the stage did not end well
        print(f"{agent.name}: {text.splitlines()[0]}")
    return text


async def main(store: str, model: str | None) -> None:
    async with Runtime(store, agents=STAGES, model=model) as runtime:
        print(await write_about(runtime, "rain"))


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="Three agents in a row.")
    options.add_argument("--store", default="sqlite:pipeline.db")
    options.add_argument("--model", help="a real one for all agents, such as openai:gpt-5-mini")
    asyncio.run(main(**vars(options.parse_args())))
