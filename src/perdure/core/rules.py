"""The agent loop: `next_actions` says what the log asks for.

Rule 1: first match wins. Rule 2: it reads the state alone. Rule 3: no actions means settled, waiting or in flight.
"""

from __future__ import annotations

from typing import Literal, assert_never

from perdure.core.actions import (
    AbortCall,
    AbortModel,
    Action,
    AppendEvents,
    CallModel,
    CheckCall,
    CompactHistory,
    EndOperation,
    RecallChild,
    RunTool,
    StartRun,
    SuspendCall,
    SwitchAgent,
    VetInput,
)
from perdure.core.calls import Call
from perdure.core.errands import childless, errands
from perdure.core.events import (
    CallChecked,
    Event,
    RunEnded,
    StopCause,
    StopRequested,
)
from perdure.core.guards import tripped
from perdure.core.inputs import starting
from perdure.core.messages import Text
from perdure.core.outcomes import end_answered, end_call, end_refused, end_unknown
from perdure.core.specs import CERTAIN, REPEATABLE, Guards, NextTurn
from perdure.core.state import RunState, SessionState, agent_of
from perdure.core.stops import held

MAX_REPAIRS = 2
MAX_REJECTIONS = 8
MAX_COMPACTIONS = 3
COMPACTION_PAUSE = 10
"""Turns, and more each time: so long nobody tries again after three in a row that did not help enough."""
FULL = 0.95
"""Of the window: from here on there is no room to go on while it is compacted."""
NOTHING_WANTED = NextTurn()
ENDED = {"ended"}
UNDER_WAY = {"started", "suspended", "ended"}
"""Calls that are one of these ask for nothing more, unless the run is to stop."""
CUT_OFF = "The call was cut off at the output limit, so it was not carried out."


def next_actions(state: SessionState) -> tuple[Action, ...]:
    """The whole agent loop: what other sessions wait for, and the rules below.

    Only that a run does not end before its background calls.
    """
    actions = _next_actions(state)
    if state.run is not None and state.run.background:
        appended = [event for action in actions if isinstance(action, AppendEvents) for event in action.events]
        if any(isinstance(event, RunEnded) for event in appended):
            # A child that is about to be started is told as soon as it is there.
            ready = [call for call in state.run.background if not (call.child and call.status == "started")]
            actions = tuple(_break_off(call) for call in ready)
    return (*actions, *errands(state)) if state.owed or state.outbox else actions


def _break_off(call: Call) -> Action:
    return _recall(call, "cancel") if call.is_away else AbortCall(call.ordinal)


def _next_actions(state: SessionState) -> tuple[Action, ...]:
    run = state.run
    if run is None:
        return (StartRun(first),) if state.queue and (first := starting(state, state.spec)) else ()
    if run.blocked:
        # Who stopped it while a guardrail was looking did not want to know what that would have said.
        stopped = _end_stopped(run, run.stop) if run.stop else None
        return (AppendEvents((stopped or RunEnded(run.run, "refusal", f"input: {run.blocked}"),)),)
    if run.background and (actions := _background_actions(state, run)):
        return actions
    if run.awaiting == "model":
        return (AbortModel(run.turn),) if run.stop and not _is_last_word(run) else ()
    if run.calls and (statuses := {call.status for call in run.calls}) != ENDED:
        return () if statuses <= UNDER_WAY and not run.stop else _call_actions(state, run)
    if run.stop and run.stop.cause not in ("seconds", "silence") and run.background:
        return ()
    if run.stop and (end := _end_stopped(run, run.stop)):
        return (AppendEvents((end,)),)
    if run.background and not run.arrived and run.response and not run.calls and not _has_news(state):
        return ()
    if run.awaiting == "interrupted" and (run.final or not run.stop):
        return (CallModel(run.turn, run.attempt + 1, final=run.final, next=_next_turn(run)),)
    if run.calls and (end := _end_by_tool(state, run)):
        return (AppendEvents((end,)),)
    if _has_overflowed(run) and _may_compact(state, run):
        return (CompactHistory("overflow", state.view),)
    if run.failure and run.failure.kind == "blocked":
        return (AppendEvents((RunEnded(run.run, "refusal", f"output: {run.failure.detail}"),)),)
    if run.failure and run.failure.kind not in ("limit", "stopped"):
        return _end(run, "failed", f"{run.failure.kind}: {run.failure.detail}")
    if run.rejections >= MAX_REJECTIONS:
        return _end(run, "failed", f"output: rejected {run.rejections} times")
    if detail := tripped(run.circles, _guards(state), run.turn, has_calls=bool(run.calls)):
        return _end(run, "failed", detail)
    if run.response and not run.calls and (end := _end_answered(state, run)):
        return (AppendEvents((end,)),)
    if why := _stop_condition(state, run):
        output = run.response.message.text if run.response else None
        return (AppendEvents((RunEnded(run.run, "stopped", f"stop condition: {why}", output),)),)
    if run.wanted:
        # What goes on in the background is the work of the one who hands over, and is awaited.
        return () if run.background else (SwitchAgent(run.wanted, _handed_over_by(run)),)
    if limit := exhausted(run):
        return (CallModel(run.turn + 1, final=True),) if _may_answer(run) else _end(run, "limit", limit)
    joining = _joining(state) if state.queue else ()
    if state.spec and state.spec.vets_input and (unseen := [n for n in joining if n not in state.vetted]):
        return (VetInput(unseen[0]),)
    call = CallModel(run.turn + 1, inputs=joining, next=_next_turn(run))
    compaction = _compaction(state, run)
    if compaction is None:
        return (call,)
    return (compaction, call) if compaction.background else (compaction,)


