"""OpenAI Chat Completions, and every server that speaks it: requests out; chat_reader reads the answers.

Invariant: what is made of a message depends on the message and the options alone, so it is made once.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, cast

import msgspec

from perdure.core.errors import UsageError
from perdure.core.messages import (
    JSON,
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
from perdure.core.specs import ModelSettings, ToolSpec
from perdure.models.wires import json_tools
from perdure.models.wires.answer import Answer
from perdure.models.wires.chat_reader import ChatReader
from perdure.models.wires.openai_failures import read_failure
from perdure.models.wires.openai_parts import (
    NO_PARAMETERS,
    Output,
    address_at,
    choice_beside,
    data_url,
    effort_of,
    file_name,
    headers_with,
    is_strict,
    line,
    output_of,
    readable_arguments,
    text_document,
    words_of,
)
from perdure.models.wires.output_tool import DESCRIPTION, output_name
from perdure.models.wires.wire import (
    Failure,
    Files,
    Reader,
    call_id,
    compose,
    open_list,
    spoken,
    with_extra,
    without_none,
    write,
    write_all,
    write_beside,
)
from perdure.ports import ModelRequest

_NOT_SET = ModelSettings()


class ChatWire(msgspec.Struct, frozen=True, cache_hash=True):
    """Options of a server; as they stand they are OpenAI's.

    `output`: how a run's output type is asked for. `tools`: "json" for models that have no tools of their own.
    `continues`: an answer's beginning may be sent, and `prefix` how: as the last message alone (llama.cpp), with vLLM's
    flags, or marked (Mistral, DeepSeek). `reasoning`: with which answers the model's own thinking is sent back;
    "required" is for DeepSeek, which takes no calls without it, be it empty. `key_header`: where the key goes; Azure's
    is "api-key".
    """

    name: str = "openai"
    output: Literal["native", "tool"] = "native"
    tools: Literal["native", "json"] = "native"
    max_tokens_field: Literal["max_completion_tokens", "max_tokens"] = "max_completion_tokens"
    continues: bool = False
    prefix: Literal["message", "flags", "mark"] = "message"
    reasoning: Literal["calls", "always", "never", "required"] = "calls"
    takes_top_k: bool = False
    takes_cache_key: bool = True
    takes_stream_options: bool = True
    key_header: str = "authorization"

    def __post_init__(self) -> None:
        if self.continues and self.tools == "json":
            raise UsageError("An answer in JSON cannot go on from its words; take continues=False with tools='json'.")

    def address(self, base_url: str, model: str) -> str:
        return address_at(base_url, "chat/completions")

    def headers(self, key: str) -> dict[str, str]:
        return headers_with(key, self.key_header)

    def to_wire(self, request: ModelRequest, model: str, files: Files) -> bytes:
        messages = write_all(request, self, partial(self._write, files=files))
        opening, system = write_beside(request, self, model, self._write_beside)
        return compose(opening, [system, *messages, self._prefix(request) if request.prefix else b""])

    def _write_beside(self, request: ModelRequest, model: str) -> tuple[bytes, bytes]:
        """The request up to its messages, and the first of those, which holds the instructions."""
        is_json = self._is_json(request)
        instructions = json_tools.instructions_of(request) if is_json else request.instructions
        fields = {"model": model, "stream": True, **self._settings(request), **self._tools(request)}
        if self.takes_stream_options:
            fields["stream_options"] = {"include_usage": True}
        if request.prefix and self.prefix == "flags":
            fields |= {"continue_final_message": True, "add_generation_prompt": False}
        written = write(with_extra(fields, request.settings.extra, reserved="messages"))
        system = line({"role": "system", "content": instructions}) if instructions else b""
        return open_list(written, b"messages"), system

    def from_wire(self, request: ModelRequest) -> Reader:
        answer = Answer()
        if self._is_json(request):
            return ChatReader(answer, json=json_tools.JsonAnswer(answer, is_raw=request.output is not None))
        output = self._output(request)
        tool = output_name(request) if output and self.output == "tool" else ""
        return ChatReader(answer, tool=tool, is_wrapped=output is not None and output.is_wrapped)

    def read_failure(self, status: int, body: bytes) -> Failure:
        return read_failure(status, body)

    def _is_json(self, request: ModelRequest) -> bool:
        return self.tools == "json" and json_tools.is_needed(request)

    def _output(self, request: ModelRequest) -> Output | None:
        # An answer that goes on from its middle cannot be held to a schema from its start.
        return None if request.prefix else output_of(request.output)

    def _settings(self, request: ModelRequest) -> dict[str, JSON]:
        settings, key = request.settings, self._cache_key(request)
        if settings == _NOT_SET:
            return {"prompt_cache_key": key} if key else {}
        return without_none(
            {
                "temperature": settings.temperature,
                "top_p": settings.top_p,
                "top_k": settings.top_k if self.takes_top_k else None,
                self.max_tokens_field: settings.max_tokens,
                "seed": settings.seed,
                "stop": list(settings.stop) or None,
                "presence_penalty": settings.presence_penalty,
                "frequency_penalty": settings.frequency_penalty,
                "reasoning_effort": effort_of(settings.thinking),
                "prompt_cache_key": key,
            }
        )

    def _cache_key(self, request: ModelRequest) -> str | None:
        return request.cache_key or None if self.takes_cache_key and request.settings.cache is not False else None

    def _tools(self, request: ModelRequest) -> dict[str, JSON]:
        """Tools, the choice among them, and the form of the answer."""
        if self._is_json(request):
            return {"response_format": _format(json_tools.schema_of(request))}
        output, choice = self._output(request), request.settings.tool_choice
        tools, fields = [_tool(tool) for tool in request.tools], dict[str, JSON]()
        if output and self.output == "native":
            fields["response_format"] = _format(output.schema)
        elif output:
            name = output_name(request)
            tools.append(_tool(ToolSpec(name, DESCRIPTION, output.schema)))
            choice = choice_beside(name, request)
        if tools:
            fields["tools"] = tools
            if choice:
                fields["tool_choice"] = _choice(choice)
            if request.settings.parallel_calls is not None:
                fields["parallel_tool_calls"] = request.settings.parallel_calls
        return fields

    def _prefix(self, request: ModelRequest) -> bytes:
        message: dict[str, JSON] = {"role": "assistant", "content": words_of(request.prefix)}
        if self.prefix == "mark":
            message["prefix"] = True
        return line(message)

    def _write(self, message: Message, files: Files) -> bytes:
        match message:
            case AssistantMessage(parts=parts):
                return self._write_answer(message) if spoken(parts) else b""
            case UserMessage(parts=parts):
                return line({"role": "user", "content": _content(parts, files)})
            case ToolMessage(results=results) if self.tools == "json":
                parts = [part for result in results for part in _as_turn(result)]
                return line({"role": "user", "content": _content(parts, files)})
            case ToolMessage(results=results):
                return b"".join(map(_write_result, results)) + _write_media(results, files)

    def _write_answer(self, message: AssistantMessage) -> bytes:
        text, calls = message.text, message.calls
        if self.tools == "json":
            lines = ([text] if text else []) + [json_tools.call_text(call) for call in calls]
            return line({"role": "assistant", "content": "\n".join(lines)})
        is_own = message.provider == self.name
        fields: dict[str, JSON] = {"role": "assistant", "content": text or ("" if not calls else None)}
        if calls and self.reasoning == "required":
            fields["reasoning_content"] = ""
        if is_own and (self.reasoning == "always" or (self.reasoning != "never" and calls)):
            for part in message.parts:
                if isinstance(part, Thinking):
                    _send_back(part, fields)
        if calls:
            fields["tool_calls"] = [_write_call(call, is_own=is_own) for call in calls]
        return line(fields)


def wire_for(model: str, **options: Any) -> ChatWire:
    """All models of this format are spoken to alike; what a server wants otherwise is an option."""
    return ChatWire(**options)


def _content(parts: tuple[Part, ...] | list[Part], files: Files) -> JSON:
    """Plain words where it is nothing else: every server takes those."""
    if all(isinstance(part, Text) for part in parts):
        return "\n\n".join(part.text for part in parts if isinstance(part, Text))
    return [_write_part(part, files) for part in parts]


def _write_part(part: Part, files: Files) -> JSON:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if (text := text_document(part, files)) is not None:
        return {"type": "text", "text": text}
    url = data_url(part, files)
    if part.kind == "image":
        return {"type": "image_url", "image_url": {"url": url}}
    return {"type": "file", "file": {"filename": file_name(part), "file_data": url}}


def _write_call(call: ToolCall, *, is_own: bool) -> JSON:
    function = {"name": call.name, "arguments": readable_arguments(call.arguments)}
    written: dict[str, JSON] = {"id": call_id(call.call), "type": "function", "function": function}
    return written | cast(dict[str, JSON], call.extras) if is_own and call.extras is not None else written


def _send_back(part: Thinking, fields: dict[str, JSON]) -> None:
    """Thinking goes back in the field that it came in; a message's pieces of it are joined."""
    match part.extras:
        case {"reasoning_details": details}:
            fields["reasoning_details"] = fields.get("reasoning_details", []) + details
        case {"field": ("reasoning_content" | "reasoning") as field}:
            fields[field] = fields.get(field, "") + part.text
        case _:
            pass


