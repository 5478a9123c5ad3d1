"""MessagesWire's requests: written once, marked for the cache, foreign parts dropped, odd ones made sendable."""

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
from perdure.models.wires.messages import MessagesWire, wire_for
from perdure.models.wires.messages_schema import close_schema
from perdure.models.wires.wire import Wire
from perdure.ports import ModelRequest
from tests.models.conversation import ASKED, FILES, PNG, RESULTS, SCHEMA, TOOLS, answered, conversation

MARK = b'"cache_control":{"type":"ephemeral"}'
HI = UserMessage((Text("Hi"),))


def body(*messages: Message, wire: MessagesWire | None = None, **fields: Any) -> JSON:
    request = ModelRequest("anthropic:m", fields.pop("instructions", ""), list(messages) or [HI], **fields)
    return json.loads((wire or MessagesWire()).to_wire(request, "m", FILES))


def test_it_is_a_wire() -> None:
    wire: Wire = MessagesWire()
    assert wire.name == "anthropic"
    assert hash(wire) == hash(MessagesWire())
    assert wire != MessagesWire(max_tokens=1)


def test_address_and_headers() -> None:
    wire = MessagesWire()
    for base in ("https://api.anthropic.com", "https://api.anthropic.com/", "https://api.anthropic.com/v1"):
        assert wire.address(base, "m") == "https://api.anthropic.com/v1/messages"
    assert wire.headers("key") == {
        "content-type": "application/json",
        "anthropic-version": "2023-06-01",
        "x-api-key": "key",
    }
    assert MessagesWire(bearer=True).headers("key")["authorization"] == "Bearer key"
    assert "x-api-key" not in MessagesWire(bearer=True).headers("key")
    assert MessagesWire(betas=("a", "b")).headers("")["anthropic-beta"] == "a,b"
    assert not {"x-api-key", "authorization"} & set(wire.headers(""))


def test_a_message_is_written_once_and_needs_its_files_once() -> None:
    # A message that was written again would miss its files.
    wire, answer = MessagesWire(), answered("anthropic", Thinking("Hm.", "sig"))
    history: Buffer[Message] = Buffer()
    history = history.add(ASKED)
    first = wire.to_wire(ModelRequest("m", "", history), "m", FILES)
    again = wire.to_wire(ModelRequest("m", "", history), "m", {})
    assert again == first
    grown = history.add(answer).add(RESULTS)
    second = wire.to_wire(ModelRequest("m", "", grown), "m", {"png": PNG})
    # Apart from its mark the older message has the same bytes, so the provider's cache knows it again.
    asked = first[: first.index(b"," + MARK)]
    assert second.startswith(asked + b"}]},")
    assert second.count(MARK) == 1
    assert second.endswith(MARK + b"}]}]}")


def test_marks_are_on_the_last_tool_the_system_text_and_the_last_block() -> None:
    messages = conversation(answered("anthropic", None))
    sent = body(*messages, instructions="Be brief.", tools=TOOLS)
    assert ["cache_control" in tool for tool in sent["tools"]] == [False, True]
    assert "cache_control" in sent["system"][-1]
    assert ["cache_control" in block for block in sent["messages"][-1]["content"]] == [False, True]
    assert json.dumps(sent).count("cache_control") == 3
    plain = body(*messages, instructions="Be brief.", tools=TOOLS, settings=ModelSettings(cache=False))
    assert "cache_control" not in json.dumps(plain)


def test_an_answer_at_the_end_is_not_marked() -> None:
    sent = body(HI, AssistantMessage((Thinking("Hm.", "sig"),), "anthropic"))
    assert "cache_control" not in json.dumps(sent["messages"])


def test_foreign_thoughts_are_dropped_and_words_and_calls_kept() -> None:
    answer = answered("openai", Thinking("Hm.", "theirs", {"redacted": "x"}), {"thoughtSignature": "y"})
    sent = body(*conversation(answer))
    assert [block["type"] for block in sent["messages"][1]["content"]] == ["text", "tool_use", "tool_use"]
    assert "theirs" not in json.dumps(sent)


def test_a_thought_without_a_signature_is_not_sent_and_an_empty_answer_neither() -> None:
    answer = AssistantMessage((Thinking("Hm."), Text(" \n")), "anthropic")
    assert [message["role"] for message in body(HI, answer, HI)["messages"]] == ["user", "user"]


