"""Sessions' data as short text that is safe on a terminal: what a model or a tool wrote cannot move the cursor."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable
from datetime import datetime
from typing import cast

from perdure.core.codec import decode_json, encode_json
from perdure.core.events import HistoryCompacted, PauseKind
from perdure.core.messages import JSON, Media, Part, Text
from perdure.stores.addresses import masked

# Controls (an escape sequence could rewrite what was shown) and marks that turn the reading direction around.
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

Styled = str | tuple[str, str]
"""Words of our own, perhaps with a style."""


def visible(text: str) -> str:
    """The text with its control characters written out."""
    return UNSAFE.sub(lambda found: ascii(found[0])[1:-1], text.replace("\r\n", "\n"))


def shorten(text: str, width: int) -> str:
    flat = " ".join(visible(text).split())
    return flat if len(flat) <= width else f"{flat[: width - 1]}…"


def show_arguments(arguments: str, width: int) -> str:
    """Arguments as in a Python call, shortened for a line."""
    try:
        values = decode_json(arguments or "{}")
    except ValueError:
        return shorten(arguments, width)
    if not isinstance(values, dict):
        return shorten(arguments, width)
    named = cast("dict[str, JSON]", values)
    return shorten(", ".join(f"{key}={encode_json(value).decode()}" for key, value in named.items()), width)


def list_arguments(arguments: JSON) -> list[str]:
    """Every argument in full, one a line: who decides must see all of it."""
    if not isinstance(arguments, dict):
        return [visible(str(arguments))]
    named = cast("dict[str, JSON]", arguments)
    width = max(map(len, named), default=0)
    return [f"{visible(key):<{width}}  {visible(encode_json(value).decode())}" for key, value in named.items()]


def show_compaction(event: HistoryCompacted) -> str:
    """What became of the view, in one line."""
    cost = [show_cost(event.cost_usd)] if event.cost_usd else []
    if event.error:
        return " · ".join([f"not compacted ({event.cause}): {visible(event.error)}", *cost])
    parts = [f"compacted ({event.cause}): {event.tokens_before:,} → {event.tokens_after:,} tokens"]
    if event.stop > event.start:
        what = "behind a summary" if event.parts else "left out"
        parts.append(f"{count(event.stop - event.start, 'message')} {what}")
    if event.pruned:
        parts.append(f"{count(len(event.pruned), 'result')} left out")
    return " · ".join([*parts, *cost, *([visible(event.model)] if event.model else [])])


PAUSES: dict[PauseKind, str] = {
    "approval": "somebody has to approve it",
    "question": "somebody has to answer it",
    "frontend": "the client that declared it carries it out and hands in the result",
    "external": "somebody carries it out elsewhere and hands in the result",
    "unknown": "nobody knows whether it took effect",
    "listen": "what was prepared waits for a word",
    "child": "a session of its own works on it",
}


def name_pause(kind: PauseKind) -> str:
    return "in doubt" if kind == "unknown" else kind


def show_pause(kind: PauseKind, prompt: str) -> str:
    """What a suspended call waits for, on one line."""
    return " / ".join(row for row in prompt.splitlines() if row.strip()) or PAUSES[kind]


def show_until(at: float | None) -> str:
    return "" if at is None else f" until {datetime.fromtimestamp(at):%Y-%m-%d %H:%M:%S}"


def show_from(at: float) -> str:
    return f"not before {datetime.fromtimestamp(at):%Y-%m-%d %H:%M:%S}"


def show_parts(parts: Iterable[Part]) -> str:
    return " ".join(part.text if isinstance(part, Text) else _show_media(part) for part in parts)


def show_seconds(seconds: float) -> str:
    if seconds < 1:
        return f"{max(0.0, seconds) * 1e3:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def show_cost(cost_usd: float) -> str:
    return f"${cost_usd:.2f}" if cost_usd >= 1 else f"${cost_usd:.4f}"


def show_spent(cost_usd: float, *, is_priced: bool) -> list[str]:
    """What was spent, as far as prices are known; nothing where nothing was."""
    spent = [show_cost(cost_usd)] if cost_usd else []
    return spent if is_priced else [*spent, "more at an unknown price" if spent else "cost unknown"]


def count(number: int, noun: str, nouns: str = "") -> str:
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def shell(*words: str, **options: str | None) -> str:
    """A command of ours, ready to be copied; options that were not given are left out, and nothing secret is shown."""
    store = options.get("store")
    if store is not None:
        options["store"] = None if store == os.environ.get("PERDURE_STORE") else masked(store)
    given = [item for name, value in options.items() if value for item in (f"--{name}", value)]
    return shlex.join(["perdure", *words, *given])


def _show_media(part: Media) -> str:
    return f"[{part.kind} {part.name or part.media_type}, {part.size:,} bytes]"
