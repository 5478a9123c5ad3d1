"""Driving from the command line: one agent, and the one session that this command was given.

Rule: what other sessions left behind is not picked up by the way; nobody would see what it does.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, redirect_stdout
from typing import Any

import msgspec

from perdure.cli.agents import ASSISTANT, load_agent
from perdure.cli.terminal import patience, store_url
from perdure.cli.words import shell
from perdure.core.errors import Refused, UsageError
from perdure.ports import Clock, Work
from perdure.runtime.agent import Agent
from perdure.runtime.clock import SystemClock
from perdure.runtime.local import LocalEngine
from perdure.runtime.run import Run
from perdure.runtime.session import Session
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


def check_agent(session: str, agent: str, given: Given, loaded: str | None = None) -> None:
    """The session's own agent has to be given: before its code is loaded, and after it."""
    if loaded is None:
        if given.agent is None and agent != ASSISTANT:
            raise UsageError(
                f"Session {session!r} belongs to the agent {agent!r}; give its code with --agent FILE.py:NAME."
            )
    elif loaded != agent:
        raise UsageError(f"Session {session!r} belongs to the agent {agent!r}, not to {loaded!r}.")


class SoloEngine:
    """Drives the sessions that were submitted here, and those only."""

    def __init__(self, clock: Clock) -> None:
        self._engine = LocalEngine(clock)
        self._mine: set[str] = set()

    async def start(self, work: Work) -> None:
        await self._engine.start(Own(work, self._mine))

    def submit(self, session: str, queue: str) -> None:
        self._mine.add(session)
        self._engine.submit(session, queue)

    def wake(self, session: str, queue: str, at: float) -> None:
        self._engine.wake(session, queue, at)

    def cancel(self, session: str) -> None:
        self._engine.cancel(session)

    async def drain(self, grace: float) -> None:
        await self._engine.drain(grace)


class Own:
    """The work of a process, as far as it is in the set."""

    def __init__(self, work: Work, mine: set[str]) -> None:
        self._work = work
        self._mine = mine
        self.owner = work.owner
        self.drive = work.drive
        self.living = work.living
        self.watch = work.watch

    @property
    def queues(self) -> Sequence[str]:
        return self._work.queues

    async def sweep(self, queues: Sequence[str]) -> Sequence[str]:
        found = await self._work.sweep(queues) if self._mine else ()
        return [session for session in found if session in self._mine]


class Driving:
    """An open runtime, the agent it was opened for, and the ways to get a run going in it."""

    def __init__(self, runtime: Runtime, agent: Agent[Any], engine: SoloEngine) -> None:
        self.runtime = runtime
        self.agent = agent
        self._engine = engine

    async def start(self, session: Session[Any], prompt: str, key: str | None = None) -> Run[Any]:
        run = await session.start(prompt, key=key)
        # The same key is the same run, perhaps one that a dead process left open: then nothing was submitted.
        self._engine.submit(session.uid, session.agent)
        return run

    async def go_on(self, session: Session[Any]) -> Run[Any]:
        """The open run, the input that waits to become one, or a new run that continues the last."""
        try:
            return await session.go_on()
        except Refused:
            last = session.state.ended[-1].reason if len(session.state.ended) else ""
            why = f"its last run is {last}" if last else "it has had no input yet"
            command = shell("run", "…", session=session.id)
            raise Refused(
                f"Session {session.id!r} has nothing to resume: {why}; send an input with {command}."
            ) from None


@asynccontextmanager
async def driving(given: Given) -> AsyncGenerator[Driving]:
    """With --json, what the agent's code prints goes to stderr."""
    async with AsyncExitStack() as stack:
        if given.json:
            stack.enter_context(redirect_stdout(sys.stderr))
        agent = load_agent(given.agent, given.model)
        engine = SoloEngine(SystemClock())
        async with patience("opening the store …"):
            runtime = await stack.enter_async_context(Runtime(store_url(given.store), agents=[agent], engine=engine))
        yield Driving(runtime, agent, engine)