def test_blank_text_is_left_out() -> None:
    result = ToolMessage((ToolResult(1, "f", "ok", (Text(""),)),))
    sent = body(UserMessage((Text(" "), Text("Hi"))), UserMessage((Text(""),)), result)["messages"]
    assert sent[0]["content"] == [{"type": "text", "text": "Hi"}]
    assert sent[1]["content"][0]["text"]
    assert "content" not in sent[2]["content"][0]


@pytest.mark.parametrize("arguments", ["{half", "[1]", '"text"', "null"])
def test_arguments_that_are_no_object_are_shown_as_they_were(arguments: str) -> None:
    sent = body(HI, AssistantMessage((ToolCall(1, "f", arguments),), "anthropic"))
    assert sent["messages"][1]["content"][0]["input"] == {"unreadable_arguments": arguments}


def test_files_that_cannot_be_shown_are_named() -> None:
    files = {"a": b"BM...", "b": b"PK\xff\xfe"}
    parts = (Media("image", "a", "image/bmp", 5, "a.bmp"), Media("document", "b", "application/zip", 4))
    request = ModelRequest("m", "", [UserMessage(parts)])
    sent = json.loads(MessagesWire().to_wire(request, "m", files))
    assert [block["type"] for block in sent["messages"][0]["content"]] == ["text", "text"]
    assert "a.bmp" in sent["messages"][0]["content"][0]["text"]


@pytest.mark.parametrize(
    ("wire", "settings", "expected"),
    [
        (MessagesWire(), ModelSettings(), (32_000, None, None)),
        (MessagesWire(max_tokens=8), ModelSettings(), (8, None, None)),
        (MessagesWire(), ModelSettings(max_tokens=5), (5, None, None)),
        (MessagesWire(), ModelSettings(thinking="low"), (32_000, {"type": "adaptive"}, "low")),
        (MessagesWire(), ModelSettings(thinking=0), (32_000, {"type": "disabled"}, None)),
        (MessagesWire(), ModelSettings(thinking=4000), (36_000, {"type": "enabled", "budget_tokens": 4000}, None)),
        (
            MessagesWire(thinking="budget"),
            ModelSettings(thinking="medium"),
            (40_192, {"type": "enabled", "budget_tokens": 8192}, None),
        ),
    ],
)
def test_max_tokens_and_thinking(wire: MessagesWire, settings: ModelSettings, expected: tuple[Any, ...]) -> None:
    sent = body(wire=wire, settings=settings)
    assert (sent["max_tokens"], sent.get("thinking"), sent.get("output_config", {}).get("effort")) == expected


@pytest.mark.parametrize(
    ("max_tokens", "budget"),
    [(40_000, 24_576), (24_577, 24_576), (24_576, 12_288), (4096, 2048), (2048, 1024), (2000, None)],
)
def test_a_budget_is_always_less_than_all_that_may_be_written(max_tokens: int, budget: int | None) -> None:
    for wire, wish in ((MessagesWire(thinking="budget"), "high"), (MessagesWire(), 24_576)):
        settings = ModelSettings(thinking=wish, max_tokens=max_tokens)  # type: ignore[arg-type]
        sent = body(wire=wire, settings=settings)
        assert (sent["max_tokens"], (sent.get("thinking") or {}).get("budget_tokens")) == (max_tokens, budget)


def test_with_a_budget_no_thinking_goes_on_in_a_turn_that_began_without_it() -> None:
    settings = ModelSettings(thinking=2048)
    foreign, own = answered("openai", None), answered("anthropic", Thinking("Hm.", "sig"))
    assert "thinking" not in body(*conversation(foreign), settings=settings)
    assert "thinking" in body(*conversation(own), settings=settings)
    assert "thinking" in body(*conversation(foreign), HI, settings=settings)
    assert "thinking" in body(*conversation(foreign), settings=ModelSettings(thinking="high"))


def test_a_prefix_is_the_last_message_without_white_space_at_its_end_and_without_thinking() -> None:
    prefix = (Thinking("Hm.", "sig"), Text("Once upon"), Text(" a \n"))
    sent = body(HI, wire=MessagesWire(continues=True), prefix=prefix, settings=ModelSettings(thinking=2048))
    assert sent["messages"][-1] == {"role": "assistant", "content": [{"type": "text", "text": "Once upon a"}]}
    assert "cache_control" in sent["messages"][-2]["content"][-1]
    assert "thinking" not in sent
    assert len(body(HI, wire=MessagesWire(continues=True), prefix=(Text(" \n"),))["messages"]) == 1


