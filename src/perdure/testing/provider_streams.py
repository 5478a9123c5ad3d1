"""One answer, as the bytes that each provider would stream for it; and their errors, inside and outside of a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Literal

import msgspec

from perdure.core.codec import decode_json
from perdure.core.messages import JSON, StopReason, Text, Thinking, ToolCall, Usage
from perdure.ports import ModelResponse

Format = Literal["openai", "openai-responses", "anthropic", "google"]
FORMATS: tuple[Format, ...] = ("openai", "openai-responses", "anthropic", "google")


def events_of(format: Format, answer: ModelResponse, *, chunk: int = 8) -> list[bytes]:
    """The events of the stream, each with its blank line; text comes in pieces of `chunk` characters."""
    return list(_WRITERS[format](answer, chunk))


def stream_of(format: Format, answer: ModelResponse, *, chunk: int = 8) -> bytes:
    return b"".join(events_of(format, answer, chunk=chunk))


def error_event(format: Format, message: str = "The server had an error.") -> bytes:
    """An error inside of a stream that had begun well: the provider failed by itself, or is overloaded."""
    match format:
        case "openai":
            return _event({"error": {"message": message, "type": "server_error", "param": None, "code": None}})
        case "openai-responses":
            return _named({"type": "error", "code": "server_error", "message": message, "param": None})
        case "anthropic":
            return _named({"type": "error", "error": {"type": "overloaded_error", "message": message}})
        case "google":
            return _event({"error": {"code": 503, "message": message, "status": "UNAVAILABLE"}}, b"\r\n\r\n")


def error_body(format: Format, status: int, message: str = "Something is wrong.") -> bytes:
    """The body of an answer whose status is no success."""
    openai, anthropic, google = _ERRORS.get(status, _ERRORS[500])
    match format:
        case "openai" | "openai-responses":
            return _json({"error": {"message": message, "type": openai[0], "param": None, "code": openai[1]}})
        case "anthropic":
            return _json({"type": "error", "error": {"type": anthropic, "message": message}, "request_id": "req_1"})
        case "google":
            return _json({"error": {"code": status, "message": message, "status": google}})


def too_long_body(format: Format) -> bytes:
    """The body, with status 400, for a prompt that is longer than the model's window."""
    match format:
        case "openai" | "openai-responses":
            message = "This model's maximum context length is 128000 tokens. Please reduce the length of the messages."
            fields = {"type": "invalid_request_error", "param": "messages", "code": "context_length_exceeded"}
            return _json({"error": {"message": message, **fields}})
        case "anthropic":
            return error_body(format, 400, "prompt is too long: 214000 tokens > 200000 maximum")
        case "google":
            message = "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."
            return error_body(format, 400, message)


_ERRORS: dict[int, tuple[tuple[str, str | None], str, str]] = {
    400: (("invalid_request_error", None), "invalid_request_error", "INVALID_ARGUMENT"),
    401: (("invalid_request_error", "invalid_api_key"), "authentication_error", "UNAUTHENTICATED"),
    403: (("invalid_request_error", None), "permission_error", "PERMISSION_DENIED"),
    404: (("invalid_request_error", "model_not_found"), "not_found_error", "NOT_FOUND"),
    429: (("requests", "rate_limit_exceeded"), "rate_limit_error", "RESOURCE_EXHAUSTED"),
    500: (("server_error", None), "api_error", "INTERNAL"),
    503: (("server_error", None), "overloaded_error", "UNAVAILABLE"),
    529: (("server_error", None), "overloaded_error", "UNAVAILABLE"),
}

_json: Callable[[object], bytes] = msgspec.json.Encoder().encode


def _event(data: JSON, end: bytes = b"\n\n") -> bytes:
    return b"data: " + _json(data) + end


def _named(data: dict[str, JSON]) -> bytes:
    return f"event: {data['type']}\n".encode() + _event(data)


def _cut(text: str, chunk: int) -> Iterable[str]:
    return (text[at : at + chunk] for at in range(0, len(text), chunk))


