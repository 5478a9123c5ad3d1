"""What ChatWire and ResponsesWire send: messages, tools, output, settings, and what is left out."""

from __future__ import annotations

import json
from base64 import b64encode
from importlib import import_module
from typing import Any

import pytest

from perdure.core.errors import UsageError
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
from perdure.core.shared import Buffer
from perdure.core.specs import ModelSettings, ToolSpec
from perdure.models.wires.chat import ChatWire
from perdure.models.wires.openai_parts import is_strict, output_of
from perdure.models.wires.responses import ResponsesWire
from perdure.models.wires.wire import Wire, unwritten
from perdure.ports import ModelRequest
from tests.models.fuzz_openai import CITY, TOTAL, WEATHER

FILES = {"img": b"\x89PNG", "pdf": b"%PDF", "txt": "grün".encode()}
IMAGE = Media("image", "img", "image/png", 4)
PDF = Media("document", "pdf", "application/pdf", 4, "a.pdf")
NOTES = Media("document", "txt", "text/plain", 5, "notes.txt")
HELLO = UserMessage((Text("Hello"),))


def body(wire: Wire, *messages: Message, settings: ModelSettings | None = None, **fields: Any) -> dict[str, Any]:
    request = ModelRequest(
        "openai:m", fields.pop("instructions", ""), messages, settings=settings or ModelSettings(), **fields
    )
    return json.loads(wire.to_wire(request, "m", FILES))


def answer(*parts: Any, provider: str) -> AssistantMessage:
    return AssistantMessage(parts, provider)


def results(*found: ToolResult) -> ToolMessage:
    return ToolMessage(found)


# Chat: messages


