"""Deferred tools: behind a search when they are many or large, and revealed for good when they are found."""

from __future__ import annotations

from typing import Any

from perdure import Agent, Runtime, tool
from perdure.ports import ModelRequest, Store
from perdure.runtime.tools import Tool
from perdure.testing import ScriptedModel, call
from tests.runtime.scenes import soon, told


@tool(effect="read")
async def look() -> str:
    """Look around."""
    return "seen"


@tool(effect="read", deferred=True)
async def send_invoice(order: str) -> str:
    """Send an invoice for an order to its customer.

    order: the order's number
    """
    return f"invoice for {order}"


@tool(effect="read", deferred=True)
async def weather_report(place: str) -> str:
    """Say how the weather is."""
    return f"rain in {place}"


def names(request: ModelRequest) -> list[str]:
    return [spec.name for spec in request.tools]


async def run(store: str | Store, script: Any, tools: list[Any], **options: Any) -> tuple[list[ModelRequest], Any]:
    model = ScriptedModel(script)
    agent = Agent(name="clerk", model=model, tools=tools, **options)
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="x")
        await soon(session.run("go"))
        return model.requests, await told(session)


async def test_a_deferred_tool_is_found_and_then_stays(store: str | Store) -> None:
    script = [
        [call("find_tools", query="send an invoice")],
        [call("send_invoice", order="7")],
        [call("look")],
        "Done.",
    ]
    requests, results = await run(store, script, [look, send_invoice, weather_report])
    first = ["find_tools", "look"]
    assert [names(request) for request in requests] == [first, *[[*first, "send_invoice"]] * 3]
    assert results[0][1:] == ("ok", "send_invoice: Send an invoice for an order to its customer.")
    assert results[1] == ("send_invoice", "ok", "invoice for 7")


async def test_what_was_found_is_still_there_after_a_restart(store: str | Store) -> None:
    await run(store, [[call("find_tools", query="weather")], "Done."], [look, send_invoice, weather_report])
    requests, _ = await run(store, ["Done."], [look, send_invoice, weather_report])
    assert names(requests[0]) == ["find_tools", "look", "weather_report"]


async def test_a_search_without_success_says_what_there_is(memory: Store) -> None:
    script = [[call("find_tools", query="xyzzy")], "Done."]
    requests, results = await run(memory, script, [look, send_invoice, weather_report])
    assert "send_invoice, weather_report" in results[0][2]
    assert names(requests[1]) == ["find_tools", "look"]


def many(count: int) -> list[Tool[..., Any]]:
    async def work(text: str) -> str:
        return text

    return [tool(work, name=f"work_{n}", effect="read", description="words " * 50) for n in range(count)]


async def test_schemas_beyond_the_size_are_deferred_by_themselves(memory: Store) -> None:
    requests, _ = await run(memory, ["Done."], many(40), defer_above=4000)
    shown = names(requests[0])
    assert shown[:2] == ["find_tools", "work_0"]
    assert 5 < len(shown) < 15
    requests, _ = await run(memory, ["Done."], many(40))
    assert len(names(requests[0])) == 40, "forty small ones are not too many"


async def test_without_deferred_tools_there_is_no_search(memory: Store) -> None:
    requests, _ = await run(memory, ["Done."], [look])
    assert names(requests[0]) == ["look"]
