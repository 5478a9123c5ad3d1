"""JSON schemas -> the part of them that Anthropic's native output takes; the rest is told in words.

The API refuses open objects and most bounds. What is told in words only is still checked when the answer has come.
"""

from __future__ import annotations

from typing import cast

from perdure.core.messages import JSON

_KEPT = frozenset(("$ref", "$defs", "type", "enum", "const", "anyOf", "allOf", "description", "title", "required"))
_FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"),
)
_UNSAID = frozenset(("$schema", "default", "examples", "discriminator"))


def close_schema(schema: JSON) -> JSON:
    """The schema as the API takes it; None where an object has free keys, which it cannot say."""
    try:
        return _close(schema)
    except ValueError:
        return None


def _close(schema: JSON) -> JSON:
    if not isinstance(schema, dict) or not schema:
        raise ValueError("anything goes")
    closed: dict[str, JSON] = {}
    untold: list[str] = []
    source = cast(dict[str, JSON], schema)
    is_object = source.get("type") == "object"
    for key, value in source.items():
        match key:
            case "properties" | "$defs":
                closed[key] = {name: _close(inner) for name, inner in value.items()}
            case "anyOf" | "oneOf" | "allOf":
                closed["anyOf" if key == "oneOf" else key] = [_close(inner) for inner in value]
            case "items":
                closed[key] = _close(value)
            case "additionalProperties":
                if value is not False and is_object:
                    raise ValueError("free keys")
            case "format" if value in _FORMATS:
                closed[key] = value
            case "minItems" if value in (0, 1):
                closed[key] = value
            case _ if key in _KEPT:
                closed[key] = value
            case _ if key not in _UNSAID:
                untold.append(f"{key}: {value}")
            case _:
                pass
    if is_object:
        if "properties" not in closed:
            raise ValueError("free keys")
        closed["additionalProperties"] = False
    if untold:
        closed["description"] = "\n\n".join(filter(None, (closed.get("description"), ", ".join(untold))))
    return closed