def test_the_smallest_request() -> None:
    assert body(ChatWire(), HELLO) == {
        "messages": [{"role": "user", "content": "Hello"}],
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_calls_have_our_ids_and_results_answer_them() -> None:
    calls = answer(
        Text("Look."), ToolCall(1, "f", "{}", "theirs"), ToolCall(2, "g", '{"x":1}', "theirs"), provider="openai"
    )
    found = results(
        ToolResult(1, "f", "ok", (Text("a"), Text("b"))), ToolResult(2, "g", "error", (Text("It failed."),))
    )
    assert body(ChatWire(), calls, found)["messages"] == [
        {
            "role": "assistant",
            "content": "Look.",
            "tool_calls": [
                {"id": "c00000001", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                {"id": "c00000002", "type": "function", "function": {"name": "g", "arguments": '{"x":1}'}},
            ],
        },
        {"role": "tool", "tool_call_id": "c00000001", "content": "ab"},
        {"role": "tool", "tool_call_id": "c00000002", "content": "It failed."},
    ]


def test_pictures_of_a_tool_follow_in_a_message_that_names_the_call() -> None:
    found = results(ToolResult(3, "look", "ok", (Text("seen"), IMAGE)), ToolResult(4, "f", "ok", (Text("x"),)))
    *tools, user = body(ChatWire(), found)["messages"]
    assert [message["content"] for message in tools] == ["seen", "x"]
    assert user["role"] == "user"
    assert user["content"][0]["text"] == "What look (c00000003) returned:"
    assert user["content"][1]["type"] == "image_url"


def test_documents_of_text_are_words_and_others_are_files() -> None:
    (message,) = body(ChatWire(), UserMessage((Text("Read"), NOTES, PDF)))["messages"]
    data = "data:application/pdf;base64," + b64encode(b"%PDF").decode()
    assert message["content"] == [
        {"type": "text", "text": "Read"},
        {"type": "text", "text": "notes.txt:\ngrün"},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": data}},
    ]


@pytest.mark.parametrize("wire", [ChatWire(), ResponsesWire(), ChatWire(tools="json")])
def test_arguments_that_cannot_be_read_are_sent_as_some_that_can(wire: Wire) -> None:
    sent = wire.to_wire(ModelRequest("m", "", [answer(ToolCall(1, "f", '{"x": "half'), provider=wire.name)]), "m", {})
    assert b"unreadable_arguments" in sent
    assert b"half" in sent


def test_lone_surrogates_do_not_stop_a_request() -> None:
    for wire in (ChatWire(), ResponsesWire()):
        assert "\ufffd" in wire.to_wire(ModelRequest("m", "a\ud800", [HELLO]), "m", {}).decode()


# Chat: thinking


def thought(extras: Any) -> Thinking:
    return Thinking("Hm.", extras=extras)


CALL = ToolCall(1, "f", "{}")
DETAILS = {"reasoning_details": [{"type": "reasoning.text", "text": "Hm."}]}


@pytest.mark.parametrize("extras", [{"field": "reasoning_content"}, {"field": "reasoning"}, DETAILS])
def test_own_thinking_goes_back_with_calls_in_its_field(extras: dict[str, Any]) -> None:
    sent = body(ChatWire(), answer(thought(extras), CALL, provider="openai"))["messages"][0]
    field = extras.get("field", "reasoning_details")
    assert sent[field] == ("Hm." if "field" in extras else extras["reasoning_details"])
    assert field not in body(ChatWire(), answer(thought(extras), Text("x"), provider="openai"))["messages"][0]
    said = answer(thought(extras), Text("x"), provider="openai")
    assert field in body(ChatWire(reasoning="always"), said)["messages"][0]
    assert (
        field not in body(ChatWire(reasoning="never"), answer(thought(extras), CALL, provider="openai"))["messages"][0]
    )


def test_a_server_may_require_thinking_with_every_call() -> None:
    wire = ChatWire(reasoning="required")
    assert body(wire, answer(CALL, provider="anthropic"))["messages"][0]["reasoning_content"] == ""
    own = answer(thought({"field": "reasoning_content"}), CALL, provider="openai")
    assert body(wire, own)["messages"][0]["reasoning_content"] == "Hm."
    assert "reasoning_content" not in body(wire, answer(Text("x"), provider="openai"))["messages"][0]


def test_the_thinking_of_another_provider_is_dropped_and_the_rest_is_kept() -> None:
    foreign = answer(
        Thinking("Hm.", "sig", {"field": "reasoning"}),
        Text("Yes.", {"phase": "x"}),
        ToolCall(1, "f", "{}", extras={"a": 1}),
        provider="anthropic",
    )
    function = {"name": "f", "arguments": "{}"}
    assert body(ChatWire(), foreign)["messages"] == [
        {
            "role": "assistant",
            "content": "Yes.",
            "tool_calls": [{"id": "c00000001", "type": "function", "function": function}],
        }
    ]
    message, call = body(ResponsesWire(), foreign)["input"]
    assert (message["type"], call["type"]) == ("message", "function_call")
    assert "phase" not in message


def test_what_a_provider_put_on_a_call_goes_back() -> None:
    extra = {"extra_content": {"google": {"thought_signature": "c2ln"}}}
    sent = body(ChatWire(name="gemini"), answer(ToolCall(1, "f", "{}", extras=extra), provider="gemini"))["messages"][0]
    assert sent["tool_calls"][0]["extra_content"] == extra["extra_content"]


# Settings, tools, output

SETTINGS = ModelSettings(
    temperature=0.5,
    top_p=0.9,
    max_tokens=100,
    seed=7,
    stop=("END",),
    top_k=40,
    presence_penalty=0.1,
    frequency_penalty=0.2,
    thinking="off",
    tool_choice="get_weather",
    parallel_calls=False,
    extra={"temperature": 0.6, "logit_bias": {"1": 2}},
)


def test_settings_of_chat_with_extras_last() -> None:
    sent = body(ChatWire(), HELLO, settings=SETTINGS, tools=(WEATHER,), cache_key="k")
    for name in ("messages", "model", "stream", "stream_options", "tools"):
        del sent[name]
    assert sent == {
        "temperature": 0.6,
        "top_p": 0.9,
        "max_completion_tokens": 100,
        "seed": 7,
        "stop": ["END"],
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
        "reasoning_effort": "none",
        "prompt_cache_key": "k",
        "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
        "parallel_tool_calls": False,
        "logit_bias": {"1": 2},
    }


def test_options_for_servers_that_are_like_openai() -> None:
    wire = ChatWire(max_tokens_field="max_tokens", takes_top_k=True, takes_cache_key=False, takes_stream_options=False)
    sent = body(wire, HELLO, settings=SETTINGS, cache_key="k")
    assert (sent["max_tokens"], sent["top_k"]) == (100, 40)
    assert not {"prompt_cache_key", "stream_options", "max_completion_tokens", "tool_choice"} & sent.keys()


def test_settings_of_responses() -> None:
    sent = body(
        ResponsesWire(summary="auto"),
        HELLO,
        settings=SETTINGS,
        tools=(WEATHER,),
        cache_key="k",
        instructions="Be brief.",
    )
    del sent["input"], sent["tools"]
    assert sent == {
        "model": "m",
        "stream": True,
        "store": False,
        "instructions": "Be brief.",
        "include": ["reasoning.encrypted_content"],
        "temperature": 0.6,
        "top_p": 0.9,
        "max_output_tokens": 100,
        "reasoning": {"effort": "none", "summary": "auto"},
        "prompt_cache_key": "k",
        "tool_choice": {"type": "function", "name": "get_weather"},
        "parallel_tool_calls": False,
        "logit_bias": {"1": 2},
    }


@pytest.mark.parametrize("wire", [ChatWire(), ResponsesWire()])
def test_a_cache_key_may_be_switched_off(wire: Wire) -> None:
    assert "prompt_cache_key" not in body(wire, HELLO, settings=ModelSettings(cache=False), cache_key="k")


@pytest.mark.parametrize(
    ("thinking", "effort"),
    [("low", "low"), ("high", "high"), (0, "none"), (1000, "low"), (5000, "medium"), (9000, "high")],
)
def test_a_budget_becomes_an_effort(thinking: Any, effort: str) -> None:
    assert body(ChatWire(), HELLO, settings=ModelSettings(thinking=thinking))["reasoning_effort"] == effort


def test_a_schema_is_strict_only_where_the_provider_takes_it_as_it_stands() -> None:
    assert is_strict(TOTAL)
    assert not is_strict(CITY)
    assert not is_strict({**TOTAL, "required": []})
    assert not is_strict({**TOTAL, "properties": {"total": CITY}})
    assert not is_strict({**TOTAL, "properties": {"total": {"oneOf": [{"type": "integer"}]}}})
    assert is_strict({**TOTAL, "properties": {"total": {"$ref": "#/$defs/T"}}, "$defs": {"T": TOTAL}})
    assert not is_strict({**TOTAL, "properties": {"total": {"$ref": "#/$defs/T", "title": "x"}}, "$defs": {"T": TOTAL}})
    assert not is_strict({**TOTAL, "$defs": {"T": CITY}})
    assert not is_strict({**TOTAL, "properties": {"total": {"type": "array", "items": CITY}}})


def test_native_output() -> None:
    chat = body(ChatWire(), HELLO, output=TOTAL)["response_format"]
    assert chat == {"type": "json_schema", "json_schema": {"name": "output", "schema": TOTAL, "strict": True}}
    assert "strict" not in body(ChatWire(), HELLO, output=CITY)["response_format"]["json_schema"]
    text = body(ResponsesWire(), HELLO, output=TOTAL)["text"]
    assert text == {"format": {"type": "json_schema", "name": "output", "schema": TOTAL, "strict": True}}
    assert body(ResponsesWire(), HELLO, output=CITY)["text"]["format"]["strict"] is False


def test_output_has_an_object_at_its_root() -> None:
    found = output_of({"$ref": "#/$defs/T", "$defs": {"T": TOTAL}})
    assert found is not None
    assert (found.schema, found.is_wrapped) == ({**TOTAL, "$defs": {"T": TOTAL}}, False)
    found = output_of({"type": "array", "items": {"$ref": "#/$defs/T"}, "$defs": {"T": TOTAL}})
    assert found is not None
    assert found.is_wrapped
    assert found.schema["properties"] == {"value": {"type": "array", "items": {"$ref": "#/$defs/T"}}}
    assert found.schema["$defs"] == {"T": TOTAL}


OTHER = ToolSpec("final_answer", "Not the output.")


@pytest.mark.parametrize(
    ("tools", "choice", "name", "sent"),
    [
        ((), "", "final_answer", "final_answer"),
        ((WEATHER,), "", "final_answer", "required"),
        ((OTHER,), "auto", "final_answer_", "required"),
        ((WEATHER,), "none", "final_answer", "final_answer"),
        ((WEATHER,), "get_weather", "final_answer", "get_weather"),
    ],
)
def test_output_by_a_forced_tool(tools: tuple[ToolSpec, ...], choice: str, name: str, sent: str) -> None:
    settings = ModelSettings(tool_choice=choice)
    chat = body(ChatWire(output="tool"), HELLO, tools=tools, output=TOTAL, settings=settings)
    assert chat["tools"][-1]["function"]["name"] == name
    assert chat["tools"][-1]["function"]["parameters"] == TOTAL
    assert chat["tool_choice"] == (sent if sent == "required" else {"type": "function", "function": {"name": sent}})
    responses = body(ResponsesWire(output="tool"), HELLO, tools=tools, output=TOTAL, settings=settings)
    assert responses["tools"][-1]["name"] == name
    assert responses["tool_choice"] == (sent if sent == "required" else {"type": "function", "name": sent})
    assert "response_format" not in chat
    assert "text" not in responses


# A prefix


@pytest.mark.parametrize(
    ("prefix", "message", "fields"),
    [
        ("message", {}, {}),
        ("flags", {}, {"continue_final_message": True, "add_generation_prompt": False}),
        ("mark", {"prefix": True}, {}),
    ],
)
def test_a_prefix_is_the_last_message(prefix: Any, message: dict[str, Any], fields: dict[str, Any]) -> None:
    wire = ChatWire(continues=True, prefix=prefix)
    sent = body(wire, HELLO, prefix=(Thinking("Hm."), Text("One, tw")), output=TOTAL)
    assert sent["messages"][-1] == {"role": "assistant", "content": "One, tw", **message}
    assert fields.items() <= sent.items()
    assert "response_format" not in sent


def test_json_tools_cannot_go_on() -> None:
    with pytest.raises(UsageError):
        ChatWire(tools="json", continues=True)


# Responses: items


def test_own_reasoning_goes_back_whole_and_in_its_place() -> None:
    item = {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "gAAAA"}
    empty = {"id": "rs_2", "type": "reasoning", "summary": []}
    own = answer(
        Thinking("", extras=item),
        Text("One moment.", {"phase": "commentary"}),
        Thinking("", extras=empty),
        CALL,
        provider="openai-responses",
    )
    found = results(ToolResult(1, "f", "ok", (Text("x"), IMAGE)), ToolResult(2, "g", "ok", (Text("y"),)))
    url = "data:image/png;base64," + b64encode(FILES["img"]).decode()
    assert body(ResponsesWire(), own, found)["input"] == [
        item,
        {
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "One moment."}],
            "phase": "commentary",
        },
        {"type": "function_call", "call_id": "c00000001", "name": "f", "arguments": "{}"},
        {
            "type": "function_call_output",
            "call_id": "c00000001",
            "output": [
                {"type": "input_text", "text": "x"},
                {"type": "input_image", "image_url": url, "detail": "auto"},
            ],
        },
        {"type": "function_call_output", "call_id": "c00000002", "output": "y"},
    ]


