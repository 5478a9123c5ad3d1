"""Queues: where the next work of a session may be done. An agent's own bears its name; a tool may have another.

Rule: whoever serves the queue of a state can carry out something of what follows from it, so that no session is passed
to and fro for nothing.
"""

from __future__ import annotations

from perdure.core.actions import (
    AbortCall,
    AbortModel,
    Action,
    AppendEvents,
    DeliverMessage,
    EndOperation,
    RecallChild,
    ReportEnd,
    RunTool,
    SuspendCall,
)
from perdure.core.calls import Call
from perdure.core.rules import next_actions
from perdure.core.specs import REPEATABLE
from perdure.core.state import RunState, SessionState, agent_of, find_call, in_flight

LEVEL = 30.0
"""Seconds: one level of priority is worth so much waiting, so that nobody waits for ever."""

HIGHEST = 1000


def queue_of(state: SessionState) -> str:
    """The queue whose workers go on with the session."""
    return (tool_queue(state) or agent_of(state)) if has_queues(state) else agent_of(state)


def queue_for(state: SessionState, action: Action) -> str | None:
    """The queue whose workers may carry out an action; None if that is whoever drives the session."""
    match action:
        case RunTool(call=ordinal) | EndOperation(call=ordinal):
            call = find_call(state.run, ordinal)
            return call.queue if call and call.queue else agent_of(state)
        case AppendEvents() | AbortModel() | AbortCall() | SuspendCall() | RecallChild() | ReportEnd():
            return None
        case DeliverMessage():
            return None
        case _:
            return agent_of(state)


def has_queues(state: SessionState) -> bool:
    """Whether an open call has a queue of its own: mostly none has, and nobody needs to look further."""
    run = state.run
    return run is not None and any(call.queue and call.status != "ended" for call in _calls(run))


def tool_queue(state: SessionState) -> str:
    """The queue of the first call that is to be run next, if its tool has one."""
    run = state.run
    if run is None:
        return ""
    if in_flight(state):
        # Whoever finds it after a crash: calls that are repeated want their own place, all else is the agent's.
        left = [] if run.stop or run.awaiting == "model" else [call for call in _calls(run) if _is_repeated(call)]
        return next((call.queue for call in left if call.queue), "")
    for action in next_actions(state):
        match action:
            case RunTool(call=ordinal) | EndOperation(call=ordinal):
                call = find_call(run, ordinal)
                if call is not None and call.queue:
                    return call.queue
            case _:
                pass
    return ""


def _calls(run: RunState) -> tuple[Call, ...]:
    return (*run.calls, *run.background) if run.background else run.calls


def _is_repeated(call: Call) -> bool:
    return call.status == "started" and (call.effect in REPEATABLE or bool(call.operation))
