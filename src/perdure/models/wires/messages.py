"""Anthropic Messages: requests of system, messages, tools and settings as one JSON body.

Rule 1: a message is written once; the last one gets its cache mark in a copy, so what is kept never changes.
Rule 2: signatures and redacted thoughts go back in their place if they are this wire's own, and else not at all.
"""

from __future__ import annotations

from base64 import b64encode
from functools import partial
from typing import Any, Literal, cast

import msgspec

from perdure.core.messages import (
    JSON,
    AnswerPart,
    AssistantMessage,
    Media,
    Message,
    Part,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    ToolResult,
    UserMessage,
)
from perdure.core.specs import EFFORT_TOKENS
from perdure.models.wires.messages_failures import read_failure
from perdure.models.wires.messages_reader import MessagesReader
from perdure.models.wires.messages_schema import close_schema
from perdure.models.wires.output_tool import DESCRIPTION, OutputTool, output_tool
from perdure.models.wires.wire import (
    Failure,
    Files,
    call_id,
    compose,
    encode,
    object_of,
    open_list,
    spoken,
    unshown,
    with_extra,
    without_none,
    write,
    write_beside,
    write_messages,
)
from perdure.ports import ModelRequest

LEAST_BUDGET = 1024

_OLDER = ("claude-haiku-4-5", "claude-sonnet-4-5", "claude-opus-4-5")
_OLDEST = (
    "claude-2",
    "claude-3",
    "claude-opus-4-0",
    "claude-opus-4-1",
    "claude-opus-4-2",
    "claude-sonnet-4-0",
    "claude-sonnet-4-2",
)
_IMAGES = frozenset(("image/jpeg", "image/png", "image/gif", "image/webp"))
_MARK = b',"cache_control":{"type":"ephemeral"}'
_BLOCK_END = b"}]},"


class MessagesWire(msgspec.Struct, frozen=True, kw_only=True, cache_hash=True):
    """The Messages format.

    `max_tokens` is sent where the settings have none: the API wants one. Seed, penalties and `parallel_calls=True` have
    no field there and are not sent.
    `thinking`: how an effort is written: "adaptive" (Claude 4.6 and later) or "budget"; a number always is a budget.
    `output`: "native" by schema, or "tool"; schemas with free keys take the tool, since the native way cannot say them.
    `continues`: whether the model goes on from an answer's beginning; Claude 4.6 and later refuse that. Such a request
    is sent without thinking, since the two exclude each other, and without the white space at the beginning's end,
    which the API refuses; a continuation that begins with it has it taken off, so it is not there twice.
    `version`: 2026-10-21 takes no temperature, top_p and top_k, so the one before it is the default.
    """

    name: str = "anthropic"
    version: str = "2023-06-01"
    betas: tuple[str, ...] = ()
    bearer: bool = False
    max_tokens: int = 32_000
    thinking: Literal["adaptive", "budget"] = "adaptive"
    output: Literal["native", "tool"] = "native"
    continues: bool = False

    def address(self, base_url: str, model: str) -> str:
        return f"{base_url.rstrip('/').removesuffix('/v1')}/v1/messages"

    def headers(self, key: str) -> dict[str, str]:
        fields = {"content-type": "application/json", "anthropic-version": self.version}
        if self.betas:
            fields["anthropic-beta"] = ",".join(self.betas)
        if key:
            fields["authorization" if self.bearer else "x-api-key"] = f"Bearer {key}" if self.bearer else key
        return fields

    def to_wire(self, request: ModelRequest, model: str, files: Files) -> bytes:
        write_one = partial(_write_message, name=self.name, files=files)
        pieces = write_messages(request.messages, self, write_one)
        marks = request.settings.cache is not False
        if marks and pieces and pieces[-1] and not isinstance(request.messages[-1], AssistantMessage):
            pieces[-1] = pieces[-1][: -len(_BLOCK_END)] + _MARK + _BLOCK_END
        pieces = [*map(write_one, request.preface), *pieces, *map(write_one, request.suffix)]
        prefix = _prefix_of(request).rstrip()
        if prefix:
            pieces.append(encode({"role": "assistant", "content": [{"type": "text", "text": prefix}]}) + b",")
        is_foreign = request.settings.thinking is not None and _is_in_foreign_turn(self, request)
        return compose(write_beside(request, self, model, self._write_beside, is_foreign), pieces)

    def _write_beside(self, request: ModelRequest, model: str) -> bytes:
        return open_list(write(_head(self, request, model)), b"messages")

    def from_wire(self, request: ModelRequest) -> MessagesReader:
        prefix = _prefix_of(request)
        return MessagesReader(_output_tool(self, request), prefix[len(prefix.rstrip()) :] if prefix.strip() else "")

    def read_failure(self, status: int, body: bytes) -> Failure:
        return read_failure(status, body)


