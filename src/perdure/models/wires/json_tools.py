"""Tools for models that have none: the answer is a JSON object that either answers or names a tool.

The server holds the model to the schema (a grammar), so every finished answer can be read. Calls and results of the
history become plain turns. Rule: an object that was not finished never becomes a call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import msgspec

from perdure.core.codec import decode_json, encode_json
from perdure.core.errors import ModelError
from perdure.core.messages import JSON, ToolCall, ToolResult
from perdure.core.specs import ToolSpec
from perdure.models.wires.answer import Answer
from perdure.models.wires.openai_parts import NO_PARAMETERS, readable_arguments, words_of
from perdure.models.wires.openai_values import ValueStream
from perdure.models.wires.wire import call_id
from perdure.ports import ModelRequest

_ANSWER = "answer"
_TOOL = "tool"
_ARGUMENTS = "arguments"

_EXAMPLES: dict[str, JSON] = {"integer": 0, "number": 0, "boolean": False, "array": [], "object": {}}


class _Call(msgspec.Struct):
    tool: str
    arguments: msgspec.Raw


_decode_call = msgspec.json.Decoder(_Call).decode


def is_needed(request: ModelRequest) -> bool:
    return bool(request.tools) or request.output is not None


def schema_of(request: ModelRequest) -> JSON:
    """One of: the answer, or a tool with its arguments; `tool_choice` narrows it."""
    definitions: dict[str, JSON] = {}
    tools = _offered(request)
    choices: list[JSON] = []
    if request.settings.tool_choice not in ("required", *(tool.name for tool in request.tools)) or not tools:
        answer = {"type": "string"} if request.output is None else _embed(request.output, _ANSWER, definitions)
        choices.append(_object(answer=answer))
    for number, tool in enumerate(tools):
        arguments = _embed(tool.parameters or NO_PARAMETERS, f"{_TOOL}{number}", definitions)
        choices.append(_object(tool={"const": tool.name}, arguments=arguments))
    schema: dict[str, JSON] = choices[0] if len(choices) == 1 else {"anyOf": choices}
    return {**schema, "$defs": definitions} if definitions else schema


def instructions_of(request: ModelRequest) -> str:
    """The instructions, and a line per tool that shows its call: small models follow what they see."""
    tools = _offered(request)
    lines = [request.instructions, ""] if request.instructions else []
    if tools:
        lines.append("You reply with one JSON object. If a tool fits the request, call it:")
        lines += map(_describe, tools)
        lines.append("If no tool fits, or when its result has come, answer:")
    else:
        lines.append("You reply with one JSON object:")
    lines.append(_line(answer="<your answer>" if request.output is None else {}))
    if request.output is not None:
        lines += ["The answer follows this schema:", encode_json(request.output).decode()]
    return "\n".join(lines)


def call_text(call: ToolCall) -> str:
    arguments = readable_arguments(call.arguments)
    return f'{{"{_TOOL}": {encode_json(call.name).decode()}, "{_ARGUMENTS}": {arguments}}}'


def result_text(result: ToolResult) -> str:
    return f"Result of {result.name} ({call_id(result.call)}): {words_of(result.parts)}"


class JsonAnswer:
    """Characters in; the answer's go on as text, and a finished tool object becomes a call."""

    __slots__ = ("_answer", "_is_called", "_text", "_value")

    def __init__(self, answer: Answer, *, is_raw: bool) -> None:
        self._answer = answer
        self._value = ValueStream((_ANSWER, _TOOL, _ARGUMENTS), is_raw=is_raw)
        self._text: list[str] = []
        self._is_called = False

    @property
    def is_whole(self) -> bool:
        return self._is_called or (self._value.key == _ANSWER and self._value.is_whole)

    def add(self, piece: str) -> None:
        said = self._value.add(piece)
        if self._value.key in (_TOOL, _ARGUMENTS) or not (self._value.key or self._value.is_foreign):
            self._text.append(piece)
            if piece.rstrip().endswith("}"):
                self._call()
        elif said:
            self._answer.add_text(said)

    def finish(self, *, is_truncated: bool) -> None:
        """At the end of the answer: what was held back is said, or is no answer at all."""
        if is_truncated or self._is_called:
            return
        if self._value.undecided:
            self._answer.add_text(self._value.undecided)
        elif self._value.key in (_TOOL, _ARGUMENTS):
            raise ModelError("The model wrote a tool call that cannot be read; try again.", kind="cut")

    def _call(self) -> None:
        """Makes the call, if its object is whole."""
        if self._is_called:
            return
        text = "".join(self._text)
        try:
            decode_json(text)
            call = _decode_call(text)
        except (ValueError, RecursionError):
            return
        self._is_called = True
        self._answer.open_call(0, call.tool)
        self._answer.add_arguments(0, bytes(call.arguments).decode())
        self._answer.close_call(0)


def _offered(request: ModelRequest) -> Sequence[ToolSpec]:
    choice = request.settings.tool_choice
    if choice == "none":
        return ()
    named = [tool for tool in request.tools if tool.name == choice]
    return named or request.tools


def _describe(tool: ToolSpec) -> str:
    properties = cast(dict[str, JSON], (tool.parameters or NO_PARAMETERS).get("properties", {}))
    fields = {name: cast(dict[str, JSON], schema) for name, schema in properties.items() if isinstance(schema, dict)}
    call = _line(tool=tool.name, arguments={name: _example(schema) for name, schema in fields.items()})
    told = [f"  {name}: {said}" for name, schema in fields.items() if (said := schema.get("description"))]
    return "\n".join([f"{tool.description} {call}".strip(), *told])


def _example(schema: dict[str, JSON]) -> JSON:
    """A value of the type that means nothing: words would be copied."""
    if "enum" in schema:
        return schema["enum"][0] if schema["enum"] else None
    return _EXAMPLES.get(str(schema.get("type")), "...")


def _line(**fields: JSON) -> str:
    # The order of the keys is the one that the schema enforces, so it is not sorted.
    return msgspec.json.encode(fields).decode("utf-8", "replace")


def _object(**properties: JSON) -> dict[str, JSON]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _embed(schema: JSON, name: str, definitions: dict[str, JSON]) -> JSON:
    """A schema inside of another: its definitions move to the root under names of their own, and references follow."""
    root = {key: value for key, value in schema.items() if key not in ("$defs", "definitions")}
    inner = {**schema.get("definitions", {}), **schema.get("$defs", {})}
    if b'"$ref":"#"' in encode_json(schema):
        inner[""] = root
    definitions.update({f"{name}.{target}": _refer(value, name) for target, value in inner.items()})
    return _refer(root, name)


def _refer(value: JSON, name: str) -> JSON:
    match value:
        case dict():
            fields = {key: _refer(item, name) for key, item in cast(dict[str, JSON], value).items()}
            ref = fields.get("$ref")
            if isinstance(ref, str) and ref.startswith("#"):
                target = ref.removeprefix("#").removeprefix("/$defs/").removeprefix("/definitions/")
                fields["$ref"] = f"#/$defs/{name}.{target}"
            return fields
        case list():
            return [_refer(item, name) for item in cast(list[JSON], value)]
        case _:
            return value
