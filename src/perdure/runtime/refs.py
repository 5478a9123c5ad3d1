"""References in JSON schemas: many documents become one that resolves all of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from perdure.core.messages import JSON

_DEFS = "#/$defs/"
FOREIGN = "#/foreign/"
"""Stands for the n-th of the foreign schemas until `assemble` puts it in."""


def absorb(schema: dict[str, JSON], defs: dict[str, JSON]) -> dict[str, JSON]:
    """Moves the schema's own definitions into `defs`, under new names where some would be replaced."""
    own: dict[str, JSON] = schema.get("$defs", {})
    # One clash and nothing is shared: equal definitions could refer to different ones of the same name.
    clash = any(name in defs and defs[name] != body for name, body in own.items())
    names = {name: _free_name(name, defs) if clash else name for name in own}
    renamed = {_DEFS + old: _DEFS + new for old, new in names.items()}

    def rename(reference: str) -> dict[str, JSON]:
        return {"$ref": renamed.get(reference, reference)}

    for name, body in own.items():
        defs[names[name]] = _rewrite(body, rename)
    return _rewrite({key: value for key, value in schema.items() if key != "$defs"}, rename)


def assemble(root: dict[str, JSON], defs: dict[str, JSON], foreign: Sequence[dict[str, JSON]] = ()) -> dict[str, JSON]:
    """The whole document; a root that is only a reference becomes what it refers to."""
    absorbed = [absorb(schema, defs) for schema in foreign]

    def put_in(reference: str) -> dict[str, JSON]:
        if reference.startswith(FOREIGN):
            return absorbed[int(reference.removeprefix(FOREIGN))]
        return {"$ref": reference}

    root = _rewrite(root, put_in)
    defs = {name: _rewrite(body, put_in) for name, body in defs.items()}
    name = str(root.get("$ref", "")).removeprefix(_DEFS)
    if name in defs:
        root = {**defs[name], **{key: value for key, value in root.items() if key != "$ref"}}
        if not _mentions((root, defs), _DEFS + name):
            del defs[name]
    return {**root, "$defs": defs} if defs else root


def _free_name(name: str, defs: dict[str, JSON]) -> str:
    candidate, number = name, 1
    while candidate in defs:
        number += 1
        candidate = f"{name}_{number}"
    return candidate


def _rewrite(node: Any, replace: Callable[[str], dict[str, JSON]]) -> Any:
    if isinstance(node, dict):
        rewritten: dict[str, JSON] = {}
        for key, value in cast("dict[str, JSON]", node).items():
            if key == "$ref" and isinstance(value, str):
                rewritten.update(replace(value))
            else:
                rewritten[key] = _rewrite(value, replace)
        return rewritten
    if isinstance(node, list | tuple):
        return [_rewrite(item, replace) for item in cast("Sequence[JSON]", node)]
    return node


def _mentions(node: Any, reference: str) -> bool:
    if isinstance(node, dict):
        items = cast("dict[str, JSON]", node)
        return items.get("$ref") == reference or any(_mentions(value, reference) for value in items.values())
    return isinstance(node, list | tuple) and any(_mentions(item, reference) for item in cast("Sequence[JSON]", node))