def _openai(answer: ModelResponse, chunk: int) -> Iterator[bytes]:
    def choice(delta: JSON, reason: str | None = None) -> bytes:
        return _event(head | {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})

    head: dict[str, JSON] = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    yield choice({"role": "assistant", "content": ""})
    calls = 0
    for part in answer.parts:
        match part:
            case Text():
                field = "refusal" if answer.stop == "refusal" else "content"
                yield from (choice({field: piece}) for piece in _cut(part.text, chunk))
            case Thinking():
                yield from (choice({"reasoning_content": piece}) for piece in _cut(part.text, chunk))
            case ToolCall():
                function = {"name": part.name, "arguments": ""}
                opened = {"index": calls, "id": part.id or f"call_{calls}", "type": "function", "function": function}
                yield choice({"tool_calls": [opened]})
                for piece in _cut(part.arguments, chunk):
                    yield choice({"tool_calls": [{"index": calls, "function": {"arguments": piece}}]})
                calls += 1
    reasons = {"end": "stop", "calls": "tool_calls", "length": "length", "refusal": "stop"}
    yield choice({}, reasons[_stop_of(answer)])
    if answer.usage is not None:
        yield _event(head | {"choices": [], "usage": _openai_usage(answer.usage)})
    yield b"data: [DONE]\n\n"


def _openai_usage(usage: Usage) -> JSON:
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.total,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


def _responses(answer: ModelResponse, chunk: int) -> Iterator[bytes]:
    """Numbers the events; each item is opened, told in pieces and closed whole."""
    response: dict[str, JSON] = {"id": "resp_1", "object": "response", "status": "in_progress", "output": []}
    items: list[JSON] = []
    told: list[dict[str, JSON]] = [{"type": "response.created", "response": response}]
    for index, part in enumerate(answer.parts):
        item, events = _response_item(part, index, chunk, answer.stop)
        items.append(item)
        told.extend(events)
    stop = _stop_of(answer)
    is_whole = stop != "length"
    end = response | {"status": "completed" if is_whole else "incomplete", "output": items}
    if not is_whole:
        end["incomplete_details"] = {"reason": "max_output_tokens"}
    if (usage := answer.usage) is not None:
        end["usage"] = {
            "input_tokens": usage.input,
            "input_tokens_details": {"cached_tokens": usage.cached},
            "output_tokens": usage.output,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning},
            "total_tokens": usage.total,
        }
    told.append({"type": "response.completed" if is_whole else "response.incomplete", "response": end})
    return (_named(event | {"sequence_number": number}) for number, event in enumerate(told))


def _response_item(
    part: Text | Thinking | ToolCall, index: int, chunk: int, stop: StopReason
) -> tuple[JSON, list[dict[str, JSON]]]:
    """The whole item, and the events that tell it."""
    opened: dict[str, JSON]
    match part:
        case Text():
            kind, field = ("refusal", "refusal") if stop == "refusal" else ("output_text", "text")
            id, told = f"msg_{index}", f"response.{kind}.delta"
            opened = {"id": id, "type": "message", "status": "in_progress", "role": "assistant", "content": []}
            text: dict[str, JSON] = {"type": kind, field: part.text}
            whole = opened | {"status": "completed", "content": [text]}
            place: dict[str, JSON] = {"item_id": id, "output_index": index, "content_index": 0}
            first = {"type": "response.content_part.added", **place, "part": text | {field: ""}}
            last = {"type": f"response.{kind}.done", **place, field: part.text}
        case Thinking():
            id, told = f"rs_{index}", "response.reasoning_summary_text.delta"
            opened = {"id": id, "type": "reasoning", "summary": []}
            summary = {"type": "summary_text", "text": part.text}
            whole = opened | {"summary": [summary], "encrypted_content": part.signature or None}
            place = {"item_id": id, "output_index": index, "summary_index": 0}
            first = {"type": "response.reasoning_summary_part.added", **place, "part": summary | {"text": ""}}
            last = {"type": "response.reasoning_summary_text.done", **place, "text": part.text}
        case ToolCall():
            id, told = f"fc_{index}", "response.function_call_arguments.delta"
            call = {"type": "function_call", "call_id": part.id or f"call_{index}", "name": part.name}
            opened = {"id": id, "status": "in_progress", **call, "arguments": ""}
            whole = opened | {"status": "completed", "arguments": part.arguments}
            place = {"item_id": id, "output_index": index}
            first = None
            last = {"type": "response.function_call_arguments.done", **place, "arguments": part.arguments}
    words = part.arguments if isinstance(part, ToolCall) else part.text
    events: list[dict[str, JSON]] = [
        {"type": "response.output_item.added", "output_index": index, "item": opened},
        *([first] if first else []),
        *({"type": told, **place, "delta": piece} for piece in _cut(words, chunk)),
        last,
        {"type": "response.output_item.done", "output_index": index, "item": whole},
    ]
    return whole, events


