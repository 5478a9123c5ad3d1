"""The composition root: turns "sqlite:…" and "provider:model" into objects, importing only what is asked for."""

from __future__ import annotations

import inspect
import os
import platform
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast, overload, runtime_checkable

from perdure.core.capacity import Capacity
from perdure.core.errors import NotFound, UsageError
from perdure.core.events import DecisionKind
from perdure.core.state import DeadLetter
from perdure.core.views import Pending, Status
from perdure.ports import Clock, Engine, Model, SessionQuery, SessionRow, Store, Worker
from perdure.runtime.agent import Agent, OutputT
from perdure.runtime.agent_files import AgentFiles
from perdure.runtime.agreement import HERE
from perdure.runtime.clock import SystemClock
from perdure.runtime.given import given_priority
from perdure.runtime.hooks import Hooks
from perdure.runtime.host import Host
from perdure.runtime.local import LocalEngine
from perdure.runtime.loop_thread import LoopThread
from perdure.runtime.middleware import Middleware
from perdure.runtime.results import RunResult
from perdure.runtime.roster import Resolve
from perdure.runtime.session import Session
from perdure.runtime.subagents import PARENT, ROOT
from perdure.runtime.threads import DaemonThreads
from perdure.runtime.transfer import import_exported, read_lines
from perdure.runtime.triggers import TriggerRow, list_triggers
from perdure.runtime.world import World

if TYPE_CHECKING:
    from perdure.models.http import HttpClient

T = TypeVar("T")


def resolve_store(store: str | Store) -> Store:
    """`memory:`, `sqlite:PATH`, `postgresql://…`, or a Store as it is."""
    if not isinstance(store, str):
        return store
    scheme, _, rest = store.partition(":")
    if scheme == "memory" and not rest:
        from perdure.stores.memory import MemoryStore

        return MemoryStore()
    if scheme == "sqlite" and rest:
        from perdure.stores.sqlite import SqliteStore

        return SqliteStore(rest)
    if scheme in ("postgresql", "postgres") and rest.startswith("//"):
        from perdure.stores.postgres_address import at_address

        return at_address(store)
    from perdure.stores.addresses import masked

    raise UsageError(f"{masked(store)!r} names no store; take 'memory:', 'sqlite:PATH' or 'postgresql://…'.")


def resolve_model(name: str, client: HttpClient | None = None) -> Model:
    """`provider:model`; a provider's code is imported when it is first named."""
    provider, _, rest = name.partition(":")
    if provider == "scripted" and rest:
        from perdure.testing.scripted import scripted_from_json

        return scripted_from_json(rest)
    from perdure.models import from_string

    return from_string(name, client)


class Models:
    """Makes models of their names, for one Runtime: those that speak HTTP share their connections."""

    def __init__(self) -> None:
        self._client: HttpClient | None = None

    def resolve(self, name: str) -> Model:
        from perdure.models.http import HttpClient

        if self._client is None:
            self._client = HttpClient()
        return resolve_model(name, self._client)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()


def resolve_engine(
    engine: str | Engine | None,
    clock: Clock,
    store: Store,
    *,
    concurrency: int | None = None,
    queues: Sequence[str] | None = None,
) -> Engine | None:
    """`local`, `dbos`, `temporal://HOST:PORT/NAMESPACE`, `restate://HOST:PORT?…`, or an Engine.

    None: submits and follows, never drives.
    """
    if engine is None or not isinstance(engine, str):
        return engine
    name, _, rest = engine.partition("://")
    make = {"local": _local, "dbos": _dbos, "temporal": _temporal, "restate": _restate}.get(name)
    if make is None or (rest and name not in ("temporal", "restate")):
        known = "'local', 'dbos', 'temporal://HOST:PORT', 'restate://HOST:PORT'"
        raise UsageError(f"{engine!r} names no engine; take {known}, or None to submit and follow only.")
    try:
        return make(rest, clock, store, concurrency, queues)
    except ImportError:
        raise UsageError(f"The engine {name!r} needs a package that is not there; install perdure[{name}].") from None


def _local(
    address: str, clock: Clock, store: Store, concurrency: int | None, queues: Sequence[str] | None
) -> LocalEngine:
    return LocalEngine(clock, concurrency=concurrency, queues=queues)