# Addresses, keys, fragments


@pytest.mark.parametrize(("wire", "path"), [(ChatWire(), "chat/completions"), (ResponsesWire(), "responses")])
def test_addresses(wire: Wire, path: str) -> None:
    assert wire.address("http://h/v1/", "m") == f"http://h/v1/{path}"
    assert wire.address("http://h/openai?api-version=1", "m") == f"http://h/openai/{path}?api-version=1"


@pytest.mark.parametrize("wire", [ChatWire, ResponsesWire])
def test_keys(wire: type[ChatWire] | type[ResponsesWire]) -> None:
    assert wire().headers("k")["authorization"] == "Bearer k"
    assert wire(key_header="api-key").headers("k")["api-key"] == "k"
    assert wire().headers("") == {"content-type": "application/json"}


@pytest.mark.parametrize(("wire", "name"), [(ChatWire(), "chat"), (ResponsesWire(), "responses")])
def test_a_message_is_written_once(wire: Wire, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[object] = []
    module: Any = import_module(f"perdure.models.wires.{name}")
    line = module.line
    monkeypatch.setattr(module, "line", lambda value: written.append(value) or line(value))
    messages: Buffer[Message] = Buffer()
    for number in range(3):
        messages = messages.add(UserMessage((Text(f"Hello {number}"), IMAGE)))
    first = wire.to_wire(ModelRequest("m", "", messages), "m", FILES)
    assert len(written) == 3
    grown = messages.add(HELLO)
    assert unwritten(grown, wire) == [HELLO]
    # The bytes of pictures that were written before are not asked for again.
    second = wire.to_wire(ModelRequest("m", "", grown), "m", {})
    assert len(written) == 4
    assert second.startswith(first[: first.index(b"Hello 2")])
    assert wire.to_wire(ModelRequest("m", "", messages), "m", {}) == first


def test_equal_options_share_what_was_written() -> None:
    assert {ChatWire(), ChatWire(), ResponsesWire(), ChatWire(name="x")} == {
        ChatWire(),
        ResponsesWire(),
        ChatWire(name="x"),
    }
