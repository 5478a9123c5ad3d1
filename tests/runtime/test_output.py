"""Structured output: validated, repaired at most twice, and read back in its type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pydantic
import pytest

from perdure import Agent, RunIncomplete, Runtime, UsageError, tool
from perdure.events import ModelResponded, RunEnded, RunStarted
from perdure.ports import Store
from perdure.testing import ScriptedModel, call
from tests.runtime.scenes import events, said, soon


@dataclass
class Invoice:
    order: str
    cents: int


class Receipt(msgspec.Struct, frozen=True):
    order: str
    paid: bool


class Letter(pydantic.BaseModel):
    to: str
    lines: list[str] = pydantic.Field(min_length=1)


def clerk(output: Any, *answers: Any, **options: Any) -> Agent[Any]:
    return Agent(name="clerk", model=ScriptedModel(list(answers)), output=output, **options)


@pytest.mark.parametrize(
    ("output", "answer", "value"),
    [
        (Invoice, '{"order": "7", "cents": 990}', Invoice("7", 990)),
        (Receipt, '{"order": "7", "paid": true}', Receipt("7", True)),
        (Letter, '{"to": "bob", "lines": ["hello"]}', Letter(to="bob", lines=["hello"])),
        (list[int], "[1, 2, 3]", [1, 2, 3]),
        (int, " 7 ", 7),
        (dict[str, float], '{"a": 1.5}', {"a": 1.5}),
        ([Invoice, Receipt], '{"order": "7", "paid": false}', Receipt("7", False)),
        ([Invoice, Receipt], '{"order": "7", "cents": 1}', Invoice("7", 1)),
        ([Letter, Receipt], '{"to": "eve", "lines": ["x"]}', Letter(to="eve", lines=["x"])),
        (str, "Just text, no JSON.", "Just text, no JSON."),
    ],
)
async def test_the_answer_comes_in_its_type(store: str | Store, output: Any, answer: str, value: Any) -> None:
    agent = clerk(output, answer)
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        result = await soon(session.run("go", key="k"))
        assert result.output == value
        assert type(result.output) is type(value)
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        again = await soon(session.run("go", key="k"))
        assert again.output == value
        assert type(again.output) is type(value)


async def test_the_model_is_told_the_schema(memory: Store) -> None:
    agent = clerk(Invoice, '{"order": "7", "cents": 990}')
    async with Runtime(memory, agents=[agent]) as runtime:
        await (await runtime.open(agent)).run("go")
    schema = agent.model.requests[0].output  # type: ignore[union-attr]
    assert schema["properties"] == {"order": {"type": "string"}, "cents": {"type": "integer"}}


async def test_an_answer_that_does_not_fit_is_repaired(store: str | Store) -> None:
    agent = clerk(Invoice, "Sure!", '{"order": "7"}', '{"order": "7", "cents": 990}')
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        result = await soon(session.run("go"))
        assert (result.output, result.turns) == (Invoice("7", 990), 3)
        _, first, second = await said(session)
        assert "does not fit the output type" in first
        assert first.endswith(". Answer again, corrected.")
        assert "`cents`" in second
        assert [bool(responded.invalid) for responded in await events(session, ModelResponded)] == [True, True, False]


async def test_after_two_repairs_the_run_fails(store: str | Store) -> None:
    model = ScriptedModel(lambda _: "Sure!")
    agent = Agent(name="clerk", model=model, output=Invoice)
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        result = await soon(session.run("go"))
        assert (result.reason, result.turns) == ("failed", 3)
        assert result.detail.startswith("output: ")
        with pytest.raises(RunIncomplete):
            _ = result.output
    assert len(model.requests) == 3


async def test_calls_on_the_way_are_not_taken_for_answers(memory: Store) -> None:
    @tool(effect="read")
    async def look() -> str:
        return "990 cents"

    agent = clerk(Invoice, ["Let me look.", call("look")], '{"order": "7", "cents": 990}', tools=[look])
    async with Runtime(memory, agents=[agent]) as runtime:
        result = await soon((await runtime.open(agent)).run("go"))
        assert (result.output, result.turns) == (Invoice("7", 990), 2)


async def test_a_run_may_have_its_own_output_type(store: str | Store) -> None:
    agent = clerk(Invoice, '{"order": "7", "paid": true}', '{"order": "7", "cents": 1}', "Plain words.", "12")
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        assert (await soon(session.run("one", output=Receipt, key="one"))).output == Receipt("7", True)
        assert (await soon(session.run("two"))).output == Invoice("7", 1)
        assert (await soon(session.run("three", output=str))).output == "Plain words."
        assert (await soon(session.run("four", output=[int, list[int]]))).output == 12
        schemas = [started.output for started in await events(session, RunStarted)]
        assert schemas[0] != schemas[1]
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        assert (await soon(session.run("one", output=Receipt, key="one"))).output == Receipt("7", True)


async def test_an_output_type_for_an_agent_without_one(memory: Store) -> None:
    agent = Agent(name="clerk", model=ScriptedModel(['{"order": "7", "cents": 1}', "Words."]))
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        assert (await soon(session.run("one", output=Invoice))).output == Invoice("7", 1)
        assert (await soon(session.run("two"))).output == "Words."
        assert (await session.run("two", output=str)).reason == "failed", "the script is at its end"


async def test_an_output_that_no_longer_fits_its_type_is_told(store: str | Store) -> None:
    before = clerk(Invoice, '{"order": "7", "cents": 990}')
    after = clerk(Receipt, "unused")
    async with Runtime(store, agents=[before]) as runtime:
        await soon((await runtime.open(before, id="x")).run("go", key="k"))
    async with Runtime(store, agents=[after]) as runtime:
        session = await runtime.open(after, id="x")
        with pytest.raises(UsageError, match="output of run 1 no longer fits its type"):
            await session.run("go", key="k")
        (ended,) = await events(session, RunEnded)
        assert ended.output == {"order": "7", "cents": 990}, "the records still have it"


async def test_what_is_kept_is_what_the_type_made_of_it(memory: Store) -> None:
    class Sloppy(pydantic.BaseModel):
        name: str
        note: str = "none"

    agent = clerk(Sloppy, '{"name": "x", "unknown": 1}')
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        result = await soon(session.run("go"))
        assert result.output == Sloppy(name="x")
        (ended,) = await events(session, RunEnded)
        assert ended.output == {"name": "x", "note": "none"}


async def test_hostile_answers_are_repaired_like_others(memory: Store) -> None:
    agent = clerk(Any, "[" * 100_000, "NaN", '{"a": 1, "a": 2}')
    async with Runtime(memory, agents=[agent]) as runtime:
        session = await runtime.open(agent)
        assert (await soon(session.run("go"))).output == {"a": 2}