def _dbos(address: str, clock: Clock, store: Store, concurrency: int | None, queues: Sequence[str] | None) -> Engine:
    from perdure.stores.postgres import PostgresStore

    if not isinstance(store, PostgresStore):
        raise UsageError("The engine 'dbos' needs PostgreSQL; name a store like 'postgresql://…'.")
    from perdure.engines.dbos import DbosEngine

    return DbosEngine(store.url, clock, schema=f"{store.schema}_dbos", concurrency=concurrency, queues=queues)


def _temporal(
    address: str, clock: Clock, store: Store, concurrency: int | None, queues: Sequence[str] | None
) -> Engine:
    from perdure.engines.temporal import TemporalEngine

    host, _, namespace = (address or os.environ.get("TEMPORAL_ADDRESS", "localhost:7233")).partition("/")
    namespace = namespace or os.environ.get("TEMPORAL_NAMESPACE", "default")
    return TemporalEngine(host, clock, namespace=namespace, concurrency=concurrency, queues=queues)


def _restate(address: str, clock: Clock, store: Store, concurrency: int | None, queues: Sequence[str] | None) -> Engine:
    from perdure.engines.restate import restate_engine

    return restate_engine(address, clock, concurrency, queues)


@runtime_checkable
class Script(Protocol):
    """A model written for a test: at the end it says whether anything of it was left unused."""

    def finish(self) -> None: ...


