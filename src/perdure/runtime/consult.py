"""Asking the hooks of a phase, one after the other: what they say, what they want, and what follows if they fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from perdure.core.commands import ChangeState
from perdure.core.errors import UsageError
from perdure.core.events import Event, Noted
from perdure.core.fold import fold
from perdure.core.state import SessionState
from perdure.runtime.desk import Desk, describe
from perdure.runtime.directives import (
    Emit,
    Fact,
    Schedule,
    Send,
    StartChild,
    Stop,
    StopChild,
    accepted,
    dispatched,
    emitted,
    schedule,
    sending,
    sent,
    stopped,
)
from perdure.runtime.hooks import Hook
from perdure.runtime.moments import Moment
from perdure.runtime.patience import Rest, Unanswered, begun, finished, is_awaitable
from perdure.runtime.wishes import Wishes

Take: TypeAlias = Callable[[Hook, Any], bool]
"""What a phase makes of an answer; True if nobody else is asked any more. Raises UsageError for what does not fit."""


class HookFailed(Exception):
    """A gate that gave no answer: whoever asked has to say no."""

    def __init__(self, hook: Hook, reason: str) -> None:
        super().__init__(f"The hook {hook.name} ({hook.phase}) failed: {reason}")
        self.hook = hook


class Consultation:
    """One phase's hooks, asked once. `after` are the facts that follow from it, for whoever commits them.

    `at` is the hook that is asked now; `kept` is what those before it have read and changed of the state.
    """

    __slots__ = ("_after", "_desk", "_fails_open", "_moment", "_take", "at", "kept")

    def __init__(
        self,
        desk: Desk,
        moment: Moment,
        take: Take,
        after: list[Fact],
        *,
        fails_open: bool = False,
    ) -> None:
        self._desk = desk
        self._moment = moment
        self._take = take
        self._after = after
        self._fails_open = fails_open
        self.at = 0
        self.kept: list[tuple[Hook, Wishes]] = []

    async def ask(self, hooks: Iterable[Hook]) -> Stop | None:
        """Asks in order; the Stop that one of them wants ends it. HookFailed where a gate fails."""
        moment = self._moment
        for hook in hooks:
            try:
                answer = hook.function(moment)
                if answer is not None and type(answer := begun(answer)) is Rest:
                    answer = await finished(self._desk.world.clock, hook.timeout, answer)
                if moment.here.wishes is not None:
                    await self._settle(hook, moment)
                if answer is None:
                    continue
                for item in answer if isinstance(answer, list) else (answer,):  # pyright: ignore[reportUnknownVariableType]
                    if isinstance(item, Schedule):
                        await self._schedule(hook, item)
                    elif isinstance(item, Stop):
                        return self._stop(hook, item)
                    elif self._heed(hook, item):
                        return None
            except (Exception, SystemExit) as error:  # noqa: BLE001 - a hook is user code
                self._failed(hook, error)
        return None

    def ask_now(self, hooks: Iterable[Hook]) -> Stop | bool:
        """The same without waiting: False where somebody has to be awaited, after all."""
        moment, state = self._moment, self._moment.here.state
        for hook in hooks:
            try:
                answer = hook.function(moment)
                if answer is not None and is_awaitable(answer):
                    if hasattr(answer, "close"):
                        answer.close()
                    # All are asked again, from the beginning.
                    moment.here.state = state
                    return False
                if moment.here.wishes is not None:
                    self._settle_now(hook, moment)
                if answer is None:
                    continue
                for item in answer if isinstance(answer, list) else (answer,):  # pyright: ignore[reportUnknownVariableType]
                    if isinstance(item, Schedule):
                        self._after.append(sent(schedule(item), hook.name, self._desk.world.clock.now()))
                    elif isinstance(item, Stop):
                        return self._stop(hook, item)
                    elif self._heed(hook, item):
                        return True
            except (Exception, SystemExit) as error:  # noqa: BLE001 - a hook is user code
                self._failed(hook, error)
        return True

    def _heed(self, hook: Hook, item: Any) -> bool:
        if isinstance(item, Emit):
            self._after.append(emitted(item))
            return False
        if isinstance(item, Send | StartChild | StopChild):
            wish = sending(item, self._moment.here.state)
            if wish.artifacts:
                raise UsageError("a hook sends text; images and documents are sent by tools")
            self._after.append(dispatched(wish, hook.name))
            return False
        return item is not None and self._take(hook, item)

    def _stop(self, hook: Hook, wish: Stop) -> Stop:
        state = self._moment.here.state
        # An input that waits is a run to be.
        run = state.runs + 1 if hook.phase == "input" and state.run is None else self._moment.here.run
        self._after.append(stopped(run, f"hook {hook.name}", wish.why))
        return wish

    async def _schedule(self, hook: Hook, wish: Schedule) -> None:
        scheduled = schedule(wish)
        for digest, data in scheduled.artifacts.items():
            await self._desk.world.store.save_artifact(self._desk.log.uid, digest, data)
        self._after.append(sent(scheduled, hook.name, self._desk.world.clock.now()))

    async def _settle(self, hook: Hook, moment: Moment) -> None:
        wishes = moment.here.wishes
        assert wishes is not None
        if wishes.shares and self._desk.shared is not None:
            origin = f"{self._desk.log.uid}/{hook.phase}/{hook.name}/{_place_of(moment)}"
            await self._desk.shared.change(wishes, by=hook.name, origin=origin)
        self._keep(hook, moment, wishes)

    def _settle_now(self, hook: Hook, moment: Moment) -> None:
        wishes = moment.here.wishes
        assert wishes is not None
        if wishes.shares:
            raise UsageError("a tool_gate that changes a shared key has to be an async function")
        self._keep(hook, moment, wishes)

    def _keep(self, hook: Hook, moment: Moment, wishes: Wishes) -> None:
        here = moment.here
        here.wishes = None
        self.kept.append((hook, wishes))
        if wishes.changes:
            # A reducer that fails, fails here and now; the next hook sees the value that it is to be.
            changes = wishes.settled(here.state)
            wishes.keep(self._desk.log.state)
            self._after.append(lambda state: changed(wishes, hook.name, state))
            here.state = fold(list(accepted(here.state, ChangeState(changes, hook.name))), here.state)

    def _failed(self, hook: Hook, error: BaseException) -> None:
        self._moment.here.wishes = None
        reason = str(error) if isinstance(error, Unanswered | UsageError) else describe(error)
        self._after.append(Noted("hook_failed", {"hook": hook.name, "phase": hook.phase, "detail": reason}))
        if not self._fails_open:
            raise HookFailed(hook, reason) from error


def refuse(hook: Hook, item: object) -> bool:
    """For phases, or kinds of answers, that nothing can be made of."""
    raise UsageError(f"it returned {type(item).__name__}, of which nothing can be made at {hook.phase}")


def changed(wishes: Wishes, by: str, state: SessionState) -> Iterable[Event]:
    """The changes for the state as it is when they are committed; an exclusive key that was overtaken stays."""
    try:
        if wrong := wishes.overtaken(state):
            return (Noted("hook_failed", {"hook": by, "phase": "state", "detail": wrong}),)
        return accepted(state, ChangeState(wishes.settled(state), by))
    except Exception as error:  # noqa: BLE001 - reducers are user code
        return (Noted("hook_failed", {"hook": by, "phase": "state", "detail": describe(error)}),)


def _place_of(moment: Moment) -> str:
    """Which moment of its phase it is: the same again after a crash."""
    about = getattr(moment, "call", 0) or getattr(moment, "input", 0) or getattr(moment, "pushes", 0)
    return f"{moment.here.run}.{moment.here.turn}.{about}"
