"""evolve: what each event makes of a state.

Rule 1: `evolve` is total, never raises and looks at nothing but its arguments. Rule 2: a state, once made, never
changes. Rule 3: what the model reads is built here, so every call in `history` has its result right behind it.
"""

from __future__ import annotations

from functools import reduce
from typing import assert_never

from msgspec.structs import replace

from perdure.core.agents import change_settings, pin_agent
from perdure.core.calls import Call
from perdure.core.errands import owed_for, send_message, settle_message
from perdure.core.events import (
    AgentPinned,
    CallAdvanced,
    CallChecked,
    CallDecided,
    CallEnded,
    CallStarted,
    CallSuspended,
    Event,
    HistoryCompacted,
    HistoryCut,
    HistoryImported,
    InputAccepted,
    InputChanged,
    MessageSent,
    MessageSettled,
    ModelCalled,
    ModelFailed,
    ModelResponded,
    Noted,
    Reservation,
    RunEnded,
    RunResumed,
    RunStarted,
    SessionOpened,
    SettingsChanged,
    StateChanged,
    StopRequested,
    TriggerSet,
)
from perdure.core.guards import after_answer, nudge_answer
from perdure.core.history import compact, cut, has_room, heard, ratio_of, with_view
from perdure.core.inputs import change_input, drop_pushes, queue_input, set_trigger, take_inputs
from perdure.core.messages import (
    Text,
    Usage,
    UserMessage,
)
from perdure.core.results import changed_values, end_call, go_background, start_child, with_fact
from perdure.core.specs import NextTurn, Overrides
from perdure.core.state import Remembered, RunState, RunSummary, SessionState, find_call, new_state
from perdure.core.window import calls_of, estimate_message

WIDEST = 10**15
"""Tokens; a window beyond that makes no sense, and parts of it could not be reckoned."""


def evolve(state: SessionState, event: Event) -> SessionState:
    seq = state.seq + 1
    match event:
        # A state is large, and these three are most of a log: they copy it once, with its seq.
        case CallEnded():
            return end_call(state, event, seq)
        case ModelResponded():
            return _on_responded(state, event, seq)
        case ModelCalled():
            return _on_model_called(state, event, seq)
        case CallChecked() | CallStarted(child="") | CallAdvanced(background=False) | CallSuspended():
            return replace(state, seq=seq, run=with_fact(state.run, event))
        case CallStarted():
            return replace(state, seq=seq, run=start_child(state.run, event))
        case CallAdvanced():
            return go_background(replace(state, seq=seq), event)
        case CallDecided():
            return _on_decided(replace(state, seq=seq), event)
        case InputAccepted():
            return queue_input(replace(state, seq=seq), event)
        case RunStarted():
            return _on_run_started(replace(state, seq=seq), event)
        case RunEnded():
            return _on_run_ended(replace(state, seq=seq), event)
        case ModelFailed():
            return _on_failed(replace(state, seq=seq), event)
        case SettingsChanged():
            return change_settings(replace(state, seq=seq), event)
        case InputChanged():
            return change_input(replace(state, seq=seq), event)
        case StateChanged():
            return _on_state_changed(replace(state, seq=seq), event)
        case TriggerSet():
            return set_trigger(replace(state, seq=seq), event)
        case HistoryCompacted():
            return compact(replace(state, seq=seq), event)
        case HistoryCut():
            return cut(replace(state, seq=seq), event)
        case HistoryImported(messages=messages):
            last = max([state.calls, *(call.call for m in messages for call in calls_of(m))])
            return with_view(replace(state, seq=seq, calls=last), [*state.history, *messages])
        case StopRequested():
            early = event if state.run is None and event.run == state.runs + 1 else state.early_stop
            return replace(state, seq=seq, run=_with_stop(state.run, event), early_stop=early)
        case RunResumed(epoch=epoch):
            return _on_resumed(replace(state, seq=seq, epoch=epoch))
        case AgentPinned():
            return pin_agent(replace(state, seq=seq), event)
        case SessionOpened():
            return _on_opened(replace(state, seq=seq), event)
        case MessageSent():
            return send_message(replace(state, seq=seq), event)
        case MessageSettled():
            return settle_message(replace(state, seq=seq), event)
        case Noted():
            return replace(state, seq=seq)
        case _:
            assert_never(event)


def fold(events: list[Event], state: SessionState | None = None) -> SessionState:
    return reduce(evolve, events, new_state() if state is None else state)


