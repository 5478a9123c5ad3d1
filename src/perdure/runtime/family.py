"""A session's children as they are seen from it: what they wait for, what they have used, whether they still work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Protocol

from msgspec.structs import replace

from perdure.core.commands import StopRun
from perdure.core.errors import NotFound, Refused
from perdure.core.events import CallSuspended, InputAccepted, MessageSent, Reply, RunEnded
from perdure.core.messages import Usage
from perdure.core.rules import next_actions
from perdure.core.state import SessionState, find_call, in_flight
from perdure.core.views import Pending, pending_of, summarise
from perdure.ports import Clock, FromChild, Item, Record, SessionQuery, SessionRow, Store
from perdure.runtime.clock import within
from perdure.runtime.directives import Send, sending
from perdure.runtime.follow import follow
from perdure.runtime.log import SessionLog
from perdure.runtime.media import Input
from perdure.runtime.post import Sessions
from perdure.runtime.subagents import PARENT

QUEUED = 1000
END_PATIENCE = 5.0


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
    moved = log.until(lambda state: state.seq > seq)
    try:
        await asyncio.wait(
            {moved, *(task for task in watched.values() if not task.done())}, return_when="FIRST_COMPLETED"
        )
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
        await until_still(sessions, await sessions.load(uid), lambda state: False)


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
    return state.usage + await _used_below(sessions, state)


async def _used_below(sessions: Sessions, state: SessionState) -> Usage:
    usage = Usage()
    for uid in away(state).values():
        with suppress(NotFound):
            log = await sessions.load(uid)
            await log.refresh()
            child = log.state
            own = child.run or (child.ended[-1] if len(child.ended) else None)
            usage += (own.usage if own else Usage()) + await _used_below(sessions, child)
    return usage


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
            await house.request(log, StopRun("cancel", "its parent was deleted"))
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


async def _until_idle(log: SessionLog) -> None:
    await log.until(lambda state: summarise(state).status == "idle")


async def _work_for(sessions: Sessions, store: Store, log: SessionLog, reply: Reply) -> AsyncIterator[Item]:
    """What a child does for one call, from its task to the end of its run."""
    input = 0
    async for item in follow_family(sessions, store, log, 0):
        if isinstance(item, Record) and isinstance(item.event, InputAccepted) and item.event.reply == reply:
            input = item.event.input
        if input:
            yield item
        match item:
            case Record(event=RunEnded(run=run)) if input and log.state.taken.get(input) == run:
                return
            case _:
                pass


async def follow_family(sessions: Sessions, store: Store, log: SessionLog, after: int) -> AsyncIterator[Item]:
    """A session's stream, with what its children do while they work."""
    binding = sessions.known(log.state.agent)
    tools = log.state.spec.tools if log.state.spec else ()
    if not (binding and binding.sub_agents) and not any(tool.kind == "agent" for tool in tools):
        async for item in follow(log, store, after):
            yield item
        return
    queue: asyncio.Queue[Item | None] = asyncio.Queue(QUEUED)
    pumps: set[asyncio.Task[None]] = set()

    async def pump_child(call: int, uid: str) -> None:
        with suppress(NotFound):
            child = await sessions.load(uid)
            async for item in _work_for(sessions, store, child, Reply(log.uid, call)):
                await queue.put(FromChild(child.state.id, child.state.agent, call, item))

    def start(call: int, uid: str) -> None:
        pumps.add(asyncio.ensure_future(pump_child(call, uid)))

    async def pump() -> None:
        async for item in follow(log, store, after):
            await queue.put(item)
            if isinstance(item, Record) and isinstance(item.event, CallSuspended) and item.event.kind == "child":
                call = find_call(log.state.run, item.event.call)
                if call is not None and call.is_away:
                    start(call.ordinal, call.child)
        await queue.put(None)

    pumps.add(asyncio.ensure_future(pump()))
    try:
        while (item := await queue.get()) is not None:
            yield item
    finally:
        for task in pumps:
            task.cancel()
