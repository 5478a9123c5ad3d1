"""GeminiWire's reader: recorded streams whole, in single bytes and cut; finish reasons, usage, errors."""

from __future__ import annotations

import json

import pytest

from perdure.core.deltas import CallDelta, PartClosed, TextDelta, ThinkingDelta
from perdure.core.errors import ModelErrorKind
from perdure.core.messages import JSON, Text, Thinking, ToolCall, Usage, UserMessage
from perdure.models.wires.gemini import GeminiWire
from perdure.models.wires.wire import Reader
from perdure.ports import ModelRequest
from tests.models.reading import Read, check_cuts, check_read, in_bytes, read, recorded

STREAMS = recorded("google")
WIRE = GeminiWire()
SIGNATURE = "EvEFCu4FAdHtim9xJ2h5c0ZBQg=="


def request(**fields: JSON) -> ModelRequest:
    return ModelRequest("google:m", "", [UserMessage((Text("hi"),))], **fields)


def make() -> Reader:
    return WIRE.from_wire(request())


def event(*parts: JSON, reason: str | None = None, **fields: JSON) -> bytes:
    candidate: JSON = {"content": {"parts": list(parts), "role": "model"}} if parts else {}
    if reason:
        candidate["finishReason"] = reason
    return f"data: {json.dumps({'candidates': [candidate], **fields})}\r\n\r\n".encode()


def read_bytes(*pieces: bytes) -> Read:
    return read(make, [b"".join(pieces)])


def test_text_and_usage() -> None:
    got = read(make, [STREAMS["text"]])
    assert got.deltas == [TextDelta("Hello"), TextDelta(", wörld 🙂"), TextDelta("!")]
    assert got.response.parts == (Text("Hello, wörld 🙂!"),)
    assert got.response.stop == "end"
    assert got.response.usage == Usage(10, 5, cached=4)


def test_calls_come_whole_and_keep_their_signature() -> None:
    got = read(make, [STREAMS["tools"]])
    calls = (
        ToolCall(0, "get_weather", '{"location": "San Francisco, CA"}', "fc1", {"thoughtSignature": SIGNATURE}),
        ToolCall(0, "get_time", '{"zone": "PST", "n": [1, {"a": "}"}]}'),
        ToolCall(0, "now", "{}"),
    )
    assert got.response.parts == (Text("Let me look."), *calls)
    assert got.closed == list(calls)
    assert got.response.stop == "calls"
    assert got.response.usage == Usage(80, 80, reasoning=50)
    at = got.deltas.index(PartClosed(calls[1]))
    assert got.deltas[at - 2] == CallDelta(1, "get_time")


def test_a_thought_is_closed_by_what_follows_and_the_signature_stays_on_its_part() -> None:
    got = read(make, [STREAMS["thinking"]])
    assert got.response.parts == (
        Thinking("**Weighing it**\n\nI look at both sides."),
        Text("It is 21."),
        Text("", {"thoughtSignature": SIGNATURE}),
    )
    at = got.deltas.index(PartClosed(Thinking("**Weighing it**\n\nI look at both sides.")))
    assert got.deltas[at + 1] == TextDelta("It is ")
    assert ThinkingDelta(" at both sides.") in got.deltas


def test_a_signed_thought() -> None:
    got = read(make, [STREAMS["signed_thought"]])
    assert got.response.parts == (
        Thinking("I look.", SIGNATURE),
        ToolCall(0, "look", '{"at": 1}', "", {"thoughtSignature": "QUFB"}),
    )


def test_signed_text_is_a_part_of_its_own() -> None:
    response = read_bytes(
        event({"text": "a"}),
        event({"text": "b", "thoughtSignature": "QQ=="}),
        event({"text": "c"}, reason="STOP"),
    ).response
    assert response.parts == (Text("a"), Text("b", {"thoughtSignature": "QQ=="}), Text("c"))


def test_an_error_in_the_stream_comes_after_what_was_closed_before_it() -> None:
    for pieces in ([STREAMS["overloaded"]], in_bytes(STREAMS["overloaded"])):
        got = read(make, pieces)
        assert got.error.kind == "overloaded"
        assert got.closed == [ToolCall(0, "look", '{"at": 1}')]
        assert got.shown == "and then"