def _joining(state: SessionState) -> tuple[int, ...]:
    """The inputs that the next turn hears; one that a guardrail blocked gets a run of its own, which refuses it.

    So does one for another agent.
    """
    who = (None, agent_of(state))
    joins = [queued for queued in state.queue if queued.busy == "join" and queued.overrides.agent in who]
    waiting = [queued.input for queued in joins if queued.at is None]
    joining = tuple(number for number in waiting if not state.vetted.get(number))
    return joining[:1] if state.spec and state.spec.inputs.joined == "one" else joining


def _handed_over_by(run: RunState) -> int:
    """The call that wants another agent to go on; 0 where it was somebody outside."""
    ends = [call.end for call in run.calls if call.end and call.end.next]
    return next((end.call for end in ends if end.next and end.next.agent == run.wanted), 0)


def _has_overflowed(run: RunState) -> bool:
    return run.failure is not None and run.failure.kind == "context_too_long"


def _may_compact(state: SessionState, run: RunState) -> bool:
    is_on = state.spec is None or state.spec.window.is_on
    pause = COMPACTION_PAUSE * max(0, run.compactions + 1 - MAX_COMPACTIONS)
    return is_on and run.turn >= run.compacted_at + pause and run.compacted_in_vain <= run.turn


def _compaction(state: SessionState, run: RunState) -> CompactHistory | None:
    """Due when the view fills its window; beside the run while there is still room, and then before it goes on."""
    spec = state.spec
    if run.window is None or spec is None or state.context_tokens <= spec.window.at * run.window:
        return None
    if not _may_compact(state, run):
        return None
    is_full = state.context_tokens > FULL * run.window
    return CompactHistory("threshold", state.view, background=spec.window.background and not is_full)


def _stop_condition(state: SessionState, run: RunState) -> str:
    """The first of the agent's conditions that holds after a turn, in words."""
    if run.response is None or state.spec is None or not state.spec.stop_when:
        return ""
    return next((why for condition in state.spec.stop_when if (why := held(condition, run))), "")


def _has_news(state: SessionState) -> bool:
    """Something that the model has not heard: then it goes on although background work is still under way."""
    run = state.run
    assert run is not None
    heard = run.response is not None and not run.response.invalid and not run.circles.empty
    return not heard or bool(_joining(state))


def _background_actions(state: SessionState, run: RunState) -> tuple[Action, ...]:
    """What becomes of calls in the background: after a crash by their effect, at the end of the run, when cancelled."""
    actions: list[Action] = []
    is_ending = run.failure is not None and run.failure.kind not in ("limit", "stopped")
    is_ending = is_ending and not (_has_overflowed(run) and _may_compact(state, run))
    for call in run.background:
        is_unwanted = is_ending or (run.stop is not None and run.stop.cause != "stop") or call.decision is not None
        if call.status == "started":
            actions += [AbortCall(call.ordinal)] if is_unwanted and not call.child else []
        elif call.is_away and not run.stop:
            is_due = is_unwanted or call.status == "recalled"
            actions += [_recall(call, "seconds" if call.status == "recalled" else "cancel")] if is_due else []
        elif run.stop and (action := _stop_call(run, call)):
            actions.append(action)
        elif is_unwanted and call.child:
            actions.append(_recall(call, "cancel"))
        elif is_unwanted or not (call.effect in REPEATABLE or call.operation):
            actions.append(_ended(end_unknown(call)))
        else:
            actions.append(_run_tool(call))
    return tuple(actions)