class Runtime:
    """One process's door to a store: `async with Runtime(…)`, or `with Runtime(…)` and run_sync in scripts."""

    def __init__(
        self,
        store: str | Store = "memory:",
        *,
        agents: Sequence[Agent[Any] | str] = (),
        resolve: Resolve | None = None,
        model: str | Model | None = None,
        deps: Any = None,
        engine: str | Engine | None = "local",
        middleware: Sequence[Middleware] = (),
        hooks: Sequence[Hooks] = (),
        clock: Clock | None = None,
        grace: float = 10.0,
        capacity: Capacity | None = None,
        queues: Sequence[str] | None = None,
    ) -> None:
        self._store = store
        self._agents = _checked_agents(agents)
        self._resolve = resolve
        if resolve is not None and not callable(resolve):
            raise UsageError(f"Runtime(resolve={resolve!r}): give a function that finds an agent by its name.")
        self._model = model
        self._deps = deps
        self._engine = engine
        self._middleware = tuple(middleware)
        self._hooks = tuple(hooks)
        self._clock = clock or SystemClock()
        self._grace = grace
        self._capacity = capacity or Capacity()
        self._queues = _checked_queues(queues, engine)
        self._stack: AsyncExitStack | None = None
        self._entered: Host | None = None
        self._thread: LoopThread | None = None

    async def __aenter__(self) -> Runtime:
        if self._entered is not None:
            raise UsageError("This Runtime is already open; make a second one.")
        async with AsyncExitStack() as stack:
            store = resolve_store(self._store)
            await store.open()
            stack.push_async_callback(store.close)
            models = Models()
            stack.push_async_callback(models.close)
            override = models.resolve(self._model) if isinstance(self._model, str) else self._model
            world = World(
                store,
                self._clock,
                DaemonThreads(),
                models.resolve,
                override,
                await _enter_deps(self._deps, stack),
                self._middleware,
                self._hooks,
                capacity=self._capacity,
                quotas=HERE if isinstance(self._clock, SystemClock) else None,
            )
            engine = resolve_engine(self._engine, self._clock, store, queues=self._queues)
            _check_resolver(self._resolve, engine)
            host = Host(world, engine, self._resolve, _about(engine))
            stack.push_async_callback(world.close)
            files = AgentFiles("agents=[…]")
            for agent in self._agents:
                host.bind(files.load(agent) if isinstance(agent, str) else agent)
            await host.start()
            stack.push_async_callback(host.stop, self._grace)
            self._stack = stack.pop_all()
            self._entered = host
        return self

    async def __aexit__(self, *exception: object) -> None:
        stack, self._stack, self._entered = self._stack, None, None
        if stack is not None:
            await stack.aclose()
        if isinstance(self._model, Script) and exception[:1] in ((), (None,)):
            self._model.finish()

    @overload
    async def open(
        self,
        agent: Agent[OutputT],
        *,
        id: str | None = None,
        tenant: str = "",
        data: Any = None,
        metadata: dict[str, str] | None = None,
        priority: int = 0,
    ) -> Session[OutputT]: ...
    @overload
    async def open(
        self,
        agent: str,
        *,
        id: str | None = None,
        tenant: str = "",
        data: Any = None,
        metadata: dict[str, str] | None = None,
        priority: int = 0,
    ) -> Session[Any]: ...
    async def open(
        self,
        agent: Agent[Any] | str,
        *,
        id: str | None = None,
        tenant: str = "",
        data: Any = None,
        metadata: dict[str, str] | None = None,
        priority: int = 0,
    ) -> Session[Any]:
        """Creates a session, or picks it up where it was; the agent as it is, or by its name.

        `priority`: where there is no room for all, a higher one comes first; one that is there keeps its own.
        """
        if not isinstance(tenant, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"A tenant is text, not {type(tenant).__name__}; pass a str.")
        labels, priority = _checked_metadata(metadata), given_priority(priority)
        log = await self._host.open(
            agent, id=_checked_id(id), tenant=tenant, data=data, metadata=labels, priority=priority
        )
        return Session(self._host, log)

    async def session(self, id: str, *, tenant: str = "") -> Session[Any]:
        """An existing session; NotFound if there is none."""
        return Session(self._host, await self._host.find(id, tenant))

    async def session_by_uid(self, uid: str) -> Session[Any]:
        """An existing session by its uid, as records, origins and the ids of pending calls name it."""
        return Session(self._host, await self._host.load(uid))

    async def sessions(
        self,
        *,
        tenant: str | None = None,
        agent: str | None = None,
        status: Status | None = None,
        metadata: dict[str, str] | None = None,
        children: bool = False,
    ) -> AsyncIterator[SessionRow]:
        """The sessions that fit, newest first; those of sub-agents only if asked for."""
        query = SessionQuery(tenant, agent, status, _checked_metadata(metadata, is_filter=True))
        async for row in self._host.rows(query):
            if children or PARENT not in row.metadata:
                yield row

    async def pending(self, *, tenant: str | None = None) -> list[Pending]:
        """What waits for a decision, over all sessions."""
        return await self._host.pending(tenant)

    async def triggers(self, *, tenant: str | None = None) -> list[TriggerRow]:
        """The triggers of all sessions, what is due next first."""
        return await list_triggers(self._host, tenant)

    async def dead_letters(self, *, tenant: str | None = None) -> list[tuple[Session[Any], DeadLetter]]:
        """The messages that could not be brought, over all sessions, each with the session that sent it."""
        rows = [row async for row in self.sessions(tenant=tenant, children=True) if row.summary.dead]
        senders = [await self.session_by_uid(row.uid) for row in rows]
        return [(sender, letter) for sender in senders for letter in await sender.dead_letters()]

    async def decide(self, pending: str, decision: DecisionKind, **answer: Any) -> Session[Any]:
        """Answers a suspended call of any session; `answer` is as for Session.decide."""
        try:
            session = await self.session_by_uid(pending.split("-")[0])
        except NotFound:
            raise NotFound(f"Nothing pending has the id {pending!r}; list what waits with pending().") from None
        await session.decide(pending, decision, **answer)
        return session

    async def import_session(
        self, lines: Iterable[bytes], *, id: str | None = None, tenant: str | None = None
    ) -> Session[Any]:
        """A session that was exported; under its own id if that is free, or as a new one under another.

        All of it is checked before any of it is written.
        """
        world = self._host.world
        uid = await import_exported(world.store, world.clock, read_lines(lines), _checked_id(id), tenant)
        return Session(self._host, await self._host.load(uid))

    async def driver_of(self, session: Session[Any]) -> str | None:
        """The living process that drives a session now, if any."""
        row = await self._host.world.store.get(session.uid)
        owner = row.owner if row else None
        return owner if owner in await self._host.world.store.owners() else None

    async def workers(self) -> Sequence[Worker]:
        """The processes that drive sessions of this store now."""
        return await self._host.world.store.workers()

    @property
    def agents(self) -> Sequence[str]:
        """The names of the agents that are known here, those of sub-agents too."""
        return self._host.agents

    @property
    def queues(self) -> Sequence[str]:
        """The queues that may be served here: one for every agent, and those of their tools."""
        return self._host.duty.own_queues

    @property
    def owner(self) -> str:
        """The name under which this process drives."""
        return self._host.duty.owner

    def __enter__(self) -> Runtime:
        self._thread = LoopThread()
        try:
            self._thread.run(self.__aenter__())
        except BaseException:
            self._thread.stop()
            self._thread = None
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            try:
                thread.run(self.__aexit__(*exception))
            finally:
                thread.stop()

    @overload
    def run_sync(self, agent: Agent[OutputT], input: Any, **options: Any) -> RunResult[OutputT]: ...
    @overload
    def run_sync(self, agent: str, input: Any, **options: Any) -> RunResult[Any]: ...
    def run_sync(
        self,
        agent: Agent[Any] | str,
        input: Any,
        *,
        id: str | None = None,
        tenant: str = "",
        data: Any = None,
        metadata: dict[str, str] | None = None,
        priority: int = 0,
        **options: Any,
    ) -> RunResult[Any]:
        """Opens the session and runs the input, for code without a loop; options are those of Session.run."""
        if self._thread is None:
            raise UsageError("run_sync needs `with Runtime(…) as runtime:`; in async code use session.run.")

        async def run() -> RunResult[Any]:
            session = await self.open(agent, id=id, tenant=tenant, data=data, metadata=metadata, priority=priority)
            return await session.run(input, **options)

        return self._thread.run(run())

    @property
    def _host(self) -> Host:
        if self._entered is None:
            raise UsageError("The Runtime is not open; use it inside `async with Runtime(…) as runtime:`.")
        return self._entered


