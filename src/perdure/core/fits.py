"""Whether a plain value fits a JSON schema, in the keywords that Perdure's own schemas are written in.

Rule 1: a keyword that is not known here makes the schema unusable; nothing is checked half. Rule 2: pure and total.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, cast

from perdure.core.codec import decode_json
from perdure.core.errors import UsageError
from perdure.core.messages import JSON
from perdure.core.specs import ToolSpec

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
_KNOWN = frozenset(
    (
        # Says nothing about values
        *("title", "description", "default", "examples", "$defs", "$schema", "format", "deprecated"),
        *("type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref"),
        *("properties", "required", "additionalProperties"),
        *("items", "prefixItems", "minItems", "maxItems", "uniqueItems"),
        *("minLength", "maxLength", "pattern"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    )
)
MAX_DEPTH = 64


def check_schema(schema: JSON) -> None:
    """UsageError for a schema that values cannot be checked against here."""
    _check_schema(schema, MAX_DEPTH)


def _check_schema(schema: JSON, depth: int) -> None:
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict) or not depth:
        raise UsageError("A schema is a JSON object, not too deep; pass the schema of a JSON value.")
    fields = cast(dict[str, Any], schema)
    unknown = sorted(set(fields) - _KNOWN)
    if unknown:
        raise UsageError(f"The schema uses {', '.join(unknown)}, which cannot be checked here; write it without.")
    for inner in (*_parts_of(fields), *fields.get("$defs", {}).values()):
        _check_schema(inner, depth - 1)


def _parts_of(fields: dict[str, Any]) -> list[JSON]:
    """The schemas inside of a schema."""
    found: list[JSON] = [part for name in ("anyOf", "oneOf", "allOf", "prefixItems") for part in fields.get(name, ())]
    found += fields.get("properties", {}).values()
    found += [fields[name] for name in ("items", "additionalProperties") if name in fields]
    return found


def misfit(schema: JSON, value: JSON) -> str:
    """What is wrong with the value, and where; nothing if it fits."""
    return _misfit(schema, value, "", schema, MAX_DEPTH)


def misfit_arguments(tools: Iterable[ToolSpec], name: str, arguments: str) -> str:
    """What is wrong with a call's arguments, as far as its tool's schema says; only the tool itself knows all."""
    spec = next((tool for tool in tools if tool.name == name), None)
    try:
        return misfit(spec.parameters, decode_json(arguments)) if spec and spec.parameters is not None else ""
    except ValueError as error:
        return str(error)


def _misfit(schema: JSON, value: JSON, at: str, root: JSON, depth: int) -> str:
    if schema is True or not depth:
        return ""
    if schema is False or not isinstance(schema, dict):
        return _say(at, "nothing is allowed here")
    fields = cast(dict[str, Any], schema)
    if "$ref" in fields:
        return _misfit(_resolve(fields["$ref"], root), value, at, root, depth - 1)
    if "const" in fields and not _same(value, fields["const"]):
        return _say(at, f"it has to be {fields['const']!r}")
    if "enum" in fields and not any(_same(value, choice) for choice in fields["enum"]):
        return _say(at, f"it has to be one of {', '.join(map(repr, fields['enum']))}")
    if "type" in fields and (wrong := _wrong_type(fields["type"], value)):
        return _say(at, wrong)
    for rule in (_misfit_choice, _misfit_object, _misfit_array):
        if wrong := rule(fields, value, at, root, depth):
            return wrong
    return _say(at, wrong) if (wrong := _misfit_size(fields, value)) else ""


def _say(at: str, wrong: str) -> str:
    return f"{at.lstrip('.') or 'the value'}: {wrong}"


def _resolve(ref: str, root: JSON) -> JSON:
    found: JSON = root
    for name in ref.removeprefix("#").strip("/").split("/"):
        held = cast(dict[str, JSON], found) if isinstance(found, dict) else {}
        found = held.get(name.replace("~1", "/").replace("~0", "~"), False)
    return found


def _same(one: JSON, other: JSON) -> bool:
    """True is not 1."""
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def _wrong_type(wanted: str | list[str], value: JSON) -> str:
    names = [wanted] if isinstance(wanted, str) else wanted
    for name in names:
        is_bool = isinstance(value, bool)
        if isinstance(value, _TYPES.get(name, ())) and (is_bool == (name == "boolean")):
            return ""
        if name == "integer" and isinstance(value, float) and value.is_integer():
            return ""
    return f"it has to be of type {' or '.join(names)}"


def _misfit_choice(fields: dict[str, Any], value: JSON, at: str, root: JSON, depth: int) -> str:
    for part in fields.get("allOf", ()):
        if wrong := _misfit(part, value, at, root, depth - 1):
            return wrong
    for name in ("anyOf", "oneOf"):
        if name in fields:
            wrongs = [_misfit(part, value, at, root, depth - 1) for part in fields[name]]
            fitting = wrongs.count("")
            if not fitting:
                return wrongs[0] if len(wrongs) == 1 else _say(at, "it fits none of the allowed forms")
            if name == "oneOf" and fitting > 1:
                return _say(at, "it fits more than one of the allowed forms")
    return ""


def _misfit_object(fields: dict[str, Any], value: JSON, at: str, root: JSON, depth: int) -> str:
    if not isinstance(value, dict):
        return ""
    held = cast(dict[str, JSON], value)
    known: dict[str, JSON] = fields.get("properties", {})
    missing = [name for name in fields.get("required", ()) if name not in held]
    if missing:
        return _say(at, f"{', '.join(missing)} is missing")
    others = fields.get("additionalProperties", True)
    for name, item in held.items():
        if name not in known and others is False:
            return _say(at, f"{name} is not known here")
        if wrong := _misfit(known.get(name, others), item, f"{at}.{name}", root, depth - 1):
            return wrong
    return ""


def _misfit_array(fields: dict[str, Any], value: JSON, at: str, root: JSON, depth: int) -> str:
    if not isinstance(value, list):
        return ""
    items = cast(list[JSON], value)
    first: list[JSON] = fields.get("prefixItems", [])
    for index, item in enumerate(items):
        schema = first[index] if index < len(first) else fields.get("items", True)
        if wrong := _misfit(schema, item, f"{at}[{index}]", root, depth - 1):
            return wrong
    if fields.get("uniqueItems") and any(_same(a, b) for i, a in enumerate(items) for b in items[:i]):
        return _say(at, "an item is there twice")
    return ""


def _misfit_size(fields: dict[str, Any], value: JSON) -> str:
    if isinstance(value, list | str):
        size, noun = len(cast(list[JSON] | str, value)), "items" if isinstance(value, list) else "characters"
        least, most = (fields.get(f"{end}{'Items' if noun == 'items' else 'Length'}") for end in ("min", "max"))
        if least is not None and size < least:
            return f"it needs at least {least} {noun}"
        if most is not None and size > most:
            return f"it may have at most {most} {noun}"
    if isinstance(value, str) and "pattern" in fields and not re.search(fields["pattern"], value):
        return f"it has to match {fields['pattern']}"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _misfit_number(fields, value)
    return ""


def _misfit_number(fields: dict[str, Any], value: float) -> str:
    if "minimum" in fields and value < fields["minimum"]:
        return f"it has to be at least {fields['minimum']}"
    if "maximum" in fields and value > fields["maximum"]:
        return f"it may be at most {fields['maximum']}"
    if "exclusiveMinimum" in fields and value <= fields["exclusiveMinimum"]:
        return f"it has to be more than {fields['exclusiveMinimum']}"
    if "exclusiveMaximum" in fields and value >= fields["exclusiveMaximum"]:
        return f"it has to be less than {fields['exclusiveMaximum']}"
    if "multipleOf" in fields and value % fields["multipleOf"]:
        return f"it has to be a multiple of {fields['multipleOf']}"
    return ""
