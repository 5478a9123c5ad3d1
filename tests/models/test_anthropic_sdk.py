"""MessagesWire's requests against those of the official SDK, and its reader against the SDK's."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import anthropic
import pytest

from perdure.core.messages import JSON, AssistantMessage, Text, Thinking, ToolCall, Usage, UserMessage
from perdure.core.specs import ModelSettings
from perdure.models.wires.messages import MessagesWire
from perdure.ports import ModelRequest
from tests.models.capture import Captured, capturing
from tests.models.conversation import FILES, NOTES, PDF, PNG, SCHEMA, TOOLS, answered, conversation
from tests.models.reading import read, recorded

MODEL = "claude-opus-5-5"
MARK = {"type": "ephemeral"}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": b64encode(PNG).decode()}}


async def sent(answer: bytes = b"", **fields: Any) -> tuple[Captured, anthropic.types.Message]:
    """What the SDK sends, and what it makes of the answer."""
    async with capturing(answer or recorded("anthropic")["text"]) as captured:
        client = anthropic.AsyncAnthropic(base_url=captured.url, api_key="key", max_retries=0)
        async with client, client.messages.stream(model=MODEL, **fields) as stream:
            return captured, await stream.get_final_message()


def ours(request: ModelRequest, wire: MessagesWire | None = None) -> JSON:
    return json.loads((wire or MessagesWire()).to_wire(request, MODEL, FILES))


def in_blocks(body: JSON) -> JSON:
    """The same request with every text written as a block: the API takes the short form for the same."""
    for message in body["messages"]:
        if isinstance(message["content"], str):
            message["content"] = [{"type": "text", "text": message["content"]}]
        for block in message["content"]:
            if isinstance(block.get("content"), str):
                block["content"] = [{"type": "text", "text": block["content"]}]
    if isinstance(body.get("system"), str):
        body["system"] = [{"type": "text", "text": body["system"]}]
    return body


def asked(**fields: Any) -> ModelRequest:
    return ModelRequest("anthropic:m", "", [UserMessage((Text("Hi"),))], **fields)


async def test_the_whole_conversation() -> None:
    thought = Thinking("Hm.", "c2lnbmF0dXJl")
    redacted = Thinking("", extras={"redacted": "ZGF0YQ=="})
    answer = answered("anthropic", thought)
    answer = AssistantMessage((answer.parts[0], redacted, *answer.parts[1:]), "anthropic")
    request = ModelRequest(
        "anthropic:m",
        "You look at things.",
        conversation(answer),
        tools=TOOLS,
        settings=ModelSettings(max_tokens=2000, thinking="medium", tool_choice="auto", parallel_calls=False),
        output=SCHEMA,
    )
    captured, _ = await sent(
        max_tokens=2000,
        system=[{"type": "text", "text": "You look at things.", "cache_control": MARK}],
        thinking={"type": "adaptive"},
        output_config={"effort": "medium", "format": {"type": "json_schema", "schema": SCHEMA}},
        tools=[
            {
                "name": "get_weather",
                "description": "The weather at a place.",
                "input_schema": {
                    "type": "object",
                    "properties": {"place": {"type": "string"}},
                    "required": ["place"],
                },
            },
            {"name": "now", "input_schema": {"type": "object", "properties": {}}, "cache_control": MARK},
        ],
        tool_choice={"type": "auto", "disable_parallel_tool_use": True},
        messages=[
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What is this?"},
                    IMAGE,
                    {
                        "type": "document",
                        "source": {
                            "type": "base64",
                            "media_type": "application/pdf",
                            "data": b64encode(PDF).decode(),
                        },
                        "title": "report.pdf",
                    },
                    {
                        "type": "document",
                        "source": {"type": "text", "media_type": "text/plain", "data": NOTES.decode()},
                    },
                ],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": "c2lnbmF0dXJl"},
                    {"type": "redacted_thinking", "data": "ZGF0YQ=="},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "c00000001", "name": "get_weather", "input": {"place": "Rome"}},
                    {"type": "tool_use", "id": "c00000002", "name": "now", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "c00000001",
                        "content": [{"type": "text", "text": "12 °C"}, IMAGE],
                    },
                    {
                        "type": "tool_result",
                        "tool_use_id": "c00000002",
                        "content": "no clock",
                        "is_error": True,
                        "cache_control": MARK,
                    },
                ],
            },
        ],
    )
    assert ours(request) == in_blocks(captured.body)


@pytest.mark.parametrize(
    ("settings", "fields"),
    [
        (ModelSettings(), {}),
        (ModelSettings(temperature=0.5, top_p=0.9, top_k=4), {"temperature": 0.5, "top_p": 0.9, "top_k": 4}),
        (ModelSettings(stop=("END", "STOP")), {"stop_sequences": ["END", "STOP"]}),
        (ModelSettings(thinking="off"), {"thinking": {"type": "disabled"}}),
        (ModelSettings(thinking=2048, max_tokens=9000), {"thinking": {"type": "enabled", "budget_tokens": 2048}}),
        (ModelSettings(thinking="high"), {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}),
        (ModelSettings(extra={"service_tier": "standard_only"}), {"service_tier": "standard_only"}),
    ],
)
async def test_settings(settings: ModelSettings, fields: dict[str, Any]) -> None:
    # The SDK has no parameters for sampling any more; they go as further fields of the body.
    sampling = {name: fields.pop(name) for name in ("temperature", "top_p", "top_k") if name in fields}
    captured, _ = await sent(
        max_tokens=settings.max_tokens or 32_000,
        messages=[{"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": MARK}]}],
        extra_body=sampling,
        **fields,
    )
    assert ours(asked(settings=settings)) == captured.body


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("auto", {"type": "auto"}),
        ("none", {"type": "none"}),
        ("required", {"type": "any"}),
        ("now", {"type": "tool", "name": "now"}),
    ],
)
async def test_tool_choice_without_cache_marks(choice: str, expected: Any) -> None:
    settings = ModelSettings(tool_choice=choice, cache=False)
    captured, _ = await sent(
        max_tokens=32_000,
        messages=[{"role": "user", "content": "Hi"}],
        tools=[{"name": "now", "input_schema": {"type": "object", "properties": {}}}],
        tool_choice=expected,
    )
    assert ours(asked(settings=settings, tools=TOOLS[1:])) == in_blocks(captured.body)


async def test_address_and_key() -> None:
    captured, _ = await sent(max_tokens=9, messages=[{"role": "user", "content": "Hi"}])
    wire = MessagesWire(bearer=True, version="2026-10-21")
    assert wire.address(captured.url, MODEL) == captured.url + captured.path
    assert all(captured.headers[name] == value for name, value in wire.headers("key").items())


@pytest.mark.parametrize("name", ["text", "tools", "thinking", "refusal"])
async def test_the_reader_sees_what_the_sdk_sees(name: str) -> None:
    stream = recorded("anthropic")[name]
    _, message = await sent(stream, max_tokens=9, messages=[{"role": "user", "content": "Hi"}])
    response = read(lambda: MessagesWire().from_wire(asked()), [stream]).response
    seen: list[Any] = []
    for block in message.content:
        match block.type:
            case "text":
                seen.append(Text(block.text))
            case "thinking":
                seen.append(Thinking(block.thinking, block.signature))
            case "redacted_thinking":
                seen.append(Thinking("", extras={"redacted": block.data}))
            case "tool_use":
                seen.append((block.name, block.input, block.id))
            case _:
                raise AssertionError(block)
    told = [(p.name, json.loads(p.arguments), p.id) if isinstance(p, ToolCall) else p for p in response.parts]
    assert told == seen
    assert isinstance(response.usage, Usage)
    assert response.usage.output == message.usage.output_tokens
    cached = (message.usage.cache_read_input_tokens or 0) + (message.usage.cache_creation_input_tokens or 0)
    assert response.usage.input == message.usage.input_tokens + cached
