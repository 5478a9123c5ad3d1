"""Stop conditions: reasons to end a run, as data; and guards, which an agent may set."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Agent, Guards, Runtime, ToolError, UsageError, tool
from perdure.context import StopWhen, Window
from perdure.ports import Store
from perdure.testing import ScriptedModel, call
from tests.runtime.scenes import soon


@tool(effect="read")
async def look(what: str = "it") -> str:
    """Look."""
    return f"seen {what}"


@tool(effect="read")
async def fail(n: int = 0) -> str:
    """Fail."""
    raise ToolError(f"no luck {n}")


@tool
async def submit(text: str) -> str:
    """Hand in the work."""
    return f"got {text}"


@pytest.mark.parametrize(
    ("condition", "turns", "detail"),
    [
        (StopWhen(turns=2), 2, "turns 2"),
        (StopWhen(tool="submit"), 4, "submit was called"),
        (StopWhen(tool="sub*", turns=2), 4, "turns 4, submit was called"),
        (StopWhen(errors=2), 3, "errors 2"),
        (StopWhen(text="(?i)FAIL"), 2, "the answer matches '(?i)FAIL'"),
        (StopWhen(tokens=30), 2, "tokens"),
        (StopWhen(cost_usd=0.03), 3, "cost_usd 0.03"),
        (StopWhen(repeats=2), 6, "repeats 2"),
        (StopWhen(seconds=10.0), 7, ""),
        (StopWhen(tool="nothing"), 7, ""),
    ],
    ids=repr,
)
async def test_a_run_stops_when_its_condition_holds(
    store: str | Store, condition: StopWhen, turns: int, detail: str
) -> None:
    script: list[Any] = [
        [call("look")],
        ["Now it will fail.", call("fail", n=1)],
        [call("fail", n=2)],
        [call("submit", text="work")],
        [call("look", what="again")],
        [call("look", what="again")],
        "Done.",
    ]
    model = ScriptedModel(script, cost=lambda usage: 0.01)
    agent = Agent(name="clerk", model=model, tools=[look, fail, submit], stop_when=[condition])
    async with Runtime(store, agents=[agent]) as runtime:
        result = await soon((await runtime.open(agent)).run("go"))
    assert result.turns == turns
    if detail:
        assert result.reason == "stopped"
        assert result.detail.startswith(f"stop condition: {detail}")
    else:
        assert result.output == "Done."


async def test_a_stopped_run_can_go_on(memory: Store) -> None:
    agent = Agent(
        name="clerk", model=ScriptedModel([[call("look")], "Done."]), tools=[look], stop_when=[StopWhen(turns=1)]
    )
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        assert (await soon(session.run("go"))).reason == "stopped"
        assert (await soon(session.resume())).output == "Done."


async def test_an_agent_sets_its_guards(memory: Store) -> None:
    script = [[call("look")] for _ in range(6)] + ["Done."]
    agent = Agent(name="clerk", model=ScriptedModel(script), tools=[look], guards=Guards(repeated_calls=None))
    async with Runtime(memory, agents=[agent]) as runtime:
        assert (await soon((await runtime.open(agent)).run("go"))).output == "Done."


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"stop_when": [StopWhen()]}, "has no condition"),
        ({"stop_when": [StopWhen(text="(")]}, "is no pattern"),
        ({"window": Window(tokens=0)}, "tokens=0"),
        ({"window": Window(at=1.5)}, "at=1.5"),
        ({"window": Window(keep_last=0)}, "keep_last"),
        ({"window": 3}, "window takes Window"),
        ({"stop_when": StopWhen(turns=3)}, "stop_when is a list"),
        ({"context": "be nice"}, "context is a list"),
        ({"reminders": ["x"]}, "reminders takes Reminder"),
        ({"guardrails": [print]}, "guardrails takes Guardrail"),
        ({"hooks": ["a"]}, "hooks takes Hooks"),
        ({"plugins": ["a"]}, "plugins takes Plugin"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words.replace("(", r"\(")):
        Agent(name="clerk", model="scripted:x", **options)
