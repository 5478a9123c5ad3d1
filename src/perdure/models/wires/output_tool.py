"""Structured output by a tool: its arguments are the answer, for models without output of their own by schema."""

from __future__ import annotations

from typing import cast

import msgspec

from perdure.core.codec import decode_json
from perdure.core.messages import JSON
from perdure.models.wires.wire import encode
from perdure.ports import ModelRequest

DESCRIPTION = "Gives the final answer. Call it once, when everything else is done."
WRAPPED = "value"
"""The key of an output that is no object, because providers take objects only."""


class OutputTool(msgspec.Struct, frozen=True):
    """The tool as the model sees it. Arguments are objects: a schema of anything else is put into one."""

    name: str
    schema: JSON
    is_wrapped: bool

    def read(self, arguments: str) -> str:
        """The answer in the model's arguments, as JSON text; what is no JSON is given back as it is."""
        if not self.is_wrapped:
            return arguments
        try:
            found = decode_json(arguments)
        except ValueError:
            return arguments
        if not isinstance(found, dict) or WRAPPED not in found:
            return arguments
        return encode(cast(dict[str, JSON], found)[WRAPPED]).decode()


def output_name(request: ModelRequest) -> str:
    """A name that no other tool of the request has."""
    taken = {tool.name for tool in request.tools}
    name = "final_answer"
    while name in taken:
        name += "_"
    return name


def output_tool(request: ModelRequest) -> OutputTool:
    """The tool for a request's output schema."""
    name = output_name(request)
    schema = request.output
    if isinstance(schema, dict) and cast(dict[str, JSON], schema).get("type") == "object":
        return OutputTool(name, cast(JSON, schema), is_wrapped=False)
    inner: dict[str, JSON] = dict(cast(dict[str, JSON], schema)) if isinstance(schema, dict) else {}
    # References count from the root, so the definitions move there.
    moved = {key: inner.pop(key) for key in ("$defs", "definitions") if key in inner}
    outer = {"type": "object", "properties": {WRAPPED: inner}, "required": [WRAPPED], **moved}
    return OutputTool(name, outer, is_wrapped=True)
