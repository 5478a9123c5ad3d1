"""Triggers in words for people."""

from __future__ import annotations

from datetime import datetime
from typing import assert_never

from perdure.cli.words import show_seconds, visible
from perdure.core.events import TriggerSet
from perdure.core.specs import At, Cron, Every, Files, TriggerSpec
from perdure.runtime.firing import NOT_WATCHED


def show_schedule(trigger: TriggerSpec) -> str:
    match trigger:
        case Every(seconds=seconds):
            return f"every {show_seconds(seconds)}"
        case Cron(line=line, tz=tz):
            return visible(f"{line} ({tz})")
        case At(at=at, tz=tz):
            return visible(f"at {at} ({tz})") if isinstance(at, str) else f"at {show_moment(at)}"
        case Files(path=path, pattern=pattern):
            return visible(f"files {path}{'' if pattern == '*' else f' {pattern}'}")
        case _:
            assert_never(trigger)


def show_moment(at: float | None) -> str:
    """In the time zone of the machine."""
    return "-" if at is None else f"{datetime.fromtimestamp(at):%Y-%m-%d %H:%M:%S}"


def show_state(known: TriggerSet) -> str:
    """What it waits for."""
    if known.is_paused:
        return "paused"
    if isinstance(known.trigger, Files):
        return "not watched" if known.error.startswith(NOT_WATCHED) else "watching"
    return "over" if known.next_at is None else "waiting"


def show_trigger(known: TriggerSet) -> str:
    """On one line."""
    if known.trigger is None:
        return "removed"
    parts = [show_schedule(known.trigger), show_state(known)]
    parts += [f"next {show_moment(known.next_at)}"] if known.next_at is not None else []
    parts += [f"fired {known.fired:,}"] if known.fired else []
    return " · ".join([*parts, *([visible(known.error)] if known.error else [])])
