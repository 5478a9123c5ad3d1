"""MessagesWire's reader: recorded streams whole, in single bytes and cut; stop reasons, usage, errors."""

from __future__ import annotations

import json

import pytest

from perdure.core.deltas import CallDelta, PartClosed, TextDelta, ThinkingDelta
from perdure.core.errors import ModelErrorKind
from perdure.core.messages import JSON, Text, Thinking, ToolCall, Usage, UserMessage
from perdure.models.wires.messages import MessagesWire
from perdure.models.wires.wire import Reader
from perdure.ports import ModelRequest
from tests.models.reading import Read, check_cuts, check_read, in_bytes, read, recorded

STREAMS = recorded("anthropic")
WIRE = MessagesWire()
SIGNATURE = "EqQBCgIYAhIM1gbcDa9GJwZA2b3hGgxBdjrkzLoky3dl1pkiMOYds6dVsSP8aK8bG5bN+P3zcOyRTyW3cjBjVf8="


def request(**fields: JSON) -> ModelRequest:
    return ModelRequest("anthropic:m", "", [UserMessage((Text("hi"),))], **fields)


def make() -> Reader:
    return WIRE.from_wire(request())


def event(kind: str, **fields: JSON) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def block(index: int, **fields: JSON) -> bytes:
    return event("content_block_start", index=index, content_block=fields)


def delta(index: int, **fields: JSON) -> bytes:
    return event("content_block_delta", index=index, delta=fields)


def stop(reason: str | None) -> bytes:
    return event("message_delta", delta={"stop_reason": reason}, usage={"output_tokens": 3}) + event("message_stop")


def said(text: str) -> bytes:
    return (
        block(0, type="text", text="") + delta(0, type="text_delta", text=text) + event("content_block_stop", index=0)
    )


def read_bytes(*pieces: bytes) -> Read:
    return read(make, [b"".join(pieces)])


def test_text() -> None:
    got = read(make, [STREAMS["text"]])
    assert got.deltas == [TextDelta("Hello"), TextDelta(", wörld 🙂!")]
    assert got.response.parts == (Text("Hello, wörld 🙂!"),)
    assert got.response.stop == "end"
    assert got.response.usage == Usage(25, 15)
    assert got.response.notes == ()


def test_parallel_calls_close_one_by_one_and_usage_counts_the_cache() -> None:
    got = read(make, [STREAMS["tools"]])
    calls = (
        ToolCall(0, "get_weather", '{"location": "San Francisco, CA"}', "toolu_01T1x1fJ34qAmk2tNTrN7Up6"),
        ToolCall(0, "get_time", '{"zone": "PST", "n": [1, {"a": "}"}]}', "toolu_01QUGQ5wYNx"),
        ToolCall(0, "now", "{}", "toolu_01QUGQ5wYNz"),
    )
    assert got.response.parts == (Text("Okay let me look."), *calls)
    assert got.closed == list(calls)
    assert got.response.stop == "calls"
    assert got.response.usage == Usage(872, 89, cached=300, cache_written=100)
    at = got.deltas.index(PartClosed(calls[0]))
    assert got.deltas[at - 1] == CallDelta(0, "", "}")
    assert got.deltas[at + 1] == CallDelta(1, "get_time")


def test_thoughts_keep_signature_and_redacted_data() -> None:
    got = read(make, [STREAMS["thinking"]])
    thought, redacted, text, call = got.response.parts
    assert thought == Thinking("I need to find the GCD of 1071 and 462.\n1071 = 2 × 462 + 147", SIGNATURE)
    assert isinstance(redacted, Thinking)
    assert redacted.text == ""
    assert redacted.extras == {"redacted": "EmwKAhgBEgy3va3pzix/LafPsn4aDFIT2Xlxh0L5L8rLVyIwxtE3rAFBa8cr3qpP"}
    assert text == Text("The greatest common divisor is 21.")
    assert got.closed == [thought, redacted, call]
    assert got.response.usage == Usage(61, 210, reasoning=150)
    assert ThinkingDelta("I need to find the GCD") in got.deltas


