"""A session's children as they are seen from it: what they wait for, what they have used, whether they still work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from msgspec.structs import replace

from perdure.core.commands import EndChild, StopRun
from perdure.core.errors import NotFound, Refused
from perdure.core.events import MessageSent
from perdure.core.messages import Usage
from perdure.core.rules import next_actions
from perdure.core.state import SessionState, find_call, in_flight
from perdure.core.views import Pending, pending_of, summarise
from perdure.ports import Clock, SessionQuery, SessionRow
from perdure.runtime.clock import within
from perdure.runtime.directives import Send, sending
from perdure.runtime.log import SessionLog
from perdure.runtime.media import Input
from perdure.runtime.post import Sessions
from perdure.runtime.spending import spent_below, spent_on
from perdure.runtime.subagents import PARENT, end_deleted

END_PATIENCE = 5.0
GONE = "its parent was deleted"


class Household(Sessions, Protocol):
    """The sessions of a process, and a way to forget one."""

    async def delete(self, log: SessionLog) -> None: ...


def away(state: SessionState) -> dict[int, str]:
    """The sessions that calls of the open run wait for, by call."""
    run = state.run
    return {call.ordinal: call.child for call in (*run.calls, *run.background) if call.is_away} if run else {}


def is_parked(state: SessionState) -> bool:
    """Whether its run goes on only when somebody else does something."""
    return state.run is not None and not in_flight(state) and not next_actions(state)


async def until_still(sessions: Sessions, log: SessionLog, is_over: Callable[[SessionState], bool]) -> None:
    """Returns when it is over, or when neither the session nor anything below it goes on without a decision."""
    watched: dict[str, asyncio.Task[None]] = {}
    log.attach()
    try:
        await log.refresh()
        while True:
            await log.until(lambda state: is_over(state) or is_parked(state))
            state = log.state
            children = set(away(state).values())
            if is_over(state) or not children:
                return
            for uid in watched.keys() - children:
                watched.pop(uid).cancel()
            for uid in children - watched.keys():
                watched[uid] = asyncio.ensure_future(_child_still(sessions, uid))
            if await _all_still(sessions, log, state.seq, watched):
                return
    finally:
        log.detach()
        for task in watched.values():
            task.cancel()


async def _all_still(sessions: Sessions, log: SessionLog, seq: int, watched: dict[str, asyncio.Task[None]]) -> bool:
    """Waits for the next thing to happen; True if all children stand still, now and at once."""
    if working := [task for task in watched.values() if not task.done()]:
        moved = log.until(lambda state: state.seq > seq)
        try:
            await asyncio.wait({moved, *working}, return_when="FIRST_COMPLETED")
        finally:
            moved.cancel()
    if log.state.seq > seq or not all(task.done() for task in watched.values()):
        return False
    for uid, task in list(watched.items()):
        task.result()
        if not await _is_still(sessions, uid):
            del watched[uid]
    return log.state.seq == seq and all(task.done() for task in watched.values()) and bool(watched)


async def _child_still(sessions: Sessions, uid: str) -> None:
    with suppress(NotFound):
        log = await sessions.load(uid)
        # Its work may have been left by a process that died, and who waits here may drive nothing else.
        sessions.submit(uid)
        await until_still(sessions, log, lambda state: False)


async def _is_still(sessions: Sessions, uid: str) -> bool:
    try:
        state = (await sessions.load(uid)).state
    except NotFound:
        return True
    below = [await _is_still(sessions, child) for child in away(state).values()]
    return is_parked(state) and all(below)


async def pending_in(sessions: Sessions, state: SessionState) -> tuple[Pending, ...]:
    """What a session and everything below it waits for; a call whose child is waited for in vain shows itself."""
    pending = list(pending_of(state))
    for ordinal, uid in away(state).items():
        try:
            log = await sessions.load(uid)
            await log.refresh()
        except NotFound:
            pending += _waiting_for(state, ordinal)
            continue
        below = await pending_in(sessions, log.state)
        pending += below if below or not is_parked(log.state) else _waiting_for(state, ordinal)
    return tuple(pending)


def _waiting_for(state: SessionState, ordinal: int) -> list[Pending]:
    call = find_call(state.run, ordinal)
    if call is None or call.pause is None:
        return []
    id = f"{state.uid}-{call.ordinal}-{call.pauses}"
    return [Pending(id, "child", state.id, ordinal, call.name, None, call.pause.prompt, call.pause.expires_at)]


async def usage_in(sessions: Sessions, state: SessionState) -> Usage:
    """What a session has used, with what its children have used so far."""
    return state.usage + (await spent_below(sessions.load, state)).usage


async def find_below(sessions: Sessions, log: SessionLog, uid: str) -> SessionLog:
    """The log of a session that descends from this one; NotFound for any other."""
    if uid == log.uid:
        return log
    found = await sessions.load(uid)
    above = found.state.origin
    while above is not None and above.agents:
        if above.session == log.uid:
            return found
        above = (await sessions.load(above.session)).state.origin
    raise NotFound(f"Session {log.state.id!r} has no descendant {uid!r}.")


async def send_message(sessions: Sessions, log: SessionLog, to: str, input: Input, by: str) -> int:
    """Puts a message on its way; returns its number, by which it can be found again."""
    wish = sending(Send(to, input), log.state)
    for digest, data in wish.artifacts.items():
        await sessions.world.store.save_artifact(log.uid, digest, data)
    events = await sessions.request(log, replace(wish.command, by=by))
    return next(event.message for event in events if isinstance(event, MessageSent))


async def children_of(sessions: Sessions, uid: str) -> list[SessionRow]:
    """All the children that a session has ever had, newest first."""
    return [row async for row in sessions.rows(SessionQuery(metadata={PARENT: uid}))]


async def remove_children(house: Household, clock: Clock, rows: list[SessionRow]) -> None:
    """Ends and forgets what was below a session that is gone, except for orphans that are to finish."""
    logs: list[SessionLog] = []
    for row in rows:
        with suppress(NotFound, Refused):
            log = await house.load(row.uid)
            await log.refresh()
            origin, is_busy = log.state.origin, summarise(log.state).status != "idle"
            if is_busy and origin is not None and origin.orphan == "finish":
                continue
            logs.append(log)
            for reply in [queued.reply for queued in log.state.queue if queued.reply is not None]:
                await house.request(log, StopRun("cancel", GONE, reply))
            await house.request(log, StopRun("cancel", GONE))
    for log in logs:
        with suppress(NotFound, Refused):
            await house.delete(log)  # nobody drives it, so nobody would end it either
            continue
        log.attach()
        try:
            await within(clock, END_PATIENCE, _until_idle(log))
        except TimeoutError:
            continue  # whoever drives it next ends it
        finally:
            log.detach()
        with suppress(NotFound, Refused):
            await house.delete(log)


async def tell_deleted(sessions: Sessions, state: SessionState) -> None:
    """Who waits for a session that was deleted hears of it."""
    owed = (*(state.run.replies if state.run else ()), *state.owed, *(item for item in state.queue if item.reply))
    for reply in [item.reply for item in owed]:
        if reply is not None and reply.call:
            ended = end_deleted(reply.call, state.agent, spent_on(state, reply))
            with suppress(NotFound):
                await sessions.request(await sessions.load(reply.session), EndChild(state.uid, ended))


async def _until_idle(log: SessionLog) -> None:
    await log.until(lambda state: summarise(state).status == "idle")