def wire_for(model: str, **options: Any) -> MessagesWire:
    """The wire as the model needs it: what Claude before 4.6 cannot do, or still can, is known by the name."""
    known: dict[str, Any] = {}
    if any(name in model for name in _OLDER):
        known = {"thinking": "budget", "continues": True}
    elif any(name in model for name in _OLDEST):
        known = {"thinking": "budget", "continues": True, "output": "tool", "max_tokens": 4096}
    return MessagesWire(**(known | options))


def _head(wire: MessagesWire, request: ModelRequest, model: str) -> dict[str, JSON]:
    settings = request.settings
    marks = settings.cache is not False
    forced = _output_tool(wire, request)
    thinking, effort = _thinking_of(wire, request)
    budget = thinking.get("budget_tokens", 0) if thinking else 0
    is_thinking = thinking is not None and thinking["type"] != "disabled"
    # The API refuses a format beside the beginning of an answer.
    is_native = forced is None and not request.prefix
    output_config = without_none({"effort": effort, "format": _format_of(request) if is_native else None})
    fields: dict[str, JSON] = {
        "model": model,
        # The budget is a part of max_tokens, so without a wish for the whole it is added.
        "max_tokens": settings.max_tokens or wire.max_tokens + budget,
        "stream": True,
        "system": _marked({"type": "text", "text": request.instructions}, marks)
        if request.instructions.strip()
        else None,
        "tools": _tools_of(request, forced, marks) or None,
        "tool_choice": _choice_of(request, forced, is_thinking),
        "thinking": thinking,
        "output_config": output_config or None,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "top_k": settings.top_k,
        "stop_sequences": list(settings.stop) or None,
    }
    return with_extra(without_none(fields), settings.extra, reserved="messages")


def _marked(block: dict[str, JSON], marks: bool) -> list[JSON]:
    return [block | {"cache_control": {"type": "ephemeral"}} if marks else block]


def _tools_of(request: ModelRequest, forced: OutputTool | None, marks: bool) -> list[JSON]:
    tools: list[dict[str, JSON]] = [
        {
            "name": tool.name,
            "description": tool.description or None,
            "input_schema": tool.parameters or {"type": "object", "properties": {}},
        }
        for tool in request.tools
    ]
    if forced is not None:
        tools.append({"name": forced.name, "description": DESCRIPTION, "input_schema": forced.schema})
    written = [without_none(tool) for tool in tools]
    return [*written[:-1], *_marked(written[-1], marks)] if written else []


def _choice_of(request: ModelRequest, forced: OutputTool | None, is_thinking: bool) -> JSON:
    """auto, none, any, or one tool. A forced tool and thinking exclude each other; thinking then leaves it to auto."""
    wish = request.settings.tool_choice
    if not request.tools and forced is None:
        return None
    if forced is not None:
        alone = not request.tools or wish == "none"
        kind: dict[str, JSON] = {"type": "tool", "name": forced.name} if alone else {"type": "any"}
        if wish not in ("", "auto", "none", "required"):
            kind = {"type": "tool", "name": wish}
        kind = {"type": "auto"} if is_thinking else kind
    else:
        match wish:
            case "" | "auto" | "none":
                kind = {"type": wish or "auto"}
            case "required":
                kind = {"type": "any"}
            case _:
                kind = {"type": "tool", "name": wish}
    if request.settings.parallel_calls is False and kind["type"] != "none":
        kind["disable_parallel_tool_use"] = True
    return None if kind == {"type": "auto"} and not wish else kind