def test_blocks_that_are_closed_at_the_end_keep_their_place() -> None:
    got = read(make, [STREAMS["late_stops"]])
    assert got.response.parts == (
        Thinking("Hm. ", "c2ln"),
        Text("Let me see."),
        ToolCall(0, "look", '{"at": 2}', "a1"),
    )


def test_a_call_that_the_output_limit_cut_is_not_closed() -> None:
    got = read(make, [STREAMS["length"]])
    assert got.response.stop == "length"
    assert got.closed == []


def test_refusal_has_its_reason_as_a_note() -> None:
    got = read(make, [STREAMS["refusal"]])
    assert got.response.stop == "refusal"
    assert got.response.notes == ("This was declined.",)


def test_line_ends_and_a_byte_order_mark() -> None:
    got = read(make, [STREAMS["crlf"]])
    assert got.response.parts == (Text("onetwo"),)
    assert got.response.stop == "end"


def test_an_error_in_the_stream_comes_after_what_was_closed_before_it() -> None:
    for pieces in ([STREAMS["overloaded"]], in_bytes(STREAMS["overloaded"])):
        got = read(make, pieces)
        assert got.error.kind == "overloaded"
        assert "Overloaded" in str(got.error)
        assert got.closed == [ToolCall(0, "look", '{"at": 1}', "toolu_1")]
        assert got.shown == "and then"


@pytest.mark.parametrize("name", STREAMS)
def test_single_bytes_give_the_same(name: str) -> None:
    whole, pieces = read(make, [STREAMS[name]]), read(make, in_bytes(STREAMS[name]))
    check_read(whole)
    assert pieces.deltas == whole.deltas
    assert repr(pieces.end) == repr(whole.end)


@pytest.mark.parametrize("name", [name for name in STREAMS if name != "overloaded"])
def test_cut_at_every_byte(name: str) -> None:
    check_cuts(make, STREAMS[name], {"cut"})


def test_only_message_stop_ends_an_answer() -> None:
    assert read_bytes(said("Hi"), stop("end_turn")).response.parts == (Text("Hi"),)
    without_stop = event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 3})
    assert read_bytes(said("Hi"), without_stop).error.kind == "cut"
    assert read_bytes(said("Hi"), stop(None)).error.kind == "cut"
    assert read_bytes().error.kind == "cut"


def test_a_last_event_without_its_blank_line_counts() -> None:
    assert read_bytes((said("Hi") + stop("end_turn")).rstrip(b"\n")).response.stop == "end"


def test_what_follows_the_end_is_ignored_with_a_note() -> None:
    reader = make()
    reader.read(said("Hi") + stop("end_turn"))
    assert reader.is_done
    assert reader.read(said("more") + stop("max_tokens") + b"data: {nonsense\n\n") == []
    response = reader.finish()
    assert response.parts == (Text("Hi"),)
    assert response.stop == "end"
    assert len(response.notes) == 1


@pytest.mark.parametrize(
    ("reason", "expected", "notes"),
    [
        ("end_turn", "end", 0),
        ("stop_sequence", "end", 0),
        ("max_tokens", "length", 0),
        ("model_context_window_exceeded", "length", 0),
        ("refusal", "refusal", 0),
        ("pause_turn", "end", 1),
        ("something_new", "end", 1),
    ],
)
def test_stop_reasons(reason: str, expected: str, notes: int) -> None:
    response = read_bytes(said("Hi"), stop(reason)).response
    assert response.stop == expected
    assert len(response.notes) == notes


def test_limits_that_come_before_any_word() -> None:
    assert read_bytes(stop("max_tokens")).error.kind == "truncated"
    assert read_bytes(stop("model_context_window_exceeded")).error.kind == "context_too_long"


def test_a_call_that_never_closed_is_no_call() -> None:
    opened = block(0, type="tool_use", id="t", name="pay", input={}) + delta(
        0, type="input_json_delta", partial_json="{}"
    )
    got = read_bytes(opened, stop("tool_use"))
    assert got.error.kind == "cut"
    assert got.closed == []


