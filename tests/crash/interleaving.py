"""Random interleavings of commands, settles, claims, deaths, freezes and outages: several runtimes on one store.

Rule 1: a seed decides everything; time stands still until it is moved. Rule 2: whatever a process does with the store
passes its door, which lets others go first, and through which a dead process never gets again. Rule 3: what was
acknowledged is noted by the caller alone.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from perdure import Agent, Conflict, Refused, Runtime, Session, StoreError, ToolContext, tool
from perdure.core.fold import fold
from perdure.core.messages import Text, UserMessage
from perdure.core.state import SessionState
from perdure.core.views import pending_of
from perdure.events import Event
from perdure.ports import ModelRequest
from perdure.stores.memory import MemoryStore
from perdure.testing import ManualClock, ScriptedModel, call
from tests.crash.acted_on import Ack, Start, check

STEPS = (15, 30, 60)
ROUNDS = 60
PLANS = (
    [],
    [call("work")],
    [call("mail")],
    [call("pay"), call("work")],
    [call("work"), call("mail"), call("pay"), call("mail")],
    [call("hold"), call("work")],
)


class Door:
    """One process's way to the store."""

    def __init__(self, store: MemoryStore, chance: Random) -> None:
        self.is_out = False
        self.is_dead = False
        self.starts: list[Start] = []
        self._store = store
        self._chance = chance
        self._owners: set[str] = set()
        self._shut: asyncio.Future[None] | None = None

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        return self._passing(method) if inspect.iscoroutinefunction(method) else method

    def _passing(self, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def passing(*args: Any, **kwargs: Any) -> Any:
            await self.pause()
            if self.is_out:
                raise StoreError("out of order")
            result = await method(*args, **kwargs)
            await self.pause()
            return result

        return passing

    async def join(self, owner: str, about: object = None) -> None:
        self._owners.add(owner)
        await self._passing(self._store.join)(owner)

    async def pause(self) -> None:
        for _ in range(self._chance.choice((0, 0, 1, 2, 5))):
            await asyncio.sleep(0)
        while self._shut is not None:
            await asyncio.shield(self._shut)

    def shut(self) -> None:
        """Nobody gets through, and its owners count as dead."""
        if self._shut is None:
            self._shut = asyncio.get_running_loop().create_future()
            self._store._owners -= self._owners

    def die(self) -> None:
        self.shut()
        self.is_dead = True

    def unshut(self) -> None:
        if self._shut is not None and not self.is_dead:
            self._shut.set_result(None)
            self._shut = None
            self._store._owners |= self._owners


@tool(effect="idempotent")
async def work(ctx: ToolContext[Door, Any]) -> str:
    """Takes a while."""
    await ctx.deps.pause()
    ctx.deps.starts.append((ctx.call, ctx.attempt))
    await ctx.deps.pause()
    return "worked"


@tool
async def mail(ctx: ToolContext[Door, Any]) -> str:
    """At most once."""
    await ctx.deps.pause()
    ctx.deps.starts.append((ctx.call, ctx.attempt))
    await ctx.deps.pause()
    return "sent"


@tool(ask=True)
async def pay(ctx: ToolContext[Door, Any]) -> str:
    """Asks first."""
    return await mail.function(ctx)


@tool(effect="read")
async def hold(ctx: ToolContext[Door, Any]) -> str:
    """Never ends by itself."""
    await ctx.deps.pause()
    await ctx.wait_cancelled()
    return "held"


def answer(request: ModelRequest) -> Any:
    match request.messages[-1]:
        case UserMessage(parts=(Text(text=text),)):
            return PLANS[int(text) % len(PLANS)] or "Nothing to do."
        case _:
            return "Done."


AGENT = Agent(name="a", model=ScriptedModel(answer), tools=[work, mail, pay, hold])


class Process:
    """A runtime, and the session as it sees it."""

    def __init__(self, runtime: Runtime, door: Door, session: Session[Any], drives: bool) -> None:
        self.runtime = runtime
        self.door = door
        self.session = session
        self.drives = drives


class Interleaving:
    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.clock = ManualClock()
        self.store = MemoryStore()
        self.processes: list[Process] = []
        self.gone: list[Process] = []
        self.starts: list[Start] = []
        self.acks: list[Ack] = []
        self.inputs = 0
        self.uid = ""
        self.errors: list[str] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> list[str]:
        """What is broken at the end."""
        asyncio.get_running_loop().set_exception_handler(self._on_stray)
        await self.store.open()
        await self.start(drives=True)
        await self.start(drives=False)
        moves: list[Callable[[], Awaitable[None]]] = [self.command] * 16
        moves += [self.wait] * 3 + [self.die, self.freeze] * 2 + [self.leave, self.fail] + [self.come] * 5
        for _ in range(self.chance.choice(STEPS)):
            await self.chance.choice(moves)()
            await self.rest(self.chance.randrange(12))
        await self.heal()
        return [*self.errors, *check(await self._events(), self.acks, self.starts)]

    async def start(self, *, drives: bool) -> Process:
        door = Door(self.store, self.chance)
        door.starts = self.starts
        runtime = Runtime(
            door, agents=[AGENT], deps=door, clock=self.clock, engine="local" if drives else None, grace=0.0
        )
        await runtime.__aenter__()
        session = await runtime.open(AGENT, id="s")
        self.uid = session.uid
        process = Process(runtime, door, session, drives)
        self.processes.append(process)
        return process

    async def rest(self, ticks: int) -> None:
        for _ in range(ticks):
            await asyncio.sleep(0)

    # The moves

    async def command(self) -> None:
        """Somebody asks for something; whether and when it is acknowledged is its own affair."""
        if self.processes:
            process = self.chance.choice(self.processes)
            ask = self.chance.choice((self.send, self.send, self.send, self.decide, self.decide, self.stop, self.look))
            self._spawn(ask(process))

    async def wait(self) -> None:
        await self.clock.advance(self.chance.choice((0.1, 0.6, 2.1)))

    async def come(self) -> None:
        if len(self.processes) < 4:
            self._spawn(self._start_quietly())

    async def die(self) -> None:
        if self.processes:
            process = self.processes.pop(self.chance.randrange(len(self.processes)))
            self.gone.append(process)
            process.door.die()

    async def freeze(self) -> None:
        if self.processes:
            door = self.chance.choice(self.processes).door
            door.shut()
            self._spawn(self._thaw_later(door))

    async def leave(self) -> None:
        """Ends a process in good order; its door may be shut meanwhile."""
        if self.processes:
            process = self.processes.pop(self.chance.randrange(len(self.processes)))
            self.gone.append(process)
            self._spawn(self._leave(process))

    async def fail(self) -> None:
        """The store is out of order for one process, perhaps for longer than a driver's patience."""
        if self.processes:
            self._spawn(self._fail_for(self.chance.choice(self.processes).door))

    async def _start_quietly(self) -> None:
        await self.start(drives=self.chance.random() < 0.6)

    async def _leave(self, process: Process) -> None:
        try:
            await process.runtime.__aexit__()
        finally:
            process.door.die()

    async def _thaw_later(self, door: Door) -> None:
        await self.rest(self.chance.randrange(60))
        door.unshut()

    async def _fail_for(self, door: Door) -> None:
        door.is_out = True
        for _ in range(self.chance.randrange(4)):
            await self.clock.advance(4.0)
        door.is_out = False

    # Commands

    async def send(self, process: Process) -> None:
        self.inputs += 1
        key, busy = str(self.inputs), self.chance.choice(("queue", "join", "interrupt"))
        await process.session.send(str(self.chance.randrange(100)), busy=busy, key=key)
        self.acks.append(("input", key))

    async def decide(self, process: Process) -> None:
        for pending in await process.session.pending():
            choices = ("approve", "deny") if pending.kind == "approval" else ("answer", "deny", "retry")
            decision = self.chance.choice(choices)
            await process.session.decide(pending.id, decision, value="so")
            self.acks.append(("decision", f"{pending.call} {pending.id.rpartition('-')[2]} {decision}"))

    async def stop(self, process: Process) -> None:
        await process.session.history()
        first = process.session.state.runs
        await self.chance.choice((process.session.stop, process.session.cancel))()
        self.acks.append(("stop", f"{first} {process.session.state.runs}"))

    async def look(self, process: Process) -> None:
        await process.session.history()

    def _spawn(self, work: Any) -> None:
        async def guarded() -> None:
            try:
                await work
            except (Conflict, Refused, StoreError):
                return

        task = asyncio.get_running_loop().create_task(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _on_stray(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not isinstance(context.get("exception"), StoreError):
            self.errors.append(f"nobody expected {context}")

    # The end

    async def state(self) -> SessionState:
        return fold(await self._events())

    async def _events(self) -> list[Event]:
        return [record.event for record in await self.store.read(self.uid)]

    async def heal(self) -> None:
        """Nothing more goes wrong; what lives goes on, and somebody decides what is asked."""
        for process in self.processes:
            process.door.unshut()
            process.door.is_out = False
        if not any(process.drives for process in self.processes):
            await self.start(drives=True)
        visitor = await self.start(drives=False)
        for _ in range(ROUNDS):
            await self.rest(50)
            await self.clock.advance(2.5)
            state = await self.state()
            if state.run is None and not state.queue:
                break
            if pending_of(state):
                self._spawn(self.decide(visitor))
            elif any(call.name == "hold" for call in (state.run.calls if state.run else ())):
                self._spawn(visitor.session.cancel())


def run_interleaving(seed: int) -> list[str]:
    """What is broken, and what was logged although the store was not out of order."""
    logger = logging.getLogger("perdure")
    before, errors = logger.handlers, _Errors()
    logger.handlers, logger.propagate = [errors], False
    try:
        return asyncio.run(Interleaving(seed).run()) + errors.seen
    finally:
        logger.handlers, logger.propagate = before, True


class _Errors(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if "out of order" not in record.getMessage() and not isinstance(error, StoreError):
            self.seen.append(f"{record.getMessage()}: {error!r}")