def _thinking_of(wire: MessagesWire, request: ModelRequest) -> tuple[dict[str, JSON] | None, str | None]:
    """The thinking field, and the effort."""
    wish = request.settings.thinking
    if wish is None or (_prefix_of(request) and wish != "off"):
        return None, None
    is_budget = isinstance(wish, int) or wire.thinking == "budget"
    if is_budget and wish not in ("off", 0) and _is_in_foreign_turn(wire, request):
        return None, None
    if wish == "off" or wish == 0:
        return {"type": "disabled"}, None
    if is_budget:
        budget = _budget_within(request.settings.max_tokens, wish if isinstance(wish, int) else EFFORT_TOKENS[wish])
        return ({"type": "enabled", "budget_tokens": budget} if budget else None), None
    return {"type": "adaptive"}, cast(str, wish)


def _budget_within(max_tokens: int | None, budget: int) -> int:
    """The API refuses a budget that fills all that may be written, and a very small one; then half of it, or none."""
    if max_tokens is None or budget < max_tokens:
        return budget
    return max_tokens // 2 if max_tokens // 2 >= LEAST_BUDGET else 0


def _is_in_foreign_turn(wire: MessagesWire, request: ModelRequest) -> bool:
    """Whether the turn under way began without a thought of ours; with a budget the API then refuses to think on."""
    if len(request.messages) < 2 or not isinstance(request.messages[-1], ToolMessage):
        return False
    match request.messages[-2]:
        case AssistantMessage(parts=(Thinking(), *_), provider=wire.name):
            return False
        case _:
            return True


def _output_tool(wire: MessagesWire, request: ModelRequest) -> OutputTool | None:
    if request.output is None or (wire.output == "native" and close_schema(request.output) is not None):
        return None
    return output_tool(request)


def _format_of(request: ModelRequest) -> JSON:
    return None if request.output is None else {"type": "json_schema", "schema": close_schema(request.output)}


def _prefix_of(request: ModelRequest) -> str:
    return "".join(part.text for part in request.prefix if isinstance(part, Text))


def _write_message(message: Message, name: str, files: Files) -> bytes:
    match message:
        case UserMessage(parts=parts):
            role = "user"
            blocks = _write_parts(parts, files) or [{"type": "text", "text": "(nothing)"}]
        case AssistantMessage(parts=parts, provider=provider):
            role = "assistant"
            blocks = [block for part in spoken(parts) if (block := _write_answer(part, provider == name)) is not None]
        case ToolMessage(results=results):
            role = "user"
            blocks = [_write_result(result, files) for result in results]
    return encode({"role": role, "content": blocks}) + b"," if blocks else b""


def _write_answer(part: AnswerPart, is_own: bool) -> JSON:
    match part:
        case Text(text=text):
            # The API refuses blank text.
            return {"type": "text", "text": text} if text.strip() else None
        case ToolCall():
            return {"type": "tool_use", "id": call_id(part.call), "name": part.name, "input": object_of(part.arguments)}
        case Thinking(text=text, signature=signature, extras=extras) if is_own:
            if isinstance(extras, dict) and "redacted" in extras:
                return {"type": "redacted_thinking", "data": cast(dict[str, JSON], extras)["redacted"]}
            return {"type": "thinking", "thinking": text, "signature": signature} if signature else None
        case Thinking():
            return None


def _write_result(result: ToolResult, files: Files) -> dict[str, JSON]:
    fields: dict[str, JSON] = {"type": "tool_result", "tool_use_id": call_id(result.call)}
    content = _write_parts(result.parts, files)
    if content:
        fields["content"] = content
    if result.outcome != "ok":
        fields["is_error"] = True
    return fields


def _write_parts(parts: tuple[Part, ...], files: Files) -> list[JSON]:
    return [
        {"type": "text", "text": part.text} if isinstance(part, Text) else _write_media(part, files)
        for part in parts
        if not isinstance(part, Text) or part.text.strip()
    ]


def _write_media(media: Media, files: Files) -> dict[str, JSON]:
    data = files[media.artifact]
    if media.kind == "image" and media.media_type in _IMAGES:
        return {"type": "image", "source": _base64(media.media_type, data)}
    title = {"title": media.name} if media.name else {}
    if media.media_type == "application/pdf":
        return {"type": "document", "source": _base64(media.media_type, data)} | title
    if media.kind == "document":
        try:
            text = data.decode()
        except UnicodeDecodeError:
            text = ""
        if text.strip():
            return {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": text}} | title
    return {"type": "text", "text": unshown(media)}


def _base64(media_type: str, data: bytes) -> dict[str, JSON]:
    return {"type": "base64", "media_type": media_type, "data": b64encode(data).decode()}
