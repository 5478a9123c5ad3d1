"""GeminiWire's requests: written once, signatures in their place, foreign ones replaced, odd parts made sendable."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perdure.core.messages import (
    JSON,
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
from perdure.core.shared import Buffer
from perdure.core.specs import ModelSettings, ToolSpec
from perdure.models.wires.gemini import NO_SIGNATURE, GeminiWire, wire_for
from perdure.models.wires.wire import Wire
from perdure.ports import ModelRequest
from tests.models.conversation import ASKED, FILES, PNG, RESULTS, SCHEMA, TOOLS, answered, conversation

HI = UserMessage((Text("Hi"),))


def body(*messages: Message, wire: GeminiWire | None = None, **fields: Any) -> JSON:
    request = ModelRequest("google:m", fields.pop("instructions", ""), list(messages) or [HI], **fields)
    return json.loads((wire or GeminiWire()).to_wire(request, "m", FILES))


def test_it_is_a_wire() -> None:
    wire: Wire = GeminiWire()
    assert wire.name == "google"
    assert wire.continues is False
    assert hash(wire) == hash(GeminiWire())


def test_address_and_headers() -> None:
    wire = GeminiWire()
    expected = "https://g.example/v1beta/models/gemini-3:streamGenerateContent?alt=sse"
    for base in ("https://g.example", "https://g.example/", "https://g.example/v1beta"):
        assert wire.address(base, "gemini-3") == expected
    assert "/v1beta/tunedModels/x:stream" in wire.address("https://g.example", "tunedModels/x")
    assert wire.headers("key") == {"content-type": "application/json", "x-goog-api-key": "key"}
    assert "x-goog-api-key" not in wire.headers("")


def test_a_message_is_written_once_and_needs_its_files_once() -> None:
    # A message that was written again would miss its files.
    wire, answer = GeminiWire(), answered("google", None)
    history: Buffer[Message] = Buffer()
    history = history.add(ASKED)
    first = wire.to_wire(ModelRequest("m", "", history), "m", FILES)
    assert wire.to_wire(ModelRequest("m", "", history), "m", {}) == first
    second = wire.to_wire(ModelRequest("m", "", history.add(answer).add(RESULTS)), "m", {"png": PNG})
    assert second.startswith(first.removesuffix(b"]}") + b",")


def test_signatures_go_back_on_their_parts() -> None:
    signed = {"thoughtSignature": "QQ=="}
    answer = AssistantMessage(
        (
            Thinking("summary"),
            Thinking("Hm.", "Qg=="),
            Text("I look."),
            ToolCall(1, "f", "{}", "", signed),
            ToolCall(2, "g", "{}"),
            Text("", {"thoughtSignature": "Qw=="}),
        ),
        "google",
    )
    assert body(HI, answer)["contents"][1] == {
        "role": "model",
        "parts": [
            {"text": "Hm.", "thought": True, "thoughtSignature": "Qg=="},
            {"text": "I look."},
            {"functionCall": {"id": "c00000001", "name": "f", "args": {}}, "thoughtSignature": "QQ=="},
            {"functionCall": {"id": "c00000002", "name": "g", "args": {}}},
            {"text": "", "thoughtSignature": "Qw=="},
        ],
    }


def test_foreign_thoughts_and_signatures_are_dropped_and_the_first_call_gets_the_documented_value() -> None:
    answer = answered("anthropic", Thinking("Hm.", "theirs"), {"thoughtSignature": "theirs"})
    parts = body(*conversation(answer))["contents"][1]["parts"]
    assert parts == [
        {"text": "I look."},
        {
            "functionCall": {"id": "c00000001", "name": "get_weather", "args": {"place": "Rome"}},
            "thoughtSignature": NO_SIGNATURE,
        },
        {"functionCall": {"id": "c00000002", "name": "now", "args": {}}},
    ]


def test_an_answer_with_nothing_to_say_is_left_out() -> None:
    sent = body(HI, AssistantMessage((Thinking("Hm."), Text("")), "google"), HI)
    assert [content["role"] for content in sent["contents"]] == ["user", "user"]


@pytest.mark.parametrize("arguments", ["{half", "[1]", "null"])
def test_arguments_that_are_no_object_are_shown_as_they_were(arguments: str) -> None:
    sent = body(HI, AssistantMessage((ToolCall(1, "f", arguments),), "google"))
    assert sent["contents"][1]["parts"][0]["functionCall"]["args"] == {"unreadable_arguments": arguments}


def test_files_of_unknown_types_are_text_or_named() -> None:
    files = {"a": b'{"a": 1}', "b": b"PK\xff\xfe"}
    media = (Media("document", "a", "application/json", 8), Media("document", "b", "application/zip", 4, "b.zip"))
    messages: list[Message] = [UserMessage(media), ToolMessage((ToolResult(1, "f", "ok", (Text("see"), *media)),))]
    sent = json.loads(GeminiWire().to_wire(ModelRequest("m", "", messages), "m", files))["contents"]
    assert sent[0]["parts"][0]["inlineData"]["mimeType"] == "text/plain"
    assert "b.zip" in sent[0]["parts"][1]["text"]
    response = sent[1]["parts"][0]["functionResponse"]
    assert len(response["parts"]) == 1
    assert response["response"]["output"].startswith("see\n[b.zip ")


def test_media_of_results_beside_them() -> None:
    sent = body(*conversation(answered("google", None)), wire=GeminiWire(result_media="beside"))
    first, image, second = sent["contents"][2]["parts"]
    assert "parts" not in first["functionResponse"]
    assert image["inlineData"]["mimeType"] == "image/png"
    assert second["functionResponse"]["response"] == {"error": "no clock"}


@pytest.mark.parametrize(
    ("wire", "thinking", "expected"),
    [
        (GeminiWire(), None, None),
        (GeminiWire(), "high", {"thinkingLevel": "HIGH", "includeThoughts": True}),
        (GeminiWire(), -1, {"thinkingBudget": -1, "includeThoughts": True}),
        (GeminiWire(thinking="budget"), "off", {"thinkingBudget": 0, "includeThoughts": False}),
        (GeminiWire(thinking="budget"), "medium", {"thinkingBudget": 8192, "includeThoughts": True}),
    ],
)
def test_thinking(wire: GeminiWire, thinking: Any, expected: JSON) -> None:
    config = body(wire=wire, settings=ModelSettings(thinking=thinking)).get("generationConfig", {})
    assert config.get("thinkingConfig") == expected


@pytest.mark.parametrize(("max_tokens", "budget"), [(24_577, 24_576), (24_576, 12_288), (4096, 2048), (600, 512)])
def test_a_budget_leaves_room_for_words(max_tokens: int, budget: int) -> None:
    for wire, wish in ((GeminiWire(thinking="budget"), "high"), (GeminiWire(), 24_576)):
        settings = ModelSettings(thinking=wish, max_tokens=max_tokens)  # type: ignore[arg-type]
        config = body(wire=wire, settings=settings)["generationConfig"]
        assert (config["maxOutputTokens"], config["thinkingConfig"]["thinkingBudget"]) == (max_tokens, budget)


@pytest.mark.parametrize(
    ("tools", "choice", "expected"),
    [
        ((), "", {"mode": "ANY"}),
        (TOOLS, "", {"mode": "ANY"}),
        (TOOLS, "none", {"mode": "ANY", "allowedFunctionNames": ["final_answer"]}),
        (TOOLS, "now", {"mode": "ANY", "allowedFunctionNames": ["now"]}),
    ],
)
def test_output_by_a_tool(tools: tuple[ToolSpec, ...], choice: str, expected: JSON) -> None:
    wire = GeminiWire(output="tool")
    sent = body(wire=wire, output=SCHEMA, tools=tools, settings=ModelSettings(tool_choice=choice))
    assert sent["tools"][0]["functionDeclarations"][-1]["parametersJsonSchema"] == SCHEMA
    assert sent["toolConfig"] == {"functionCallingConfig": expected}
    assert "generationConfig" not in sent


def test_no_tools_no_choice_and_extra_fields() -> None:
    settings = ModelSettings(tool_choice="required", extra={"labels": {"a": "b"}})
    assert body(settings=settings) == {
        "labels": {"a": "b"},
        "contents": [{"role": "user", "parts": [{"text": "Hi"}]}],
    }


def test_wires_for_models() -> None:
    assert wire_for("gemini-3.5-flash") == GeminiWire()
    assert wire_for("gemini-2.5-pro") == GeminiWire(thinking="budget", output="tool", result_media="beside")
