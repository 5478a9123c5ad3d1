"""The words of a trigger, with places to fill in.

Rule: a template names places and nothing else, so that filling it in can neither fail nor look at any object.
"""

from __future__ import annotations

from collections.abc import Mapping
from string import Formatter

from perdure.core.errors import UsageError

TIMES = ("name", "time", "date", "count")
FILES = (*TIMES, "path", "changes")


def check_template(template: str, names: tuple[str, ...]) -> None:
    """Refuses an empty template, and places that nobody could fill in."""
    if not template.strip():
        raise UsageError("The template of the trigger is empty; say what the agent shall do.")
    known = ", ".join(f"{{{name}}}" for name in names)
    for field in _fields(template):
        if field not in names:
            raise UsageError(
                f"The template has {{{field}}}, which nothing fills in; take {known}, or write {{{{ for {{."
            )


def fill_in(template: str, values: Mapping[str, str]) -> str:
    return "".join(
        text + (values.get(field, "") if field is not None else "") for text, field, _, _ in Formatter().parse(template)
    )


def _fields(template: str) -> list[str]:
    try:
        parsed = list(Formatter().parse(template))
    except ValueError as error:
        raise UsageError(f"The template cannot be read ({error}); write {{{{ and }}}} for braces.") from None
    return [
        f"{field}{f'!{how}' if how else ''}{f':{shape}' if shape else ''}"
        for _, field, shape, how in parsed
        if field is not None
    ]
