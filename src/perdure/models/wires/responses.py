"""OpenAI Responses without a memory at the provider: requests out; responses_reader reads the answers.

Reasoning goes back whole and in its place, encrypted; calls and results are paired by our own ids.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

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
from perdure.core.specs import ToolSpec
from perdure.models.wires.answer import Answer
from perdure.models.wires.openai_failures import read_failure
from perdure.models.wires.openai_parts import (
    NO_PARAMETERS,
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
from perdure.models.wires.responses_reader import ResponsesReader
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


class ResponsesWire(msgspec.Struct, frozen=True, cache_hash=True):
    """Options of a server; as they stand they are OpenAI's.

    `output`: how a run's output type is asked for. `encrypts`: reasoning is asked for in a form that can be sent back.
    `summary`: how much of it is shown. `key_header`: where the key goes; Azure's is "api-key".
    """

    name: str = "openai-responses"
    output: Literal["native", "tool"] = "native"
    encrypts: bool = True
    summary: Literal["", "auto", "concise", "detailed"] = ""
    takes_cache_key: bool = True
    key_header: str = "authorization"

    @property
    def continues(self) -> bool:
        """An item that has begun cannot be sent."""
        return False

    def address(self, base_url: str, model: str) -> str:
        return address_at(base_url, "responses")

    def headers(self, key: str) -> dict[str, str]:
        return headers_with(key, self.key_header)

    def to_wire(self, request: ModelRequest, model: str, files: Files) -> bytes:
        items = write_all(request, self, partial(self._write, files=files))
        return compose(write_beside(request, self, model, self._write_beside), items)

    def _write_beside(self, request: ModelRequest, model: str) -> bytes:
        fields: dict[str, JSON] = {"model": model, "stream": True, "store": False}
        if request.instructions:
            fields["instructions"] = request.instructions
        if self.encrypts:
            fields["include"] = ["reasoning.encrypted_content"]
        fields |= self._settings(request) | self._tools(request)
        return open_list(write(with_extra(fields, request.settings.extra, reserved="input")), b"input")

    def from_wire(self, request: ModelRequest) -> Reader:
        output = output_of(request.output)
        tool = output_name(request) if output and self.output == "tool" else ""
        return ResponsesReader(Answer(), tool=tool, is_wrapped=output is not None and output.is_wrapped)

    def read_failure(self, status: int, body: bytes) -> Failure:
        return read_failure(status, body)

    def _settings(self, request: ModelRequest) -> dict[str, JSON]:
        settings = request.settings
        reasoning = without_none({"effort": effort_of(settings.thinking), "summary": self.summary or None})
        takes_key = self.takes_cache_key and settings.cache is not False
        return without_none(
            {
                "temperature": settings.temperature,
                "top_p": settings.top_p,
                "max_output_tokens": settings.max_tokens,
                "reasoning": reasoning or None,
                "prompt_cache_key": request.cache_key or None if takes_key else None,
            }
        )

    def _tools(self, request: ModelRequest) -> dict[str, JSON]:
        """Tools, the choice among them, and the form of the answer."""
        output, choice = output_of(request.output), request.settings.tool_choice
        tools, fields = [_tool(tool) for tool in request.tools], dict[str, JSON]()
        if output and self.output == "native":
            form = {"type": "json_schema", "name": "output", "schema": output.schema}
            fields["text"] = {"format": {**form, "strict": is_strict(output.schema)}}
        elif output:
            name = output_name(request)
            tools.append(_tool(ToolSpec(name, DESCRIPTION, output.schema)))
            choice = choice_beside(name, request)
        if tools:
            fields["tools"] = tools
            fields["tool_choice"] = _choice(choice) if choice else None
            fields["parallel_tool_calls"] = request.settings.parallel_calls
        return without_none(fields)

    def _write(self, message: Message, files: Files) -> bytes:
        match message:
            case UserMessage(parts=parts):
                content = [_write_part(part, files) for part in parts]
                return line({"type": "message", "role": "user", "content": content})
            case AssistantMessage(parts=parts):
                is_own = message.provider == self.name
                items = [item for part in spoken(parts) if (item := _write_item(part, is_own=is_own)) is not None]
                return b"".join(map(line, items))
            case ToolMessage(results=results):
                return b"".join(line(_write_result(result, files)) for result in results)


def wire_for(model: str, **options: Any) -> ResponsesWire:
    """All models of this format are spoken to alike; what a server wants otherwise is an option."""
    return ResponsesWire(**options)


def _write_part(part: Part, files: Files) -> JSON:
    if isinstance(part, Text):
        return {"type": "input_text", "text": part.text}
    if (text := text_document(part, files)) is not None:
        return {"type": "input_text", "text": text}
    url = data_url(part, files)
    if part.kind == "image":
        return {"type": "input_image", "image_url": url, "detail": "auto"}
    return {"type": "input_file", "filename": file_name(part), "file_data": url}


def _write_item(part: AnswerPart, *, is_own: bool) -> JSON:
    match part:
        case Text(text=text, extras=extras):
            # The status is for llama.cpp, which takes no answer without one.
            item: dict[str, JSON] = {"type": "message", "role": "assistant", "status": "completed"}
            item["content"] = [{"type": "output_text", "text": text}]
            return item | extras if is_own and extras is not None else item
        case Thinking(extras=extras):
            # An item that cannot be read without the provider's memory is of no use: it keeps none.
            is_readable = is_own and extras is not None and (extras.get("encrypted_content") or extras.get("content"))
            return extras if is_readable else None
        case ToolCall():
            arguments = readable_arguments(part.arguments)
            return {"type": "function_call", "call_id": call_id(part.call), "name": part.name, "arguments": arguments}


def _write_result(result: ToolResult, files: Files) -> JSON:
    output: JSON = words_of(result.parts)
    if any(isinstance(part, Media) for part in result.parts):
        output = [_write_part(part, files) for part in result.parts]
    return {"type": "function_call_output", "call_id": call_id(result.call), "output": output}


def _tool(tool: ToolSpec) -> JSON:
    parameters = tool.parameters or NO_PARAMETERS
    # Where nothing is said, the provider rewrites the schema to a strict one.
    named = {"name": tool.name, "description": tool.description, "parameters": parameters, "strict": False}
    return {"type": "function", **named}


def _choice(choice: str) -> JSON:
    return choice if choice in ("auto", "none", "required") else {"type": "function", "name": choice}
