"""Host: the sessions of one process. Opens and forgets logs, carries commands to them and drives what it owns."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from functools import partial
from secrets import token_hex
from typing import Any
from weakref import WeakValueDictionary

from msgspec.structs import replace

from perdure.core.accept import accept
from perdure.core.commands import Command, CompactView, StopRun
from perdure.core.errors import Conflict, NotFound, PerdureError, Refused, StaleEpoch, UsageError
from perdure.core.events import Event, HistoryCompacted, Origin, SessionOpened
from perdure.core.fits import check_schema
from perdure.core.fold import fold
from perdure.core.fork import fork_events
from perdure.core.messages import JSON
from perdure.core.specs import ToolSpec
from perdure.core.state import RunSummary, SessionState
from perdure.core.views import Pending, summarise
from perdure.ports import Engine, Model, Opening, SessionQuery, SessionRow
from perdure.runtime.agent import Agent, Binding, bind
from perdure.runtime.desk import Desk
from perdure.runtime.directives import Fact, in_turn
from perdure.runtime.drive import Driver
from perdure.runtime.family import children_of, remove_children
from perdure.runtime.given import given_plain
from perdure.runtime.log import Change, SessionLog, as_kept
from perdure.runtime.observers import tell_session_end
from perdure.runtime.perform import compact_aside
from perdure.runtime.perform_compaction import NOTHING, OVERTAKEN, failed
from perdure.runtime.post import Post
from perdure.runtime.quarantine import is_suspect, succession
from perdure.runtime.shared_state import SHARED, SharedState
from perdure.runtime.subagents import labels_of
from perdure.runtime.world import World, schema_key

KEPT_WARM = 100
COMPACT_TRIES = 3
MAX_TRIES = 1000
LET_GO_TRIES = 200


class Host:
    """Logs live as long as somebody holds them; the most recent few are kept warm."""

    def __init__(self, world: World, engine: Engine | None, about: dict[str, JSON] | None = None) -> None:
        self.world = world
        self.owner = token_hex(8)
        self._engine = engine
        self._about = about or {}
        self._bindings: dict[str, Binding] = {}
        self._logs: WeakValueDictionary[str, SessionLog] = WeakValueDictionary()
        self._warm: OrderedDict[str, SessionLog] = OrderedDict()
        self._drivers: dict[str, Driver] = {}
        self._shared: dict[str, SharedState] = {}
        self._dropped: dict[str, str] = {}
        self._suspects = asyncio.Lock()
        self._stopping = False
        self._post = world.post = Post(self, world.store, world.clock)

    async def start(self) -> None:
        if self._engine is not None:
            await self.world.store.join(self.owner, {**self._about, "agents": list[JSON](self._bindings)})
            await self._engine.start(self)

    async def stop(self, grace: float) -> None:
        """Takes no new turn, lets calls in flight finish for a while and leaves the rest to the next process."""
        self._stopping = True
        for driver in self._drivers.values():
            driver.leave()
        if self._engine is not None:
            await self._engine.drain(grace)
            await self.world.store.leave(self.owner)
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
        self._bindings[agent.name] = binding
        for other in binding.sub_agents.values():
            self.bind(other)
        return binding

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
        """Tools that a caller carries out for one run; each has a name of its own and schemas that can be checked."""
        binding = self._bindings.get(agent)
        names = {tool.name for tool in binding.spec.tools} if binding else set[str]()
        for spec in tools:
            if spec.kind == "function":
                raise UsageError(f"The tool {spec.name!r} is a function; declare frontend(…) tools for a run.")
            if spec.name in names:
                raise UsageError(f"A tool is called {spec.name!r} already; give the one of this run another name.")
            names.add(spec.name)
            for schema in (spec.parameters, spec.response):
                if schema is not None:
                    check_schema(schema)
        return tuple(tools)

    def require_driver(self, log: SessionLog) -> None:
        """Refuses new work that nobody here could do; without an engine, another process will."""
        name = log.state.agent
        binding = self._bindings.get(name)
        if binding is not None:
            check_data(binding, log.state.id, log.state.data)
        elif self._engine is not None:
            raise UsageError(f"The agent {name!r} is not known here; pass it in agents=[…].")

    async def open(
        self,
        agent: Agent[Any],
        *,
        id: str | None,
        tenant: str,
        data: object,
        metadata: dict[str, str],
    ) -> SessionLog:
        """Creates the session, or picks it up where it was."""
        binding = self.bind(agent)
        for _ in range(MAX_TRIES):
            row = await self.world.store.find(tenant, id) if id is not None else None
            if row is not None:
                return await self._reopen(binding, row, data)
            try:
                return await self._create(binding, id, tenant, data, metadata)
            except Conflict:
                if id is None:
                    raise
        raise Conflict(f"Session {id!r} is opened and deleted again and again by others; try later.")

    async def _create(
        self, binding: Binding, id: str | None, tenant: str, data: object, metadata: dict[str, str]
    ) -> SessionLog:
        uid = token_hex(10)
        opened = SessionOpened(uid, id or uid, binding.spec.name, tenant, data=given_plain(data), metadata=metadata)
        check_data(binding, opened.id, opened.data)
        log = SessionLog(uid, self.world.store, self.world.clock)
        change = Change(log.state)
        change.add((opened,))
        await log.append(change, opening=Opening(tenant, opened.id, metadata))
        return self.keep(log)

    async def _reopen(self, binding: Binding, row: SessionRow, data: object) -> SessionLog:
        log = await self.load(row.uid)
        if log.state.agent != binding.spec.name:
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
            query = SessionQuery(query.tenant, query.agent, query.status, query.metadata, query.pending, page.cursor)

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
        binding = self._bindings.get(log.state.agent)
        if binding is None:
            raise UsageError(f"The agent {log.state.agent!r} is not known here; pass it in agents=[…].")
        shared = await self._shared_by(log.state.tenant) if binding.parts.shares else None
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
            self._engine.submit(uid, log.state.agent)

    @property
    def queues(self) -> Sequence[str]:
        return list(self._bindings)

    def watch(self, notify: Callable[[], None]) -> Callable[[], None]:
        return self.world.store.watch(None, lambda _: notify())

    async def living(self) -> Sequence[str]:
        return await self.world.store.owners()

    async def drive(self, session: str) -> None:
        """Drives one session until it settles, waits, or somebody else takes over."""
        try:
            log = await self.load(session)
            binding = self._bindings.get(log.state.agent)
            if binding is None or not (session in self._dropped or await self._has_work(log)):
                return
            if self._post.policies_above(log.state) is None:
                return  # whoever knows its ancestors knows what it may do
            if await is_suspect(self.world.store, log.state):
                async with self._suspects:
                    await self._drive(log, binding)
            else:
                await self._drive(log, binding)
        except NotFound:
            # Deleted meanwhile: there is nothing left to look after.
            self._dropped.pop(session, None)

    async def _drive(self, log: SessionLog, binding: Binding) -> None:
        uid = log.uid
        try:
            claim = await self.world.store.claim(uid, self.owner)
            if claim is not None and not self._stopping:
                if claim.head != log.state.seq:
                    await log.refresh()
                shared = await self._shared_by(log.state.tenant) if binding.parts.shares else None
                await self._end_orphan(log)
                heritage = await succession(self.world.store, claim, log.state)
                driver = self._drivers[uid] = Driver(log, binding, self.world, heritage, shared)
                await driver.run()
        except StaleEpoch:
            await log.refresh()
        except Exception as error:
            # Whoever awaits the run here must not wait for ever. The session itself may still be ours, and nobody else
            # looks after it while we live: our sweep has to.
            self._dropped[uid] = log.state.agent
            log.fail(error)
            raise
        finally:
            self._drivers.pop(uid, None)
        self._dropped.pop(uid, None)
        wake_at = summarise(log.state).wake_at
        if wake_at is not None and self._engine is not None:
            self._engine.wake(uid, log.state.agent, wake_at)

    async def _end_orphan(self, log: SessionLog) -> None:
        """A child whose parent is gone, or wants nothing of it any more, is ended by whoever finds it."""
        if not await self._post.is_wanted(log.state):
            with suppress(Refused):
                await self.request(log, StopRun("cancel", "its parent is gone"))

    async def _shared_by(self, tenant: str) -> SharedState:
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

    async def _has_work(self, log: SessionLog) -> bool:
        """Claims are not for free: a submission that came while the session was driven has mostly been served."""
        for look_again in (True, False):
            summary = summarise(log.state)
            if summary.runnable or (summary.wake_at is not None and summary.wake_at <= self.world.clock.now()):
                return True
            if look_again:
                await log.refresh()
        return False

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
        )
        change = Change(state)
        change.add(fork_events(state, opened))
        await fork.append(change, opening=Opening(state.tenant, opened.id, opened.metadata, base=log.uid))
        return self.keep(fork)

    async def delete(self, log: SessionLog) -> None:
        """Forgets the session and its children; those that still work are ended first."""
        children = await children_of(self, log.uid)
        await self._delete(log)
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
            shared = await self._shared_by(log.state.tenant) if binding.parts.shares else None
            if shared is not None:
                await shared.refresh()
            await tell_session_end(log, binding, self.world, shared)

    def decode_output(self, state: SessionState, ended: RunSummary) -> Any:
        """A run's output in its type; what no longer fits is the caller's to mend."""
        if ended.reason != "completed" or ended.schema is None:
            return ended.output
        binding = self._bindings.get(state.agent)
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

    async def sweep(self, queues: Sequence[str]) -> Sequence[str]:
        """What has work and no living owner; and what is ours, but was dropped because the store was out of order."""
        found = await self.world.store.runnable(queues, now=self.world.clock.now())
        return [*found, *(uid for uid, agent in self._dropped.items() if agent in queues and uid not in found)]

    def keep(self, log: SessionLog) -> SessionLog:
        self._logs[log.uid] = log
        self._warm[log.uid] = log
        self._warm.move_to_end(log.uid)
        if len(self._warm) > KEPT_WARM:
            self._warm.popitem(last=False)
        return log


def check_data(binding: Binding, id: str, data: object) -> None:
    """The session's data against what the agent's tools ask for, on every load."""
    for tool, codec in binding.data.items():
        try:
            codec.decode(data)
        except ValueError as error:
            raise UsageError(f"The data of session {id!r} does not fit the tool {tool!r}: {error}") from None


def _compacted(event: HistoryCompacted, facts: Sequence[Fact], state: SessionState) -> list[Event]:
    return in_turn(state, [*accept(state, CompactView(event)), *facts])
