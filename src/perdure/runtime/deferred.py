"""Deferred tools: a large set of tools stands behind a search, and the model sees those that it has found.

Rule: what was found is added behind the others, so that the beginning of the request stays as it was.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from perdure.core.codec import encode_json
from perdure.core.specs import ToolSpec
from perdure.runtime.context import ToolContext
from perdure.runtime.tools import tool

FIND_TOOLS = "find_tools"
MOST_FOUND = 5
_WORD = re.compile(r"[a-z0-9]+")


def defer(tools: Sequence[ToolSpec], largest: int | None) -> tuple[ToolSpec, ...]:
    """The tools, of which those beyond the size that a request shall carry at most are deferred."""
    if largest is None:
        return tuple(tools)
    kept: list[ToolSpec] = []
    size = 0
    for spec in tools:
        if not (spec.hidden or spec.deferred):
            size += len(encode_json([spec.name, spec.description, spec.parameters]))
        kept.append(replace(spec, deferred=True) if size > largest and not spec.hidden else spec)
    return tuple(kept)


@tool(effect="read", name=FIND_TOOLS)
async def find_tools(query: str, ctx: ToolContext[Any, Any]) -> str:
    """Find more tools by what they do; those that are found can be called from the next turn on.

    query: a few words on what is needed
    """
    spec = ctx.state.spec
    deferred = [item for item in (spec.tools if spec else ()) if item.deferred]
    found = _search(deferred, query)
    if not found:
        names = ", ".join(item.name for item in deferred[:50])
        return f"No tool fits {query!r}. These can be found: {names}."
    ctx.next_turn(reveal=[item.name for item in found])
    return "\n".join(f"{item.name}: {item.description.partition(chr(10))[0]}" for item in found)


def _search(tools: Sequence[ToolSpec], query: str) -> list[ToolSpec]:
    """The tools that share most words with the query; a name counts more than a description."""
    wanted = _words(query)
    scored = [(_score(item, wanted), item) for item in tools]
    ranked = sorted((pair for pair in scored if pair[0] > 0), key=lambda pair: -pair[0])
    return [item for _, item in ranked[:MOST_FOUND]]


def _score(item: ToolSpec, wanted: set[str]) -> int:
    name, description = _words(item.name), _words(item.description)
    exact = 3 * len(wanted & name) + len(wanted & description)
    partly = sum(1 for word in wanted if len(word) > 3 and any(word in other for other in name | description))
    return exact + partly


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.lower().replace("_", " ")))
