"""Work under way: one task per model call, tool or awaited check, and how it is broken off."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Literal

from perdure.core.actions import (
    AppendEvents,
    CallModel,
    CheckCall,
    CompactHistory,
    DeliverMessage,
    EndOperation,
    EndRun,
    MakeTools,
    RecallChild,
    ReportEnd,
    RunTool,
    SwitchAgent,
    VetInput,
)
from perdure.core.events import (
    AgentPinned,
    CallChecked,
    CallEnded,
    Event,
    HistoryCompacted,
    InputChanged,
    MessageSettled,
    ModelFailed,
    Noted,
    RunEnded,
    Switched,
)
from perdure.core.messages import Text
from perdure.core.rules import next_actions
from perdure.core.specs import CERTAIN, AgentSpec, Effect
from perdure.core.state import SessionState, new_state
from perdure.ports import OpenTransaction, Timer
from perdure.runtime.directives import Fact, Late, in_turn

Cause = Literal["stop", "timeout"]
Errand = RecallChild | ReportEnd | DeliverMessage
"""What is done in other sessions."""
Prepared = EndOperation | VetInput | CompactHistory | EndRun | SwitchAgent | MakeTools | Errand
"""The actions that change nothing until they land."""
Awaited = CallModel | CheckCall | RunTool | Prepared
"""The actions that take their time."""

MODEL, COMPACTION, VETTING, ENDING, SWITCHING, MAKING, ERRANDS = 0, -1, -2, -3, -4, -5, -10


class Flight:
    """`cause` says why it was told to end; `landed` that its one event is on its way to the log.

    `after` are the facts that follow its event, in the same append; `settle` makes of the event what it is to the state
    that it is committed behind. `state` is what a check, or a change of agents, was planned for, or what an input was
    when it was shown. There is one flight per `slot` at a time. `transaction` holds what a tool has written until its
    outcome is committed with it.
    """

    __slots__ = (
        "action",
        "after",
        "cause",
        "deadline",
        "effect",
        "has_begun",
        "key",
        "landed",
        "max_tokens",
        "settle",
        "slot",
        "state",
        "task",
        "timer",
        "transaction",
    )

    def __init__(
        self,
        action: Awaited,
        *,
        max_tokens: int | None = None,
        key: str = "",
        effect: Effect = "read",
        deadline: float | None = None,
        state: SessionState | None = None,
    ) -> None:
        self.action = action
        self.slot = slot_of(action)
        self.state = state
        self.max_tokens = max_tokens
        self.key = key
        self.effect: Effect = effect
        self.cause: Cause | None = None
        self.landed = False
        self.has_begun = False
        self.deadline = deadline
        self.after: list[Fact] = []
        self.settle: Callable[[Event, SessionState], Iterable[Event]] | None = None
        self.task: asyncio.Task[None] | None = None
        self.timer: Timer | None = None
        self.transaction: OpenTransaction | None = None

    def facts(self, event: Event) -> list[Fact]:
        """Everything that it comes to, in order."""
        settle = self.settle
        if isinstance(self.action, EndRun) and isinstance(event, RunEnded):
            return [partial(_if_wanted, self.action.end, event), *self.after]
        if isinstance(self.action, VetInput):
            return [partial(_if_unchanged, self, event)]
        if settle is None:
            return [event, *self.after]
        settled: Late = partial(settle, event)
        return [settled, *self.after]

    def is_overtaken(self, state: SessionState) -> bool:
        """Whether the input that is being vetted has gone, or has other words by now than those that were shown."""
        if not isinstance(self.action, VetInput) or self.state is None:
            return False
        number = self.action.input
        then, now = (next((q.parts for q in s.queue if q.input == number), None) for s in (self.state, state))
        return now is None or now != then

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
                acts = self.effect not in CERTAIN
                return CallEnded(call, "error", (Text(text),), in_doubt=acts)
            case CompactHistory(cause=cause, view=view):
                return HistoryCompacted(view, cause, error=reason)
            case VetInput(input=input):
                return InputChanged(input, blocked=f"the guardrail failed: {reason}")
            case EndRun(end=end):
                return end
            case RecallChild(call=call, name=name):
                text = f"{name} could not be told to end: {reason}."
                return CallEnded(call, "unknown", (Text(text),), in_doubt=True)
            case ReportEnd(input=input):
                return MessageSettled(input=input, dead=reason)
            case DeliverMessage(message=message):
                return MessageSettled(message, dead=reason)
            case SwitchAgent():
                return not_switched(self.action, self.state or new_state(), reason)
            case MakeTools(run=run):
                return Noted("tools_failed", {"run": run, "detail": reason})

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
            case RunTool(call=call, name=name, attempt=1) if not self.has_begun:
                return CallEnded(call, "cancelled", (Text(f"{name} was cancelled before it started."),))
            case RunTool(call=call, name=name):
                acts = self.effect not in CERTAIN
                if self.cause == "timeout":
                    doubt = " It may have taken effect." if acts else ""
                    text = f"{name} did not finish in time.{doubt}"
                    return CallEnded(call, "timeout", (Text(text),), in_doubt=acts)
                if not acts:
                    return CallEnded(call, "cancelled", (Text(f"{name} was cancelled."),))
                text = f"{name} was cancelled while it was under way; it is not known whether it took effect."
                return CallEnded(call, "unknown", (Text(text),), in_doubt=True)
            case CompactHistory() | VetInput() | EndRun() | SwitchAgent() | MakeTools():
                return self.failed("it was broken off")
            case RecallChild() | ReportEnd() | DeliverMessage():
                return self.failed("it was broken off")


def not_switched(action: SwitchAgent, state: SessionState, reason: str) -> AgentPinned:
    """The same agent goes on, and the model is told why."""
    what = f"The hand-off to {action.agent} failed" if action.call else f"{action.agent} could not take over"
    error = f"{what}: {reason.rstrip('.')}. Go on without it."
    return AgentPinned(state.spec_digest, state.spec or AgentSpec(state.agent), Switched(error=error))


def _if_wanted(asked: RunEnded, end: RunEnded, state: SessionState) -> tuple[Event, ...]:
    """The end that somebody was asked about, unless an input or a stop has come meanwhile."""
    return (end,) if AppendEvents((asked,)) in next_actions(state) else ()


def _if_unchanged(flight: Flight, verdict: Event, state: SessionState) -> list[Event]:
    """What guardrails and hooks say of an input, unless it is about words that were edited or retracted meanwhile."""
    return [] if flight.is_overtaken(state) else in_turn(state, [verdict, *flight.after])


def slot_of(action: Awaited) -> int:
    """One flight per slot at a time; a call's check and its run share the call's ordinal."""
    match action:
        case CallModel():
            return MODEL
        case RunTool() | CheckCall():
            return action.call
        case CompactHistory():
            return COMPACTION
        case VetInput():
            return VETTING
        case EndRun():
            return ENDING
        case ReportEnd(input=input):
            return ERRANDS - 2 * input
        case DeliverMessage(message=message):
            return ERRANDS - 2 * message - 1
        case SwitchAgent():
            return SWITCHING
        case MakeTools():
            return MAKING
        case _:
            return action.call