def _on_decided(state: SessionState, event: CallDecided) -> SessionState:
    remembered = _with_remembered(state, event)
    decided = state.decided.add(_place_of(event), f"{event.decision}|{event.by}")
    decided = decided.add(f"id {event.id}", _place_of(event)) if event.id else decided
    return replace(state, run=with_fact(state.run, event), remembered=remembered, decided=decided)


def _with_remembered(state: SessionState, event: CallDecided) -> tuple[Remembered, ...]:
    """An approval that was given for good satisfies later asks."""
    call = find_call(state.run, event.call)
    if call is None or call.status == "ended" or not event.remember or event.decision != "approve":
        return state.remembered
    pattern = call.name if event.remember in ("exact", "tool") else event.remember
    return (*state.remembered, Remembered(pattern, call.digest if event.remember == "exact" else ""))


def _on_opened(state: SessionState, event: SessionOpened) -> SessionState:
    """A fork leaves to its parent the inputs that waited, whose keys are free again, and what others wait for.

    Triggers stay with the parent too: what they were set for happens once.
    """
    run = replace(state.run, replies=()) if state.run else None
    left = [queued.key for queued in state.queue if queued.key is not None]
    return replace(
        state,
        uid=event.uid,
        id=event.id,
        tenant=event.tenant,
        agent=event.agent,
        home=event.agent,
        data=event.data,
        metadata=event.metadata,
        origin=event.origin,
        priority=event.priority,
        epoch=0,
        run=run,
        owed=(),
        outbox=(),
        dead=(),
        queue=(),
        vetted={},
        early_stop=None,
        triggers={},
        keys=state.keys.without(left) if left else state.keys,
    )


def _on_state_changed(state: SessionState, event: StateChanged) -> SessionState:
    if event.origin:
        if state.origins.get(event.origin) is not None:
            return state
        state = replace(state, origins=state.origins.add(event.origin, state.seq))
    run = state.run
    if run is not None:
        run = replace(run, values=changed_values(run.values, event.changes, "run/"))
    return replace(state, run=run, values=changed_values(state.values, event.changes, "session/"))


def _on_run_started(state: SessionState, event: RunStarted) -> SessionState:
    given = next((queued.overrides for queued in state.queue if queued.input in event.inputs), Overrides())
    run = RunState(
        run=event.run,
        inputs=event.inputs,
        agent=given.agent or state.agent,
        overrides=given,
        limits=event.limits,
        model=event.model,
        settings=event.settings,
        output=event.output,
        continues=event.continues,
        tools=event.tools,
        stop=state.early_stop,
        window=None if event.window is None else min(event.window, WIDEST),
        replies=owed_for(state, event.inputs),
        hops=max((queued.hops for queued in state.queue if queued.input in event.inputs), default=0),
        blocked=next((reason for number in event.inputs if (reason := state.vetted.get(number))), ""),
    )
    return replace(take_inputs(state, event.inputs, event.run), runs=event.run, run=run, early_stop=None)


def _on_model_called(state: SessionState, event: ModelCalled, seq: int) -> SessionState:
    run = state.run
    if run is None:
        return replace(state, seq=seq)
    replies, hops = run.replies, run.hops
    if event.inputs:
        replies = (*replies, *owed_for(state, event.inputs))
        hops = max([hops, *(queued.hops for queued in state.queue if queued.input in event.inputs)])
        state = take_inputs(state, event.inputs, run.run)
    if run.arrived:
        state = heard(state, UserMessage(run.arrived))
    called = replace(
        run,
        inputs=run.inputs + event.inputs,
        turn=event.turn,
        attempt=event.attempt,
        awaiting="model",
        asked_tokens=state.overhead_tokens + state.estimated_tokens,
        tokens_saved=0,
        final=event.final,
        reserved=event.reserved,
        calls=(),
        arrived=(),
        response=None,
        failure=None,
        replies=replies,
        hops=hops,
    )
    return replace(state, seq=seq, run=called)


