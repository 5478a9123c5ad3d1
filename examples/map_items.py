"""The same task for a thousand items, fifty at once, with a progress bar.

    python examples/map_items.py [--items 1000] [--at-once 50] [--model openai:gpt-5-mini]

Each item has a session of its own, by its name, and the run in it a key. Kill it and run it again: finished items
return at once, those that were under way go on from where they were, and those that failed are tried again.
"""

import argparse
import asyncio
import sys
from collections import Counter

from rich.console import Console
from rich.progress import Progress

from perdure import Agent, RunResult, Runtime
from perdure.testing import ScriptedModel

WORDS = ("broken", "late", "lovely", "fine")


def play_grader(request):
    """What a model would answer."""
    return "bad" if any(word in request.messages[0].parts[0].text for word in WORDS[:2]) else "good"


grader = Agent(
    name="grader",
    instructions="Is this review good or bad? Answer with one word.",
    model=ScriptedModel(play_grader),
)


async def grade(runtime: Runtime, number: int) -> RunResult[str]:
    session = await runtime.open(grader, id=f"review-{number}", metadata={"batch": "reviews"})
    result = await session.run(f"It was {WORDS[number % len(WORDS)]}.", key="grade")
    return await session.resume() if result.reason in ("failed", "limit") else result


async def main(store: str, model: str | None, items: int, at_once: int) -> None:
    gate = asyncio.Semaphore(at_once)

    async def work(number: int) -> str:
        async with gate:
            result = await grade(runtime, number)
        progress.advance(bar)
        return result.output if result.reason == "completed" else result.reason

    screen = Console(stderr=True)
    async with Runtime(store, agents=[grader], model=model) as runtime:
        with Progress(console=screen, disable=not sys.stderr.isatty()) as progress:
            bar = progress.add_task("grading", total=items)
            grades = await asyncio.gather(*map(work, range(items)))
    for grade_given, count in sorted(Counter(grades).items()):
        print(f"{count} {grade_given}")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="One task for many items.")
    options.add_argument("--store", default="sqlite:map_items.db")
    options.add_argument("--model", help="a real one, such as openai:gpt-5-mini")
    options.add_argument("--items", type=int, default=1000)
    options.add_argument("--at-once", type=int, default=50)
    asyncio.run(main(**vars(options.parse_args())))