def test_arguments_in_the_beginning_of_a_block() -> None:
    whole = block(0, type="tool_use", id="t", name="pay", input={"cents": 5}) + event("content_block_stop", index=0)
    (call,) = read_bytes(whole, stop("tool_use")).response.parts
    assert isinstance(call, ToolCall)
    assert json.loads(call.arguments) == {"cents": 5}


@pytest.mark.parametrize(
    "odd",
    [
        b"data: {not json\n\n",
        b"data: []\n\n",
        b'data: {"type": 7}\n\n',
        b"data: \xff\xfe\n\n",
        b'data: {"type": "content_block_delta", "index": "x", "delta": {}}\n\n',
        event("content_block_delta", index=0),
        delta(9, type="input_json_delta", partial_json="{}"),
        delta(9, type="thinking_delta", thinking="hm"),
        event("content_block_stop", index=9),
        block(1, type="tool_use", input={}),
        block(1, type="tool_use", name="f", input={"a": "?"}).replace(b"?", b"\xff"),
        block(1, type="text", text="") + block(1, type="text", text=""),
        b"data: " + b'{"type": "message_start", "message": ' + b"[" * 100_000 + b"\n\n",
    ],
)
def test_nonsense_is_a_cut(odd: bytes) -> None:
    assert read_bytes(odd, said("Hi"), stop("end_turn")).error.kind == "cut"


def test_nothing_is_added_to_a_closed_block() -> None:
    call = block(0, type="tool_use", id="t", name="pay", input={}) + event("content_block_stop", index=0)
    got = read_bytes(call, delta(0, type="input_json_delta", partial_json='{"a": 1}'), stop("tool_use"))
    assert got.error.kind == "cut"
    assert got.closed == [ToolCall(0, "pay", "{}", "t")]


def test_unknown_events_deltas_and_blocks_are_left_out() -> None:
    odd = (
        event("content_block_hint", index="?", delta=7)
        + b": a comment\n\n"
        + block(5, type="server_tool_use", id="s", name="web_search", input={})
        + delta(5, type="input_json_delta", partial_json='{"q": 1}')
        + event("content_block_stop", index=5)
        + delta(0, type="citations_delta", citation={"cited_text": "x"})
    )
    response = read_bytes(odd, said("Hi"), stop("end_turn")).response
    assert response.parts == (Text("Hi"),)
    assert response.notes == ("A block of the type 'server_tool_use' was left out.",)


@pytest.mark.parametrize("usage", [None, {"output_tokens": -4}, {"output_tokens": 10**12}, {"input_tokens": -1}])
def test_absurd_or_missing_usage_is_left_out(usage: JSON) -> None:
    first = event("message_start", message={"usage": {"input_tokens": 5, "output_tokens": 1} if usage else None})
    last = event("message_delta", delta={"stop_reason": "end_turn"}, usage=usage) + event("message_stop")
    response = read_bytes(first, said("Hi"), last).response
    assert response.usage is None
    assert len(response.notes) == (1 if usage else 0)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("rate_limit_error", "rate_limited"),
        ("api_error", "server"),
        ("invalid_request_error", "invalid_request"),
        ("something_new", "in_band"),
        (None, "in_band"),
    ],
)
def test_errors_in_the_stream(kind: str | None, expected: str) -> None:
    error = event("error", error={"type": kind, "message": "words"})
    assert read_bytes(said("Hi"), error).error.kind == expected
    assert read_bytes(error).error.kind == expected


SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}


def test_the_output_tool_comes_back_as_text_alone() -> None:
    wire = MessagesWire(output="tool")
    got = read(lambda: wire.from_wire(request(output=SCHEMA)), [STREAMS["output_tool"]])
    assert got.response.parts == (Text('{"name": "Ada", "age": 36}'),)
    assert got.response.stop == "end"
    assert got.closed == []
    later = STREAMS["output_tool"].replace(
        b"event: message_delta", block(7, type="text", text="Done.") + b"event: message_delta"
    )
    again = read(lambda: wire.from_wire(request(output=SCHEMA)), [later])
    assert again.response.parts == got.response.parts


