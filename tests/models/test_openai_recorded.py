"""Recorded answers in OpenAI's formats: read whole, byte by byte, with other line ends, and cut at every byte."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.core.deltas import PartClosed
from perdure.core.errors import ModelError, ModelErrorKind
from perdure.core.messages import AnswerPart, StopReason, Text, Thinking, ToolCall, Usage
from perdure.ports import ModelResponse
from tests.models.fuzz_openai import check, read_all, recordings

RECORDED = recordings()
PARIS = '{"city":"Paris"}'
CHAT_USAGE = Usage(120, 30, cached=64, reasoning=10)
USAGE = Usage(200, 60, cached=128, reasoning=40)


def reasoning_item(id: str) -> dict[str, Any]:
    texts = [{"type": "summary_text", "text": text} for text in ("Look it up.", "Twice.")]
    return {"id": id, "type": "reasoning", "encrypted_content": f"gAAAA{id}", "summary": texts}


THOUGHT = Thinking("Look it up.\n\nTwice.", extras=reasoning_item("rs_1"))
DETAIL = {
    "type": "reasoning.text",
    "text": "Hm, yes.",
    "format": "anthropic-claude-v1",
    "index": 0,
    "signature": "c2ln",
}

ANSWERS: dict[str, tuple[tuple[AnswerPart, ...], StopReason, Usage]] = {
    "chat_text.sse": ((Text("Grüße, Ada 👋."),), "end", CHAT_USAGE),
    "chat_calls.sse": (
        (ToolCall(0, "get_weather", PARIS, "call_a1"), ToolCall(0, "get_time", '{"zone":"Europe/Paris"}', "call_b2")),
        "calls",
        CHAT_USAGE,
    ),
    "chat_call_truncated.sse": (
        (
            Text("Let me look."),
            ToolCall(0, "get_weather", PARIS, "call_a1"),
            ToolCall(0, "write_file", '{"text":"once upon', "call_b2"),
        ),
        "length",
        CHAT_USAGE,
    ),
    "chat_refusal.sse": ((Text("I can't help with that."),), "refusal", CHAT_USAGE),
    "chat_deepseek.sse": (
        (
            Thinking("The user wants weather.", extras={"field": "reasoning_content"}),
            ToolCall(0, "get_weather", PARIS, "call_d1"),
        ),
        "calls",
        Usage(50, 20, cached=32, reasoning=8),
    ),
    "chat_openrouter.sse": (
        (
            Thinking("Hm, yes.", extras={"reasoning_details": [DETAIL]}),
            Text("Sure."),
            ToolCall(0, "get_weather", PARIS, "toolu_1"),
        ),
        "calls",
        CHAT_USAGE,
    ),
    "chat_mistral.sse": ((Thinking("Let me see."), Text("Four.")), "end", Usage(5, 6)),
    "chat_forced_answer.sse": ((Text('{"total":7}'),), "end", CHAT_USAGE),
    "chat_wrapped.sse": ((Text('[1, "}\\""]'),), "end", CHAT_USAGE),
    "chat_plain.json": ((Text("Hello."), ToolCall(0, "get_weather", PARIS, "x1")), "calls", Usage(9, 3)),
    "json_answer.sse": ((Text('Grü\n👋 "Ada"'),), "end", CHAT_USAGE),
    "json_call.sse": ((ToolCall(0, "get_weather", '{"city": "Pa}ris"}'),), "calls", CHAT_USAGE),
    "llamacpp_json_call.sse": ((ToolCall(0, "get_weather", PARIS),), "calls", Usage(138, 38, cached=137)),
    "llamacpp_json_output.sse": ((Text('{\n    "a":1\n}'),), "end", Usage(70, 21, cached=4)),
    "llamacpp_chat_stop.sse": (
        (Text("The weather in Paris is quite unique, with a mix of sunny days and rainy nights."),),
        "end",
        Usage(49, 19, cached=24),
    ),
    "llamacpp_chat_length.sse": (
        (
            Text(
                "Hello, Ada! Welcome to our little corner of the world of programming! I'm your AI assistant, and I'll"
            ),
        ),
        "length",
        Usage(22, 24),
    ),
    "llamacpp_responses_text.sse": (
        (Text("I'm glad to help. What's your name?"),),
        "end",
        Usage(43, 12, cached=22),
    ),
    "responses_text.sse": ((Text("Grüße, Ada 👋.", {"phase": "final_answer"}),), "end", USAGE),
    "responses_calls.sse": (
        (
            THOUGHT,
            Text("One moment.", {"phase": "commentary"}),
            ToolCall(0, "get_weather", PARIS, "call_1"),
            ToolCall(0, "get_time", "{}", "call_2"),
        ),
        "calls",
        USAGE,
    ),
    "responses_truncated.sse": ((THOUGHT, ToolCall(0, "write_file", '{"text":"once', "call_1")), "length", USAGE),
    "responses_refusal.sse": ((Text("I can't help with that."),), "refusal", USAGE),
    "responses_forced_answer.sse": ((Text('{"total":7}'),), "end", USAGE),
    "responses_plain.json": (
        (THOUGHT, Text("Grüße, Ada 👋.", {"phase": "final_answer"}), ToolCall(0, "get_weather", PARIS, "call_1")),
        "calls",
        USAGE,
    ),
}

FAILURES: dict[str, ModelErrorKind] = {
    "chat_filtered.sse": "content_filtered",
    "chat_error.sse": "server",
    "json_call_truncated.sse": "truncated",
    "responses_filtered.sse": "content_filtered",
    "responses_failed.sse": "rate_limited",
    "responses_error.sse": "server",
}


def in_bytes(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


def test_every_recording_has_its_answer_or_its_failure() -> None:
    assert set(RECORDED) == set(ANSWERS) | set(FAILURES)


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_read_alike_in_any_pieces(name: str) -> None:
    wire, request, data = RECORDED[name]
    parts, stop, usage = ANSWERS[name]
    crlf = data.replace(b"\n", b"\r\n")
    for pieces in ([data], in_bytes(data), [b"\xef\xbb\xbf" + data], [crlf], in_bytes(crlf)):
        end = check(wire, request, pieces)
        assert end == ModelResponse(parts, stop, usage)


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_is_of_its_class_in_any_pieces(name: str) -> None:
    wire, request, data = RECORDED[name]
    for pieces in ([data], in_bytes(data)):
        end = check(wire, request, pieces)
        assert isinstance(end, ModelError)
        assert end.kind == FAILURES[name]


@pytest.mark.parametrize("name", RECORDED)
def test_a_cut_at_every_byte_ends_in_a_defined_way(name: str) -> None:
    """Cut before its end an answer is cut; after it, it is the whole answer. Closed calls are never half ones."""
    wire, request, data = RECORDED[name]
    whole = ANSWERS.get(name)
    closed = [delta.part for delta in read_all(wire, request, [data])[0] if isinstance(delta, PartClosed)]
    for length in range(len(data)):
        deltas, end = read_all(wire, request, [data[:length]])
        kept = [delta.part for delta in deltas if isinstance(delta, PartClosed)]
        assert kept == closed[: len(kept)]
        if isinstance(end, ModelResponse):
            assert whole is not None, length
            assert (end.parts, end.stop) == whole[:2], length
        else:
            assert end.kind in ("cut", FAILURES.get(name)), length


@pytest.mark.parametrize("name", ANSWERS)
def test_what_is_shown_is_what_is_said(name: str) -> None:
    wire, request, data = RECORDED[name]
    deltas, end = read_all(wire, request, [data])
    assert isinstance(end, ModelResponse)
    shown = "".join(getattr(delta, "text", "") for delta in deltas if type(delta).__name__ == "TextDelta")
    assert shown == "".join(part.text for part in end.parts if isinstance(part, Text))


@pytest.mark.parametrize("name", [name for name in ANSWERS if name.endswith(".sse")])
def test_the_end_is_known_and_what_follows_is_noted(name: str) -> None:
    wire, request, data = RECORDED[name]
    reader = wire.from_wire(request)
    reader.read(data)
    assert reader.is_done
    assert not reader.read(data)
    end = reader.finish()
    assert end.parts == ANSWERS[name][0]
    assert end.notes == ("data after the end",)