def test_a_blocked_prompt() -> None:
    error = read(make, [STREAMS["blocked"]]).error
    assert error.kind == "content_filtered"
    assert "PROHIBITED_CONTENT" in str(error)


@pytest.mark.parametrize("name", STREAMS)
def test_single_bytes_give_the_same(name: str) -> None:
    whole, pieces = read(make, [STREAMS[name]]), read(make, in_bytes(STREAMS[name]))
    check_read(whole)
    assert pieces.deltas == whole.deltas
    assert repr(pieces.end) == repr(whole.end)


@pytest.mark.parametrize("name", [name for name in STREAMS if name not in ("overloaded", "blocked", "malformed_call")])
def test_cut_at_every_byte(name: str) -> None:
    check_cuts(make, STREAMS[name], {"cut"})


def test_only_a_finish_reason_ends_an_answer() -> None:
    assert read_bytes(event({"text": "Hi"})).error.kind == "cut"
    assert read_bytes(event({"text": "Hi"}), event(reason="STOP")).response.parts == (Text("Hi"),)
    assert read_bytes().error.kind == "cut"


def test_usage_may_follow_the_finish_reason_and_words_may_not() -> None:
    late = b'data: {"usageMetadata": {"promptTokenCount": 3, "candidatesTokenCount": 4}}\n\n'
    got = read_bytes(event({"text": "Hi"}, reason="STOP"), late, event({"text": "more"}, reason="MAX_TOKENS"))
    assert got.response.parts == (Text("Hi"),)
    assert got.response.stop == "end"
    assert got.response.usage == Usage(3, 4)
    assert len(got.response.notes) == 1


@pytest.mark.parametrize(
    ("reason", "expected", "notes"),
    [
        ("STOP", "end", 0),
        ("MAX_TOKENS", "length", 0),
        ("SAFETY", "refusal", 1),
        ("RECITATION", "refusal", 1),
        ("PROHIBITED_CONTENT", "refusal", 1),
        ("SOMETHING_NEW", "end", 1),
    ],
)
def test_finish_reasons(reason: str, expected: str, notes: int) -> None:
    response = read_bytes(event({"text": "Hi"}, reason=reason)).response
    assert response.stop == expected
    assert len(response.notes) == notes


