"""Triggers of a session: set, paused, resumed and removed in its log; none of it fires them.

Rule: to set the same trigger again changes nothing, so a program may set its triggers whenever it starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import get_args

import msgspec
from msgspec.structs import replace

from perdure.core.errors import Conflict, NotFound, TooNew, UsageError
from perdure.core.events import Event, TriggerSet
from perdure.core.specs import At, Busy, Cron, Every, Files, Missed, TriggerSpec
from perdure.core.state import SessionState
from perdure.ports import SessionQuery
from perdure.runtime.files import absolute, save_listing, scan
from perdure.runtime.firing import NOT_WATCHED
from perdure.runtime.given import given_text
from perdure.runtime.host import Host
from perdure.runtime.log import SessionLog, as_kept
from perdure.runtime.schedules import check_schedule, latest_until, next_after
from perdure.runtime.templates import FILES, TIMES, check_template

TRIES = 20
TOO_LATE = "Its time passed while it was paused."


class TriggerRow(msgspec.Struct, frozen=True):
    """A trigger, and whose it is."""

    session: str
    tenant: str
    agent: str
    trigger: TriggerSet


async def read_triggers(log: SessionLog) -> dict[str, TriggerSet]:
    await log.refresh()
    return dict(log.state.triggers)


async def list_triggers(host: Host, tenant: str | None) -> list[TriggerRow]:
    """Those of all sessions, what is due next first."""
    found: list[TriggerRow] = []
    async for row in host.rows(SessionQuery(tenant=tenant, triggers=True)):
        try:
            log = await host.load(row.uid)
        except TooNew:
            continue  # one that cannot be read here does not hide the others
        found += [TriggerRow(row.id, row.tenant, row.agent, known) for known in (await read_triggers(log)).values()]
    return sorted(found, key=lambda item: (item.trigger.next_at or float("inf"), item.session, item.trigger.name))


async def set_trigger(host: Host, log: SessionLog, wanted: TriggerSet) -> TriggerSet:
    """The trigger as it is in the log now."""
    wanted = _checked(wanted)
    now = round(host.world.clock.now(), 6)
    if isinstance(wanted.trigger, Files):
        wanted = await _with_files(host, log, wanted, wanted.trigger)

    def decide(state: SessionState) -> tuple[Event, ...]:
        known = state.triggers.get(wanted.name)
        if known is not None and known.trigger == wanted.trigger:
            changed = replace(known, template=wanted.template, missed=wanted.missed, busy=wanted.busy)
            return () if changed == known else (replace(changed, by=wanted.by),)
        assert wanted.trigger is not None
        check_schedule(wanted.trigger, now)
        fired, last_at = (known.fired, known.last_at) if known else (0, None)
        following = next_after(wanted.trigger, now)
        return (replace(wanted, until=now, next_at=following, fired=fired, last_at=last_at),)

    await _propose(host, log, decide)
    return log.state.triggers[wanted.name]


async def pause_trigger(host: Host, log: SessionLog, name: str, by: str) -> None:
    def decide(state: SessionState) -> tuple[Event, ...]:
        known = _find(state, name)
        return () if known.is_paused else (replace(known, is_paused=True, next_at=None, by=by),)

    await _propose(host, log, decide)


async def resume_trigger(host: Host, log: SessionLog, name: str, by: str) -> None:
    """From now on; what would have come meanwhile is left out."""
    now = round(host.world.clock.now(), 6)
    await log.refresh()
    known = _find(log.state, name)
    seen = known
    if isinstance(known.trigger, Files):
        seen = await _with_files(host, log, replace(known, error=""), known.trigger)

    def decide(state: SessionState) -> tuple[Event, ...]:
        known = _find(state, name)
        if not known.is_paused or known.trigger is None:
            return ()
        resumed = replace(known, is_paused=False, artifact=seen.artifact, error=seen.error, by=by)
        if not isinstance(known.trigger, Files):
            until = max(known.until, latest_until(known.trigger, known.until, now) or known.until)
            following = next_after(known.trigger, until)
            is_over = isinstance(known.trigger, At) and following is None and until > known.until
            resumed = replace(resumed, until=until, next_at=following, error=TOO_LATE if is_over else known.error)
        return (resumed,)

    await _propose(host, log, decide)


async def remove_trigger(host: Host, log: SessionLog, name: str, by: str) -> None:
    await _propose(host, log, lambda state: (TriggerSet(_find(state, name).name, by=by),))


def _find(state: SessionState, name: str) -> TriggerSet:
    known = state.triggers.get(name)
    if known is None:
        there = ", ".join(state.triggers) or "none"
        raise NotFound(f"Session {state.id!r} has no trigger {name!r}; its triggers are: {there}.")
    return known


def _checked(wanted: TriggerSet) -> TriggerSet:
    """What callers pass, as the log will keep it; a UsageError says what is wrong with it."""
    name = given_text(wanted.name, "The name of a trigger")
    if not name.strip():
        raise UsageError("The name of the trigger is empty; give it one.")
    template = given_text(wanted.template, "A template")
    if wanted.missed not in get_args(Missed):
        raise UsageError(f"missed={wanted.missed!r}: take one of {', '.join(get_args(Missed))}.")
    if wanted.busy not in get_args(Busy):
        raise UsageError(f"busy={wanted.busy!r}: take one of {', '.join(get_args(Busy))}.")
    trigger: object = wanted.trigger
    if not isinstance(trigger, Every | Cron | At | Files):
        raise UsageError(f"A trigger is Every(…), Cron(…), At(…) or Files(…), not {type(trigger).__name__}.")
    check_template(template, FILES if isinstance(trigger, Files) else TIMES)
    return replace(wanted, name=name, template=template, trigger=_normal(trigger), by=given_text(wanted.by, "by"))


def _normal(trigger: TriggerSpec) -> TriggerSpec:
    match trigger:
        case Every(seconds=seconds) if isinstance(seconds, float):
            return Every(round(seconds, 6))
        case Cron(line=line, tz=tz):
            return Cron(" ".join(given_text(line, "A cron line").split()), given_text(tz, "A time zone"))
        case At(tz=tz):
            return replace(trigger, tz=given_text(tz, "A time zone"))
        case Files():
            return absolute(trigger)
        case _:
            return trigger


async def _with_files(host: Host, log: SessionLog, wanted: TriggerSet, files: Files) -> TriggerSet:
    """What is there now is not news."""
    try:
        listing = await host.world.threads.submit(lambda: scan(files))
    except (UsageError, OSError) as error:
        return replace(wanted, error=f"{NOT_WATCHED}{error}")
    return replace(wanted, artifact=await save_listing(host.world.store, log.uid, listing))


async def _propose(host: Host, log: SessionLog, decide: Callable[[SessionState], Iterable[Event]]) -> None:
    """Appends what follows from the newest state, whoever else writes meanwhile."""
    for _ in range(TRIES):
        await log.refresh()
        try:
            await log.propose(lambda state: [as_kept(event) for event in decide(state)])
        except Conflict:
            continue
        host.watching.hurry()
        return
    raise Conflict("The session changes faster than the trigger could be set; try again.")
