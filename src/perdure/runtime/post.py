"""Post: brings to one session what another has for it.

Rule: at least once, and what comes twice counts once: a child by its uid, an input by its key, an end by its call.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from perdure.core.accept import accept
from perdure.core.commands import Command, EndChild, SendInput, StopRun
from perdure.core.errors import Conflict, NotFound, Refused
from perdure.core.events import Event, Reply, SessionOpened, Spent
from perdure.core.messages import JSON, Media, Part
from perdure.core.specs import Limits
from perdure.core.state import SessionState, find_call
from perdure.ports import Clock, Opening, SessionQuery, SessionRow, Store
from perdure.runtime.agent import Binding
from perdure.runtime.log import Change, SessionLog
from perdure.runtime.mail import Above, Birth
from perdure.runtime.spending import spent_for
from perdure.runtime.subagents import family_of
from perdure.runtime.world import World

MAX_TRIES = 100


class Sessions(Protocol):
    """What the post needs of the process's sessions."""

    world: World

    async def load(self, uid: str) -> SessionLog: ...

    async def find(self, id: str, tenant: str) -> SessionLog: ...

    async def request(self, log: SessionLog, command: Command) -> tuple[Event, ...]: ...

    def keep(self, log: SessionLog) -> SessionLog: ...

    def submit(self, uid: str) -> None: ...

    def known(self, agent: str) -> Binding | None: ...

    def check_data(self, agent: str, id: str, data: JSON) -> None: ...

    def rows(self, query: SessionQuery) -> AsyncIterator[SessionRow]: ...


class Post:
    """One process's; whoever is driven here sends by it."""

    def __init__(self, sessions: Sessions, store: Store, clock: Clock) -> None:
        self._sessions = sessions
        self._store = store
        self._clock = clock

    async def start(self, parent: SessionState, birth: Birth, command: SendInput) -> None:
        """The child has its input: it is opened for it, or it was there and hears it."""
        id = f"{parent.id}.{birth.label}"
        for _ in range(MAX_TRIES):
            try:
                await self._open(parent, birth, id, command)
                return
            except Conflict:
                try:
                    log = await self._sessions.load(birth.uid)
                except NotFound:
                    id = birth.uid  # somebody else's session has the name that it would have had
                    continue
            await self._sessions.request(log, command)
            return
        raise Conflict(f"The session of {birth.agent} is opened and deleted again and again by others.")

    async def _open(self, parent: SessionState, birth: Birth, id: str, command: SendInput) -> None:
        metadata = family_of(parent.uid, parent.metadata)
        family = (parent.tenant, parent.data, metadata, birth.origin, parent.priority)
        opened = SessionOpened(birth.uid, id, birth.agent, *family)
        self._sessions.check_data(birth.agent, id, parent.data)
        log = SessionLog(birth.uid, self._store, self._clock)
        change = Change(log.state)
        change.add((opened,))
        change.add(accept(change.after, command))
        await log.append(change, opening=Opening(parent.tenant, id, metadata))
        self._sessions.keep(log)
        self._sessions.submit(birth.uid)

    async def stop(self, child: str, command: StopRun) -> bool:
        """Tells a child to end; False if there is none. One that has ended is about to say so."""
        try:
            await self._sessions.request(await self._sessions.load(child), command)
        except NotFound:
            return False
        except Refused:
            return True
        return True

    async def end(self, parent: str, command: EndChild) -> None:
        """Tells a parent how its call ended; it has heard of it, or does not want to any more."""
        await self._sessions.request(await self._sessions.load(parent), command)

    async def send(self, session: str, command: SendInput, source: str) -> None:
        """An input for a session that is there, from the one of uid `source`."""
        log = await self._sessions.load(session)
        await self._copy(command.parts, source, session)
        await self._sessions.request(log, command)

    async def _copy(self, parts: tuple[Part, ...], source: str, target: str) -> None:
        """The bytes that an input names go with it."""
        for part in parts:
            if isinstance(part, Media):
                data = await self._store.load_artifact(source, part.artifact)
                await self._store.save_artifact(target, part.artifact, data)

    async def find(self, id: str, tenant: str) -> str:
        return (await self._sessions.find(id, tenant)).uid

    async def spent_by(self, child: str, reply: Reply) -> Spent:
        """What a child and those below it have used for a call, as far as anybody knows."""
        return await spent_for(self._sessions.load, child, reply)

    async def is_wanted(self, state: SessionState) -> bool:
        """Whether a child's parent is there, and still waits for the run that is open or next."""
        origin = state.origin
        if origin is None or not origin.agents or origin.orphan == "finish":
            return True
        owed = state.run.replies if state.run else ()
        replies = [item.reply for item in owed] or [queued.reply for queued in state.queue if queued.reply]
        if not replies:
            return True  # somebody spoke to it directly
        try:
            parent = await self._sessions.load(origin.session)
            await parent.refresh()
        except NotFound:
            return False
        if not all(reply.call for reply in replies):
            return True
        calls = [find_call(parent.state.run, reply.call) for reply in replies]
        return any(call is not None and call.status != "ended" for call in calls)

    def limits_of(self, agent: str) -> Limits:
        """Its own limits; NotFound if nobody knows the agent here."""
        binding = self._sessions.known(agent)
        if binding is None:
            raise NotFound(f"The agent {agent!r} is not known here; pass it in agents=[…].")
        return binding.agent.limits

    def policies_above(self, state: SessionState) -> tuple[Above, ...] | None:
        """The agents above a child, whose policies it keeps to as well; None if one of them is not known here."""
        names = state.origin.agents if state.origin else ()
        known = [(name, binding) for name in names if (binding := self._sessions.known(name)) is not None]
        if len(known) < len(names):
            return None
        return tuple(Above(name, binding.agent.policy) for name, binding in known)