@pytest.mark.parametrize("reason", ["MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "OTHER"])
def test_spoilt_answers_can_be_asked_again(reason: str) -> None:
    error = read_bytes(event({"text": "Hi"}, reason=reason)).error
    assert error.kind == "in_band"
    assert error.retryable


def test_the_output_limit_before_any_word() -> None:
    assert read_bytes(event({"text": "Hm", "thought": True}, reason="MAX_TOKENS")).error.kind == "truncated"


@pytest.mark.parametrize(
    "odd",
    [
        b"data: {not json\n\n",
        b"data: []\n\n",
        b'data: {"candidates": 7}\n\n',
        b"data: \xff\xfe\n\n",
        b'data: {"candidates": [{"content": {"parts": [{"text": 5}]}}]}\n\n',
        b'data: {"candidates": [{"content": {"parts": [{"functionCall": {"args": {}}}]}}]}\n\n',
        b'data: {"usageMetadata": {"promptTokenCount": "x"}}\n\n',
        b'data: {"candidates": [{"content": {"parts": [{"functionCall": {"name": ""}}]}}]}\n\n',
        b'data: {"candidates": [{"content": {"parts": [{"functionCall": {"name": "f", "args": {"a": "\xff"}}}]}}]}\n\n',
        b'data: {"x": ' + b"[" * 100_000 + b"\n\n",
    ],
)
def test_nonsense_is_a_cut(odd: bytes) -> None:
    assert read_bytes(odd, event({"text": "Hi"}, reason="STOP")).error.kind == "cut"


def test_unknown_parts_and_fields_are_left_out() -> None:
    odd = event({"executableCode": {"language": "PYTHON"}}, {"text": "Hi", "speechMetadata": {}}, groundingMetadata=[])
    response = read_bytes(b": hello\n\n", odd, event(reason="STOP")).response
    assert response.parts == (Text("Hi"),)
    assert len(response.notes) == 1


@pytest.mark.parametrize(
    "counts", [None, {"promptTokenCount": -1}, {"promptTokenCount": 1, "thoughtsTokenCount": 10**12}]
)
def test_absurd_or_missing_usage_is_left_out(counts: JSON) -> None:
    response = read_bytes(event({"text": "Hi"}, reason="STOP", usageMetadata=counts)).response
    assert response.usage is None
    assert len(response.notes) == (1 if counts else 0)


SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}


def test_the_output_tool_comes_back_as_text_alone() -> None:
    wire = GeminiWire(output="tool")
    got = read(lambda: wire.from_wire(request(output=SCHEMA)), [STREAMS["output_tool"]])
    assert got.response.parts == (Text('{"name": "Ada", "age": 36}'),)
    assert got.response.stop == "end"
    assert got.closed == []


def error_body(code: int, status: str, message: str = "words", *details: JSON) -> bytes:
    return json.dumps({"error": {"code": code, "message": message, "status": status, "details": details}}).encode()


QUOTA = "type.googleapis.com/google.rpc.QuotaFailure"
RETRY = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.07s"}
PER_DAY = {"@type": QUOTA, "violations": [{"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}]}
PER_MINUTE = {"@type": QUOTA, "violations": [{"quotaId": "GenerateRequestsPerMinutePerProjectPerModel"}]}
BAD_KEY = {
    "@type": "type.googleapis.com/google.rpc.ErrorInfo",
    "reason": "API_KEY_INVALID",
    "metadata": {"service": "x"},
}
CODE_ASSIST = {"reason": "RATE_LIMIT_EXCEEDED", "metadata": {"quota_limit": "Gemini25ProRequestsPerDay"}}
TOO_LONG = "The input token count (3475108) exceeds the maximum number of tokens allowed (1048576)."


@pytest.mark.parametrize(
    ("status", "body", "kind", "retry_after"),
    [
        (429, error_body(429, "RESOURCE_EXHAUSTED"), "rate_limited", None),
        (429, error_body(429, "RESOURCE_EXHAUSTED", "words", PER_MINUTE, RETRY), "rate_limited", 34.07),
        (429, error_body(429, "RESOURCE_EXHAUSTED", "words", PER_DAY, RETRY), "quota_exhausted", None),
        (429, error_body(429, "RESOURCE_EXHAUSTED", "words", CODE_ASSIST), "quota_exhausted", None),
        (429, error_body(429, "RESOURCE_EXHAUSTED", "words", {"violations": "odd"}, 7, RETRY), "rate_limited", 34.07),
        (503, error_body(503, "UNAVAILABLE"), "overloaded", None),
        (401, error_body(401, "UNAUTHENTICATED"), "auth", None),
        (403, error_body(403, "PERMISSION_DENIED"), "auth", None),
        (400, error_body(400, "INVALID_ARGUMENT", "API key not valid.", BAD_KEY), "auth", None),
        (404, error_body(404, "NOT_FOUND"), "not_found", None),
        (400, error_body(400, "INVALID_ARGUMENT"), "invalid_request", None),
        (400, error_body(400, "INVALID_ARGUMENT", TOO_LONG), "context_too_long", None),
        (400, error_body(400, "INVALID_ARGUMENT", f"in {TOO_LONG}"), "invalid_request", None),
        (400, b"[" + error_body(400, "INVALID_ARGUMENT", TOO_LONG) + b"]", "context_too_long", None),
        (504, error_body(504, "DEADLINE_EXCEEDED"), "server", None),
        (500, error_body(500, "INTERNAL"), "server", None),
        (502, b"<html>", "server", None),
        (429, b"[]", "rate_limited", None),
        (418, b"\xff", "invalid_request", None),
    ],
)
def test_failures_by_status_and_details(
    status: int, body: bytes, kind: ModelErrorKind, retry_after: float | None
) -> None:
    failure = WIRE.read_failure(status, body)
    assert failure.kind == kind
    assert failure.retry_after == retry_after
    assert failure.message


def test_an_error_about_a_key_does_not_repeat_it() -> None:
    failure = WIRE.read_failure(400, error_body(400, "INVALID_ARGUMENT", "bad key AIzaSecret", BAD_KEY))
    assert "AIza" not in failure.message
