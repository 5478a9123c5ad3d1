"""What a trigger that is due becomes: inputs, and the trigger with its next time.

Rule 1: it is worked out from the state and the time alone, so it can be worked out again after a conflict. Rule 2:
what was due is not due any more, whatever came of it; a failure is told and never stops the times behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec
from msgspec.structs import replace

from perdure.core.accept import accept
from perdure.core.codec import digest_of
from perdure.core.commands import SendInput
from perdure.core.errors import PerdureError
from perdure.core.events import Event, Noted, TriggerSet
from perdure.core.fold import fold
from perdure.core.messages import Text
from perdure.core.specs import At, TriggerSpec
from perdure.core.state import SessionState
from perdure.runtime.cron import zone
from perdure.runtime.files import Changed
from perdure.runtime.schedules import first_until, latest_until, next_after, zone_of
from perdure.runtime.templates import fill_in

GRACE = 60.0
"""So late `skip` still counts as in time."""
MOST = 1_000
"""So many inputs `all` makes at once of what was missed."""
ASK_AGAIN_AFTER = 300.0
ENOUGH = 2_000
"""Events of one append; triggers that are left are due at once again."""
SHOWN_CHANGES = 100

FAILED = "trigger_failed"
LEFT_OUT = "trigger_left_out"
NOT_WATCHED = "Not watched: "


class Occasion(msgspec.Struct, frozen=True):
    """One input to be: for when, by which key, and what its template is filled in with."""

    at: float
    key: str
    path: str = ""
    changes: str = ""


def due_events(state: SessionState, now: float) -> list[Event]:
    """What follows from the triggers whose time has come."""
    due = [known for known in state.triggers.values() if known.next_at is not None and known.next_at <= now]
    events: list[Event] = []
    for known in sorted(due, key=lambda known: known.next_at or 0.0):
        made = _fire(state, known, now)
        state = fold(made, state)
        events += made
        if len(events) >= ENOUGH:
            break
    return events


def _fire(state: SessionState, known: TriggerSet, now: float) -> list[Event]:
    if known.trigger is None or known.is_paused:
        return [replace(known, next_at=None)]
    try:
        latest = latest_until(known.trigger, known.until, now)
        until = known.until if latest is None else latest
        following = next_after(known.trigger, until)
        times = [] if latest is None or _waits(state, known) else _times(known, known.trigger, latest, now)
    except PerdureError as error:
        # Perhaps only this process cannot work it out; what is missed meanwhile, the policy settles.
        again = replace(known, next_at=now + ASK_AGAIN_AFTER, error=str(error))
        return [again] if known.error == again.error else [_failed(known, now, str(error)), again]
    settled = replace(known, until=until, next_at=following, error="" if times else known.error)
    occasions = [Occasion(at, f"trigger {known.name} {_local(at, 'UTC').isoformat()}") for at in times]
    sent = _send(state, settled, occasions)
    if latest is None or _waits(state, known) or (times and times[-1] == latest):
        return sent
    why = "they were missed too long ago" if known.missed == "skip" else f"more than {MOST:,} were missed"
    return [*sent, Noted(LEFT_OUT, {"trigger": known.name, "until": latest, "detail": why})]


def _waits(state: SessionState, known: TriggerSet) -> bool:
    """An input of it that nobody has taken stands for what comes after it, or a run that waits would be buried."""
    if known.missed == "all" or isinstance(known.trigger, At):
        return False
    return any(queued.by == _speaker(known) for queued in state.queue)


def _times(known: TriggerSet, trigger: TriggerSpec, latest: float, now: float) -> list[float]:
    match known.missed:
        case "once":
            return [latest]
        case "skip":
            return [latest] if now - latest <= GRACE else []
        case "all":
            return first_until(trigger, known.until, now, MOST)


def changed_events(
    state: SessionState, known: TriggerSet, changes: Sequence[Changed], artifact: str, now: float
) -> list[Event]:
    """What changes of files come to; `artifact` is what the files are now."""
    counted = [change for change in changes if known.missed != "skip" or now - change.at <= GRACE]
    seen = replace(known, artifact=artifact, next_at=None, error="")
    groups = [[change] for change in counted] if known.missed == "all" else [counted] if counted else []
    at = max(now, known.until)
    occasions: list[Occasion] = []
    for group in groups[:MOST]:
        shown = [f"{change.what} {change.path}" for change in group[:SHOWN_CHANGES]]
        more = [f"and {len(group) - SHOWN_CHANGES:,} more"] if len(group) > SHOWN_CHANGES else []
        paths = ", ".join(change.path for change in group[:SHOWN_CHANGES])
        key = f"trigger {known.name} {digest_of(known.artifact, artifact, str(known.fired), group[0].path)}"
        occasions.append(Occasion(at, key, paths, "\n".join([*shown, *more])))
    sent = _send(state, replace(seen, until=at), occasions)
    left = len(changes) - sum(map(len, groups[:MOST]))
    if not left:
        return sent
    detail = f"{left:,} changes" if left > 1 else "1 change"
    return [*sent, Noted(LEFT_OUT, {"trigger": known.name, "until": at, "detail": detail})]


def watch_events(known: TriggerSet, problem: str, now: float) -> list[Event]:
    """Why files are not watched, told once, or that they are watched again."""
    error = f"{NOT_WATCHED}{problem}" if problem else ""
    if known.error == error or (not problem and not known.error.startswith(NOT_WATCHED)):
        return []
    return [*([_failed(known, now, error)] if problem else []), replace(known, error=error)]


def _send(state: SessionState, settled: TriggerSet, occasions: Sequence[Occasion]) -> list[Event]:
    """The inputs, then the trigger as it is after them."""
    events: list[Event] = []
    for occasion in occasions:
        try:
            made = accept(state, _command(settled, occasion))
        except PerdureError as error:
            events.append(_failed(settled, occasion.at, str(error)))
            settled = replace(settled, error=str(error))
            continue
        if made:
            settled = replace(settled, fired=settled.fired + 1, last_at=occasion.at, error="")
        state = fold(list(made), state)
        events += made
    return [*events, settled]


def _command(known: TriggerSet, occasion: Occasion) -> SendInput:
    local = _local(occasion.at, zone_of(known.trigger) if known.trigger else "UTC")
    values = {
        "name": known.name,
        "time": local.isoformat(timespec="seconds"),
        "date": local.date().isoformat(),
        "count": str(known.fired + 1),
        "path": occasion.path,
        "changes": occasion.changes,
    }
    text = fill_in(known.template, values)
    return SendInput((Text(text),), known.busy, occasion.key, by=_speaker(known))


def _speaker(known: TriggerSet) -> str:
    return f"trigger {known.name}"


def _local(at: float, tz: str) -> datetime:
    return datetime.fromtimestamp(at, zone(tz))


def _failed(known: TriggerSet, at: float, detail: str) -> Noted:
    return Noted(FAILED, {"trigger": known.name, "at": at, "detail": detail})
