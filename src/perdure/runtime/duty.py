"""Duty: what one process does for its engine. Claims sessions, drives them, and says which there are to drive."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from secrets import token_hex
from typing import Protocol

from perdure.core.commands import Command, StopRun
from perdure.core.errors import NotFound, Refused, StaleEpoch, TooNew
from perdure.core.events import Event
from perdure.core.queues import LEVEL, queue_of
from perdure.core.state import SessionState, agent_of
from perdure.core.views import summarise
from perdure.ports import Engine
from perdure.runtime.drive import Driver
from perdure.runtime.log import SessionLog
from perdure.runtime.post import Post
from perdure.runtime.quarantine import Heritage, is_suspect, succession
from perdure.runtime.roster import Roster
from perdure.runtime.shared_state import SharedState
from perdure.runtime.watching import Watching
from perdure.runtime.world import World

AT_ONCE = 100
"""Sessions that one sweep finds."""
MOST_REFUSED = 1000
"""Sessions without a claim that are remembered; the sweep finds the others."""
ASK_AGAIN = 30.0
"""Seconds until the resolver is asked again about a session that nobody knew."""
TOO_NEW_FOR = 600.0
"""Seconds until somebody looks again at a session that could not be read."""
LET_GO_TRIES = 20

_logger = logging.getLogger("perdure")


class Sessions(Protocol):
    """What driving needs of the process's sessions."""

    watching: Watching

    async def load(self, uid: str) -> SessionLog: ...

    def known_log(self, uid: str) -> SessionLog | None: ...

    async def request(self, log: SessionLog, command: Command) -> tuple[Event, ...]: ...

    async def shared_by(self, tenant: str) -> SharedState: ...


