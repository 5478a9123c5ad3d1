"""The hooks that only watch: told of what was committed, in order, beside the driver.

Rule 1: a commit never waits for them; the session is not released before they are through, each within its time.
Rule 2: one that fails is a fact, and nothing else. Rule 3: a crash may swallow what they were to be told; nothing is
told twice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from perdure.core.events import (
    AgentPinned,
    CallEnded,
    Event,
    ModelCalled,
    ModelFailed,
    Noted,
    RunEnded,
    RunStarted,
    Switched,
)
from perdure.core.messages import Text
from perdure.core.state import SessionState, find_call
from perdure.runtime.agent import Binding
from perdure.runtime.consult import Consultation, refuse
from perdure.runtime.desk import Desk
from perdure.runtime.directives import Fact
from perdure.runtime.hooks import Hook
from perdure.runtime.log import SessionLog
from perdure.runtime.moments import ErrorMoment, Moment, RunEndMoment, RunMoment, SessionMoment, TurnMoment
from perdure.runtime.shared_state import SharedState
from perdure.runtime.world import World

FAILURES = ("error", "timeout", "unknown")
NO_FAILURES = ("limit", "stopped", "rejected", "blocked")

HEARD_OF = frozenset((ModelCalled, CallEnded, ModelFailed, RunStarted, RunEnded, AgentPinned))

Told = tuple[tuple[Hook, ...], Moment]


class Observers:
    """Those of one driver. `note` takes what they want committed, `through` hears when all have been told.

    If the driver `follows` another one, those of that agent have been told of the last turn.
    """

    def __init__(
        self, desk: Desk, note: Callable[[Sequence[Fact]], None], through: Callable[[], None], *, follows: bool = False
    ) -> None:
        self._desk = desk
        self._note = note
        self._through = through
        self._hooks = desk.hooks
        self._queue: deque[Told] = deque()
        self._task: asyncio.Task[None] | None = None
        run = desk.log.state.run
        self._run = run.run if run else 0
        self._turn = run.turn if run and not follows else 0

    def see(self, events: Iterable[Event], before: SessionState) -> None:
        """What was just committed, behind the state `before`."""
        for event in events:
            if type(event) not in HEARD_OF:
                continue
            match event:
                case ModelCalled(turn=turn, attempt=1):
                    self._end_turn()
                    self._turn = turn
                    self._tell(self._hooks.turn_start, TurnMoment, turn)
                case CallEnded(outcome=outcome) if outcome in FAILURES:
                    self._tell_failed_call(event, before)
                case ModelFailed(kind=kind, detail=detail) if kind not in NO_FAILURES:
                    self._tell(self._hooks.error, ErrorMoment, kind, detail)
                case RunStarted(run=run, inputs=inputs):
                    self._run = run
                    if run == 1:
                        self._tell(self._hooks.session_start, SessionMoment)
                    self._tell(self._hooks.run_start, RunMoment, inputs)
                case RunEnded():
                    self._end_turn()
                    self._tell(self._hooks.run_end, RunEndMoment, event)
                case AgentPinned(switched=Switched(error="")):
                    self._end_turn()
                case _:
                    pass
        if self._queue and self._task is None and not self._tell_now():
            self._begin()

    @property
    def is_busy(self) -> bool:
        return self._task is not None

    def close(self) -> None:
        """They are not asked any more."""
        self._queue.clear()
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def _end_turn(self) -> None:
        if self._turn:
            self._tell(self._hooks.turn_end, TurnMoment, self._turn)
            self._turn = 0

    def _tell(self, hooks: tuple[Hook, ...], kind: Callable[..., Moment], *about: object) -> None:
        if hooks:
            self._queue.append((hooks, kind(self._desk.here(self._run), *about)))

    def _tell_failed_call(self, event: CallEnded, before: SessionState) -> None:
        if self._hooks.error:
            call = find_call(before.run, event.call) or find_call(self._desk.log.state.run, event.call)
            said = " ".join(part.text for part in event.parts if isinstance(part, Text))
            self._tell(self._hooks.error, ErrorMoment, event.outcome, said, event.call, call.name if call else "")

    def _tell_now(self) -> bool:
        """Functions that are not async need no task; False if one turns out to."""
        while self._queue:
            hooks, moment = self._queue[0]
            if hooks[0].phase in self._hooks.awaited:
                return False
            after: list[Fact] = []
            if Consultation(self._desk, moment, refuse, after, fails_open=True).ask_now(hooks) is False:
                return False
            self._queue.popleft()
            if after:
                self._note(after)
        return True

    def _begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._tell_all())

    async def _tell_all(self) -> None:
        while self._queue:
            hooks, moment = self._queue[0]
            after: list[Fact] = []
            await Consultation(self._desk, moment, refuse, after, fails_open=True).ask(hooks)
            self._queue.popleft()
            if after:
                self._note(after)
        self._task = None
        self._through()


async def tell_session_end(log: SessionLog, binding: Binding, world: World, shared: SharedState | None) -> None:
    """The session was deleted: its log is gone, so a hook that fails is reported to the loop, like a task that does."""
    desk = Desk(log, binding, world, lambda event: None, lambda command: None, 0, shared)
    for hook in desk.hooks.session_end:
        after: list[Fact] = []
        moment = SessionMoment(desk.here(log.state.runs))
        await Consultation(desk, moment, refuse, after, fails_open=True).ask((hook,))
        for fact in after:
            if isinstance(fact, Noted) and fact.kind == "hook_failed":
                asyncio.get_running_loop().call_exception_handler(
                    {"message": f"The hook {hook.name} (session_end) failed: {fact.data['detail']}"}
                )
