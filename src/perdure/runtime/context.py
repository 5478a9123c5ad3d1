"""ToolContext: what a tool may know and do while it runs.

Rule 1: a context is read-only. Rule 2: `progress`, `emit`, `cancelled` and `artifacts.put` are
synchronous, in the loop and in a tool's thread. Rule 3: after `close` nothing that a left-behind tool
says is shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from threading import get_ident
from typing import Any, Generic, TypeVar, cast

import msgspec

from perdure.core.deltas import Delta, ToolEmitted, ToolProgressed
from perdure.core.errors import UsageError
from perdure.core.specs import Limits, ModelSettings, NextTurn
from perdure.core.state import SessionState, new_state
from perdure.runtime.directives import Emit, Schedule, Send, StartChild, Stop, StopChild
from perdure.runtime.media import Artifacts, Input
from perdure.runtime.plain import to_plain
from perdure.runtime.wishes import Prepared, Shelf, StateKey, Wishes

DepsT = TypeVar("DepsT")
DataT = TypeVar("DataT")
T = TypeVar("T")


class Life:
    """What changes during a call."""

    __slots__ = ("cancelled", "closed", "event", "thread", "waits", "wishes")

    def __init__(self) -> None:
        self.wishes: Wishes | None = None
        self.cancelled = False
        self.closed = False
        self.thread = get_ident()
        self.event: asyncio.Event | None = None
        self.waits: set[asyncio.Future[Any]] | None = None


class ToolContext(msgspec.Struct, Generic[DepsT, DataT], frozen=True, eq=False, kw_only=True):
    """What a tool may know and do while it runs; made in the loop's thread, once per call.

    `session` is the id, `call` the ordinal, `state` a snapshot, `deadline` the clock's time when time is up.
    `decision` is the value that came with an approval, `prepared` what the tool's listen function had ready.
    """

    deps: DepsT = cast(Any, None)
    data: DataT = cast(Any, None)
    idempotency_key: str = ""
    session: str = ""
    tenant: str = ""
    call: int = 0
    run: int = 0
    attempt: int = 1
    state: SessionState = msgspec.field(default_factory=new_state)
    deadline: float | None = None
    decision: Any = None
    prepared: Prepared | None = None
    artifacts: Artifacts = msgspec.field(default_factory=Artifacts)
    publish: Callable[[Delta], None] | None = None
    loop: asyncio.AbstractEventLoop | None = None
    life: Life = msgspec.field(default_factory=Life)
    shelf: Shelf | None = None

    @property
    def cancelled(self) -> bool:
        """Whether the call shall end: a tool that goes on regardless is left behind."""
        return self.life.cancelled

    def get(self, key: StateKey[T]) -> T:
        """The value of a state key as it stands for this call."""
        return self._wishes().get(key, self.state)

    def set(self, key: StateKey[T], value: T) -> None:
        """Changes a state key; it is committed with the call's outcome, or not at all."""
        self._wishes().set(key, value, self.state)

    def end_run(self, output: Any) -> None:
        """The run ends with this output, as soon as the other calls of the turn have ended."""
        self._wishes().end(to_plain(output))

    def schedule(self, input: Input, *, after: float = 0.0) -> None:
        """An input for this session, after so many seconds; committed with the call's outcome, or not at all."""
        self._wishes().direct(Schedule(input, after))

    def send(self, to: str, input: Input) -> None:
        """A message to another session: "parent", "child NAME" or a session's id; committed with the call's outcome."""
        self._wishes().send(Send(to, input), self.state)

    def start_child(self, name: str, agent: str, input: str, *, limits: Limits | None = None) -> None:
        """Starts an agent in a child session of this name; its end comes as news. Committed with the outcome."""
        self._wishes().send(StartChild(name, agent, input, limits), self.state)

    def stop_child(self, name: str) -> None:
        """Ends the child of this name; committed with the outcome."""
        self._wishes().send(StopChild(name), self.state)

    def note(self, kind: str, data: object = None) -> None:
        """A fact of the tool's own in the log; committed with the call's outcome, or not at all."""
        self._wishes().direct(Emit(kind, data))

    def stop_run(self, reason: str = "") -> None:
        """The run ends with the reason stopped, as soon as the other calls of the turn have ended."""
        self._wishes().direct(Stop(reason))

    def next_turn(
        self,
        *,
        hide: Sequence[str] = (),
        only: Sequence[str] | None = None,
        show: Sequence[str] = (),
        reveal: Sequence[str] = (),
        settings: ModelSettings | None = None,
        agent: str = "",
    ) -> None:
        """Wishes for the next turn alone: tools that are hidden, shown alone, or added (hidden ones), and settings.

        Hidden and deferred tools that are revealed stay so for the session. An `agent` takes over for good.
        """
        shown = None if only is None else tuple(only)
        self._wishes().next = NextTurn(tuple(hide), shown, settings, tuple(show), tuple(reveal), agent)

    def progress(self, message: str, fraction: float | None = None) -> None:
        """Shows watchers how far the call is; never in the log."""
        self._show(ToolProgressed(self.call, message, fraction))

    def emit(self, data: object) -> None:
        """Shows watchers anything that can be written as JSON; never in the log."""
        self._show(ToolEmitted(self.call, to_plain(data)))

    async def wait_cancelled(self) -> None:
        """Returns when the call is cancelled."""
        life = self.life
        if life.event is None:
            life.event = asyncio.Event()
        if not life.cancelled:
            await life.event.wait()

    def wait(self, awaitable: Awaitable[T]) -> T:
        """For sync tools: runs the awaitable in the runtime's loop while this thread waits.

        Raises concurrent.futures.CancelledError when the call is cancelled meanwhile.
        """
        if self.loop is None:
            return asyncio.run(self._run(awaitable))
        if get_ident() == self.life.thread:
            _discard(awaitable)
            raise UsageError("ctx.wait() is for sync tools, which run in threads; in an async tool use await.")
        running = self._run(awaitable)
        try:
            return asyncio.run_coroutine_threadsafe(running, self.loop).result()
        except RuntimeError:
            if self.loop.is_closed():
                running.close()
                _discard(awaitable)
            raise

    def cancel(self) -> None:
        """Tells the tool to end; for the runtime, in the loop's thread."""
        life = self.life
        life.cancelled = True
        if life.event is not None:
            life.event.set()
        for waiting in tuple(life.waits or ()):
            waiting.cancel()

    def close(self) -> None:
        """The call has ended; for the runtime."""
        self.life.closed = True

    def _wishes(self) -> Wishes:
        """Most calls want nothing beside their result, so there are none until somebody asks."""
        if self.life.wishes is None:
            self.life.wishes = Wishes(self.shelf or Shelf())
        return self.life.wishes

    def _show(self, delta: Delta) -> None:
        if self.publish is None or self.life.closed:
            return
        if self.loop is None or get_ident() == self.life.thread:
            self.publish(delta)
            return
        try:
            self.loop.call_soon_threadsafe(self._deliver, delta)
        except RuntimeError:
            return  # the loop is closed: nobody is left to watch

    def _deliver(self, delta: Delta) -> None:
        if self.publish is not None and not self.life.closed:
            self.publish(delta)

    async def _run(self, awaitable: Awaitable[T]) -> T:
        life = self.life
        future = asyncio.ensure_future(awaitable)
        if life.waits is None:
            life.waits = set()
        life.waits.add(future)
        try:
            if life.cancelled:
                future.cancel()
            return await future
        finally:
            life.waits.discard(future)

    @staticmethod
    def fake(deps: Any = None, data: Any = None, idempotency_key: str = "fake", **more: Any) -> ToolContext[Any, Any]:
        """For unit tests, without a runtime; `more` sets any other attribute, `publish` takes the deltas."""
        cancelled = more.pop("cancelled", False)
        given: dict[str, Any] = {"session": "fake", "call": 1, "run": 1, **more}
        made: ToolContext[Any, Any] = ToolContext(deps=deps, data=data, idempotency_key=idempotency_key, **given)
        made.life.cancelled = bool(cancelled)
        return made

    def __repr__(self) -> str:
        return f"ToolContext(session={self.session!r}, call={self.call}, attempt={self.attempt})"


def _discard(awaitable: Awaitable[Any]) -> None:
    """Closes a coroutine that nobody will await, so that Python does not warn about it."""
    if asyncio.iscoroutine(awaitable):
        awaitable.close()
