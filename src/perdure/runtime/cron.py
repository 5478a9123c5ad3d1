"""Cron lines on the wall clock of a time zone: which instants a line names, also when clocks are changed.

Rule 1: a line that names minutes and hours happens once for each time that it names: what the change to summer time
skips is due right behind the gap, and of a time that comes twice the first counts. Rule 2: a line with a star for
minutes or hours happens whenever the wall clock shows it: not in the gap, and twice in the hour that comes twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo

from perdure.core.errors import UsageError

EXTRA = "pip install 'perdure[triggers]'"
FIELDS = 5
NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
NEAR = 86_400.0
"""Seconds in which no zone changes its clocks twice, and more than any sets them back."""

EPOCH = datetime(1970, 1, 1)


def zone(name: str) -> tzinfo:
    """The time zone of that name, from the machine's own data or from the package tzdata."""
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (KeyError, OSError, ValueError):
        raise UsageError(
            f"There is no time zone {name!r} here; write it like 'Europe/Berlin', or install tzdata if all are missing."
        ) from None


def instant_of(wall: datetime, clock: tzinfo) -> float:
    """When the clock shows this: of two times the first, and of none the moment right behind the gap."""
    first, second = (wall.replace(tzinfo=clock, fold=fold).timestamp() for fold in (0, 1))
    # In a gap the two offsets are the wrong way round, and the change is between what they come to.
    return float(_change(clock, second, first)) if second < first else first


def cron_times(line: str, tz: str, after: float) -> Iterator[float]:
    """The instants behind `after` that the line names, in order."""
    matches = _Matches(line)
    clock = zone(tz)
    find = _on_the_wall if matches.has_star else _once_each
    at: float | None = after
    while (at := find(matches, clock, at)) is not None:
        yield at


class _Matches:
    """What a line names on a wall clock that is never changed."""

    def __init__(self, line: str) -> None:
        try:
            from cronsim import CronSim, CronSimError
        except ImportError:
            raise UsageError(f"Cron lines need the package cronsim; {EXTRA} brings it.") from None
        self._line = NICKNAMES.get(line.strip().lower(), line)
        self._walk = CronSim
        fields = self._line.split()
        if len(fields) != FIELDS:
            raise UsageError(f"Cron({line!r}): a line has five fields: minute, hour, day, month, day of the week.")
        try:
            CronSim(self._line, EPOCH)
        except (CronSimError, ValueError) as error:
            raise UsageError(f"Cron({line!r}): {str(error).lower()}; mend that field.") from None
        self.has_star = fields[0].startswith("*") or fields[1].startswith("*")

    def after(self, wall: datetime) -> datetime | None:
        """None if there is none in fifty years."""
        return next(self._walk(self._line, wall), None)


def _once_each(matches: _Matches, clock: tzinfo, after: float) -> float | None:
    wall: datetime | None = _wall(after, _offset(clock, after))
    while (wall := matches.after(wall)) is not None:
        if (found := instant_of(wall, clock)) > after:
            return found
    return None


def _on_the_wall(matches: _Matches, clock: tzinfo, after: float) -> float | None:
    offset = _offset(clock, after)
    wall = _wall(after, offset)
    while (match := matches.after(wall)) is not None:
        found = (match - EPOCH).total_seconds() - offset
        near = min(found, after + NEAR)
        if _offset(clock, near) != offset:
            # Before that, clocks are changed: what is the first that they show then?
            after = _change(clock, after, near)
            offset = _offset(clock, after)
            wall = _wall(after, offset) - timedelta(seconds=1)
        elif near == found:
            return found
        else:
            # The wall clock shows nothing that fits until then, however it is changed.
            after = found - NEAR
            offset = _offset(clock, after)
            wall = _wall(after, offset)
    return None


def _offset(clock: tzinfo, at: float) -> float:
    shift = datetime.fromtimestamp(at, clock).utcoffset()
    return shift.total_seconds() if shift else 0.0


def _wall(at: float, offset: float) -> datetime:
    return EPOCH + timedelta(seconds=at + offset)


def _change(clock: tzinfo, start: float, stop: float) -> int:
    """The first second behind `start` with another offset; there is one until `stop`."""
    low, high = math.floor(start), math.ceil(stop)
    offset = _offset(clock, low)
    while high - low > 1:
        middle = (low + high) // 2
        if _offset(clock, middle) == offset:
            low = middle
        else:
            high = middle
    return high
