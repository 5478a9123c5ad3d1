"""Our requests beside those of the official client for the same conversation: equal in meaning."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import openai

from perdure.core.messages import (
    AssistantMessage,
    Media,
    Message,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    ToolResult,
    UserMessage,
)
from perdure.core.specs import ModelSettings, ToolSpec
from perdure.models.wires.chat import ChatWire
from perdure.models.wires.responses import ResponsesWire
from perdure.models.wires.wire import Wire
from perdure.ports import ModelRequest
from tests.models.capture import Captured, capturing
from tests.models.fuzz_openai import CITY, FOLDER, TOTAL, WEATHER

FILES = {"img": b"\x89PNG", "pdf": b"%PDF"}
PNG = "data:image/png;base64," + b64encode(FILES["img"]).decode()
PDF = "data:application/pdf;base64," + b64encode(FILES["pdf"]).decode()
CLOCK = ToolSpec("get_time", "The time.", {"type": "object", "properties": {}})
SETTINGS = ModelSettings(
    temperature=0.5,
    top_p=0.9,
    max_tokens=100,
    seed=7,
    stop=("END",),
    presence_penalty=0.1,
    frequency_penalty=0.2,
    thinking="low",
    tool_choice="get_weather",
    parallel_calls=True,
)
REASONING: Any = {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "gAAAA"}


def talk(provider: str) -> tuple[Message, ...]:
    return (
        UserMessage(
            (
                Text("What is this?"),
                Media("image", "img", "image/png", 4),
                Media("document", "pdf", "application/pdf", 4, "a.pdf"),
            )
        ),
        AssistantMessage(
            (
                Thinking("", extras=REASONING if provider == "openai-responses" else None),
                Text("Let me look."),
                ToolCall(1, "get_weather", '{"city":"Paris"}', "call_a"),
                ToolCall(2, "get_time", "{}", "call_b"),
            ),
            provider,
        ),
        ToolMessage(
            (
                ToolResult(1, "get_weather", "ok", (Text("sunny"),)),
                ToolResult(2, "get_time", "error", (Text("It failed."),)),
            )
        ),
        AssistantMessage((Text("It is sunny."),), provider),
        UserMessage((Text("Thanks. And the total?"),)),
    )


def ours(wire: Wire, captured: Captured, **fields: Any) -> dict[str, Any]:
    request = ModelRequest("openai:gpt-5-mini", "Be brief.", talk(wire.name), cache_key="k", **fields)
    address = wire.address(captured.url + "/v1", "gpt-5-mini")
    assert address == captured.url + captured.path
    headers = wire.headers("secret")
    assert {name: captured.headers[name] for name in headers} == headers
    return json.loads(wire.to_wire(request, "gpt-5-mini", FILES))


def client(captured: Captured) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key="secret", base_url=captured.url + "/v1", max_retries=0)


CHAT_TALK: Any = [
    {"role": "system", "content": "Be brief."},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "What is this?"},
            {"type": "image_url", "image_url": {"url": PNG}},
            {"type": "file", "file": {"filename": "a.pdf", "file_data": PDF}},
        ],
    },
    {
        "role": "assistant",
        "content": "Let me look.",
        "tool_calls": [
            {
                "id": "c00000001",
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"city":"Paris"}'},
            },
            {"id": "c00000002", "type": "function", "function": {"name": "get_time", "arguments": "{}"}},
        ],
    },
    {"role": "tool", "tool_call_id": "c00000001", "content": "sunny"},
    {"role": "tool", "tool_call_id": "c00000002", "content": "It failed."},
    {"role": "assistant", "content": "It is sunny."},
    {"role": "user", "content": "Thanks. And the total?"},
]


async def test_chat_completions_like_the_official_client() -> None:
    async with capturing((FOLDER / "chat_text.sse").read_bytes()) as captured, client(captured) as sdk:
        stream = await sdk.chat.completions.create(
            model="gpt-5-mini",
            messages=CHAT_TALK,
            tools=[
                {
                    "type": "function",
                    "function": {"name": "get_weather", "description": WEATHER.description, "parameters": CITY},
                },
                {
                    "type": "function",
                    "function": {"name": "get_time", "description": "The time.", "parameters": CLOCK.parameters},
                },
            ],
            tool_choice={"type": "function", "function": {"name": "get_weather"}},
            parallel_tool_calls=True,
            response_format={"type": "json_schema", "json_schema": {"name": "output", "schema": TOTAL, "strict": True}},
            temperature=0.5,
            top_p=0.9,
            max_completion_tokens=100,
            seed=7,
            stop=["END"],
            presence_penalty=0.1,
            frequency_penalty=0.2,
            reasoning_effort="low",
            prompt_cache_key="k",
            stream=True,
            stream_options={"include_usage": True},
        )
        text = "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])
    wire = ChatWire()
    assert ours(wire, captured, tools=(WEATHER, CLOCK), settings=SETTINGS, output=TOTAL) == captured.body
    # And both read the same out of the answer.
    reader = wire.from_wire(ModelRequest("m", "", ()))
    reader.read((FOLDER / "chat_text.sse").read_bytes())
    assert reader.finish().parts == (Text(text),)


RESPONSES_TALK: Any = [
    {
        "type": "message",
        "role": "user",
        "content": [
            {"type": "input_text", "text": "What is this?"},
            {"type": "input_image", "image_url": PNG, "detail": "auto"},
            {"type": "input_file", "filename": "a.pdf", "file_data": PDF},
        ],
    },
    REASONING,
    {
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "Let me look."}],
    },
    {"type": "function_call", "call_id": "c00000001", "name": "get_weather", "arguments": '{"city":"Paris"}'},
    {"type": "function_call", "call_id": "c00000002", "name": "get_time", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c00000001", "output": "sunny"},
    {"type": "function_call_output", "call_id": "c00000002", "output": "It failed."},
    {
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "It is sunny."}],
    },
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Thanks. And the total?"}]},
]


async def test_responses_like_the_official_client() -> None:
    async with capturing((FOLDER / "responses_calls.sse").read_bytes()) as captured, client(captured) as sdk:
        stream = await sdk.responses.create(
            model="gpt-5-mini",
            instructions="Be brief.",
            input=RESPONSES_TALK,
            tools=[
                {
                    "type": "function",
                    "name": "get_weather",
                    "description": WEATHER.description,
                    "parameters": CITY,
                    "strict": False,
                },
                {
                    "type": "function",
                    "name": "get_time",
                    "description": "The time.",
                    "parameters": CLOCK.parameters,
                    "strict": False,
                },
            ],
            tool_choice={"type": "function", "name": "get_weather"},
            parallel_tool_calls=True,
            text={"format": {"type": "json_schema", "name": "output", "schema": TOTAL, "strict": True}},
            temperature=0.5,
            top_p=0.9,
            max_output_tokens=100,
            reasoning={"effort": "low"},
            prompt_cache_key="k",
            include=["reasoning.encrypted_content"],
            store=False,
            stream=True,
        )
        (done,) = [event.response async for event in stream if event.type == "response.completed"]
    wire = ResponsesWire()
    assert ours(wire, captured, tools=(WEATHER, CLOCK), settings=SETTINGS, output=TOTAL) == captured.body
    reader = wire.from_wire(ModelRequest("m", "", ()))
    reader.read((FOLDER / "responses_calls.sse").read_bytes())
    answer = AssistantMessage(reader.finish().parts, wire.name)
    back = json.loads(wire.to_wire(ModelRequest("m", "", (answer,)), "m", {}))["input"]
    assert [meaning(item) for item in back] == [meaning(item.to_dict()) for item in done.output]


def meaning(item: dict[str, Any]) -> dict[str, Any]:
    """An item without what pairs it, which is ours, and what the official client fills in."""
    content = [(part["type"], part["text"]) for part in item.get("content") or ()]
    unpaired = {key: value for key, value in item.items() if key not in ("call_id", "status", "content")}
    if item["type"] != "reasoning":
        unpaired.pop("id", None)
    return {**unpaired, "content": content}