def _next_turn(run: RunState) -> NextTurn | None:
    return None if run.next == NOTHING_WANTED else run.next


def _end_by_tool(state: SessionState, run: RunState) -> RunEnded | None:
    """The end that a call's outcome brings: because it says so, or because the agent puts up with no more failures."""
    for call in run.calls:
        if call.end and call.end.ends:
            return RunEnded(run.run, "completed", f"ended by {call.name}", call.end.output)
    if state.spec is None or state.spec.tool_errors.then != "stop":
        return None
    failed = next((call for call in run.calls if call.end and call.end.outcome in ("error", "timeout")), None)
    if failed:
        said = " ".join(part.text for part in failed.end.parts if isinstance(part, Text)) if failed.end else ""
        return RunEnded(run.run, "failed", f"tool: {failed.name}: {said}")
    return None


def _guards(state: SessionState) -> Guards:
    return state.spec.guards if state.spec else Guards()


def exhausted(run: RunState) -> str:
    """The name of the limit that the run has reached, or nothing."""
    limits = run.limits
    if run.failure and run.failure.kind == "limit":
        return run.failure.detail or "limit"
    if run.stop and run.stop.cause in ("seconds", "silence"):
        return run.stop.cause
    if limits.turns is not None and run.turn >= limits.turns:
        return "turns"
    if limits.calls is not None and _called(run) > limits.calls:
        return "calls"
    if limits.tokens is not None and run.usage.total >= limits.tokens:
        return "tokens"
    if limits.cost_usd is not None and run.cost_usd >= limits.cost_usd:
        return "cost_usd"
    if limits.seconds is not None and run.seconds >= limits.seconds:
        return "seconds"
    return (run.short_of or "no room for another call") if run.final else ""


def _may_answer(run: RunState) -> bool:
    return run.limits.at_limit == "answer" and not run.final


def _is_last_word(run: RunState) -> bool:
    """The answer that `at_limit` grants: the clock alone does not break it off."""
    return run.final and run.stop is not None and run.stop.cause in ("seconds", "silence")


def _end(run: RunState, reason: Literal["failed", "limit"], detail: str) -> tuple[AppendEvents]:
    return (AppendEvents((RunEnded(run.run, reason, detail),)),)


def _end_stopped(run: RunState, stop: StopRequested) -> RunEnded | None:
    """The end that somebody asked for; the run's own time is a limit like the others."""
    by = f"by {stop.by}" if stop.by else ""
    match stop.cause:
        case "stop":
            return RunEnded(run.run, "stopped", by)
        case "cancel":
            return RunEnded(run.run, "cancelled", by)
        case "interrupt":
            return RunEnded(run.run, "cancelled", "interrupted by a new input")
        case "seconds" | "silence":
            return None


def _end_answered(state: SessionState, run: RunState) -> RunEnded | None:
    """The end of a run whose last answer asks for nothing more; None if the run has to go on."""
    response = run.response
    assert response is not None
    limit = exhausted(run)
    if response.stop == "refusal":
        return RunEnded(run.run, "refusal", response.message.text)
    if response.invalid:
        may_repair = run.repairs <= MAX_REPAIRS and not run.final
        last = response.message.text
        return None if may_repair else RunEnded(run.run, "failed", f"output: {response.invalid}", last)
    if run.circles.empty and _guards(state).empty_answers is not None and not (run.final or limit):
        return None
    if not limit and state.queue and _joining(state):
        return None
    detail = f"answered at the limit: {limit}" if run.final else ""
    if response.stop == "length":
        detail = "the answer was cut at the model's output limit"
    if run.arrived and not limit:
        return None
    output = response.output if run.output is not None else response.message.text
    return RunEnded(run.run, "completed", detail, output)


