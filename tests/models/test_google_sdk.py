"""GeminiWire's requests against those of the official SDK, and its reader against the SDK's."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from typing import Any

import pytest
from google import genai
from google.genai import types

from perdure.core.messages import JSON, Text, Thinking, ToolCall, UserMessage
from perdure.core.specs import ModelSettings
from perdure.models.wires.gemini import GeminiWire
from perdure.ports import ModelRequest
from tests.models.capture import Captured, capturing
from tests.models.conversation import FILES, NOTES, PDF, PNG, SCHEMA, TOOLS, WEATHER, answered, conversation
from tests.models.reading import read, recorded

# The SDK derives from aiohttp's session, which warns of that.
pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class:DeprecationWarning")

MODEL = "gemini-3.5-flash"
BY_HAND = types.AutomaticFunctionCallingConfig(disable=True)
SIGNATURE = b"signature"
HI = [types.Content(role="user", parts=[types.Part(text="Hi")])]


async def sent(
    contents: list[types.Content], answer: bytes = b"", **config: Any
) -> tuple[Captured, list[types.GenerateContentResponse]]:
    """What the SDK sends, and what it makes of the answer."""
    async with capturing(answer or recorded("google")["text"]) as captured:
        client = genai.Client(api_key="key", http_options=types.HttpOptions(base_url=captured.url))
        settings = types.GenerateContentConfig(automatic_function_calling=BY_HAND, **config)
        stream = await client.aio.models.generate_content_stream(model=MODEL, contents=list(contents), config=settings)
        seen = [chunk async for chunk in stream]
        await client.aio.aclose()
        client.close()
        return captured, seen


def ours(request: ModelRequest, wire: GeminiWire | None = None) -> JSON:
    return json.loads((wire or GeminiWire()).to_wire(request, MODEL, FILES))


def in_camels(value: JSON) -> JSON:
    """The same with every name in camel case: Google reads both, and the SDK mixes them."""
    match value:
        case dict():
            return {re.sub(r"_([a-z])", lambda found: found[1].upper(), key): in_camels(v) for key, v in value.items()}
        case list():
            return [in_camels(item) for item in value]
        case _:
            return value


def theirs(captured: Captured) -> JSON:
    body = in_camels(captured.body)
    # An instruction has no speaker; the SDK writes one, which is ignored.
    body.get("systemInstruction", {}).pop("role", None)
    return {key: value for key, value in body.items() if value != {}}


def asked(**fields: Any) -> ModelRequest:
    return ModelRequest("google:m", "", [UserMessage((Text("Hi"),))], **fields)


def declared(name: str, description: str | None, schema: JSON) -> types.FunctionDeclaration:
    return types.FunctionDeclaration(name=name, description=description, parameters_json_schema=schema)


async def test_the_whole_conversation() -> None:
    signed = b64encode(SIGNATURE).decode()
    answer = answered("google", Thinking("Hm.", signed), {"thoughtSignature": signed})
    request = ModelRequest(
        "google:m",
        "You look at things.",
        conversation(answer),
        tools=TOOLS,
        settings=ModelSettings(thinking="low", tool_choice="required"),
        output=SCHEMA,
    )
    contents = [
        types.Content(
            role="user",
            parts=[
                types.Part(text="What is this?"),
                types.Part.from_bytes(data=PNG, mime_type="image/png"),
                types.Part.from_bytes(data=PDF, mime_type="application/pdf"),
                types.Part.from_bytes(data=NOTES, mime_type="text/plain"),
            ],
        ),
        types.Content(
            role="model",
            parts=[
                types.Part(text="Hm.", thought=True, thought_signature=SIGNATURE),
                types.Part(text="I look."),
                types.Part(
                    function_call=types.FunctionCall(id="c00000001", name="get_weather", args={"place": "Rome"}),
                    thought_signature=SIGNATURE,
                ),
                types.Part(function_call=types.FunctionCall(id="c00000002", name="now", args={})),
            ],
        ),
        types.Content(
            role="user",
            parts=[
                types.Part(
                    function_response=types.FunctionResponse(
                        id="c00000001",
                        name="get_weather",
                        response={"output": "12 °C"},
                        parts=[types.FunctionResponsePart.from_bytes(data=PNG, mime_type="image/png")],
                    )
                ),
                types.Part(
                    function_response=types.FunctionResponse(id="c00000002", name="now", response={"error": "no clock"})
                ),
            ],
        ),
    ]
    captured, _ = await sent(
        contents,
        system_instruction="You look at things.",
        tools=[
            types.Tool(
                function_declarations=[
                    declared("get_weather", "The weather at a place.", WEATHER.parameters),
                    declared("now", None, {"type": "object", "properties": {}}),
                ]
            )
        ],
        tool_config=types.ToolConfig(
            function_calling_config=types.FunctionCallingConfig(mode=types.FunctionCallingConfigMode.ANY)
        ),
        thinking_config=types.ThinkingConfig(thinking_level=types.ThinkingLevel.LOW, include_thoughts=True),
        response_mime_type="application/json",
        response_json_schema=SCHEMA,
    )
    assert ours(request) == theirs(captured)


@pytest.mark.parametrize(
    ("settings", "config"),
    [
        (ModelSettings(), {}),
        (
            ModelSettings(temperature=0.5, top_p=0.9, top_k=4, max_tokens=99, seed=7),
            {"temperature": 0.5, "top_p": 0.9, "top_k": 4, "max_output_tokens": 99, "seed": 7},
        ),
        (
            ModelSettings(stop=("END",), presence_penalty=0.1, frequency_penalty=0.2),
            {"stop_sequences": ["END"], "presence_penalty": 0.1, "frequency_penalty": 0.2},
        ),
        (
            ModelSettings(thinking=512),
            {"thinking_config": types.ThinkingConfig(thinking_budget=512, include_thoughts=True)},
        ),
        (
            ModelSettings(thinking="off"),
            {"thinking_config": {"thinking_level": types.ThinkingLevel.MINIMAL, "include_thoughts": False}},
        ),
    ],
)
async def test_settings(settings: ModelSettings, config: dict[str, Any]) -> None:
    captured, _ = await sent(HI, **config)
    assert ours(asked(settings=settings)) == theirs(captured)


@pytest.mark.parametrize(
    ("choice", "mode", "names"),
    [
        ("auto", types.FunctionCallingConfigMode.AUTO, None),
        ("none", types.FunctionCallingConfigMode.NONE, None),
        ("required", types.FunctionCallingConfigMode.ANY, None),
        ("now", types.FunctionCallingConfigMode.ANY, ["now"]),
    ],
)
async def test_tool_choice(choice: str, mode: types.FunctionCallingConfigMode, names: list[str] | None) -> None:
    calling = types.FunctionCallingConfig(mode=mode, allowed_function_names=names)
    captured, _ = await sent(
        HI,
        tools=[types.Tool(function_declarations=[declared("now", None, {"type": "object", "properties": {}})])],
        tool_config=types.ToolConfig(function_calling_config=calling),
    )
    assert ours(asked(settings=ModelSettings(tool_choice=choice), tools=TOOLS[1:])) == theirs(captured)


async def test_address_and_key() -> None:
    captured, _ = await sent(HI)
    wire = GeminiWire(version="v1")
    assert wire.address(captured.url, MODEL) == captured.url + captured.path
    assert all(captured.headers[name] == value for name, value in wire.headers("key").items())


@pytest.mark.parametrize("name", ["text", "tools", "thinking", "signed_thought"])
async def test_the_reader_sees_what_the_sdk_sees(name: str) -> None:
    stream = recorded("google")[name]
    _, chunks = await sent(HI, stream)
    response = read(lambda: GeminiWire().from_wire(asked()), [stream]).response
    parts = [part for chunk in chunks for part in ((chunk.candidates or [])[0].content or types.Content()).parts or []]
    calls = [part.function_call for part in parts if part.function_call]
    assert [(p.name, json.loads(p.arguments)) for p in response.parts if isinstance(p, ToolCall)] == [
        (call.name, call.args or {}) for call in calls
    ]
    for is_thought, kind in ((True, Thinking), (None, Text)):
        said = "".join(part.text or "" for part in parts if part.thought is is_thought)
        assert "".join(p.text for p in response.parts if isinstance(p, kind)) == said
    signatures = [b64encode(part.thought_signature).decode() for part in parts if part.thought_signature]
    kept = [
        p.signature if isinstance(p, Thinking) else (p.extras or {}).get("thoughtSignature") for p in response.parts
    ]
    assert [signature for signature in kept if signature] == signatures
