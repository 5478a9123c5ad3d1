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

ANYBODYS = (AppendEvents, AbortModel, AbortCall, SuspendCall, RecallChild, ReportEnd, DeliverMessage)
"""Whoever drives the session does these."""


def queue_of(state: SessionState) -> str:
    """The queue whose workers go on with the session."""
    return tool_queue(state) or agent_of(state)


def queue_for(state: SessionState, action: Action) -> str | None:
    """The queue whose workers may carry out an action; None if that is whoever drives the session."""
    if isinstance(action, RunTool | EndOperation):
        call = find_call(state.run, action.call)
        return call.queue if call and call.queue else agent_of(state)
    return None if isinstance(action, ANYBODYS) else agent_of(state)


def tool_queue(state: SessionState) -> str:
    """The queue of the first call that is to be run next, if its tool has one."""
    run = state.run
    # Mostly no open call has a queue of its own, and nobody needs to look further.
    if run is None or not [call for call in _calls(run) if call.queue and call.status != "ended"]:
        return ""
    if in_flight(state):
        # Whoever finds it after a crash: calls that are repeated want their own place, all else is the agent's.
        left = [] if run.stop or run.awaiting == "model" else [call for call in _calls(run) if _is_repeated(call)]
        return next((call.queue for call in left if call.queue), "")
    for action in next_actions(state):
        call = find_call(run, action.call) if isinstance(action, RunTool | EndOperation) else None
        if call is not None and call.queue:
            return call.queue
    return ""


def _calls(run: RunState) -> tuple[Call, ...]:
    return (*run.calls, *run.background) if run.background else run.calls


def _is_repeated(call: Call) -> bool:
    return call.status == "started" and (call.effect in REPEATABLE or bool(call.operation))
