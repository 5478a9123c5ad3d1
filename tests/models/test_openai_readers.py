"""What servers of OpenAI's formats do that the format does not say, and what the readers make of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perdure.core.deltas import PartClosed, TextDelta
from perdure.core.errors import ModelError
from perdure.core.messages import JSON, Text, Thinking, ToolCall, Usage
from perdure.models.wires.sse import MAX_EVENT
from perdure.models.wires.wire import Wire
from perdure.ports import ModelRequest, ModelResponse
from tests.models.fuzz_openai import (
    ASK,
    ASK_LIST,
    ASK_TOOLS,
    ASK_TOTAL,
    CHAT,
    FORCED,
    FORCED_RESPONSES,
    RESPONSES,
    read_all,
)

DONE = b"data: [DONE]\n\n"


def event(value: JSON) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def delta(finish: str | None = None, **fields: JSON) -> bytes:
    return event({"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]})


def call(
    index: int | None, id: str | None = None, name: str | None = None, arguments: JSON = "", **more: JSON
) -> bytes:
    function = {"name": name, "arguments": arguments} if name else {"arguments": arguments}
    return delta(tool_calls=[{"index": index, "id": id, "function": function, **more}])


def read(*events: bytes, wire: Wire = CHAT, request: ModelRequest = ASK_TOOLS) -> ModelResponse:
    end = read_all(wire, request, [b"".join(events)])[1]
    assert isinstance(end, ModelResponse), end
    return end


def fail(*events: bytes, wire: Wire = CHAT, request: ModelRequest = ASK_TOOLS) -> ModelError:
    end = read_all(wire, request, [b"".join(events)])[1]
    assert isinstance(end, ModelError), end
    return end


def named(response: ModelResponse) -> list[tuple[str, str]]:
    return [(part.name, part.arguments) for part in response.parts if isinstance(part, ToolCall)]


# Chat: calls


@pytest.mark.parametrize("index", [0, None])
def test_calls_with_one_index_are_told_apart_by_id(index: int | None) -> None:
    end = read(call(index, "a", "f", "{}"), call(index, "b", "g", '{"x":1}'), delta("tool_calls"), DONE)
    assert named(end) == [("f", "{}"), ("g", '{"x":1}')]


def test_an_id_that_is_repeated_is_the_same_call() -> None:
    end = read(call(0, "a", "f", '{"x"'), call(0, "a", "f", ":1}"), delta("tool_calls"), DONE)
    assert named(end) == [("f", '{"x":1}')]


def test_arguments_may_come_after_all_calls_were_named() -> None:
    end = read(
        call(0, "a", "f"), call(1, "b", "g"), call(0, None, None, '{"x":1}'), call(1, None, None, "{}"), delta("stop")
    )
    assert named(end) == [("f", '{"x":1}'), ("g", "{}")]


def test_arguments_after_the_end_of_a_call_are_a_cut() -> None:
    assert fail(call(0, "a", "f", "{}"), call(1, "b", "g"), call(0, None, None, "{}")).kind == "cut"


def test_a_call_is_closed_when_the_next_begins_and_comes_out_before_a_failure() -> None:
    data = call(0, "a", "f", "{}") + call(1, "b", "g", '{"x"') + b"data: {broken\n\n"
    deltas, end = read_all(CHAT, ASK_TOOLS, [data])
    assert [d.part for d in deltas if isinstance(d, PartClosed)] == [ToolCall(0, "f", "{}", "a")]
    assert isinstance(end, ModelError)
    assert end.kind == "cut"


def test_calls_that_end_with_stop_are_calls() -> None:
    assert read(call(0, "a", "f", "{}"), delta("stop"), DONE).stop == "calls"


def test_arguments_may_be_an_object() -> None:
    assert named(read(call(0, "a", "f", {"x": 1}), delta("stop"))) == [("f", '{"x":1}')]


def test_a_call_without_arguments_has_none() -> None:
    assert named(read(call(0, "a", "f"), delta("tool_calls"))) == [("f", "{}")]


def test_a_call_without_a_name_is_a_cut() -> None:
    assert fail(call(0, "a")).kind == "cut"


def test_what_a_provider_puts_on_a_call_is_kept() -> None:
    extra = {"google": {"thought_signature": "c2ln"}}
    end = read(call(0, "a", "f", "{}", extra_content=extra), delta("stop"))
    assert end.parts == (ToolCall(0, "f", "{}", "a", {"extra_content": extra}),)


def test_a_call_that_is_no_json_stays_open() -> None:
    deltas, end = read_all(CHAT, ASK_TOOLS, [call(0, "a", "f", '{"x":'), delta("tool_calls"), DONE])
    assert not any(isinstance(d, PartClosed) for d in deltas)
    assert isinstance(end, ModelResponse)
    assert named(end) == [("f", '{"x":')]


# Chat: words and thoughts


def test_reasoning_in_either_field_is_thinking_and_closed_before_the_words() -> None:
    for field in ("reasoning", "reasoning_content"):
        end = read(delta(**{field: "Hm."}), delta(content="Yes."), delta("stop"))
        assert end.parts == (Thinking("Hm.", extras={"field": field}), Text("Yes."))


def test_reasoning_in_both_fields_is_read_once() -> None:
    end = read(delta(reasoning="Hm.", reasoning_content="Hm."), delta("stop"))
    assert end.parts == (Thinking("Hm.", extras={"field": "reasoning_content"}),)


def test_details_that_come_with_a_call_stand_before_it() -> None:
    secret = {"type": "reasoning.encrypted", "data": "x", "id": "a"}
    function = {"name": "f", "arguments": "{}"}
    piece = delta(tool_calls=[{"index": 0, "id": "a", "function": function}], reasoning_details=[secret])
    end = read(delta(content="Well."), piece, delta("tool_calls"))
    assert end.parts == (
        Text("Well."),
        Thinking("", extras={"reasoning_details": [secret]}),
        ToolCall(0, "f", "{}", "a"),
    )


def test_other_choices_are_left_out() -> None:
    both = {"choices": [{"index": 1, "delta": {"content": "B"}}, {"index": 0, "delta": {"content": "A"}}]}
    assert read(event(both), delta("stop")).parts == (Text("A"),)


# Chat: ends


@pytest.mark.parametrize(
    ("reason", "stop"), [("stop", "end"), ("length", "length"), ("model_length", "length"), ("eos", "end")]
)
def test_finish_reasons(reason: str, stop: str) -> None:
    assert read(delta(content="Hi"), delta(reason)).stop == stop


@pytest.mark.parametrize("reason", ["error", "abort", "insufficient_system_resource"])
def test_a_broken_off_answer_is_an_error(reason: str) -> None:
    assert fail(delta(content="Hi"), delta(reason)).kind == "in_band"


def test_an_unknown_finish_reason_is_noted() -> None:
    end = read(delta(content="Hi"), delta("because"))
    assert (end.stop, end.notes) == ("end", ("unknown finish reason 'because'",))


def test_words_and_done_are_an_answer_and_calls_without_a_finish_reason_are_not() -> None:
    assert read(delta(content="Hi"), DONE).notes == ("no finish reason",)
    assert fail(call(0, "a", "f", "{}"), DONE).kind == "cut"


def test_a_body_without_a_finish_reason_is_whole() -> None:
    calls = [{"id": "a", "function": {"name": "f", "arguments": "{}"}}]
    end = read(json.dumps({"choices": [{"message": {"content": None, "tool_calls": calls}}]}).encode())
    assert (named(end), end.stop, end.notes) == ([("f", "{}")], "calls", ("no finish reason",))
    assert fail(b'{"choices": []}').kind == "cut"


def test_an_answer_of_nothing_is_an_answer() -> None:
    assert read(delta("stop"), DONE) == ModelResponse((), "end")


def test_a_limit_before_the_first_word_is_truncated() -> None:
    assert fail(delta(reasoning="Hm"), delta("length"), DONE).kind == "truncated"


def test_words_after_the_finish_reason_are_left_out_and_noted() -> None:
    end = read(delta(content="Hi"), delta("stop"), delta(content="!"), delta("stop"), DONE, DONE)
    assert (end.parts, end.notes) == ((Text("Hi"),), ("data after the end",))


def test_the_last_event_needs_no_blank_line() -> None:
    assert read(delta(content="Hi"), delta("stop").rstrip()).parts == (Text("Hi"),)


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": -1, "completion_tokens": 2},
        {"prompt_tokens": 10**12, "completion_tokens": 1},
        {"prompt_tokens": "many", "completion_tokens": 1},
        [],
    ],
)
def test_usage_that_cannot_be_true_is_none(usage: JSON) -> None:
    end = read(delta("stop"), event({"choices": [], "usage": usage}), DONE)
    assert (end.usage, end.notes) == (None, ("the usage cannot be true",))


def test_reasoning_that_is_counted_beside_the_output_is_added_to_it() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 15}
    end = read(
        delta("stop"), event({"choices": [], "usage": usage | {"completion_tokens_details": {"reasoning_tokens": 7}}})
    )
    assert end.usage == Usage(5, 10, reasoning=7)


def test_written_cache_is_part_of_the_input() -> None:
    usage = {"prompt_tokens": 50, "completion_tokens": 3, "prompt_tokens_details": {"cache_write_tokens": 40}}
    assert read(delta("stop"), event({"choices": [], "usage": usage})).usage == Usage(50, 3, cache_written=40)


# Chat: errors and nonsense


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"error": {"code": 429, "message": "slow"}}, "rate_limited"),
        (
            {"error": {"code": 502, "message": "bad gateway"}, "choices": [{"index": 0, "finish_reason": "error"}]},
            "server",
        ),
        ({"error": {"type": "insufficient_quota", "code": "insufficient_quota"}}, "quota_exhausted"),
        ({"error": "something"}, "in_band"),
        ({"error": {"message": "x", "type": "invalid_request_error"}}, "invalid_request"),
        (
            {"object": "error", "message": "This model's maximum context length is 10 tokens.", "code": 400},
            "context_too_long",
        ),
        ({"detail": "Internal"}, "in_band"),
    ],
)
def test_an_error_in_the_answer_is_of_the_class_that_its_code_says(error: JSON, kind: str) -> None:
    assert fail(delta(content="Hi"), event(error)).kind == kind


@pytest.mark.parametrize(
    "junk",
    [
        b"data: {\n\n",
        b"data: 7\n\n",
        b'data: {"choices": 7}\n\n',
        b'data: {"choices":[{"delta":{"content":7}}]}\n\n',
        b'data: {"choices":[{"delta":{"content":"\\ud800"}}]}\n\n',
        b'data: {"choices":[{"delta":{"content":"\xff"}}]}\n\n',
        b"data: " + b"[" * 100_000 + b"\n\n",
        b'data: {"usage":' + b"[" * 100_000 + b"\n\n",
        b"<html>504</html>",
        b"x" * (MAX_EVENT + 1),
        b"{" * (MAX_EVENT + 1),
        b"",
    ],
    ids=range(12),
)
@pytest.mark.parametrize("wire", [CHAT, RESPONSES])
def test_nonsense_is_a_cut(junk: bytes, wire: Wire) -> None:
    if wire is RESPONSES:
        junk = junk.replace(b'{"choices":', b'{"type":"response.output_item.added","item":')
    assert fail(junk, wire=wire).kind == "cut"


def test_unknown_events_and_fields_are_ignored() -> None:
    end = read(
        event({"object": "ping"}), event({"x": [1]}), b": comment\n\n", delta(content="Hi", new={"a": 1}), delta("stop")
    )
    assert end == ModelResponse((Text("Hi"),), "end")


# A forced answer, and outputs that are no objects


def test_the_forced_answer_is_text_and_what_was_said_before_it_is_not() -> None:
    events = (delta(content="Let me think."), call(0, "a", "final_answer", '{"total":7}'), delta("tool_calls"), DONE)
    end = read(*events, wire=FORCED, request=ASK_TOTAL)
    assert end == ModelResponse((Text('{"total":7}'),), "end")


def test_a_second_forced_answer_is_left_out() -> None:
    events = (call(0, "a", "final_answer", '{"total":7}'), call(1, "b", "final_answer", '{"total":8}'), delta("stop"))
    end = read(*events, wire=FORCED, request=ASK_TOTAL)
    assert (end.parts, end.notes) == ((Text('{"total":7}'),), ("a second answer was left out",))


def test_a_forced_answer_beside_calls() -> None:
    events = (call(0, "a", "f", "{}"), call(1, "b", "final_answer", '{"total":8}'), delta("stop"))
    end = read(*events, wire=FORCED, request=ASK_TOTAL)
    assert (end.stop, end.parts) == ("calls", (ToolCall(0, "f", "{}", "a"), Text('{"total":8}')))


def test_a_wrapped_value_is_unwrapped_as_it_comes() -> None:
    deltas, end = read_all(
        CHAT, ASK_LIST, [delta(content='{"value"'), delta(content=": [1,"), delta(content=" 2]}"), delta("stop")]
    )
    assert [d for d in deltas if isinstance(d, TextDelta)] == [TextDelta("[1,"), TextDelta(" 2]")]
    assert isinstance(end, ModelResponse)


def test_an_answer_that_is_not_wrapped_is_left_as_it_is() -> None:
    assert read(delta(content="[1, 2]"), delta("stop"), request=ASK_LIST).parts == (Text("[1, 2]"),)
    assert read(delta(content='{"val'), delta("stop"), request=ASK_LIST).parts == (Text('{"val'),)


def test_spaces_behind_a_whole_value_up_to_the_limit_do_no_harm() -> None:
    events = (delta(content='{"value": 10'), delta(content="\n \n"), delta("length"))
    assert read(*events, request=ASK_LIST) == ModelResponse((Text("10"),), "end")
    assert read(delta(content='{"value": [1'), delta("length"), request=ASK_LIST).stop == "length"


# Responses


def said(kind: str, **fields: JSON) -> bytes:
    return event({"type": f"response.{kind}", **fields})


def completed(status: str = "completed", **fields: JSON) -> bytes:
    return said(status, response={"status": status, **fields})


def item(**fields: Any) -> dict[str, Any]:
    return {"type": "function_call", "name": "f", "call_id": "c", **fields}


def test_items_without_deltas_are_read_when_they_are_done() -> None:
    message = {"type": "message", "content": [{"type": "output_text", "text": "Hi"}]}
    thought = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]}
    events = [said("output_item.done", item=it) for it in (thought, message, item(arguments="{}"))]
    end = read(*events, completed(), wire=RESPONSES)
    assert end.parts == (Thinking("Hm", extras=thought), Text("Hi"), ToolCall(0, "f", "{}", "c"))
    assert end.stop == "calls"


def test_calls_without_indexes_are_found_by_their_ids_and_else_are_the_open_one() -> None:
    events = (
        said("output_item.added", item=item(id="1")),
        said("output_item.added", item=item(id="2", name="g")),
        said("function_call_arguments.delta", item_id="1", delta='{"x":1}'),
        said("function_call_arguments.delta", delta='{"y":1}'),
        said("output_item.done", item=item(id="2", name="g", arguments='{"y":1}')),
        said("output_item.done", item=item(id="1", arguments='{"x":1}')),
    )
    assert named(read(*events, completed(), wire=RESPONSES)) == [("f", '{"x":1}'), ("g", '{"y":1}')]


def test_a_call_whose_end_says_otherwise_than_its_pieces_is_a_cut() -> None:
    events = (
        said("output_item.added", output_index=0, item=item(id="1")),
        said("function_call_arguments.delta", output_index=0, delta='{"x":1}'),
        said("output_item.done", output_index=0, item=item(id="1", arguments='{"x":2}')),
    )
    assert fail(*events, wire=RESPONSES).kind == "cut"


def test_arguments_of_no_call_are_a_cut() -> None:
    assert fail(said("function_call_arguments.delta", delta="{}"), wire=RESPONSES).kind == "cut"


def test_a_response_that_ends_without_its_event_is_a_cut() -> None:
    assert fail(said("output_text.delta", delta="Hi"), DONE, wire=RESPONSES).kind == "cut"


def test_done_after_the_response_is_no_matter() -> None:
    assert read(said("output_text.delta", delta="Hi"), completed(), DONE, wire=RESPONSES).notes == ()


@pytest.mark.parametrize(
    ("events", "kind"),
    [
        ([completed("failed", error={"code": "server_error", "message": "x"})], "server"),
        ([completed("failed", error={"code": "invalid_prompt", "message": "x"})], "content_filtered"),
        ([completed("failed")], "in_band"),
        ([completed("incomplete", incomplete_details={"reason": "steered"})], "in_band"),
        ([event({"type": "error", "error": {"type": "rate_limit_error", "message": "x"}})], "rate_limited"),
        ([event({"error": {"code": "context_length_exceeded"}})], "context_too_long"),
        ([completed("incomplete", incomplete_details={"reason": "max_output_tokens"})], "truncated"),
    ],
)
def test_a_response_that_failed_is_an_error_of_its_class(events: list[bytes], kind: str) -> None:
    assert fail(*events, wire=RESPONSES).kind == kind


def test_a_forced_answer_of_responses_is_unwrapped() -> None:
    events = (
        said("output_text.delta", delta="Well."),
        said("output_item.added", output_index=1, item=item(name="final_answer")),
        said("function_call_arguments.delta", output_index=1, delta='{"value": [1'),
        said("function_call_arguments.delta", output_index=1, delta=", 2]}"),
        said("output_item.done", output_index=1, item=item(name="final_answer", arguments='{"value": [1, 2]}')),
    )
    end = read(*events, completed(), wire=FORCED_RESPONSES, request=ASK_LIST)
    assert end == ModelResponse((Text("[1, 2]"),), "end")


def test_a_failure_is_told_to_everybody_who_asks() -> None:
    for wire in (CHAT, RESPONSES):
        reader = wire.from_wire(ASK)
        assert not reader.read(b"data: {\n\n")
        assert reader.is_done
        with pytest.raises(ModelError):
            reader.read(b"")
        with pytest.raises(ModelError):
            reader.finish()
