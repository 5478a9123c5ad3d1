"""Our Chat, Responses and Messages adapters against the real llama.cpp server and a real model."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import msgspec
import pytest

from perdure import ModelError
from perdure.core.deltas import ModelDelta, TextDelta
from perdure.core.messages import Text, ToolCall
from perdure.core.specs import ModelSettings, ToolSpec
from perdure.models.account import Account
from perdure.models.http_model import HttpModel
from perdure.models.local_process import LocalEndpoint, LocalServer
from perdure.models.wires.chat import ChatWire
from perdure.models.wires.messages import MessagesWire
from perdure.models.wires.responses import ResponsesWire
from perdure.models.wires.wire import Wire
from perdure.ports import ModelRequest, ModelResponse
from perdure.testing.model_contract import check_model
from tests.models.smollm2 import question, smollm2

PATIENCE = 20.0

WIRES: dict[str, Wire] = {"chat": ChatWire(), "responses": ResponsesWire(encrypts=False), "messages": MessagesWire()}
all_wires = pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES)

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
SUM = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
TOOLS = (ToolSpec("weather", "Tells the weather of a city.", CITY), ToolSpec("add", "Adds two numbers.", SUM))


@pytest.fixture(scope="module")
def endpoint() -> Iterator[LocalEndpoint]:
    with pytest.MonkeyPatch.context() as patch:
        server = LocalServer(smollm2(patch.setenv))
        try:
            yield asyncio.run(server.endpoint(server))
        finally:
            server.leave(server)


def model_at(endpoint: LocalEndpoint, wire: Wire, key: str | None = None) -> HttpModel:
    return HttpModel("smollm2", "smollm2", wire, Account(f"{endpoint.address}/v1", api_key=key or endpoint.key))


async def ask(endpoint: LocalEndpoint, wire: Wire, request: ModelRequest) -> tuple[list[ModelDelta], ModelResponse]:
    model = model_at(endpoint, wire)
    try:
        *deltas, response = [item async for item in model.stream(request)]
    finally:
        await model.close()
    assert isinstance(response, ModelResponse)
    return deltas, response


def text_of(response: ModelResponse) -> str:
    return "".join(part.text for part in response.parts if isinstance(part, Text))


def slots(endpoint: LocalEndpoint) -> list[dict[str, Any]]:
    asked = urllib.request.Request(f"{endpoint.address}/slots", headers={"Authorization": f"Bearer {endpoint.key}"})
    with urllib.request.urlopen(asked, timeout=PATIENCE) as answer:
        return json.load(answer)


@all_wires
async def test_an_answer_is_streamed_and_counted(endpoint: LocalEndpoint, wire: Wire) -> None:
    deltas, response = await ask(endpoint, wire, question())
    pieces = [delta.text for delta in deltas if isinstance(delta, TextDelta)]
    assert len(pieces) > 3, "more than one piece"
    assert "".join(pieces) == text_of(response)
    assert text_of(response).strip()
    # This server calls every answer of its Responses completed, also one that came to its limit.
    assert response.stop == ("end" if isinstance(wire, ResponsesWire) else "length")
    assert response.usage is not None
    assert response.usage.output == 16, "as it was asked for"
    assert 15 < response.usage.input < 60


@all_wires
async def test_the_same_question_gets_the_same_answer_on_every_wire(endpoint: LocalEndpoint, wire: Wire) -> None:
    """So instructions, roles and settings reach the model alike."""
    _, expected = await ask(endpoint, ChatWire(), question("Count from one to five."))
    _, response = await ask(endpoint, wire, question("Count from one to five."))
    assert text_of(response) == text_of(expected)


@all_wires
async def test_a_prompt_that_was_read_before_counts_as_cached(endpoint: LocalEndpoint, wire: Wire) -> None:
    request = question("Tell me about the sea, the wind and the sand of a long beach.")
    _, first = await ask(endpoint, wire, request)
    _, again = await ask(endpoint, wire, request)
    assert first.usage is not None
    assert again.usage is not None
    assert again.usage.input == first.usage.input, "all of the prompt, cached or not"
    assert again.usage.input > again.usage.cached > 0


@all_wires
async def test_a_stream_that_is_closed_stops_the_server(endpoint: LocalEndpoint, wire: Wire) -> None:
    request = question("Write a very long story.", settings=ModelSettings(max_tokens=4000, temperature=0.0))
    model = model_at(endpoint, wire)
    async with aclosing(model.stream(request)) as stream:
        async for item in stream:
            assert not isinstance(item, ModelResponse)
            if isinstance(item, TextDelta):
                break
        assert any(slot["is_processing"] for slot in await asyncio.to_thread(slots, endpoint))
    await model.close()
    async with asyncio.timeout(PATIENCE):
        while any(slot["is_processing"] for slot in await asyncio.to_thread(slots, endpoint)):
            await asyncio.sleep(0.02)


@all_wires
async def test_a_prompt_that_is_too_long(endpoint: LocalEndpoint, wire: Wire) -> None:
    with pytest.raises(ModelError) as caught:
        await ask(endpoint, wire, question("word " * 9000))
    assert caught.value.kind == "context_too_long"


@all_wires
async def test_a_wrong_key(endpoint: LocalEndpoint, wire: Wire) -> None:
    model = model_at(endpoint, wire, key="some-other-key")
    with pytest.raises(ModelError) as caught:
        await anext(model.stream(question()))
    await model.close()
    assert caught.value.kind == "auth"
    assert "some-other-key" not in str(caught.value)


JSON_TOOLS = ChatWire(tools="json")


@pytest.mark.parametrize("wire", [ChatWire(), JSON_TOOLS], ids=["native", "json"])
async def test_output_that_follows_a_schema(endpoint: LocalEndpoint, wire: Wire) -> None:
    """On Chat alone: for Responses and Messages this server ignores the schema."""
    settings = ModelSettings(temperature=0.0, max_tokens=60)
    _, response = await ask(endpoint, wire, question("Take two and three.", output=SUM, settings=settings))
    value = json.loads(text_of(response))
    assert set(value) == {"a", "b"}
    assert all(type(number) is int for number in value.values())


@pytest.mark.parametrize("choice", ["weather", "add", "required", "", "none"])
async def test_tools_by_grammar_make_valid_calls(endpoint: LocalEndpoint, choice: str) -> None:
    settings = ModelSettings(temperature=0.0, max_tokens=120, tool_choice=choice)
    request = question("What is the weather in Paris?", tools=TOOLS, settings=settings)
    _, response = await ask(endpoint, JSON_TOOLS, request)
    calls = [part for part in response.parts if isinstance(part, ToolCall)]
    if choice == "none":
        assert calls == []
    elif choice != "":
        (call,) = calls
        assert choice in ("required", call.name)
        assert response.stop == "calls"
    for call in calls:
        arguments = json.loads(call.arguments)
        kinds = {"weather": {"city": str}, "add": {"a": int, "b": int}}[call.name]
        assert {name: type(value) for name, value in arguments.items()} == kinds
    if not calls:
        assert not text_of(response).startswith("{"), "the answer, not the object around it"


@pytest.mark.parametrize("wire", [ChatWire(continues=True), MessagesWire(continues=True)], ids=["chat", "messages"])
async def test_an_answer_goes_on_from_its_beginning(endpoint: LocalEndpoint, wire: Wire) -> None:
    request = question("Say the alphabet.", settings=ModelSettings(temperature=0.0, max_tokens=24))
    _, whole = await ask(endpoint, wire, request)
    half = text_of(whole)[: len(text_of(whole)) // 2].rpartition(" ")[0]
    deltas, rest = await ask(endpoint, wire, msgspec.structs.replace(request, prefix=(Text(half),)))
    assert isinstance(deltas[0], TextDelta)
    assert not text_of(rest).startswith(half), "what was there is not said again"
    assert (half + text_of(rest)).startswith(text_of(whole)[: len(half) + 4])


@all_wires
async def test_one_question_right_after_the_other(endpoint: LocalEndpoint, wire: Wire) -> None:
    """This server closes a connection after it has streamed, without saying so before."""
    model = model_at(endpoint, wire)
    try:
        for _ in range(4):
            items = [
                item async for item in model.stream(question(settings=ModelSettings(max_tokens=2, temperature=0.0)))
            ]
            assert isinstance(items[-1], ModelResponse)
    finally:
        await model.close()


@pytest.mark.slow
@all_wires
async def test_the_contract_of_models(endpoint: LocalEndpoint, wire: Wire) -> None:
    short = ModelSettings(temperature=0.0, max_tokens=8)
    requests = (question("Say yes.", settings=short), question("Say no.", settings=short))
    models: list[HttpModel] = []

    def make_model() -> HttpModel:
        models.append(model_at(endpoint, wire))
        return models[-1]

    report = await check_model(make_model, requests)
    for model in models:
        await model.close()
    assert report.failed == {}
