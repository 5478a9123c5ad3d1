"""Token counts as providers report them; what cannot be true is left out."""

from __future__ import annotations

from typing import cast

from perdure.core.messages import JSON, Usage
from perdure.models.wires.wire import MAX_TOKENS

_PLAIN = {"prompt_tokens", "input_tokens", "completion_tokens", "output_tokens", "total_tokens"}


def usage_of(value: JSON) -> Usage | None:
    """The usage object of Chat Completions or Responses; None where it is missing or absurd."""
    if not isinstance(value, dict):
        return None
    fields = cast(dict[str, JSON], value)
    read = _count(fields, "prompt_tokens", "input_tokens")
    written = _count(fields, "completion_tokens", "output_tokens")
    if read is None or written is None:
        return None
    if fields.keys() <= _PLAIN:
        return Usage(read, written)
    inner = _details(fields, "prompt_tokens_details", "input_tokens_details")
    outer = _details(fields, "completion_tokens_details", "output_tokens_details")
    # DeepSeek counts hits beside the details.
    cached = _count(inner, "cached_tokens") or _count(fields, "prompt_cache_hit_tokens") or 0
    stored = _count(inner, "cache_write_tokens") or 0
    reasoning = _count(outer, "reasoning_tokens") or 0
    if reasoning and _count(fields, "total_tokens") == read + written + reasoning:
        # Some count reasoning beside the output, and the total tells.
        written += reasoning
    return Usage(read, written, min(cached, read), min(stored, read), min(reasoning, written))


def _count(fields: dict[str, JSON], name: str, other: str = "") -> int | None:
    value = fields.get(name)
    # True is an int too, but no count.
    if type(value) is int and 0 <= value < MAX_TOKENS:
        return value
    return _count(fields, other) if other else None


def _details(fields: dict[str, JSON], name: str, other: str) -> dict[str, JSON]:
    found = fields.get(name)
    if not isinstance(found, dict):
        found = fields.get(other)
    return cast(dict[str, JSON], found) if isinstance(found, dict) else {}