class Duty:
    """One driver per session at a time; `drivers` are those of now."""

    def __init__(self, sessions: Sessions, world: World, engine: Engine | None, roster: Roster, post: Post) -> None:
        self.owner = token_hex(8)
        self.drivers: dict[str, Driver] = {}
        self._sessions = sessions
        self._world = world
        self._store = world.store
        self._clock = world.clock
        self._engine = engine
        self._roster = roster
        self._post = post
        self._left_alone: dict[str, float] = {}
        self._below_strangers: dict[str, float] = {}
        self._too_new: dict[str, float] = {}
        self._dropped: set[str] = set()
        self._suspect = ""
        self._agents = 0
        self._stopping = False
        self._capacity = world.capacity if world.capacity.caps else None
        self._refused: dict[str, tuple[float, str, str, str]] = {}
        self._only: Sequence[str] | None = getattr(engine, "queues", None)
        if self._only is not None:
            world.serves = frozenset(self._only).__contains__

    def leave(self) -> None:
        """Takes no new turn."""
        self._stopping = True
        for driver in self.drivers.values():
            driver.leave()

    @property
    def queues(self) -> Sequence[str]:
        return list(dict.fromkeys([*self.own_queues, *(self._only or ())]))

    @property
    def own_queues(self) -> Sequence[str]:
        """Those of the agents that are known here, and of their tools."""
        agents = self._roster.bindings
        tools = [tool.queue for binding in agents.values() for tool in binding.spec.tools if tool.queue]
        return list(dict.fromkeys([*agents, *tools]))

    def priority(self, session: str) -> int:
        log = self._sessions.known_log(session)
        return log.state.priority if log is not None else 0

    def watch(self, notify: Callable[[], None]) -> Callable[[], None]:
        return self._store.watch(None, lambda _: notify())

    async def living(self) -> Sequence[str]:
        return await self._store.owners()

    async def drive(self, session: str) -> None:
        """Drives one session until it settles, waits, or somebody else takes over."""
        if session in self._too_new and session not in self._dropped:
            return
        try:
            log = await self._sessions.load(session)
            if not await self._is_served(log):
                await self._let_go(session)
            elif session in self._dropped or await self._has_work(log):
                await self._drive_apart(log)
        except NotFound:
            # Deleted meanwhile: there is nothing left to look after.
            self._dropped.discard(session)
        except TooNew as error:
            await self._let_go(session)
            self._leave_to_newer(session, error)

    def _leave_to_newer(self, session: str, error: TooNew) -> None:
        """It is not ours to judge: nothing is written, and workers that can read it find it by their sweep."""
        self._too_new[session] = self._clock.now() + TOO_NEW_FOR
        _logger.warning("session %s is left to newer workers: %s", session, error)

    async def _drive_apart(self, log: SessionLog) -> None:
        """Of those that a driver may have died of, one at a time until it gets on; the others are found again."""
        if not await is_suspect(self._store, log.state):
            await self._drive(log)
        elif not self._suspect:
            self._suspect, place = log.uid, _place(log.state)
            innocent = log.until(lambda state: _place(state) != place)
            innocent.add_done_callback(lambda _: self._clear(log.uid))
            try:
                await self._drive(log)
            finally:
                innocent.cancel()
                self._clear(log.uid)

    def _clear(self, session: str) -> None:
        if self._suspect == session:
            self._suspect = ""

    async def _is_served(self, log: SessionLog) -> bool:
        """Whether its next work is that of an agent and of a queue of ours; what was seen here last may be old."""
        seen, binding = log.state, await self._roster.find(agent_of(log.state))
        if binding is not None and self._serves(log) and await self._roster.knows_above(seen):
            return True
        await log.refresh()
        if agent_of(log.state) != agent_of(seen):
            binding = await self._roster.find(agent_of(log.state))
        # Whoever knows the agents above knows what the session may do.
        is_known = binding is not None and await self._roster.knows_above(log.state)
        if not is_known:
            alone = self._left_alone if binding is None else self._below_strangers
            alone[log.uid] = self._clock.now() + ASK_AGAIN
        return is_known and self._serves(log)

    def _serves(self, log: SessionLog) -> bool:
        return self._world.serves is None or self._world.serves(queue_of(log.state))

    async def _drive(self, log: SessionLog) -> None:
        uid, claim, is_handed_over = log.uid, None, False
        try:
            claim = await self._store.claim(uid, self.owner, capacity=self._capacity)
            if claim is None:
                await self._let_go(uid)
                if self._capacity is not None:
                    self._put_off(log)
            if claim is not None and not self._stopping:
                if claim.head != log.state.seq:
                    await log.refresh()
                await self._end_orphan(log)
                is_handed_over = await self._drive_on(log, await succession(self._store, claim, log.state))
        except StaleEpoch:
            await log.refresh()
        except TooNew as error:
            # Somebody newer has written to it while it was ours.
            log.fail(error)
            self._dropped.add(uid)
            raise
        except Exception as error:
            # Whoever awaits the run here must not wait for ever. The session itself may still be ours, and nobody else
            # looks after it while we live: our sweep has to.
            self._dropped.add(uid)
            log.fail(error)
            raise
        finally:
            self.drivers.pop(uid, None)
        self._dropped.discard(uid)
        if self._engine is None or self._stopping:
            return
        summary = summarise(log.state)
        if summary.wake_at is not None:
            self._engine.wake(uid, summary.served_by, summary.wake_at)
        if is_handed_over:
            self._engine.submit(uid, summary.served_by)
        if claim is not None and self._capacity is not None:
            self._call_next(self._engine, log.state.tenant, summary.agent)

    def _call_next(self, engine: Engine, tenant: str, agent: str) -> None:
        """One session of a tenant or an agent was let go: one that may have waited for that is tried again."""
        waiting = [
            (rank, uid, queue)
            for uid, (rank, its_tenant, its_agent, queue) in self._refused.items()
            if its_tenant == tenant or its_agent == agent
        ]
        if waiting:
            _, uid, queue = min(waiting, key=lambda item: item[0])
            del self._refused[uid]
            engine.submit(uid, queue)

    def _put_off(self, log: SessionLog) -> None:
        """Remembers a session that got no claim, perhaps because a cap is reached."""
        summary = summarise(log.state)
        rank = self._clock.monotonic() - summary.priority * LEVEL
        if len(self._refused) >= MOST_REFUSED:
            del self._refused[next(iter(self._refused))]
        self._refused[log.uid] = rank, log.state.tenant, summary.agent, summary.served_by

    async def _let_go(self, session: str) -> None:
        """Gives up what was dropped and is not ours to drive: as long as we own it and live, nobody else may take it.

        Whoever appended last has said whether there is work to do.
        """
        for _ in range(LET_GO_TRIES if session in self._dropped else 0):
            row = await self._store.get(session)
            if row is None or row.owner != self.owner:
                self._dropped.discard(session)
                return
            with suppress(StaleEpoch):
                if await self._store.release(session, epoch=row.epoch, head=row.head):
                    self._dropped.discard(session)
                    return

    async def _end_orphan(self, log: SessionLog) -> None:
        """A child whose parent is gone, or wants nothing of it any more, is ended by whoever finds it."""
        if not await self._post.is_wanted(log.state):
            with suppress(Refused):
                await self._sessions.request(log, StopRun("cancel", "its parent is gone"))

    async def _drive_on(self, log: SessionLog, heritage: Heritage) -> bool:
        """One driver after the other, as agents hand over, under one claim; True if the next one needs its own."""
        is_done = follows = False
        while not is_done and not self._stopping:
            if follows and self._world.capacity.per_agent is not None:
                # Another agent has another cap.
                is_done = await self._store.release(log.uid, epoch=heritage.epoch, head=log.state.seq)
                await log.refresh()
                if is_done:
                    return True
                continue
            binding = await self._roster.find(agent_of(log.state))
            if binding is None:
                # Whoever knows that agent picks the session up.
                is_done = await self._store.release(log.uid, epoch=heritage.epoch, head=log.state.seq)
                await log.refresh()
                continue
            shared = await self._sessions.shared_by(log.state.tenant) if binding.parts.shares else None
            driver = self.drivers[log.uid] = Driver(log, binding, self._world, heritage, shared)
            is_done = await driver.run(follows=follows)
            follows, heritage = True, Heritage(heritage.epoch)
        return False

    async def _has_work(self, log: SessionLog) -> bool:
        """Claims are not for free: a submission that came while the session was driven has mostly been served."""
        for look_again in (True, False):
            summary = summarise(log.state)
            if summary.runnable or (summary.wake_at is not None and summary.wake_at <= self._clock.now()):
                return True
            if look_again:
                await log.refresh()
        return False

    async def sweep(self, queues: Sequence[str] | None) -> Sequence[str]:
        """What has work and no living owner; and what is ours, but was dropped because the store was out of order."""
        now = self._clock.now()
        agents = list(self._roster.bindings)
        if len(agents) != self._agents:
            # An agent has come, perhaps the one above.
            self._agents, self._below_strangers = len(agents), {}
        self._left_alone = {uid: until for uid, until in self._left_alone.items() if until > now}
        self._below_strangers = {uid: until for uid, until in self._below_strangers.items() if until > now}
        self._too_new = {uid: until for uid, until in self._too_new.items() if until > now}
        # As many more as are left alone, or they would stand in the way of all others.
        alone = self._left_alone.keys() | self._below_strangers.keys() | self._too_new.keys()
        most = AT_ONCE + len(alone)
        found = list(await self._store.runnable(queues, agents=agents, now=now, limit=most, capacity=self._capacity))
        if queues is None and self._roster.resolves:
            found += await self._store.runnable(None, now=now, limit=most, capacity=self._capacity)
        self._sessions.watching.look(self._roster.bindings.keys())
        return list(dict.fromkeys([*(uid for uid in found if uid not in alone), *self._dropped]))


def _place(state: SessionState) -> tuple[object, ...]:
    """How far a session has come: another one means that something came of it."""
    run = state.run
    if run is None:
        return ()
    ended = sum(call.status == "ended" for call in run.calls)
    return run.run, run.turn, len(run.calls), ended, run.response is None