def test_an_output_that_is_no_object_is_unwrapped() -> None:
    wire = MessagesWire(output="tool")
    called = (
        block(0, type="tool_use", id="t", name="final_answer", input={})
        + delta(0, type="input_json_delta", partial_json='{"value": [1, 2]}')
        + event("content_block_stop", index=0)
        + stop("tool_use")
    )
    got = read(lambda: wire.from_wire(request(output={"type": "array", "items": {"type": "integer"}})), [called])
    assert got.response.parts == (Text("[1,2]"),)


@pytest.mark.parametrize(
    ("prefix", "said_next", "expected"),
    [
        ("Hello ", [" world"], "Hello world"),
        ("Hello ", ["world"], "Hello world"),
        ("Hello\n\n", ["\n", "\nNext"], "Hello\n\nNext"),
        ("Hello\n\n", ["\nNext"], "Hello\n\nNext"),
        ("Hello", [" world"], "Hello world"),
    ],
)
def test_white_space_between_prefix_and_continuation_is_there_once(
    prefix: str, said_next: list[str], expected: str
) -> None:
    wire = MessagesWire(continues=True)
    pieces = [block(0, type="text", text=""), *(delta(0, type="text_delta", text=text) for text in said_next)]
    got = read(lambda: wire.from_wire(request(prefix=(Text(prefix),))), [*pieces, stop("end_turn")])
    assert prefix + got.response.parts[0].text == expected  # pyright: ignore[reportAttributeAccessIssue]


def error_body(kind: str, message: str = "words", **details: JSON) -> bytes:
    error = {"type": kind, "message": message} | ({"details": details} if details else {})
    return json.dumps({"type": "error", "error": error, "request_id": "req_1"}).encode()


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (429, error_body("rate_limit_error"), "rate_limited"),
        (529, error_body("overloaded_error"), "overloaded"),
        (500, error_body("api_error"), "server"),
        (404, error_body("api_error"), "not_found"),
        (504, error_body("timeout_error"), "server"),
        (401, error_body("authentication_error"), "auth"),
        (403, error_body("permission_error"), "auth"),
        (402, error_body("billing_error"), "quota_exhausted"),
        (404, error_body("not_found_error"), "not_found"),
        (413, error_body("request_too_large"), "context_too_long"),
        (400, error_body("exceed_context_size_error"), "context_too_long"),
        (413, error_body("invalid_request_error"), "context_too_long"),
        (400, error_body("invalid_request_error"), "invalid_request"),
        (400, error_body("invalid_request_error", error_code="enforced_spend_limit_reached"), "quota_exhausted"),
        (
            400,
            error_body("invalid_request_error", "prompt is too long: 208310 tokens > 200000 maximum"),
            "context_too_long",
        ),
        (400, error_body("invalid_request_error", "prompt is too long"), "context_too_long"),
        (400, error_body("invalid_request_error", "say 'prompt is too long: 1 tokens > 0 maximum'"), "invalid_request"),
        (400, error_body("brand_new_error"), "invalid_request"),
        (529, b"<html>", "overloaded"),
        (503, b"", "overloaded"),
        (502, b"[" * 100_000, "server"),
        (429, b"null", "rate_limited"),
        (404, b'{"error": "no"}', "not_found"),
        (418, b"\xff", "invalid_request"),
    ],
)
def test_failures_by_type_code_and_status(status: int, body: bytes, kind: ModelErrorKind) -> None:
    failure = WIRE.read_failure(status, body)
    assert failure.kind == kind
    assert failure.message


def test_an_error_about_a_key_does_not_repeat_it() -> None:
    failure = WIRE.read_failure(401, error_body("authentication_error", "invalid x-api-key sk-ant-secret"))
    assert "sk-ant" not in failure.message
