"""Tools as JSON, for models without tools of their own: what is asked for, what is shown, what becomes a call."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.deltas import PartClosed, TextDelta
from perdure.core.errors import ModelError
from perdure.core.messages import (
    AssistantMessage,
    Media,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    ToolResult,
    UserMessage,
)
from perdure.core.specs import ModelSettings, ToolSpec
from perdure.models.wires.answer import Answer
from perdure.models.wires.chat import ChatWire
from perdure.models.wires.json_tools import JsonAnswer, instructions_of, schema_of
from perdure.models.wires.openai_values import ValueStream
from perdure.ports import ModelRequest, ModelResponse
from tests.models.fuzz_openai import ASK, ASK_TOOLS, ASK_TOTAL, CITY, TOTAL, WEATHER

CLOCK = ToolSpec("get_time", "The time.")
WIRE = ChatWire(tools="json")


def ask(*tools: ToolSpec, choice: str = "", output: Any = None) -> ModelRequest:
    settings = ModelSettings(tool_choice=choice)
    return ModelRequest("m", "Be brief.", (UserMessage((Text("Hi"),)),), tools=tools, output=output, settings=settings)


def closed(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def tool_choice(name: str, schema: Any) -> dict[str, Any]:
    return closed(tool={"const": name}, arguments=schema)


ANSWER = closed(answer={"type": "string"})
EMPTY = {"type": "object", "properties": {}}


@pytest.mark.parametrize(
    ("choice", "choices"),
    [
        ("", [ANSWER, tool_choice("get_weather", CITY), tool_choice("get_time", EMPTY)]),
        ("auto", [ANSWER, tool_choice("get_weather", CITY), tool_choice("get_time", EMPTY)]),
        ("required", [tool_choice("get_weather", CITY), tool_choice("get_time", EMPTY)]),
    ],
)
def test_the_schema_is_one_of_answer_and_tools(choice: str, choices: list[Any]) -> None:
    assert schema_of(ask(WEATHER, CLOCK, choice=choice)) == {"anyOf": choices}


def test_a_choice_of_one_is_no_choice() -> None:
    assert schema_of(ask(WEATHER, CLOCK, choice="none")) == ANSWER
    assert schema_of(ask(WEATHER, CLOCK, choice="get_time")) == tool_choice("get_time", EMPTY)
    assert schema_of(ask(output=TOTAL)) == closed(answer=TOTAL)


def test_definitions_move_to_the_root_under_names_of_their_own() -> None:
    """References count from the root, and two tools may name different things alike."""
    first = {"type": "object", "properties": {"a": {"$ref": "#/$defs/T"}}, "$defs": {"T": {"type": "string"}}}
    second = {"type": "object", "properties": {"b": {"$ref": "#/definitions/T"}}, "definitions": {"T": {"$ref": "#"}}}
    schema = schema_of(ask(ToolSpec("f", "", first), ToolSpec("g", "", second)))
    f, g = (choice["properties"]["arguments"] for choice in schema["anyOf"][1:])
    assert f == {"type": "object", "properties": {"a": {"$ref": "#/$defs/tool0.T"}}}
    assert g == {"type": "object", "properties": {"b": {"$ref": "#/$defs/tool1.T"}}}
    assert schema["$defs"] == {"tool0.T": {"type": "string"}, "tool1.T": {"$ref": "#/$defs/tool1."}, "tool1.": g}


def test_a_parameter_may_be_called_definitions() -> None:
    schema = {"type": "object", "properties": {"definitions": {"type": "string"}}}
    assert schema_of(ask(ToolSpec("f", "", schema), choice="f"))["properties"]["arguments"] == schema


def test_the_instructions_show_each_tool_s_call() -> None:
    text = instructions_of(ask(WEATHER, CLOCK))
    assert text.startswith("Be brief.\n")
    assert 'The weather of a city. {"tool":"get_weather","arguments":{"city":"..."}}\n' in text
    assert 'The time. {"tool":"get_time","arguments":{}}\n' in text
    assert text.endswith('{"answer":"<your answer>"}')
    assert "get_weather" not in instructions_of(ask(WEATHER, choice="none"))
    assert json.dumps(TOTAL, separators=(",", ":"), sort_keys=True) in instructions_of(ask(output=TOTAL))


def test_arguments_are_shown_by_type_and_told_by_their_description() -> None:
    properties = {
        "count": {"type": "integer", "description": "How many."},
        "unit": {"enum": ["cm", "in"]},
        "tags": {"type": "array"},
        "deep": {"type": "object"},
        "sure": {"type": "boolean"},
        "any": True,
    }
    text = instructions_of(ask(ToolSpec("f", "Measures.", {"type": "object", "properties": properties})))
    call = '{"tool":"f","arguments":{"count":0,"unit":"cm","tags":[],"deep":{},"sure":false}}'
    assert f"Measures. {call}\n  count: How many.\n" in text


def test_the_history_is_plain_turns() -> None:
    image = Media("image", "img", "image/png", 4)
    messages = (
        UserMessage((Text("Hi"),)),
        AssistantMessage(
            (Thinking("Hm."), Text("Look."), ToolCall(1, "f", '{"x":1}'), ToolCall(2, "g", "{}")), "openai"
        ),
        ToolMessage((ToolResult(1, "f", "ok", (Text("one"),)), ToolResult(2, "g", "error", (Text("It failed."),)))),
        ToolMessage((ToolResult(3, "look", "ok", (Text("seen"), image)),)),
    )
    sent = json.loads(WIRE.to_wire(ModelRequest("m", "", messages, tools=(WEATHER,)), "m", {"img": b"x"}))
    system, _, called, found, seen = sent["messages"]
    assert system["role"] == "system"
    assert called == {
        "role": "assistant",
        "content": 'Look.\n{"tool": "f", "arguments": {"x":1}}\n{"tool": "g", "arguments": {}}',
    }
    assert found == {
        "role": "user",
        "content": "Result of f (c00000001): one\n\nResult of g (c00000002): It failed.",
    }
    assert [part["type"] for part in seen["content"]] == ["text", "image_url"]
    assert sent["response_format"]["json_schema"]["schema"] == schema_of(
        ModelRequest("m", "", messages, tools=(WEATHER,))
    )
    assert "tools" not in sent


def test_without_tools_and_output_nothing_special_is_sent() -> None:
    assert WIRE.to_wire(ASK, "m", {}) == ChatWire().to_wire(ASK, "m", {})
    reader = WIRE.from_wire(ASK)
    deltas = reader.read(b'data: {"choices":[{"delta":{"content":"{\\"answer\\": 1}"},"finish_reason":"stop"}]}\n\n')
    assert deltas == [TextDelta('{"answer": 1}')]


# Reading


def read(*pieces: str, is_raw: bool = False, is_truncated: bool = False) -> tuple[Answer, JsonAnswer]:
    answer = Answer()
    reader = JsonAnswer(answer, is_raw=is_raw)
    for piece in pieces:
        reader.add(piece)
    reader.finish(is_truncated=is_truncated)
    return answer, reader


def said(answer: Answer) -> list[str]:
    return [delta.text for delta in answer.deltas if isinstance(delta, TextDelta)]


def called(answer: Answer) -> list[ToolCall]:
    return [d.part for d in answer.deltas if isinstance(d, PartClosed) and isinstance(d.part, ToolCall)]


def test_the_answer_is_shown_as_it_comes() -> None:
    answer, _ = read("{", ' "ans', 'wer" :', ' "Hel', "lo\\", "n", "W\\u00", "f6rld", '"', " }")
    assert said(answer) == ["Hel", "lo", "\n", "W", "örld"]


@given(st.text(), st.integers(1, 7))
def test_any_answer_comes_out_as_it_was(text: str, size: int) -> None:
    for written in (json.dumps({"answer": text}), json.dumps({"answer": text}, ensure_ascii=False)):
        answer, reader = read(*(written[at : at + size] for at in range(0, len(written), size)))
        assert "".join(said(answer)) == text
        assert reader.is_whole


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(values, st.integers(1, 7))
def test_any_value_comes_out_as_it_was_written(value: Any, size: int) -> None:
    written = json.dumps({"value": value})
    stream = ValueStream(("value",), is_raw=True)
    found = "".join(stream.add(written[at : at + size]) for at in range(0, len(written), size))
    assert stream.is_whole
    assert found == json.dumps(value)


@pytest.mark.parametrize("broken", ["\\ud83d and so on and so on", "\\udc00 and so on", "\\x and more of it to come"])
def test_broken_escapes_are_replaced(broken: str) -> None:
    assert "\ufffd" in "".join(said(read('{"answer": "' + broken + '"}')[0]))


def test_a_tool_object_becomes_a_call_once_it_is_whole() -> None:
    answer = Answer()
    reader = JsonAnswer(answer, is_raw=False)
    for piece in ('{"tool": "f", "arguments": {"x": {"y": 1}', "}"):
        reader.add(piece)
        assert not answer.deltas
    reader.add("}")
    assert called(answer) == [ToolCall(0, "f", '{"x": {"y": 1}}')]
    reader.add("\n}")
    reader.finish(is_truncated=False)
    assert len(called(answer)) == 1


def test_the_arguments_may_come_first() -> None:
    assert called(read('{"arguments": {"x": 1}, "tool": "f"}')[0]) == [ToolCall(0, "f", '{"x": 1}')]


def test_a_truncated_object_is_never_a_call() -> None:
    whole = '{"tool": "f", "arguments": {"x": "}", "y": {}}}'
    for length in range(len(whole)):
        answer, _ = read(whole[:length], is_truncated=True)
        assert not answer.deltas, whole[:length]
        assert answer.calls == 0


def test_an_object_that_cannot_be_read_is_an_error() -> None:
    for broken in ('{"tool": "f", "arguments": {', '{"tool": 7, "arguments": {}}', '{"tool": "f"}'):
        with pytest.raises(ModelError) as failure:
            read(broken)
        assert failure.value.kind == "cut"


@pytest.mark.parametrize("text", ["Hello.", '{"other": 1}', "[1]", '{"answ', '{"ans wer": 1}', "  "])
def test_what_is_no_such_object_is_text(text: str) -> None:
    assert "".join(said(read(*text)[0])) == text


def test_an_output_is_shown_as_json() -> None:
    assert said(read('{"answer": {"total"', ": 7}", "}", is_raw=True)[0]) == ['{"total"', ": 7}"]
    assert "".join(said(read(*'{"answer": "a\\"b"}', is_raw=True)[0])) == '"a\\"b"'
    assert said(read('{"answer": 7}')[0]) == ["7"]


def chunk(text: str, finish: str | None = None) -> bytes:
    return (
        b"data: " + json.dumps({"choices": [{"delta": {"content": text}, "finish_reason": finish}]}).encode() + b"\n\n"
    )


def test_a_whole_answer_that_runs_into_the_limit_is_whole() -> None:
    reader = WIRE.from_wire(ASK_TOOLS)
    reader.read(chunk('{"answer": "Hi"') + chunk("\n\n\n", "length"))
    assert reader.finish() == ModelResponse((Text("Hi"),), "end")
    reader = WIRE.from_wire(ASK_TOTAL)
    reader.read(chunk('{"answer": {"total": 7') + chunk("", "length"))
    assert reader.finish().stop == "length"


def test_a_call_that_was_whole_before_a_cut_is_kept() -> None:
    reader = WIRE.from_wire(ASK_TOOLS)
    deltas = reader.read(chunk('{"tool": "get_time", "arguments": {}}'))
    assert [delta for delta in deltas if isinstance(delta, PartClosed)] == [PartClosed(ToolCall(0, "get_time", "{}"))]
    with pytest.raises(ModelError):
        reader.finish()
