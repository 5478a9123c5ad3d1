"""Loop guards: a model that goes round in circles is told so once, then its run is ended.

Rule: what is counted and what is said follows from the log and the pinned spec alone.
"""

from __future__ import annotations

from msgspec.structs import replace

from perdure.core.events import CallEnded, ModelResponded
from perdure.core.messages import Part, Plain
from perdure.core.specs import Guards

REMEMBERED_CALLS = 16


class Repeat(Plain, frozen=True):
    """A call, by name and argument digest, and how often in a row it has had this result."""

    name: str
    digest: str
    parts: tuple[Part, ...]
    count: int


class Grace(Plain, frozen=True):
    """The last round of a run whose `tool` has failed `times` in a row: it is turn `turn`."""

    tool: str
    times: int
    turn: int


class Circles(Plain, frozen=True):
    """What a run has done to no effect so far; `repeats` by name and digest, `longest` the longest row of them."""

    empty: int = 0
    truncated: int = 0
    repeats: dict[tuple[str, str], Repeat] = {}
    latest: Repeat | None = None
    longest: Repeat | None = None
    failures: dict[str, int] = {}
    errors: int = 0
    grace: Grace | None = None


def after_answer(circles: Circles, event: ModelResponded, *, has_calls: bool) -> Circles:
    is_empty = not has_calls and not event.message.text.strip()
    if not (is_empty or circles.empty or circles.truncated):
        return circles
    truncated = circles.truncated if has_calls and event.stop == "length" else 0
    return replace(circles, empty=circles.empty + 1 if is_empty else 0, truncated=truncated)


def after_results(circles: Circles, *, was_cut: bool) -> Circles:
    """`was_cut`: a call of the turn was refused because the output limit had cut it; others of the turn were not."""
    if was_cut:
        return replace(circles, truncated=circles.truncated + 1)
    return replace(circles, truncated=0) if circles.truncated else circles


def grace_of(circles: Circles, limit: int | None, turn: int) -> Grace | None:
    """The grace round that a tool's failures in a row lead to, once in a run."""
    if circles.grace is not None or limit is None:
        return circles.grace
    for tool, times in circles.failures.items():
        if times >= limit:
            return Grace(tool, times, turn + 1)
    return None


def after_call(circles: Circles, name: str, digest: str, event: CallEnded) -> Circles:
    repeats = circles.repeats.copy()
    known = repeats.pop((name, digest), None)
    same = known is not None and known.parts == event.parts
    repeat = Repeat(name, digest, event.parts, known.count + 1 if same and known else 1)
    repeats[name, digest] = repeat
    if len(repeats) > REMEMBERED_CALLS:
        del repeats[next(iter(repeats))]
    longest = circles.longest
    if longest is None or repeat.count > longest.count:
        longest = repeat
    has_failed = event.outcome in ("error", "timeout")
    failures = circles.failures
    if has_failed or name in failures:
        failures = {**failures, name: failures.get(name, 0) + 1 if has_failed else 0}
    errors = circles.errors + 1 if has_failed else 0
    return replace(circles, repeats=repeats, latest=repeat, longest=longest, failures=failures, errors=errors)


def nudge_answer(circles: Circles, guards: Guards) -> str:
    """What to tell the model after an empty answer that does not end the run yet."""
    limit = guards.empty_answers
    if limit is None or not 0 < circles.empty < limit:
        return ""
    return "Your answer was empty. Say what you found, or call a tool."


def nudge_results(circles: Circles, guards: Guards) -> str:
    """What to tell the model behind the results of a turn, one step before a guard ends the run."""
    if circles.grace is not None:
        tool, times = circles.grace.tool, circles.grace.times
        return f"{tool} has failed {times} times in a row. This is the last round: answer without it."
    limit = guards.truncated_calls
    if limit is not None and 0 < circles.truncated < limit:
        return "Your last tool call was cut off at the output limit and was not carried out. Make it shorter."
    repeat = circles.latest
    if repeat is None or guards.repeated_calls is None or repeat.count != guards.repeated_calls - 1:
        return ""
    times = f"{repeat.count} times with the same arguments and the same result"
    return f"You have called {repeat.name} {times}. Do something else, or answer."


def tripped(circles: Circles, guards: Guards, turn: int, *, has_calls: bool) -> str:
    """Why the run has to end, or nothing; the grace round may still bring an answer."""
    if circles.grace is not None and turn >= circles.grace.turn and has_calls:
        return f"{circles.grace.tool} failed {circles.grace.times} times in a row"
    if guards.empty_answers is not None and circles.empty >= guards.empty_answers:
        return f"loop guard: {circles.empty} empty answers in a row"
    if guards.truncated_calls is not None and circles.truncated >= guards.truncated_calls:
        return f"loop guard: {circles.truncated} truncated tool calls in a row"
    repeat = circles.longest
    if repeat is not None and guards.repeated_calls is not None and repeat.count >= guards.repeated_calls:
        return f"loop guard: {repeat.name} called {repeat.count} times with the same arguments and result"
    return ""
