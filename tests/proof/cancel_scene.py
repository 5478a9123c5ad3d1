"""A run that is cancelled at one chosen point, with tools, models and checks that end in all manners or not at all.

Rule 1: whatever may hang does so only once the cancel is on its way, so that every later point can be reached too.
Rule 2: the time is the real one. Rule 3: what is left behind is let go of at the end of the scene.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from perdure import Agent, Conflict, Record, Refused, Run, Runtime, Session
from perdure.core.codec import decode_event
from perdure.events import CallAdvanced, CallEnded, CallStarted, ModelCalled, RunEnded, StopRequested
from perdure.ports import Batch, ModelRequest, Store
from perdure.stores.memory import MemoryStore
from perdure.stores.sqlite import SqliteStore
from perdure.testing import ScriptedModel, call
from tests.runtime.scenes import check_log, soon, until

Who = Literal["own", "other"]
Place = Literal["memory", "sqlite"]

IN_TIME = 5.0
A_MOMENT = 0.02
INSIDE = "inside a commit"


class Cancelled(msgspec.Struct, frozen=True):
    """What came of one cancel; `point` is empty where the run was over before it came to the chosen one."""

    point: str
    acknowledged: float
    ended: float
    broken: list[str]
    refused: bool = False


class Moment:
    """Counts the points that a run passes, in any thread; at number `at` the cancel is sent."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.names: list[str] = []
        self.point = ""
        self.fired = False
        self.armed = False
        self.refused = False
        self.began = self.acknowledged = 0.0
        self.sending: asyncio.Task[None] | None = None
        self.send: Callable[[], Awaitable[None]] | None = None
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()

    def reach(self, name: str) -> bool:
        """True if this is the point."""
        with self._lock:
            # Before there is an input there is nothing to cancel.
            if not self.armed or (not self.names and name != "after InputAccepted"):
                return False
            self.names.append(name)
            if len(self.names) != self.at:
                return False
            self.point = name
            self.fired = True
        self._loop.call_soon_threadsafe(self._start)
        return True

    async def sent(self) -> None:
        """Returns as soon as the cancel is acknowledged."""
        await until(lambda: self.sending is not None)
        assert self.sending is not None
        await asyncio.shield(self.sending)

    def _start(self) -> None:
        self.sending = self._loop.create_task(self._cancel())

    async def _cancel(self) -> None:
        assert self.send is not None
        self.began = time.monotonic()
        try:
            await self.send()
        except Refused:
            self.refused = True
        self.acknowledged = time.monotonic() - self.began


class CancelledStore:
    """The driver's store, with a point before and after every append; there another process's cancel is waited for."""

    def __init__(self, store: Store, moment: Moment, *, waits: bool) -> None:
        self._store = store
        self._moment = moment
        self._waits = waits

    async def append(self, batch: Batch) -> None:
        kinds = " ".join(type(decode_event(entry.payload)).__name__ for entry in batch.entries)
        await self._arrive(f"before {kinds}")
        await self._store.append(batch)
        await self._arrive(f"after {kinds}")

    async def _arrive(self, name: str) -> None:
        if self._moment.reach(name) and self._waits:
            await self._moment.sent()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class Scene:
    """What the tools of one run share: the moment, how to hang, and what was started."""

    def __init__(self, moment: Moment) -> None:
        self.moment = moment
        self.began: list[int] = []
        self.processes: list[int] = []
        self.left_behind: list[int] = []
        self.followed: list[str] = []
        self.ended_elsewhere: list[str] = []
        self._busy = 0
        self._lock = threading.Lock()
        self._release = asyncio.Event()
        self._thread_release = threading.Event()

    def reach(self, name: str) -> None:
        self.moment.reach(name)

    async def arrive(self, name: str) -> None:
        """A point of work that would be over before the cancel is sent: there it is waited for."""
        if self.moment.reach(name):
            await self.moment.sent()

    @contextmanager
    def inside(self, call: int = 0) -> Iterator[None]:
        """Around everything that may be left behind."""
        with self._lock:
            self._busy += 1
            if call:
                self.began.append(call)
        try:
            yield
        finally:
            with self._lock:
                self._busy -= 1

    async def linger(self) -> None:
        """A moment; but once the cancel is on its way, until somebody ends it."""
        deadline = time.monotonic() + A_MOMENT
        while not self.moment.fired and time.monotonic() < deadline:
            await asyncio.sleep(0.002)
        if self.moment.fired:
            await self._release.wait()

    async def stubbornly(self, work: Coroutine[Any, Any, None]) -> None:
        """Does the work to its end, whatever it is told."""
        task = asyncio.ensure_future(work)
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({task})

    def block(self, until: Callable[[], bool] = lambda: False) -> None:
        """The same in a thread; `until` is what the tool heeds."""
        deadline = time.monotonic() + A_MOMENT
        while not self.moment.fired and time.monotonic() < deadline:
            time.sleep(0.002)
        while self.moment.fired and not until() and not self._thread_release.is_set():
            time.sleep(0.002)

    async def let_go(self) -> None:
        self._release.set()
        self._thread_release.set()
        await until(lambda: not self._busy)


class Streaming:
    """A scripted model with a point in the middle of its stream, where it may hang."""

    name = "streaming"

    def __init__(self, scene: Scene, manner: str) -> None:
        self._scene = scene
        self._manner = manner
        self._inner = ScriptedModel(_answer)

    async def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        is_first = True
        async for item in self._inner.stream(request):
            yield item
            if is_first:
                is_first = False
                with self._scene.inside():
                    if self._manner == "hangs":
                        self._scene.reach("the model streams")
                        await self._scene.linger()
                    elif self._manner == "ignores":
                        self._scene.reach("the model streams")
                        await self._scene.stubbornly(self._scene.linger())
                    else:
                        await self._scene.arrive("the model streams")

    def cost(self, usage: Any) -> float | None:
        return None


