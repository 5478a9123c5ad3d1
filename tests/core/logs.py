"""Short words for events, so that a row of a table reads like a sentence; and actions as short words."""

from __future__ import annotations

from typing import Any, assert_never

from perdure.core.actions import (
    AbortCall,
    AbortModel,
    Action,
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
    StartRun,
    SuspendCall,
    SwitchAgent,
    VetInput,
)
from perdure.core.events import (
    AgentPinned,
    CallChecked,
    CallDecided,
    CallEnded,
    CallStarted,
    CallSuspended,
    Event,
    HistoryCompacted,
    InputAccepted,
    InputChanged,
    ModelCalled,
    ModelFailed,
    ModelResponded,
    RunEnded,
    RunStarted,
    SessionOpened,
    StopRequested,
    Switched,
)
from perdure.core.fold import fold
from perdure.core.messages import AssistantMessage, Text, ToolCall, Usage
from perdure.core.rules import next_actions
from perdure.core.specs import AgentSpec, Limits, NextTurn
from perdure.core.state import SessionState

UID = "5e55"
OPENED = SessionOpened(UID, "order-7", "clerk")


def log(*items: Event | tuple[Event, ...]) -> list[Event]:
    """A session's log: the opening, then events and groups of events."""
    events: list[Event] = [OPENED]
    for item in items:
        events += item if isinstance(item, tuple) else (item,)
    return events


def folded(*items: Event | tuple[Event, ...]) -> SessionState:
    return fold(log(*items))


def sent(number: int = 1, busy: Any = "queue", **more: Any) -> InputAccepted:
    return InputAccepted(number, (Text(f"input {number}"),), busy=busy, **more)


def running(limits: Limits | None = None, **more: Any) -> tuple[Event, ...]:
    """One input and the run that took it."""
    return sent(1), RunStarted(1, (1,), limits=limits or Limits(), **more)


def answered(text: str = "Done.", **more: Any) -> ModelResponded:
    return ModelResponded(AssistantMessage((Text(text),)), **more)


def called(*names: str, first: int = 1, **more: Any) -> ModelResponded:
    """An answer that asks for one call of each tool; ordinals count from `first`."""
    parts = tuple(ToolCall(first + at, name, f'{{"n":{first + at}}}', f"id{at}") for at, name in enumerate(names))
    return ModelResponded(AssistantMessage(parts), stop="calls", **more)


def turn(number: int = 1, **more: Any) -> ModelCalled:
    return ModelCalled(number, **more)


def asking(*names: str, limits: Limits | None = None) -> tuple[Event, ...]:
    """A run whose first turn asks for these calls, 1, 2, 3 …"""
    return *running(limits), turn(), called(*names)


def allowed(*calls: int, sequential: bool = False) -> tuple[Event, ...]:
    return tuple(CallChecked(call, "allow", digest=f"d{call}", sequential=sequential) for call in calls)


def suspended(call: int, kind: Any = "approval", pause: int = 1, expires_at: float | None = None) -> tuple[Event, ...]:
    """A call that a rule put before a person, or one of another kind that waits."""
    checks = (CallChecked(call, "ask", digest=f"d{call}"),) if kind == "approval" else ()
    return *checks, CallSuspended(call, pause, kind, expires_at=expires_at)


def started(call: int, effect: Any = "once", **more: Any) -> tuple[Event, ...]:
    return *allowed(call), CallStarted(call, effect, **more)


def decided(call: int, decision: Any, pause: int = 1, **more: Any) -> CallDecided:
    return CallDecided(call, pause, decision, **more)


def ended(*calls: int, outcome: Any = "ok") -> tuple[Event, ...]:
    return tuple(CallEnded(call, outcome, (Text("12"),)) for call in calls)


def handed_over(call: int, agent: str = "billing") -> CallEnded:
    return CallEnded(call, "ok", (Text(f"{agent} takes over."),), next=NextTurn(agent=agent))


def switched(agent: str, **more: Any) -> AgentPinned:
    """Another agent goes on with the run; or, with an `error`, it does not."""
    return AgentPinned(f"digest of {agent}", AgentSpec(agent), Switched(**more))


