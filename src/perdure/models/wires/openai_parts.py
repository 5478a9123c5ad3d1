"""Pieces of requests that OpenAI's formats share: address, headers, data URLs, tool and output schemas, effort."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from typing import cast

import msgspec

from perdure.core.codec import decode_json, encode_json
from perdure.core.messages import JSON, Media, Text
from perdure.core.specs import Effort
from perdure.models.wires.output_tool import WRAPPED
from perdure.models.wires.wire import Files, unshown, write
from perdure.ports import ModelRequest

NO_PARAMETERS: JSON = {"type": "object", "properties": {}}

_STRICT_WORDS = {
    *("type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf", "$ref", "$defs"),
    *("description", "title", "pattern", "format", "multipleOf", "minItems", "maxItems"),
    *("maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum"),
}
_TEXTS = ("text/", "application/json", "application/xml")
_IMAGES = frozenset(("image/jpeg", "image/png", "image/gif", "image/webp"))
_EXTENSIONS = {"application/pdf": ".pdf", "application/json": ".json", "text/csv": ".csv", "text/plain": ".txt"}


class Output(msgspec.Struct, frozen=True):
    """A run's output schema as an object; `is_wrapped`: the value itself is under the key WRAPPED."""

    schema: JSON
    is_wrapped: bool = False


def line(item: JSON) -> bytes:
    """An item of a list that `compose` takes."""
    return write(item) + b","


def address_at(base_url: str, path: str) -> str:
    """Azure's base_url has a query, which stays at the end."""
    base, mark, query = base_url.partition("?")
    return f"{base.rstrip('/')}/{path}{mark}{query}"


def headers_with(key: str, key_header: str) -> dict[str, str]:
    headers = {"content-type": "application/json"}
    if key:
        headers[key_header] = f"Bearer {key}" if key_header == "authorization" else key
    return headers


def choice_beside(output: str, request: ModelRequest) -> str:
    """The choice of tools where the one named `output` takes the answer: some tool has to be called."""
    choice = request.settings.tool_choice
    if not request.tools or choice == "none":
        return output
    return "required" if choice in ("", "auto") else choice


def words_of(parts: Iterable[object]) -> str:
    return "".join([part.text for part in parts if isinstance(part, Text)])


def data_url(part: Media, files: Files) -> str:
    return f"data:{part.media_type};base64,{b64encode(files[part.artifact]).decode()}"


def file_name(part: Media) -> str:
    return part.name or "document" + _EXTENSIONS.get(part.media_type, "")


def text_document(part: Media, files: Files) -> str | None:
    """A file in words: plain text as it is, a note for what the API does not take; None for pictures and PDF."""
    if part.kind == "document" and part.media_type.startswith(_TEXTS):
        return f"{file_name(part)}:\n{files[part.artifact].decode('utf-8', 'replace')}"
    is_taken = part.media_type in _IMAGES if part.kind == "image" else part.media_type == "application/pdf"
    return None if is_taken else unshown(part)


def readable_arguments(arguments: str) -> str:
    """The arguments as a JSON object: servers that read the history refuse all of it for one truncated call."""
    try:
        if isinstance(decode_json(arguments), dict):
            return arguments
    except ValueError:
        pass
    return encode_json({"unreadable_arguments": arguments}).decode()


def effort_of(thinking: Effort | int | None) -> str | None:
    """A budget in tokens is turned into the effort that uses about as many."""
    match thinking:
        case None:
            return None
        case "off":
            return "none"
        case str():
            return thinking
        case budget if budget <= 0:
            return "none"
        case budget:
            return "low" if budget <= 2048 else "medium" if budget <= 8192 else "high"


def output_of(schema: JSON) -> Output | None:
    """What to ask for, since the root has to be an object: a reference is followed, another type is wrapped."""
    if schema is None:
        return None
    root, definitions = schema, schema.get("$defs", {})
    name = str(root.get("$ref", "")).removeprefix("#/$defs/")
    if name in definitions:
        root = {**definitions[name], "$defs": definitions}
    if root.get("type") == "object":
        return Output(root)
    inner = {key: value for key, value in schema.items() if key != "$defs"}
    wrapped = {"type": "object", "properties": {WRAPPED: inner}, "required": [WRAPPED], "additionalProperties": False}
    return Output({**wrapped, "$defs": definitions} if definitions else wrapped, is_wrapped=True)


def is_strict(schema: JSON) -> bool:
    """Whether the provider's strict mode takes the schema as it stands: all keys required, none besides them."""
    match schema:
        case {"$ref": str()}:
            return len(cast(dict[str, JSON], schema)) == 1 or set(cast(dict[str, JSON], schema)) == {"$ref", "$defs"}
        case dict():
            fields = cast(dict[str, JSON], schema)
        case _:
            return False
    if not fields.keys() <= _STRICT_WORDS or not fields.keys() & {"type", "anyOf"}:
        return False
    properties = cast(dict[str, JSON], fields.get("properties", {}))
    if fields.get("type") == "object":
        is_closed = fields.get("additionalProperties") is False
        if not is_closed or set(fields.get("required", ())) != set(properties):
            return False
    inner = [*properties.values(), *fields.get("anyOf", ()), *fields.get("$defs", {}).values()]
    return all(map(is_strict, [*inner, fields["items"]] if "items" in fields else inner))
