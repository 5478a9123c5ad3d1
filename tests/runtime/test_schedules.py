"""Planned times: every process comes to the same ones, also where clocks are changed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import UsageError
from perdure.core.specs import At, Cron, Every, Files, TriggerSpec
from perdure.runtime import cron
from perdure.runtime.schedules import check_schedule, first_until, latest_until, next_after, times_after
from tests.core.strategies import often
from tests.runtime.wall_clock import fires

BERLIN = ZoneInfo("Europe/Berlin")


def moment(text: str, tz: str = "UTC") -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(tz)).timestamp()


def shown(trigger: TriggerSpec, after: str, count: int, tz: str) -> list[str]:
    times = islice(times_after(trigger, moment(after, tz)), count)
    return [datetime.fromtimestamp(at, ZoneInfo(tz)).strftime("%m-%d %H:%M%z") for at in times]


@pytest.mark.parametrize(
    ("line", "after", "expected"),
    [
        # 02:30 does not exist on the day of the change: it is due right behind the gap, and as ever a day later.
        ("30 2 * * *", "2026-03-28 12:00", ["03-29 03:00+0200", "03-30 02:30+0200"]),
        ("15,45 2 * * *", "2026-03-28 12:00", ["03-29 03:00+0200", "03-30 02:15+0200"]),
        ("0 3 * * *", "2026-03-28 12:00", ["03-29 03:00+0200", "03-30 03:00+0200"]),
        # With a star the wall clock counts: what it does not show does not come.
        ("*/30 2 * * *", "2026-03-28 12:00", ["03-30 02:00+0200", "03-30 02:30+0200"]),
        ("30 * * * *", "2026-03-29 01:00", ["03-29 01:30+0100", "03-29 03:30+0200"]),
        # 02:30 comes twice in autumn: once for what names it, twice for what has a star.
        ("30 2 * * *", "2026-10-24 12:00", ["10-25 02:30+0200", "10-26 02:30+0100"]),
        ("30 * * * *", "2026-10-25 01:45", ["10-25 02:30+0200", "10-25 02:30+0100", "10-25 03:30+0100"]),
    ],
)
def test_what_a_line_means_when_clocks_are_changed(line: str, after: str, expected: list[str]) -> None:
    assert shown(Cron(line, "Europe/Berlin"), after, len(expected), "Europe/Berlin") == expected


def test_who_asks_in_the_hour_that_comes_twice_gets_what_comes_next() -> None:
    second_pass = datetime(2026, 10, 25, 2, 15, tzinfo=BERLIN, fold=1).timestamp()
    assert next_after(Cron("30 2 * * *", "Europe/Berlin"), second_pass) == moment("2026-10-26 02:30", "Europe/Berlin")
    assert next_after(Cron("*/30 * * * *", "Europe/Berlin"), second_pass) == second_pass + 15 * 60


def test_half_an_hour_of_summer_time() -> None:
    """At 02:00 the clocks of Lord Howe go to 02:30 in October, and back to 01:30 in April."""
    tz = "Australia/Lord_Howe"
    assert shown(Cron("15 2 * * *", tz), "2026-10-03 12:00", 2, tz) == ["10-04 02:30+1100", "10-05 02:15+1100"]
    times = shown(Cron("*/15 1-2 * * *", tz), "2026-04-05 01:20", 7, tz)
    assert times[:4] == ["04-05 01:30+1100", "04-05 01:45+1100", "04-05 01:30+1030", "04-05 01:45+1030"]
    assert times[4:] == ["04-05 02:00+1030", "04-05 02:15+1030", "04-05 02:30+1030"]


@pytest.mark.parametrize("tz", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca", "UTC"])
@pytest.mark.parametrize(
    "line", ["*/20 * * * *", "45 1-3 * * *", "*/15 1,2 * * 0", "0 */3 1,15 * 1", "30 2 * 3,4,10,11 *"]
)
def test_a_year_minute_by_minute(line: str, tz: str) -> None:
    start, end = moment("2026-01-01"), moment("2027-01-01")
    times: list[float] = []
    for at in times_after(Cron(line, tz), start):
        if at >= end:
            break
        times.append(at)
    assert times == fires(line, tz, start, end)


@often
@given(
    line=st.sampled_from(["*/7 * * * *", "30 2 * * *", "0 */5 * * *", "15 1-3 28-31 * *", "@weekly", "0 12 29 2 *"]),
    tz=st.sampled_from(["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC"]),
    after=st.floats(1.7e9, 1.9e9),
    count=st.integers(1, 12),
)
def test_times_follow_each_other_and_do_not_depend_on_where_one_begins(
    line: str, tz: str, after: float, count: int
) -> None:
    trigger = Cron(line, tz)
    times = list(islice(times_after(trigger, after), count))
    assert all(one < other for one, other in pairwise([after, *times]))
    assert [next_after(trigger, at) for at in [after, *times[:-1]]] == times
    assert latest_until(trigger, after, times[-1]) == times[-1]
    assert latest_until(trigger, after, times[-1] - 0.5) == (times[-2] if count > 1 else None)
    assert first_until(trigger, after, times[-1], 100) == times
    assert first_until(trigger, after, times[-1], 2) == times[:2]


@often
@given(seconds=st.floats(1, 1e6).map(lambda value: round(value, 6)), after=st.floats(0, 2e9), late=st.floats(0, 1e8))
def test_what_is_due_every_so_often_keeps_to_its_grid(seconds: float, after: float, late: float) -> None:
    after = round(after, 6)
    trigger = Every(seconds)
    first = next_after(trigger, after)
    assert first is not None
    now = max(first, after + late)
    latest = latest_until(trigger, after, now)
    assert latest is not None
    assert latest <= now + 1e-5
    following = next_after(trigger, latest)
    assert following is not None
    assert following > now
    assert latest_until(trigger, after, first) == first


def test_the_latest_of_many_missed_is_found_without_going_through_them(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[datetime] = []

    class Counting(cron._Matches):
        def after(self, wall: datetime) -> datetime | None:
            asked.append(wall)
            return super().after(wall)

    monkeypatch.setattr(cron, "_Matches", Counting)
    ten_years = timedelta(days=3650).total_seconds()
    now = moment("2026-05-05 05:05")
    assert latest_until(Cron("* * * * *"), now - ten_years, now) == now
    assert len(asked) < 100


def test_a_time() -> None:
    at = moment("2026-12-24 18:00", "Europe/Berlin")
    for trigger in (At(at), At("2026-12-24 18:00", "Europe/Berlin"), At("2026-12-24T18:00:00+01:00")):
        assert list(times_after(trigger, at - 1)) == [at]
        assert list(times_after(trigger, at)) == []
    assert next_after(At("2026-03-29 02:30", "Europe/Berlin"), 0) == moment("2026-03-29 03:00", "Europe/Berlin")
    assert (
        next_after(At("2026-10-25 02:30", "Europe/Berlin"), 0) == datetime(2026, 10, 25, 0, 30, tzinfo=UTC).timestamp()
    )
    assert list(times_after(Files("x"), 0)) == []


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Every(0.5), "at least 1"),
        (lambda: Every(float("nan")), "at least 1"),
        (lambda: Every("9"), "give a number of seconds"),  # type: ignore[arg-type]
        (lambda: Cron("* * * *"), "five fields"),
        (lambda: Cron("0 0 * * * *"), "five fields"),
        (lambda: Cron("61 * * * *"), "bad minute"),
        (lambda: Cron("0 0 30 2 *"), "bad day-of-month"),
        (lambda: Cron("0 0 * 2 1#5"), ""),
        (lambda: Cron("0 9 * * *", "Mars/Olympus"), "no time zone 'Mars/Olympus'"),
        (lambda: Cron("0 9 * * *", "../etc"), "no time zone"),
        (lambda: At("soon"), "is no time"),
        (lambda: At(9e9, "Mars"), "no time zone"),
        (lambda: At(1.0), "has passed"),
        (lambda: At(1e300), "seconds since 1970"),
        (lambda: At(True), "seconds since 1970"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Callable[[], TriggerSpec], said: str) -> None:
    trigger = make()
    if not said:
        return check_schedule(trigger, moment("2026-01-01"))
    with pytest.raises(UsageError, match=said) as refused:
        check_schedule(trigger, moment("2026-01-01"))
    assert str(refused.value).endswith(".")
    return None


def test_without_the_package_one_sentence_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cronsim", None)
    with pytest.raises(UsageError, match=r"pip install 'perdure\[triggers\]'"):
        check_schedule(Cron("0 9 * * *"), 0.0)
    assert next_after(Every(60.0), 0.0) == 60.0