def stopping(cause: Any = "stop", run: int = 1, **more: Any) -> StopRequested:
    return StopRequested(run, cause, **more)


def pinned(name: str = "clerk", **more: Any) -> AgentPinned:
    return AgentPinned("s1", AgentSpec(name, **more))


def vetted(number: int, blocked: str = "", **more: Any) -> InputChanged:
    """What a guardrail said of an input that waits."""
    return InputChanged(number, vetted=True, blocked=blocked, **more)


def compacted(view: int, start: int = 0, stop: int = 0, cause: Any = "threshold", **more: Any) -> HistoryCompacted:
    """A shorter view, or with an `error` none; what it says is far shorter than what `long_talk` says."""
    return HistoryCompacted(view, cause, start, stop, **more)


def long_talk(turns: int = 6, first: int = 1, usage: Usage = Usage()) -> tuple[Event, ...]:  # noqa: B008 - frozen
    """Turns of one call each, with results of 100 tokens."""
    events: list[Event] = []
    for number in range(first, first + turns):
        events += (turn(number), called("look", first=number, usage=usage), *started(number, "read"))
        events.append(CallEnded(number, "ok", (Text(f"{number:04}" * 100),)))
    return tuple(events)


def overflow(number: int = 1, attempt: int = 1) -> tuple[Event, ...]:
    """A request that is too long for its model."""
    return turn(number, attempt=attempt), ModelFailed("context_too_long", "too long")


def asks_for(*items: Event | tuple[Event, ...]) -> list[str]:
    return [brief(action) for action in next_actions(folded(*items))]


def brief(action: Action) -> str:
    """An action in a few words; what is at its default is left out."""
    match action:
        case AppendEvents(events=events):
            return "; ".join(_brief_event(event) for event in events)
        case StartRun(inputs=inputs):
            return f"start run for {_numbers(inputs)}"
        case CallModel(turn=number, attempt=attempt, inputs=inputs, final=final):
            joined = f" with {_numbers(inputs)}" if inputs else ""
            again = f" attempt {attempt}" if attempt > 1 else ""
            return f"model {number}{again}{joined}{' final' if final else ''}"
        case CheckCall(call=call, approved=approved):
            return f"check {call}{' approved' if approved else ''}"
        case SuspendCall(call=call, pause=pause, kind=kind):
            return f"suspend {call} {kind}{f' again ({pause})' if pause > 1 else ''}"
        case RunTool(call=call, attempt=attempt):
            return f"run {call}{f' attempt {attempt}' if attempt > 1 else ''}"
        case EndOperation(call=call):
            return f"end the operation of {call}"
        case AbortModel(turn=number):
            return f"abort model {number}"
        case AbortCall(call=call):
            return f"abort {call}"
        case VetInput(input=number):
            return f"vet {number}"
        case CompactHistory(cause=cause, view=view, background=background):
            return f"compact view {view} {cause}{' beside' if background else ''}"
        case RecallChild(call=call, cause=cause):
            return f"recall {call} {cause}"
        case ReportEnd(input=number):
            return f"report the end of {number}"
        case DeliverMessage(message=number):
            return f"deliver {number}"
        case MakeTools(run=run):
            return f"make the tools of run {run}"
        case SwitchAgent(agent=agent, call=call):
            return f"switch to {agent}{f' for {call}' if call else ''}"
        case EndRun(end=end):
            return f"ask about: {_brief_event(end)}"
        case _:
            assert_never(action)


def _brief_event(event: Event) -> str:
    match event:
        case CallEnded(call=call, outcome=outcome, in_doubt=in_doubt):
            return f"end {call} {outcome}{' in doubt' if in_doubt else ''}"
        case RunEnded(run=run, reason=reason, detail=detail):
            return f"end run {run} {reason}{f': {detail}' if detail else ''}"
        case _:
            return repr(event)


def _numbers(numbers: tuple[int, ...]) -> str:
    return ",".join(str(number) for number in numbers)