def _write_result(result: ToolResult) -> bytes:
    return line({"role": "tool", "tool_call_id": call_id(result.call), "content": words_of(result.parts)})


def _write_media(results: tuple[ToolResult, ...], files: Files) -> bytes:
    """Tool messages hold words only; pictures and documents follow from the user, who says whose they are."""
    parts: list[Part] = []
    for result in results:
        media = [part for part in result.parts if isinstance(part, Media)]
        if media:
            parts += [Text(f"What {result.name} ({call_id(result.call)}) returned:"), *media]
    return line({"role": "user", "content": _content(parts, files)}) if parts else b""


def _as_turn(result: ToolResult) -> list[Part]:
    media = [part for part in result.parts if isinstance(part, Media)]
    return [Text(json_tools.result_text(result)), *media]


def _tool(tool: ToolSpec) -> JSON:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters or NO_PARAMETERS}
    return {"type": "function", "function": function}


def _choice(choice: str) -> JSON:
    if choice in ("auto", "none", "required"):
        return choice
    return {"type": "function", "function": {"name": choice}}


def _format(schema: JSON) -> JSON:
    named: dict[str, JSON] = {"name": "output", "schema": schema}
    if is_strict(schema) and cast(dict[str, JSON], schema).get("type") == "object":
        named["strict"] = True
    return {"type": "json_schema", "json_schema": named}
