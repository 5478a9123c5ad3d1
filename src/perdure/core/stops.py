"""Stop conditions: whether one of an agent's reasons to end a run holds after a turn."""

from __future__ import annotations

import re

from perdure.core.specs import StopWhen, matches
from perdure.core.state import RunState


def held(condition: StopWhen, run: RunState) -> str:
    """What holds, in words; nothing unless all that the condition names holds."""
    found: list[str] = []
    for name, now in _counts(run).items():
        wanted = getattr(condition, name)
        if wanted is not None and now < wanted:
            return ""
        found += [f"{name} {now:g}" if isinstance(now, float) else f"{name} {now}"] if wanted is not None else []
    if condition.tool:
        called = [c.name for c in run.calls if c.end and c.end.outcome == "ok" and matches(condition.tool, c.name)]
        if not called:
            return ""
        found.append(f"{called[0]} was called")
    if condition.text:
        said = run.response.message.text if run.response else ""
        if not _matches(condition.text, said):
            return ""
        found.append(f"the answer matches {condition.text!r}")
    return ", ".join(found)


def _matches(pattern: str, text: str) -> bool:
    try:
        return re.search(pattern, text) is not None
    except (re.error, OverflowError, RecursionError):
        return False


def _counts(run: RunState) -> dict[str, float]:
    return {
        "turns": run.turn,
        "seconds": run.seconds,
        "tokens": run.usage.total,
        "cost_usd": run.cost_usd,
        "errors": run.circles.errors,
        "repeats": run.circles.longest.count if run.circles.longest else 0,
    }
