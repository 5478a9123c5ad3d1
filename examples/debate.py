"""A debate: two agents argue in turns, and a third one, which has heard both, judges.

    python examples/debate.py [--model openai:gpt-5-mini]

Each side keeps a session, so that it remembers what was said. Every round has a key: run it again after a crash, and
the debate goes on with the first word that was not said yet.
"""

import argparse
import asyncio
from typing import Literal

import msgspec

from perdure import Agent, Runtime
from perdure.testing import ScriptedModel

ROUNDS = 2
QUESTION = "Shall we rewrite the billing system?"


class Verdict(msgspec.Struct):
    winner: Literal["for", "against"]
    why: str


def debater(side: str, *lines: str) -> Agent[str]:
    words = f"You argue {side} the motion. Answer what the other side said last, in one sentence."
    return Agent(name=f"debater-{side}", instructions=words, model=ScriptedModel(lines))


SIDES = [
    debater("for", "Every change costs us a week.", "It is the tests that are missing, and we would write them."),
    debater("against", "A rewrite costs us a year.", "Then write the tests, and leave the code."),
]
judge = Agent(
    name="judge",
    instructions="You judge debates by their arguments alone.",
    model=ScriptedModel(['{"winner": "against", "why": "Tests can be had without a rewrite."}']),
    output=Verdict,
)


async def main(store: str, model: str | None) -> None:
    async with Runtime(store, agents=[*SIDES, judge], model=model) as runtime:
        sides = [await runtime.open(agent, id=agent.name) for agent in SIDES]
        said, minutes = QUESTION, [QUESTION]
        for number in range(ROUNDS):
            for side in sides:
                said = (await side.run(said, key=f"round {number}")).output
                minutes.append(f"{side.agent}: {said}")
                print(minutes[-1])
        bench = await runtime.open(judge, id="judge")
        verdict = (await bench.run("\n".join(minutes), key="verdict")).output
        print(f"The judge is {verdict.winner} it: {verdict.why}")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="Two debaters and a judge.")
    options.add_argument("--store", default="sqlite:debate.db")
    options.add_argument("--model", help="a real one for all agents, such as openai:gpt-5-mini")
    asyncio.run(main(**vars(options.parse_args())))