def _call_actions(state: SessionState, run: RunState) -> tuple[Action, ...]:
    if run.stop:
        return tuple(action for call in run.calls if (action := _stop_call(run, call)))
    cap = state.spec.concurrency if state.spec else None
    started = [call.sequential for call in run.calls if call.status == "started" or (call.child and call.is_away)]
    running, held, born = len(started), True in started, run.children
    allowed = _calls_within_limit(run)
    actions: list[Action] = []
    for index, call in enumerate(run.calls):
        if call.status in ("ended", "suspended"):
            continue
        if call.status == "allowed" and call.kind in ("function", "agent") and (held or (cap and running >= cap)):
            held = held or call.sequential
            continue
        action = _call_action(call)
        if call.status == "proposed" and not call.arguments.strip() and _is_cut(run, call):
            action = AppendEvents((CallChecked(call.ordinal, "invalid", "schema", CUT_OFF),))
        elif index >= allowed and call.status == "proposed":
            action = _ended(end_call(call, "cancelled", "The run has reached its limit; this call was not started."))
        elif isinstance(action, RunTool):
            if held or (call.sequential and running) or (cap is not None and running >= cap):
                action = None
            elif call.kind == "agent" and not call.attempts and (limit := childless(run, born)):
                action = _ended(end_call(call, "error", limit))
            else:
                running += 1
                born += call.kind == "agent" and not call.attempts
        # Until it is checked, nobody knows whether a call is sequential.
        held = held or call.sequential or call.status == "proposed"
        if action:
            actions.append(action)
    return tuple(actions)


def _is_cut(run: RunState, call: Call) -> bool:
    """The output limit came right behind the call's name: that is not a call without arguments."""
    return run.response is not None and run.response.stop == "length" and call is run.calls[-1]


def _calls_within_limit(run: RunState) -> int:
    if run.final:
        return 0
    if run.limits.calls is None:
        return len(run.calls)
    return max(0, len(run.calls) - max(0, _called(run) - run.limits.calls))


def _called(run: RunState) -> int:
    """The calls of the run, and those that it has granted to others beside it."""
    granted = (*run.given, *(call.granted for call in run.background))
    return run.called + sum(item.calls or 0 for item in granted if item)


def _call_action(call: Call) -> Action | None:
    match call.status:
        case "proposed":
            return CheckCall(call.ordinal, call.name, call.arguments, call.approved, call.bound)
        case "allowed" if call.kind not in ("function", "agent"):
            return SuspendCall(call.ordinal, call.pauses + 1, call.kind, call.prompt, call.response)
        case "allowed":
            return _run_tool(call)
        case "asked":
            return SuspendCall(call.ordinal, call.pauses + 1, "approval", call.reason)
        case "refused":
            return _ended(end_refused(call))
        case "invalid":
            return _ended(end_call(call, "error", call.reason))
        case "answered":
            return _ended(end_answered(call))
        case "interrupted":
            return _after_crash(call)
        case "recalled":
            return _recall(call, "seconds")
        case "suspended" | "started" | "ended":
            return None
        case _:
            assert_never(call.status)


def _run_tool(call: Call) -> RunTool:
    return RunTool(call.ordinal, call.name, call.arguments, call.attempts + 1, call.digest, call.bound, call.operation)


def _recall(call: Call, cause: StopCause) -> RecallChild:
    return RecallChild(call.ordinal, call.name, call.child, cause)


def _after_crash(call: Call) -> Action:
    """The honest continuation of a call whose outcome nobody saw."""
    if call.effect in REPEATABLE or call.operation:
        return _run_tool(call)
    if call.on_unknown == "tell":
        return _ended(end_unknown(call))
    prompt = "The process died while this call was under way; nobody knows whether it took effect."
    return SuspendCall(call.ordinal, call.pauses + 1, "unknown", prompt)


def _stop_call(run: RunState, call: Call) -> Action | None:
    """What becomes of a call when its run is told to end."""
    assert run.stop is not None
    match call.status:
        case "ended":
            return None
        case "started" if call.child:
            return None  # it is about to wait for its session, which is told then
        case "suspended" | "recalled" | "interrupted" if call.child:
            return _recall(call, run.stop.cause)
        case "started":
            return None if run.stop.cause == "stop" else AbortCall(call.ordinal)
        case "refused":
            return _ended(end_refused(call))
        case "answered":
            return _ended(end_answered(call))
        case "interrupted" if call.operation:
            return EndOperation(call.ordinal, call.name, call.operation)
        case _ if call.attempts:
            if call.effect in CERTAIN:
                return _ended(end_call(call, "cancelled", "The run was ended before this call was repeated."))
            return _ended(end_unknown(call))
        case "suspended" if run.stop.cause == "interrupt":
            return _ended(end_call(call, "superseded", "A newer input replaced this call; it was not started."))
        case _:
            return _ended(end_call(call, "cancelled", "The run was ended before this call started."))


def _ended(event: Event) -> AppendEvents:
    return AppendEvents((event,))