def _answer(request: ModelRequest) -> Any:
    """Two turns with calls that run beside, before and behind the one that makes trouble."""
    turn = sum(type(message).__name__ == "AssistantMessage" for message in request.messages)
    return [[call("look"), call("work"), call("last")], [call("look"), call("last")], "Done."][turn]


Cast = Callable[[Scene], dict[str, Any]]
"""The tools, the model's manner and the policy of one kind of trouble."""


async def play(kind: Cast, at: int, who: Who, place: Place, folder: Path) -> tuple[Cancelled, list[str]]:
    """One run, cancelled at the point; also the names of the points that it passed."""
    moment = Moment(at)
    scene = Scene(moment)
    options = kind(scene)
    agent: Agent[Any] = Agent(name="clerk", model=Streaming(scene, options.pop("model", "")), **options)
    store, visited = _open_stores(place, folder / f"{at}.db", moment)
    faulty = cast(Store, CancelledStore(store, moment, waits=who == "other"))
    async with AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(Runtime(faulty, agents=[agent]))
        session = await runtime.open(agent, id="x")
        asking: Session[Any] = session
        if who == "other":
            visitor = await stack.enter_async_context(Runtime(visited, engine=None))
            asking = await visitor.session("x")
        moment.send = lambda: asking.cancel(by="ops")
        stack.push_async_callback(scene.let_go)
        moment.armed = True
        run = await session.start("go")
        result = await soon(_settle(session, run))
        settled = time.monotonic()
        moment.armed = False
        if moment.fired:
            await moment.sent()
        ended = max(0.0, settled - moment.began) if moment.fired else 0.0
        broken: list[str] = []
        deadline = (moment.began or time.monotonic()) + IN_TIME
        if not await _is_let_go(runtime, session, deadline):
            broken.append("the session is still held")
        left = await _still_alive(scene.processes, deadline)
        broken += check(await session.records(), scene, moment)
        if moment.fired and not moment.refused and (result.reason, result.detail) != ("cancelled", "by ops"):
            broken.append(f"the run ended {result.reason}: {result.detail}")
        if moment.refused and result.reason != "completed":
            broken.append(f"the cancel of a run that ended {result.reason} was refused")
        if left:
            broken.append(f"processes are left: {left}")
    if left := await _still_alive(scene.left_behind, time.monotonic() + IN_TIME):
        broken.append(f"processes are left at the very end: {left}")
    return Cancelled(moment.point, moment.acknowledged, ended, broken, moment.refused), moment.names


def _open_stores(place: Place, path: Path, moment: Moment) -> tuple[Store, Store]:
    """The driver's and that of the other process; SQLite has a point inside of every commit too."""
    if place == "memory":
        memory = MemoryStore()
        return memory, memory
    store = SqliteStore(path)
    store.on_commit = lambda: cast(None, moment.reach(INSIDE))
    return store, SqliteStore(path)


async def _settle(session: Session[Any], run: Run[Any]) -> Any:
    """Approves what waits; the cancel may have been quicker."""
    result = await run
    while result.pending:
        for pending in result.pending:
            with suppress(Conflict, Refused):
                await session.decide(pending.id, "approve")
        result = await run
    return result


def check(records: list[Record], scene: Scene, moment: Moment) -> Iterator[str]:
    """One end; nothing started behind the cancel; nothing began without its intent."""
    check_log(records)
    ends = [record.seq for record in records if isinstance(record.event, RunEnded)]
    stops = [record.seq for record in records if isinstance(record.event, StopRequested)]
    if len(ends) != 1:
        yield f"the run has {len(ends)} ends"
    if len(stops) != (1 if moment.fired and not moment.refused else 0):
        yield f"there are {len(stops)} cancels"
    late = [record for record in records if stops and record.seq > stops[0]]
    if started := [record.event for record in late if isinstance(record.event, CallStarted | ModelCalled)]:
        yield f"started after the cancel: {started}"
    started = Counter(record.event.call for record in records if isinstance(record.event, CallStarted))
    if any(count > started[ordinal] for ordinal, count in Counter(scene.began).items()):
        yield f"began {scene.began}, but intended were {started}"
    outcomes = [(record.event.call, record.event.outcome) for record in records if isinstance(record.event, CallEnded)]
    if any(Counter(ordinal for ordinal, _ in outcomes)[ordinal] != 1 for ordinal in started):
        yield f"started {started}, but ended {outcomes}"
    for advanced in (record.event for record in records if isinstance(record.event, CallAdvanced)):
        if (advanced.call, "ok") not in outcomes and scene.ended_elsewhere != [advanced.operation]:
            yield f"{advanced.operation} goes on elsewhere: ended was {scene.ended_elsewhere}"


async def _is_let_go(runtime: Runtime, session: Session[Any], deadline: float) -> bool:
    """Whatever hangs on, the session is free for the next driver."""
    while await runtime.driver_of(session) is not None:
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.002)
    return True


async def _still_alive(pids: list[int], deadline: float) -> list[int]:
    """Those that live at the deadline: a kill takes effect a little later than it is sent."""
    while (alive := [pid for pid in pids if is_alive(pid)]) and time.monotonic() < deadline:
        await asyncio.sleep(0.002)
    return alive


def is_alive(pid: int) -> bool:
    """Whether it runs; one that only waits to be collected by whoever inherited it does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")