def _about(engine: Engine | None) -> dict[str, Any]:
    """What `perdure workers` shows of this process."""
    queues: Sequence[str] | None = getattr(engine, "queues", None)
    return {
        "version": version("perdure"),
        "engine": type(engine).__name__.removesuffix("Engine").lower(),
        "host": platform.node(),
        "pid": os.getpid(),
        "since": time.time(),
        "concurrency": getattr(engine, "concurrency", None),
        "queues": None if queues is None else list(queues),
    }


async def _enter_deps(deps: Any, stack: AsyncExitStack) -> Any:
    """An async context manager, something that makes one (or the thing), or the thing itself."""
    opened: object = deps
    # Not `callable`: context managers made by decorators are, and so may be a client that is passed as it is.
    if inspect.isroutine(deps) or isinstance(deps, type | partial):
        opened = cast(Callable[[], object], deps)()
        if inspect.isawaitable(opened):
            opened = await opened
    if isinstance(opened, AbstractAsyncContextManager):
        return await stack.enter_async_context(cast(AbstractAsyncContextManager[Any], opened))
    return opened


def _checked_agents(agents: Sequence[Agent[Any] | str]) -> tuple[Agent[Any] | str, ...]:
    if isinstance(agents, str | Agent):
        raise UsageError(f"Runtime(agents={agents!r}): it is a list; write agents=[…].")
    for agent in agents:
        if not isinstance(agent, Agent | str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"Runtime(agents=[{agent!r}]): give agents, or FILE.py:NAME.")
    return tuple(agents)


def _checked_queues(queues: Sequence[str] | None, engine: str | Engine | None) -> Sequence[str] | None:
    if isinstance(queues, str):
        raise UsageError(f"Runtime(queues={queues!r}): it is a list; write queues=[{queues!r}].")
    if queues is not None and not isinstance(engine, str):
        raise UsageError("Runtime(queues=…) is for an engine that is given by its name; tell this one which it serves.")
    return queues


def _check_resolver(resolve: Resolve | None, engine: Engine | None) -> None:
    """Other engines have a queue for every agent that is known at the start, and never hear of the rest."""
    if resolve is not None and engine is not None and not getattr(engine, "any_queue", False):
        raise UsageError("Runtime(resolve=…) works with the local engine alone; name the agents in agents=[…] instead.")


def _checked_id(id: str | None) -> str | None:
    if id is not None and not isinstance(id, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"A session's id is text, not {type(id).__name__}; pass a str.")
    if id is not None and not id.strip():
        raise UsageError("A session's id is empty; leave it out to have one made, or give it a name.")
    return id


def _checked_metadata(metadata: dict[str, str] | None, *, is_filter: bool = False) -> dict[str, str]:
    for key, value in (metadata or {}).items():
        if not isinstance(key, str) or not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"metadata={{{key!r}: {value!r}}}: keys and values are strings; put the rest in data.")
        if key in (PARENT, ROOT) and not is_filter:
            raise UsageError(f"metadata={{{key!r}: …}}: this key says where sub-agents belong; take another one.")
    return dict(metadata or {})
