"""What callers pass, checked at the door: a UsageError instead of a surprise further in."""

from __future__ import annotations

from perdure.core.errors import UsageError
from perdure.core.messages import JSON
from perdure.core.queues import HIGHEST
from perdure.runtime.media import clean_text
from perdure.runtime.plain import to_plain


def given_plain(value: object) -> JSON:
    """The value as plain data."""
    try:
        return to_plain(value)
    except ValueError as error:
        raise UsageError(str(error)) from None


def given_text(value: object, what: str) -> str:
    """The text as the log will keep it; `what` names it, for the sentence."""
    if not isinstance(value, str):
        raise UsageError(f"{what} is text, not {type(value).__name__}; pass a str.")
    return clean_text(value)


def given_priority(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > HIGHEST:
        raise UsageError(f"priority={value!r}: give a whole number from {-HIGHEST} to {HIGHEST}; 0 is usual.")
    return value


def given_name(value: object, what: str) -> str:
    """Text that says something."""
    name = given_text(value, what).strip()
    if not name:
        raise UsageError(f"{what} is empty; give it one.")
    return name