def test_native_output() -> None:
    sent = body(output=SCHEMA, tools=TOOLS)
    assert sent["output_config"]["format"] == {"type": "json_schema", "schema": SCHEMA}
    assert len(sent["tools"]) == 2
    assert "tool_choice" not in sent


def test_no_format_beside_a_prefix() -> None:
    wire = MessagesWire(continues=True)
    assert "output_config" not in body(wire=wire, output=SCHEMA, prefix=(Text('{"name":'),))


FREE = {"type": "object", "additionalProperties": {"type": "integer"}}


@pytest.mark.parametrize(
    ("tools", "settings", "expected"),
    [
        ((), ModelSettings(), {"type": "tool", "name": "final_answer"}),
        (TOOLS, ModelSettings(), {"type": "any"}),
        (TOOLS, ModelSettings(tool_choice="none"), {"type": "tool", "name": "final_answer"}),
        (TOOLS, ModelSettings(tool_choice="now"), {"type": "tool", "name": "now"}),
        (TOOLS, ModelSettings(parallel_calls=False), {"type": "any", "disable_parallel_tool_use": True}),
        (TOOLS, ModelSettings(thinking="high"), None),
    ],
)
def test_output_by_a_tool(tools: tuple[ToolSpec, ...], settings: ModelSettings, expected: JSON) -> None:
    for wire, schema in ((MessagesWire(output="tool"), SCHEMA), (MessagesWire(), FREE)):
        sent = body(wire=wire, output=schema, tools=tools, settings=settings)
        assert sent["tools"][-1]["name"] == "final_answer"
        assert sent["tools"][-1]["input_schema"] == schema
        assert sent.get("tool_choice") == expected
        assert "format" not in sent.get("output_config", {})


def test_the_output_tool_has_a_name_of_its_own_and_takes_any_schema() -> None:
    schema = {"type": "array", "items": {"$ref": "#/$defs/A"}, "$defs": {"A": {"type": "integer"}}}
    sent = body(wire=MessagesWire(output="tool"), output=schema, tools=(ToolSpec("final_answer"),))
    tool = sent["tools"][-1]
    assert tool["name"] == "final_answer_"
    assert tool["input_schema"]["properties"]["value"] == {"type": "array", "items": {"$ref": "#/$defs/A"}}
    assert tool["input_schema"]["$defs"] == {"A": {"type": "integer"}}


def test_no_tools_no_choice_and_a_tool_without_parameters() -> None:
    assert "tool_choice" not in body(settings=ModelSettings(tool_choice="required"))
    assert body(tools=(ToolSpec("f"),))["tools"][0]["input_schema"] == {"type": "object", "properties": {}}


@pytest.mark.parametrize(
    ("schema", "closed"),
    [
        (
            {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1, "description": "How many."}}},
            {
                "type": "object",
                "properties": {"n": {"type": "integer", "description": "How many.\n\nminimum: 1"}},
                "additionalProperties": False,
            },
        ),
        (
            {"oneOf": [{"$ref": "#/$defs/A"}, {"type": "null"}], "$defs": {"A": {"type": "string", "format": "uuid"}}},
            {"anyOf": [{"$ref": "#/$defs/A"}, {"type": "null"}], "$defs": {"A": {"type": "string", "format": "uuid"}}},
        ),
        (
            {"type": "array", "items": {"const": 1}, "minItems": 1, "maxItems": 3, "default": []},
            {"type": "array", "items": {"const": 1}, "minItems": 1, "description": "maxItems: 3"},
        ),
        (FREE, None),
        ({"type": "object"}, None),
        ({"type": "object", "properties": {"a": {}}}, None),
        ({}, None),
    ],
)
def test_schemas_are_closed_or_left_to_the_tool(schema: JSON, closed: JSON) -> None:
    assert close_schema(schema) == closed


def test_wires_for_models() -> None:
    assert wire_for("claude-opus-5-5") == MessagesWire()
    assert wire_for("claude-opus-4-6") == MessagesWire()
    assert wire_for("claude-haiku-4-5-20251001") == MessagesWire(thinking="budget", continues=True)
    assert wire_for("claude-3-7-sonnet-latest").output == "tool"
    assert wire_for("some-local-model") == MessagesWire()