def _anthropic(answer: ModelResponse, chunk: int) -> Iterator[bytes]:
    usage = answer.usage or Usage()
    counts = {
        "input_tokens": usage.input - usage.cached - usage.cache_written,
        "cache_read_input_tokens": usage.cached,
        "cache_creation_input_tokens": usage.cache_written,
        "output_tokens": 1,
    }
    message: dict[str, JSON] = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": []}
    yield _named({"type": "message_start", "message": message | {"stop_reason": None, "usage": counts}})
    yield _named({"type": "ping"})
    for index, part in enumerate(answer.parts):
        block, deltas = _block_of(part, index, chunk)
        yield _named({"type": "content_block_start", "index": index, "content_block": block})
        for delta in deltas:
            yield _named({"type": "content_block_delta", "index": index, "delta": delta})
        yield _named({"type": "content_block_stop", "index": index})
    reasons = {"end": "end_turn", "calls": "tool_use", "length": "max_tokens", "refusal": "refusal"}
    delta = {"stop_reason": reasons[_stop_of(answer)], "stop_sequence": None}
    yield _named({"type": "message_delta", "delta": delta, "usage": {"output_tokens": usage.output}})
    yield _named({"type": "message_stop"})


def _block_of(part: Text | Thinking | ToolCall, index: int, chunk: int) -> tuple[JSON, list[JSON]]:
    match part:
        case Text():
            return {"type": "text", "text": ""}, [{"type": "text_delta", "text": p} for p in _cut(part.text, chunk)]
        case Thinking():
            deltas: list[JSON] = [{"type": "thinking_delta", "thinking": p} for p in _cut(part.text, chunk)]
            deltas.append({"type": "signature_delta", "signature": part.signature or "c2lnbmVk"})
            return {"type": "thinking", "thinking": "", "signature": ""}, deltas
        case ToolCall():
            block: dict[str, JSON] = {
                "type": "tool_use",
                "id": part.id or f"toolu_{index}",
                "name": part.name,
                "input": {},
            }
            pieces = [{"type": "input_json_delta", "partial_json": p} for p in _cut(part.arguments, chunk)]
            return block, pieces


def _google(answer: ModelResponse, chunk: int) -> Iterator[bytes]:
    """Calls come whole; the last event has the reason and the usage."""
    parts: list[dict[str, JSON]] = []
    signature: dict[str, JSON] = {}
    for part in answer.parts:
        match part:
            case Text():
                parts += [{"text": piece} for piece in _cut(part.text, chunk)]
            case Thinking():
                parts += [{"text": piece, "thought": True} for piece in _cut(part.text, chunk)]
                signature = {"thoughtSignature": part.signature} if part.signature else {}
            case ToolCall():
                # A thought is signed on the call that it led to.
                call = {"name": part.name, "args": decode_json(part.arguments)}
                parts.append({"functionCall": call, **signature})
                signature = {}
    head = {"modelVersion": "m", "responseId": "r1"}
    for part in parts:
        content = {"parts": [part], "role": "model"}
        yield _event({"candidates": [{"content": content, "index": 0}], **head}, b"\r\n\r\n")
    reasons = {"end": "STOP", "calls": "STOP", "length": "MAX_TOKENS", "refusal": "SAFETY"}
    last: dict[str, JSON] = {"content": {"parts": [{"text": ""}], "role": "model"}, "index": 0}
    last["finishReason"] = reasons[_stop_of(answer)]
    end: dict[str, JSON] = {"candidates": [last], **head}
    if (usage := answer.usage) is not None:
        end["usageMetadata"] = {
            "promptTokenCount": usage.input,
            "cachedContentTokenCount": usage.cached,
            "candidatesTokenCount": usage.output - usage.reasoning,
            "thoughtsTokenCount": usage.reasoning,
            "totalTokenCount": usage.total,
        }
    yield _event(end, b"\r\n\r\n")


def _stop_of(answer: ModelResponse) -> StopReason:
    """A provider says that calls follow even where the answer only says that it ended."""
    has_calls = any(isinstance(part, ToolCall) for part in answer.parts)
    return "calls" if has_calls and answer.stop == "end" else answer.stop


_WRITERS: dict[Format, Callable[[ModelResponse, int], Iterator[bytes]]] = {
    "openai": _openai,
    "openai-responses": _responses,
    "anthropic": _anthropic,
    "google": _google,
}
