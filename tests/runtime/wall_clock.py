"""Cron by brute force: every minute is looked at, on the wall clock, by a reader that shares nothing with ours."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)


def fires(line: str, tz: str, start: float, end: float) -> list[float]:
    """The minutes behind `start` and before `end` at which the line is due."""
    minute, hour, *_ = line.split()
    has_star = minute.startswith("*") or hour.startswith("*")
    (_, latest), *minutes = _walls(tz, start - start % 60, end)
    found: list[float] = []
    for at, wall in minutes:
        if has_star:
            is_due = _fits(line, wall)
        else:
            # Whatever the clock has shown or skipped for the first time since the last look.
            is_due = False
            while latest < wall:
                latest += MINUTE
                is_due = is_due or _fits(line, latest)
        if is_due:
            found.append(at)
    return found


@cache
def _walls(tz: str, start: float, end: float) -> list[tuple[float, datetime]]:
    """Every minute, and what the wall clock shows then."""
    zone = ZoneInfo(tz)
    times = [start + 60 * number for number in range(round((end - start) / 60))]
    return [(at, datetime.fromtimestamp(at, zone).replace(tzinfo=None)) for at in times]


def _fits(line: str, wall: datetime) -> bool:
    minutes, hours, days, months, weekdays, is_both = _read(line)
    if wall.minute not in minutes or wall.hour not in hours or wall.month not in months:
        return False
    day, weekday = wall.day in days, wall.isoweekday() % 7 in weekdays
    return (day and weekday) if is_both else (day or weekday)


@cache
def _read(line: str) -> tuple[set[int], set[int], set[int], set[int], set[int], bool]:
    minute, hour, day, month, weekday = line.split()
    weekdays = {number % 7 for number in _numbers(weekday, 0, 7)}
    is_both = day.startswith("*") or weekday.startswith("*")
    return (
        _numbers(minute, 0, 59),
        _numbers(hour, 0, 23),
        _numbers(day, 1, 31),
        _numbers(month, 1, 12),
        weekdays,
        is_both,
    )


def _numbers(field: str, low: int, high: int) -> set[int]:
    found: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        if span == "*":
            start, stop = low, high
        elif last:
            start, stop = int(first), int(last)
        else:
            start, stop = int(first), high if step else int(first)
        found |= set(range(start, stop + 1, int(step or 1)))
    return found
