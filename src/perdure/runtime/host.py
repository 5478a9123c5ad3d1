"""Host: the sessions of one process. Opens and forgets logs, carries commands to them and drives what it owns."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from secrets import token_hex
from typing import Any
from weakref import WeakValueDictionary

from msgspec.structs import replace

from perdure.core.accept import accept
from perdure.core.commands import Command, CompactView
from perdure.core.errors import Conflict, NotFound, PerdureError, Refused, UsageError
from perdure.core.events import Event, HistoryCompacted, Origin, SessionOpened
from perdure.core.fold import fold
from perdure.core.fork import fork_events
from perdure.core.messages import JSON
from perdure.core.queues import queue_of
from perdure.core.specs import ToolSpec
from perdure.core.state import RunSummary, SessionState, agent_of
from perdure.core.views import Pending, summarise
from perdure.ports import Engine, Model, Opening, SessionQuery, SessionRow, SharesQuota
from perdure.runtime.admission import Admission
from perdure.runtime.agent import Agent, Binding, agents_of, bind, check_data
from perdure.runtime.desk import Desk
from perdure.runtime.directives import Fact, in_turn
from perdure.runtime.duty import Duty
from perdure.runtime.family import children_of, remove_children, tell_deleted
from perdure.runtime.given import given_plain, given_text
from perdure.runtime.log import Change, SessionLog, as_kept
from perdure.runtime.observers import tell_session_end
from perdure.runtime.perform import compact_aside
from perdure.runtime.perform_compaction import NOTHING, OVERTAKEN, failed
from perdure.runtime.post import Post
from perdure.runtime.roster import Resolve, Roster
from perdure.runtime.sealed import check_transactional
from perdure.runtime.shared_state import SHARED, SharedState
from perdure.runtime.subagents import labels_of
from perdure.runtime.tools import check_declared
from perdure.runtime.watching import Watching
from perdure.runtime.world import World, schema_key

KEPT_WARM = 100
COMPACT_TRIES = 3
MAX_TRIES = 1000
LET_GO_TRIES = 200


class Host:
    """Logs live as long as somebody holds them; the most recent few are kept warm."""

    def __init__(
        self,
        world: World,
        engine: Engine | None,
        resolve: Resolve | None = None,
        about: dict[str, JSON] | None = None,
    ) -> None:
        self.world = world
        self._engine = engine
        self._about = about or {}
        self._roster = Roster(self.bind, resolve, world.clock)
        self._bindings = self._roster.bindings
        world.agents = self._roster.find
        self._logs: WeakValueDictionary[str, SessionLog] = WeakValueDictionary()
        self._warm: OrderedDict[str, SessionLog] = OrderedDict()
        self._shared: dict[str, SharedState] = {}
        self._post = world.post = Post(self, world.store, world.clock)
        self.watching = Watching(world, self.load, self.rows, self.submit)
        self.admission = Admission(world.store, world.clock, world.capacity)
        self.duty = Duty(self, world, engine, self._roster, self._post)

    async def start(self) -> None:
        if self._engine is not None:
            shared = self.world.store if isinstance(self.world.store, SharesQuota) else self.world.quotas
            if shared is not None:
                self.world.gates.share(shared)
            await self.world.store.join(self.duty.owner, {**self._about, "agents": list[JSON](self._bindings)})
            await self._engine.start(self.duty)

    async def stop(self, grace: float) -> None:
        """Takes no new turn, lets calls in flight finish for a while and leaves the rest to the next process."""
        self.duty.leave()
        if self._engine is not None:
            await self.watching.stop()
            await self._engine.drain(grace)
            self.world.gates.part()
            await self.world.store.leave(self.duty.owner)
        self._roster.close()
        for log in list(self._logs.values()):
            log.close()

    def bind(self, agent: Agent[Any]) -> Binding:
        """Compiles an agent once; a second one of the same name must be the same definition."""
        known = self._bindings.get(agent.name)
        if known is not None and known.agent is agent:
            return known
        if agent.name == SHARED:
            raise UsageError(f"An agent cannot be named {SHARED!r}: shared state keys are kept under that name.")
        binding = bind(agent, self.world.model, self.world.model_override, self.world.hooks)
        if known is not None and known.digest != binding.digest:
            raise UsageError(f"Two agents are named {agent.name!r}; give each its own name.")
        for model in (*binding.models, *binding.summarisers):
            self.world.ready(model)
        check_transactional(binding, self.world.store)
        self._bindings[agent.name] = binding
        for other in (*agents_of(agent), *binding.sub_agents.values()):
            self.bind(other)
        return binding

    async def named(self, agent: Agent[Any] | str) -> Binding:
        """An agent as it is, or by its name; a UsageError if nobody knows it."""
        if isinstance(agent, Agent):
            return self.bind(agent)
        return await self._roster.need(given_text(agent, "An agent's name"))

    async def choose(self, log: SessionLog, agent: Agent[Any] | str) -> str:
        """The name of an agent that is to work in this session; without an engine, another process knows it."""
        if not agent:
            raise UsageError("The agent's name is empty; name the one that shall go on.")
        if isinstance(agent, str) and self._engine is None and await self._roster.find(agent) is None:
            return given_text(agent, "An agent's name")
        binding = await self.named(agent)
        check_data(binding, log.state.id, log.state.data)
        if self._engine is not None and not await self._roster.knows_above(log.state):
            first = log.state.origin.agents[0] if log.state.origin else ""
            raise UsageError(
                f"Session {log.state.id!r} keeps to the policy of the agent {first!r}; pass that one, too."
            )
        return binding.spec.name

    @property
    def agents(self) -> Sequence[str]:
        return list(self._bindings)

    def known(self, agent: str) -> Binding | None:
        return self._bindings.get(agent)

    def check_data(self, agent: str, id: str, data: JSON) -> None:
        """Refuses data that does not fit the tools of an agent that is known here."""
        binding = self._bindings.get(agent)
        if binding is not None:
            check_data(binding, id, data)

    def models_of(self, agent: str) -> tuple[Model, ...]:
        binding = self._bindings.get(agent)
        return binding.models if binding else ()

    def declare(self, agent: str, tools: Sequence[ToolSpec]) -> tuple[ToolSpec, ...]:
        binding = self._bindings.get(agent)
        return check_declared(tools, binding.spec.tools if binding else ())

    async def open(
        self,
        agent: Agent[Any] | str,
        *,
        id: str | None,
        tenant: str,
        data: object,
        metadata: dict[str, str],
        priority: int = 0,
    ) -> SessionLog:
        """Creates the session, or picks it up where it was."""
        binding = await self.named(agent)
        for _ in range(MAX_TRIES):
            row = await self.world.store.find(tenant, id) if id is not None else None
            if row is not None:
                return await self._reopen(binding, row, data)
            try:
                made = SessionOpened("", id or "", binding.spec.name, tenant, metadata=metadata, priority=priority)
                return await self._create(binding, made, data)
            except Conflict:
                if id is None:
                    raise
        raise Conflict(f"Session {id!r} is opened and deleted again and again by others; try later.")

    async def _create(self, binding: Binding, made: SessionOpened, data: object) -> SessionLog:
        uid = token_hex(10)
        opened = replace(made, uid=uid, id=made.id or uid, data=given_plain(data))
        check_data(binding, opened.id, opened.data)
        log = SessionLog(uid, self.world.store, self.world.clock)
        change = Change(log.state)
        change.add((opened,))
        await log.append(change, opening=Opening(opened.tenant, opened.id, opened.metadata))
        return self.keep(log)

    async def _reopen(self, binding: Binding, row: SessionRow, data: object) -> SessionLog:
        log = await self.load(row.uid)
        # A script that is run again does not know who has taken over since.
        if binding.spec.name not in (log.state.agent, log.state.home):
            raise Conflict(f"Session {row.id!r} belongs to the agent {log.state.agent!r}; open it with that one.")
        if data is not None and given_plain(data) != log.state.data:
            raise Conflict(f"Session {row.id!r} was opened with other data; open it without data, or under a new id.")
        check_data(binding, row.id, log.state.data)
        return log

    async def load(self, uid: str) -> SessionLog:
        """The session's log, folded up to now."""
        log = self._logs.get(uid)
        if log is None:
            log = SessionLog(uid, self.world.store, self.world.clock)
            await log.load()
            # Two callers may load at once; both must hold the same log, or the feed splits.
            log = self._logs.get(uid, log)
        return self.keep(log)

    def known_log(self, uid: str) -> SessionLog | None:
        """The session's log, if somebody here holds it, as it was seen last."""
        return self._logs.get(uid)

    async def find(self, id: str, tenant: str) -> SessionLog:
        row = await self.world.store.find(tenant, id)
        if row is None:
            raise NotFound(f"There is no session {id!r}; list them with runtime.sessions().")
        return await self.load(row.uid)

    async def rows(self, query: SessionQuery) -> AsyncIterator[SessionRow]:
        while True:
            page = await self.world.store.list(query)
            for row in page.rows:
                if row.agent != SHARED:
                    yield row
            if page.cursor is None:
                return
            query = replace(query, cursor=page.cursor)

    async def pending(self, tenant: str | None) -> list[Pending]:
        query = SessionQuery(tenant=tenant, pending=True)
        return [item async for row in self.rows(query) for item in row.summary.pending]

    async def request(self, log: SessionLog, command: Command) -> tuple[Event, ...]:
        """Makes a command a fact, or raises why not. Who asks never claims: the driver hears of it."""
        return await self._place(log, lambda state: accept(state, command))

    async def _place(self, log: SessionLog, decide: Callable[[SessionState], Sequence[Event]]) -> tuple[Event, ...]:
        for _ in range(MAX_TRIES):
            state = log.state
            try:
                events = decide(state)
            except PerdureError:
                await log.refresh()
                if log.state is state:
                    raise
                continue
            if not events:
                # What this process saw last may be old: whether there is nothing to do, only the log can say.
                await log.refresh()
                if log.state is state:
                    # The work may have been left by a process that died: no new fact will call for it.
                    self.submit(log.uid)
                    return ()
                continue
            try:
                events = await log.propose(lambda state: map(as_kept, decide(state)))
            except (Conflict, Refused, NotFound):
                # Refused by what has happened meanwhile, here or elsewhere: look again before saying so.
                await log.refresh()
                continue
            self.submit(log.uid)
            return events
        raise Conflict("The session changes faster than this command could be placed; try again.")

    async def compact(self, log: SessionLog, by: str) -> HistoryCompacted | None:
        """Makes the view shorter on request, whoever drives the session; None if there is nothing to leave out."""
        binding = await self._roster.need(agent_of(log.state))
        shared = await self.shared_by(log.state.tenant) if binding.parts.shares else None
        await log.refresh()
        for tries_left in reversed(range(COMPACT_TRIES)):
            notes: list[Fact] = []
            desk = Desk(log, binding, self.world, notes.append, lambda command: None, 0, shared)
            event, after = await compact_aside(desk)
            event, facts = replace(event, by=by), [*notes, *after]
            if event.error == NOTHING:
                await self._place(log, partial(in_turn, facts=facts))
                return None
            try:
                await self._place(log, partial(_compacted, event, facts))
                return event
            except Conflict:
                # The run has compacted it meanwhile, or it went back; what was said and paid stays.
                lost = [failed(event, OVERTAKEN)] if event.usage.total else []
                await self._place(log, partial(in_turn, facts=[*lost, *facts]))
                if not tries_left:
                    raise
        return None

    def submit(self, uid: str) -> None:
        log = self._logs.get(uid)
        if self._engine is not None and log is not None:
            self._engine.submit(uid, queue_of(log.state))

    async def shared_by(self, tenant: str) -> SharedState:
        """The keys that the tenant's sessions share; followed from now on, so that others' changes are seen here."""
        for _ in range(MAX_TRIES):
            if tenant in self._shared:
                return self._shared[tenant]
            row = await self.world.store.find(tenant, SHARED)
            if row is not None:
                log = await self.load(row.uid)
            else:
                opened = SessionOpened(token_hex(10), SHARED, SHARED, tenant)
                log = SessionLog(opened.uid, self.world.store, self.world.clock)
                change = Change(log.state)
                change.add((opened,))
                try:
                    await log.append(change, opening=Opening(tenant, SHARED, {}))
                except Conflict:
                    continue
                self.keep(log)
            if tenant not in self._shared:
                log.attach()
                self._shared[tenant] = SharedState(log)
        raise Conflict(f"The shared state of tenant {tenant!r} could not be opened; try again.")

    async def fork(self, log: SessionLog, at: int | None, id: str | None) -> SessionLog:
        """At the head nothing of the past is read or written: the fork's state grows from its parent's."""
        await log.refresh()
        state = log.state
        if at is not None and not 1 <= at <= state.seq:
            raise UsageError(f"Session {state.id!r} has records 1 to {state.seq}; it cannot be forked at {at}.")
        if at is not None and at < state.seq:
            records = await self.world.store.read(log.uid, limit=at)
            state = fold([record.event for record in records])
        uid = token_hex(10)
        fork = SessionLog(uid, self.world.store, self.world.clock)
        fork.state = state
        opened = SessionOpened(
            uid,
            id or uid,
            state.agent,
            state.tenant,
            data=state.data,
            metadata=labels_of(state.metadata),
            origin=Origin(log.uid, state.seq),
            priority=state.priority,
        )
        change = Change(state)
        change.add(fork_events(state, opened))
        await fork.append(change, opening=Opening(state.tenant, opened.id, opened.metadata, base=log.uid))
        return self.keep(fork)

    async def delete(self, log: SessionLog) -> None:
        """Forgets the session and its children; those that still work are ended first."""
        children = await children_of(self, log.uid)
        await log.refresh()
        await self._delete(log)
        if log.state.origin is not None:
            await tell_deleted(self, log.state)
        if children:
            await remove_children(self, self.world.clock, children)

    async def _delete(self, log: SessionLog) -> None:
        for tries_left in reversed(range(LET_GO_TRIES)):
            try:
                await self.world.store.delete(log.uid)
                break
            except Refused:
                await log.refresh()
                # If it has nothing to do, whoever drove it lets go of it at this very moment.
                if summarise(log.state).status == "running" or not tries_left:
                    raise
                await asyncio.sleep(0.01)
        log.close()
        if self._engine is not None:
            self._engine.cancel(log.uid)
        self._logs.pop(log.uid, None)
        self._warm.pop(log.uid, None)
        binding = self._bindings.get(log.state.agent)
        if binding is not None and binding.parts.hooks.session_end:
            shared = await self.shared_by(log.state.tenant) if binding.parts.shares else None
            if shared is not None:
                await shared.refresh()
            await tell_session_end(log, binding, self.world, shared)

    def decode_output(self, state: SessionState, ended: RunSummary) -> Any:
        """A run's output in its type; what no longer fits is the caller's to mend."""
        if ended.reason != "completed" or ended.schema is None:
            return ended.output
        binding = self._bindings.get(ended.agent)
        codec = self.world.outputs.get(schema_key(ended.schema))
        if codec is None and binding is not None:
            codec = binding.output
        if codec is None:
            return ended.output
        try:
            return codec.decode(ended.output)
        except ValueError as error:
            raise UsageError(
                f"The output of run {ended.run} no longer fits its type ({error}); read it from the records."
            ) from None

    def keep(self, log: SessionLog) -> SessionLog:
        self._logs[log.uid] = log
        self._warm[log.uid] = log
        self._warm.move_to_end(log.uid)
        if len(self._warm) > KEPT_WARM:
            self._warm.popitem(last=False)
        return log


def _compacted(event: HistoryCompacted, facts: Sequence[Fact], state: SessionState) -> list[Event]:
    return in_turn(state, [*accept(state, CompactView(event)), *facts])
