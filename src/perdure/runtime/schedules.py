"""Planned times: when a trigger of the clock is due, worked out from what was set and the last time that is settled.

Rule: the times behind a moment do not depend on who asks or when, so every process comes to the same ones.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from datetime import datetime
from itertools import count, islice
from typing import assert_never

from perdure.core.errors import UsageError
from perdure.core.specs import At, Cron, Every, Files, TriggerSpec
from perdure.runtime.cron import cron_times, instant_of, zone

SHORTEST = 1.0
LONGEST = 100 * 366 * 86_400.0
"""A century, in seconds: stores keep times, but not any."""

LOOKED_BACK = (3_600.0, 86_400.0, 32 * 86_400.0, 366 * 86_400.0, math.inf)
"""How far back the latest planned time is looked for: farther only if there was none."""


def check_schedule(trigger: TriggerSpec, now: float) -> None:
    """A UsageError says what is wrong with it."""
    match trigger:
        case Every(seconds=seconds):
            if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not SHORTEST <= seconds <= LONGEST:  # pyright: ignore[reportUnnecessaryIsInstance] - user code
                raise UsageError(f"Every({seconds!r}): give a number of seconds, at least {SHORTEST:g}.")
        case Cron(line=line):
            if next_after(trigger, now) is None:
                raise UsageError(f"Cron({line!r}) names a day that never comes; mend the line.")
        case At(at=at, tz=tz):
            zone(tz)
            if _moment(trigger) <= now:
                raise UsageError(f"At({at!r}) has passed; give a time to come.")
        case Files():
            pass
        case _:
            assert_never(trigger)


def times_after(trigger: TriggerSpec, after: float) -> Iterator[float]:
    """The planned times behind `after`, in order; without end for what repeats."""
    match trigger:
        case Every(seconds=seconds):
            return (round(after + number * seconds, 6) for number in count(1))
        case Cron(line=line, tz=tz):
            return cron_times(line, tz, after)
        case At():
            return iter([at] if (at := _moment(trigger)) > after else [])
        case Files():
            return iter(())
        case _:
            assert_never(trigger)


def next_after(trigger: TriggerSpec, after: float) -> float | None:
    return next(times_after(trigger, after), None)


def latest_until(trigger: TriggerSpec, after: float, now: float) -> float | None:
    """The last planned time behind `after` that has come, without going through all that came before it."""
    if isinstance(trigger, Every):
        passed = math.floor((now - after + 1e-6) / trigger.seconds)
        return round(after + passed * trigger.seconds, 6) if passed > 0 else None
    for back in LOOKED_BACK:
        start = max(after, now - back)
        found = deque(_until(trigger, start, now), maxlen=1)
        if found or start == after:
            return found[0] if found else None
    return None


def first_until(trigger: TriggerSpec, after: float, now: float, limit: int) -> list[float]:
    """The planned times behind `after` that have come, the oldest first; at most so many."""
    return list(islice(_until(trigger, after, now), limit))


def zone_of(trigger: TriggerSpec) -> str:
    return trigger.tz if isinstance(trigger, Cron | At) else "UTC"


def _until(trigger: TriggerSpec, after: float, now: float) -> Iterator[float]:
    for at in times_after(trigger, after):
        if at > now:
            return
        yield at


def _moment(trigger: At) -> float:
    at = trigger.at
    if isinstance(at, str):
        try:
            moment = datetime.fromisoformat(at)
        except ValueError:
            raise UsageError(f"At({at!r}) is no time; write it like '2030-12-24 18:00'.") from None
        at = moment.timestamp() if moment.tzinfo else instant_of(moment, zone(trigger.tz))
    is_number = isinstance(at, int | float) and not isinstance(at, bool)  # pyright: ignore[reportUnnecessaryIsInstance] - user code
    if not is_number or not -LONGEST < at < 3 * LONGEST:
        raise UsageError(f"At({trigger.at!r}): give seconds since 1970, or a time like '2030-12-24 18:00'.")
    return round(float(at), 6)
