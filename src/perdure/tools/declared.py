"""Tools without a function here: a client executes them, or their result is handed in later.

Rule: such a call waits as a durable decision; its one result is the answer, which has to fit the response schema.
"""

from __future__ import annotations

from typing import Any

from perdure.core.fits import check_schema
from perdure.core.messages import JSON
from perdure.core.specs import ToolKind, ToolSpec
from perdure.runtime.schema import schema_of

Schema = type[Any] | dict[str, JSON] | None
"""A JSON schema, or a type that has one."""


def frontend(name: str, description: str = "", *, parameters: Schema = None, response: Schema = None) -> ToolSpec:
    """A tool that a client declares for its run and carries out itself: `session.run(…, tools=[frontend(…)])`."""
    return _declare("frontend", name, description, parameters, response)


def external(name: str, description: str = "", *, parameters: Schema = None, response: Schema = None) -> ToolSpec:
    """A tool for one run whose result somebody hands in later; on an agent it is `@tool(kind="external")`."""
    return _declare("external", name, description, parameters, response)


def _declare(kind: ToolKind, name: str, description: str, parameters: Schema, response: Schema) -> ToolSpec:
    nothing: JSON = {"type": "object", "properties": {}}
    return ToolSpec(name, description, _schema(parameters) or nothing, kind=kind, response=_schema(response))


def _schema(given: Schema) -> JSON:
    if given is None:
        return None
    schema: JSON = given if isinstance(given, dict) else schema_of(given)
    check_schema(schema)
    return schema
