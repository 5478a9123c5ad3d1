"""Driving from the command line: one agent, the one session that this command was given, and its sub-agents'.

Rule: what other sessions left behind is not picked up by the way; nobody would see what it does.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, redirect_stdout
from typing import Any

import msgspec

from perdure.cli.agents import ASSISTANT, load_agent, with_model
from perdure.cli.family import is_child, root_of
from perdure.cli.terminal import patience, store_url
from perdure.cli.words import shell
from perdure.core.errors import NotFound, Refused, UsageError
from perdure.core.queues import queue_of
from perdure.core.state import SessionState, agent_of
from perdure.ports import Clock, Work
from perdure.runtime.agent import Agent
from perdure.runtime.agent_files import AgentFiles
from perdure.runtime.clock import SystemClock
from perdure.runtime.local import LocalEngine
from perdure.runtime.run import Run
from perdure.runtime.session import Session
from perdure.runtime.subagents import ROOT
from perdure.wiring import Runtime


class Given(msgspec.Struct, frozen=True):
    """What the command line said of the agent, the store and the manner."""

    agent: str | None
    model: str | None
    store: str | None
    tenant: str
    yes: bool | None
    json: bool

    def resume(self, session: str) -> str:
        """The command that goes on with a session, here or in another terminal."""
        return shell("resume", session, agent=self.agent, model=self.model, store=self.store, tenant=self.tenant)


def check_agent(session: str, state: SessionState, given: Given, loaded: str | None = None) -> None:
    """The session's own agent has to be given, or the one that it began with: before its code is loaded, and after."""
    agent = agent_of(state)
    if loaded is None:
        if given.agent is None and agent != ASSISTANT:
            raise UsageError(
                f"Session {session!r} belongs to the agent {agent!r}; give its code with --agent FILE.py:NAME."
            )
    elif loaded not in (agent, state.agent, state.home):
        raise UsageError(f"Session {session!r} belongs to the agent {agent!r}, not to {loaded!r}.")


class SoloEngine:
    """Drives the sessions that were taken here and those of their sub-agents; not those that a message reaches."""

    any_queue = True

    def __init__(self, clock: Clock) -> None:
        self.root_of: Callable[[str], Awaitable[str]] | None = None
        self._engine = LocalEngine(clock)
        self._mine: set[str] = set()
        self._roots: dict[str, str] = {}

    async def start(self, work: Work) -> None:
        await self._engine.start(Own(work, self))

    @property
    def has_any(self) -> bool:
        return bool(self._mine)

    def take(self, session: str, queue: str) -> None:
        self._mine.add(session)
        self.submit(session, queue)

    def submit(self, session: str, queue: str) -> None:
        self._engine.submit(session, queue)

    def wake(self, session: str, queue: str, at: float) -> None:
        self._engine.wake(session, queue, at)

    def cancel(self, session: str) -> None:
        self._engine.cancel(session)

    async def are_mine(self, sessions: Sequence[str]) -> list[str]:
        return [session for session in sessions if await self.is_mine(session)]

    async def is_mine(self, session: str) -> bool:
        if session not in self._mine and session not in self._roots and self.root_of is not None:
            self._roots[session] = await self.root_of(session)
        return session in self._mine or self._roots.get(session) in self._mine

    async def drain(self, grace: float) -> None:
        await self._engine.drain(grace)


class Own:
    """The work of a process, as far as an engine has taken it."""

    def __init__(self, work: Work, engine: SoloEngine) -> None:
        self._work = work
        self._engine = engine
        self.owner = work.owner
        self.living = work.living
        self.priority = work.priority
        self.watch = work.watch

    @property
    def queues(self) -> Sequence[str]:
        return self._work.queues

    async def drive(self, session: str) -> None:
        if await self._engine.is_mine(session):
            await self._work.drive(session)

    async def sweep(self, queues: Sequence[str] | None) -> Sequence[str]:
        return await self._engine.are_mine(await self._work.sweep(queues)) if self._engine.has_any else ()


class Driving:
    """An open runtime, the agent it was opened for, and the ways to get a run going in it."""

    def __init__(self, runtime: Runtime, agent: Agent[Any], engine: SoloEngine) -> None:
        self.runtime = runtime
        self.agent = agent
        self._engine = engine
        engine.root_of = self._root_of

    async def start(self, session: Session[Any], prompt: str, key: str | None = None) -> Run[Any]:
        await self.refuse_child(session)
        run = await session.start(prompt, key=key)
        # The same key is the same run, perhaps one that a dead process left open: then nothing was submitted.
        self.take(session)
        return run

    async def go_on(self, session: Session[Any]) -> Run[Any]:
        """The open run, the input that waits to become one, or a new run that continues the last."""
        await self.refuse_child(session)
        self.take(session)
        try:
            return await session.go_on()
        except Refused:
            last = session.state.ended[-1].reason if len(session.state.ended) else ""
            why = f"its last run is {last}" if last else "it has had no input yet"
            command = shell("run", "…", session=session.id)
            raise Refused(
                f"Session {session.id!r} has nothing to resume: {why}; send an input with {command}."
            ) from None

    def take(self, session: Session[Any]) -> None:
        """Has a session driven here, and what is below it."""
        self._engine.take(session.uid, queue_of(session.state))

    async def refuse_child(self, session: Session[Any]) -> None:
        """A sub-agent keeps to what its ancestors allow, so that it is driven with them or not at all."""
        if is_child(session):
            root = await root_of(self.runtime, session)
            command = shell("resume", root.id, agent="FILE.py:NAME", tenant=root.tenant) if root else ""
            then = f"go on with the one that it works for: {command}" if root else "the one that it worked for is gone."
            raise Refused(f"Session {session.id!r} is a sub-agent's; {then}")

    async def _root_of(self, uid: str) -> str:
        try:
            return (await self.runtime.session_by_uid(uid)).state.metadata.get(ROOT, uid)
        except NotFound:
            return uid


@asynccontextmanager
async def driving(given: Given) -> AsyncGenerator[Driving]:
    """With --json, what the agent's code prints goes to stderr."""
    async with AsyncExitStack() as stack:
        if given.json:
            stack.enter_context(redirect_stdout(sys.stderr))
        files = AgentFiles("--agent")
        agent = load_agent(given.agent, given.model, files)
        engine = SoloEngine(SystemClock())

        def resolve(name: str) -> Agent[Any] | None:
            # Whoever is named as a target of hand-offs stands in the same file.
            found = files.find(name)
            return with_model(found, given.model) if found is not None else None

        opened = Runtime(store_url(given.store), agents=[agent], engine=engine, resolve=resolve)
        async with patience("opening the store …"):
            runtime = await stack.enter_async_context(opened)
        yield Driving(runtime, agent, engine)
