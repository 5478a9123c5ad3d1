"""Yesterday's events -> today's. One function per retired shape, each with a golden log that needs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from perdure.core.messages import JSON

UPCASTS: Mapping[str, Callable[[dict[str, JSON]], dict[str, JSON]]] = {}


def upcast(payload: JSON) -> JSON:
    """The payload in today's shape; unknown kinds pass unchanged, for the codec to refuse."""
    if not isinstance(payload, dict):
        return payload
    step = UPCASTS.get(str(payload.get("type")))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    return step(payload) if step else payload  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
