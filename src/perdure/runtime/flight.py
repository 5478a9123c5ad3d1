"""Work under way: one task per model call, tool or awaited check, and how it is broken off."""

from __future__ import annotations

import asyncio
from typing import Literal

from perdure.core.actions import CallModel, CheckCall, EndOperation, RunTool
from perdure.core.events import CallChecked, CallEnded, Event, ModelFailed
from perdure.core.messages import Text
from perdure.core.specs import Effect
from perdure.ports import Timer

Cause = Literal["stop", "timeout"]


class Flight:
    """`cause` says why it was told to end; `landed` that its one event is on its way to the log."""

    __slots__ = ("action", "cause", "deadline", "effect", "key", "landed", "max_tokens", "task", "timer")

    def __init__(
        self,
        action: CallModel | CheckCall | RunTool | EndOperation,
        *,
        max_tokens: int | None = None,
        key: str = "",
        effect: Effect = "read",
        deadline: float | None = None,
    ) -> None:
        self.action = action
        self.max_tokens = max_tokens
        self.key = key
        self.effect: Effect = effect
        self.cause: Cause | None = None
        self.landed = False
        self.deadline = deadline
        self.task: asyncio.Task[None] | None = None
        self.timer: Timer | None = None

    def failed(self, reason: str) -> Event:
        """The event of work that raised where it must not: middleware, or a result that is no event."""
        match self.action:
            case CallModel():
                return ModelFailed("internal", reason)
            case CheckCall(call=call):
                return CallChecked(call, "deny", "check", reason)
            case EndOperation(call=call, name=name):
                text = f"The operation of {name} could not be told to end: {reason}."
                return CallEnded(call, "unknown", (Text(text),), in_doubt=True)
            case RunTool(call=call, name=name):
                text = f"{name} failed: {reason}."
                acts = self.effect != "read"
                return CallEnded(call, "error", (Text(text),), in_doubt=acts)

    def broken_off(self) -> Event:
        """The event of work that was told to end and did: what nobody knows is not called success or failure."""
        match self.action:
            case CallModel():
                return ModelFailed("stopped", "the answer was broken off")
            case CheckCall(call=call):
                return CallChecked(call, "deny", "check", "the check was broken off")
            case EndOperation(call=call, name=name):
                text = f"The operation of {name} did not say in time that it ended."
                return CallEnded(call, "unknown", (Text(text),), in_doubt=True)
            case RunTool(call=call, name=name):
                acts = self.effect != "read"
                if self.cause == "timeout":
                    doubt = " It may have taken effect." if acts else ""
                    text = f"{name} did not finish in time.{doubt}"
                    return CallEnded(call, "timeout", (Text(text),), in_doubt=acts)
                if not acts:
                    return CallEnded(call, "cancelled", (Text(f"{name} was cancelled."),))
                text = f"{name} was cancelled while it was under way; it is not known whether it took effect."
                return CallEnded(call, "unknown", (Text(text),), in_doubt=True)


def slot_of(action: CallModel | CheckCall | RunTool | EndOperation) -> int:
    """One flight per slot at a time: 0 is the model's, a call's check and its run share the call's ordinal."""
    return 0 if isinstance(action, CallModel) else action.call