def _on_responded(state: SessionState, event: ModelResponded, seq: int) -> SessionState:
    run = state.run
    if run is None:
        return replace(state, seq=seq)
    said = estimate_message(event.message)
    # An estimate may be what was reserved: as the size of the view our own is the better one.
    is_counted = event.usage.total and not event.usage.estimated
    tokens = max(0, event.usage.total - run.tokens_saved) if is_counted else state.context_tokens + said
    ratio = ratio_of(state, run, event.usage)
    calls = tuple([Call(made.call, made.name, made.arguments, made.id) for made in event.message.calls])
    repairs = run.repairs
    circles = after_answer(run.circles, event, has_calls=bool(calls))
    feedback = nudge_answer(circles, state.spec.guards) if state.spec and not run.final else ""
    if event.invalid and not calls:
        feedback = f"The answer does not fit the output type: {event.invalid.rstrip('.')}. Answer again, corrected."
        repairs += 1
    cost = event.cost_usd or 0.0
    is_priced = event.cost_usd is not None
    spent = event.usage + event.wasted if event.wasted.total else event.usage
    answered = replace(
        run,
        awaiting="",
        response=event,
        calls=calls,
        repairs=repairs,
        rejections=0,
        compactions=run.compactions if run.compactions and not has_room(state, run, tokens) else 0,
        circles=circles,
        next=NextTurn(),
        called=run.called + len(calls),
        usage=run.usage + spent,
        cost_usd=run.cost_usd + cost,
        is_priced=run.is_priced and is_priced,
        seconds=run.seconds + event.seconds,
        reserved=Reservation(),
    )
    state = replace(
        state,
        seq=seq,
        run=answered,
        history=state.history.add(event.message),
        calls=state.calls + len(calls),
        usage=state.usage + spent,
        cost_usd=state.cost_usd + cost,
        is_priced=state.is_priced and is_priced,
        context_tokens=tokens,
        estimated_tokens=state.estimated_tokens + said,
        token_ratio=ratio,
    )
    return heard(state, UserMessage((Text(feedback),))) if feedback else state


def _with_stop(run: RunState | None, event: StopRequested) -> RunState | None:
    return replace(run, stop=event) if run and run.run == event.run else run


def _on_failed(state: SessionState, event: ModelFailed) -> SessionState:
    run = state.run
    if run is None:
        return state
    is_rejected = event.kind == "rejected"
    if event.kind == "context_too_long" and run.attempt == 1:
        # Whatever came of compactions before, this turn's overflow gets its own tries.
        run = replace(run, compactions=0, compacted_in_vain=0)
    failed = replace(
        run,
        awaiting="",
        failure=None if is_rejected else event,
        reserved=Reservation(),
        seconds=run.seconds + event.seconds,
        rejections=run.rejections + is_rejected,
        short_of=event.detail if event.kind == "limit" else run.short_of,
    )
    if is_rejected:
        state = heard(state, UserMessage((Text(event.detail),)))
    if not event.wasted.total:
        return replace(state, run=failed)
    cost = event.cost_usd or 0.0
    is_priced = event.cost_usd is not None
    failed = replace(
        failed,
        usage=run.usage + event.wasted,
        cost_usd=run.cost_usd + cost,
        is_priced=run.is_priced and is_priced,
    )
    return replace(
        state,
        run=failed,
        usage=state.usage + event.wasted,
        cost_usd=state.cost_usd + cost,
        is_priced=state.is_priced and is_priced,
    )


def _place_of(event: CallDecided) -> str:
    return f"{event.call}-{event.pause}"


def _on_resumed(state: SessionState) -> SessionState:
    run = state.run
    if run is None:
        return state
    calls, background = (
        tuple(replace(c, status="interrupted") if c.status == "started" else c for c in group)
        for group in (run.calls, run.background)
    )
    if run.awaiting == "model":
        # The provider may have billed an answer that nobody received: the reservation counts as spent.
        spent = run.reserved
        lost = Usage(output=spent.tokens, estimated=True) if spent.tokens else Usage()
        run = replace(
            run,
            awaiting="interrupted",
            reserved=Reservation(),
            usage=run.usage + lost,
            cost_usd=run.cost_usd + spent.cost_usd,
        )
        state = replace(state, usage=state.usage + lost, cost_usd=state.cost_usd + spent.cost_usd)
    return replace(state, run=replace(run, calls=calls, background=background))


def _on_run_ended(state: SessionState, event: RunEnded) -> SessionState:
    run = state.run
    if run is None or run.run != event.run:
        return state
    summary = RunSummary(
        event.run,
        event.reason,
        event.detail,
        event.output,
        schema=run.output,
        usage=run.usage,
        cost_usd=run.cost_usd,
        is_priced=run.is_priced,
        turns=run.turn,
        called=run.called,
        seconds=run.seconds,
        agent=run.agent,
        is_chosen=run.overrides.agent is not None,
    )
    last = state.messages
    ended = [replace(owed, run=run.run, pays=at == 0, after=last) for at, owed in enumerate(run.replies)]
    owed = (*state.owed, *ended)
    return replace(drop_pushes(state, run.run), run=None, ended=state.ended.add(summary), owed=owed)
