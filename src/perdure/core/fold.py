"""evolve: what each event makes of a state.

Rule 1: `evolve` is total, never raises and looks at nothing but its arguments. Rule 2: a state, once made, never
changes. Rule 3: what the model reads is built here, so every call in `history` has its result right behind it.
"""

from __future__ import annotations

from functools import reduce
from typing import assert_never

from msgspec.structs import replace

from perdure.core.calls import Call, CallFact, evolve_call
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
from perdure.core.guards import after_answer, after_call, after_results, grace_of, nudge_answer, nudge_results
from perdure.core.history import compact, cut, has_room, heard, pin_agent, ratio_of, with_view
from perdure.core.inputs import change_input, drop_pushes, queue_input, set_trigger, take_inputs
from perdure.core.messages import (
    JSON,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    Usage,
    UserMessage,
)
from perdure.core.specs import NextTurn
from perdure.core.state import Remembered, RunState, RunSummary, SessionState, find_call, new_state
from perdure.core.window import calls_of, estimate_message


def evolve(state: SessionState, event: Event) -> SessionState:
    seq = state.seq + 1
    match event:
        case CallEnded():
            return _on_call_ended(replace(state, seq=seq), event)
        case ModelResponded():
            return _on_responded(replace(state, seq=seq), event)
        case ModelCalled():
            return _on_model_called(replace(state, seq=seq), event)
        case CallAdvanced(background=True):
            return _on_background(replace(state, seq=seq), event)
        case CallStarted() | CallAdvanced() | CallChecked() | CallSuspended():
            return replace(state, seq=seq, run=_with_fact(state.run, event))
        case CallDecided():
            remembered = _with_remembered(state, event)
            decided = state.decided.add(_place_of(event), f"{event.decision}|{event.by}")
            decided = decided.add(f"id {event.id}", _place_of(event)) if event.id else decided
            run = _with_fact(state.run, event)
            return replace(state, seq=seq, run=run, remembered=remembered, decided=decided)
        case InputAccepted():
            return queue_input(replace(state, seq=seq), event)
        case RunStarted():
            return _on_run_started(replace(state, seq=seq), event)
        case RunEnded():
            return _on_run_ended(replace(state, seq=seq), event)
        case ModelFailed():
            return _on_failed(replace(state, seq=seq), event)
        case SettingsChanged():
            return _on_settings(replace(state, seq=seq), event)
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
        case AgentPinned(digest=digest, spec=spec):
            return pin_agent(replace(state, seq=seq), digest, spec)
        case SessionOpened():
            return _on_opened(replace(state, seq=seq), event)
        case Noted():
            return replace(state, seq=seq)
        case _:
            assert_never(event)


def fold(events: list[Event], state: SessionState | None = None) -> SessionState:
    return reduce(evolve, events, new_state() if state is None else state)


def _with_fact(run: RunState | None, event: CallFact) -> RunState | None:
    if run is None:
        return None
    if not run.background:
        return replace(run, calls=_with(run.calls, event))
    return replace(run, calls=_with(run.calls, event), background=_with(run.background, event))


def _with(calls: tuple[Call, ...], event: CallFact) -> tuple[Call, ...]:
    if len(calls) == 1 and calls[0].ordinal == event.call:
        return (evolve_call(calls[0], event),)
    return tuple([evolve_call(c, event) if c.ordinal == event.call else c for c in calls])


def _on_background(state: SessionState, event: CallAdvanced) -> SessionState:
    """The call goes on elsewhere; to its turn it has ended, with the name under which there will be news of it."""
    run = state.run
    call = find_call(run, event.call)
    if run is None or call is None or call.status == "ended":
        return state
    if call.background:
        return replace(state, run=_with_fact(run, event))
    text = f"Started in the background as {event.operation}. You will be told what comes of it."
    told = replace(call, status="ended", end=CallEnded(call.ordinal, "ok", (Text(text),)))
    calls = tuple(told if c is call else c for c in run.calls)
    run = replace(run, calls=calls, background=(*run.background, replace(call, background=event.operation)))
    state = replace(state, run=run)
    return _add_results(state, run.calls) if all(c.status == "ended" for c in run.calls) else state


def _with_remembered(state: SessionState, event: CallDecided) -> tuple[Remembered, ...]:
    """An approval that was given for good satisfies later asks."""
    call = find_call(state.run, event.call)
    if call is None or call.status == "ended" or not event.remember or event.decision != "approve":
        return state.remembered
    pattern = call.name if event.remember in ("exact", "tool") else event.remember
    return (*state.remembered, Remembered(pattern, call.digest if event.remember == "exact" else ""))


def _on_opened(state: SessionState, event: SessionOpened) -> SessionState:
    """A fork leaves the inputs that waited to its parent; their keys are free again, or nobody could ever use them.

    Triggers stay with the parent too: what they were set for happens once.
    """
    left = [queued.key for queued in state.queue if queued.key is not None]
    return replace(
        state,
        uid=event.uid,
        id=event.id,
        tenant=event.tenant,
        agent=event.agent,
        data=event.data,
        metadata=event.metadata,
        origin=event.origin,
        epoch=0,
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
        run = replace(run, values=_changed(run.values, event.changes, "run/"))
    return replace(state, run=run, values=_changed(state.values, event.changes, "session/"))


def _on_run_started(state: SessionState, event: RunStarted) -> SessionState:
    run = RunState(
        run=event.run,
        inputs=event.inputs,
        limits=event.limits,
        model=event.model,
        settings=event.settings,
        output=event.output,
        continues=event.continues,
        tools=event.tools,
        stop=state.early_stop,
        window=event.window,
        blocked=next((reason for number in event.inputs if (reason := state.vetted.get(number))), ""),
    )
    return replace(take_inputs(state, event.inputs, event.run), runs=event.run, run=run, early_stop=None)


def _on_model_called(state: SessionState, event: ModelCalled) -> SessionState:
    run = state.run
    if run is None:
        return state
    if event.inputs:
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
    )
    return replace(state, run=called)


def _on_responded(state: SessionState, event: ModelResponded) -> SessionState:
    run = state.run
    if run is None:
        return state
    parts = event.message.parts
    said = estimate_message(event.message)
    # An estimate may be what was reserved: as the size of the view our own is the better one.
    is_counted = event.usage.total and not event.usage.estimated
    tokens = max(0, event.usage.total - run.tokens_saved) if is_counted else state.context_tokens + said
    ratio = ratio_of(state, run, event.usage)
    calls = tuple(Call(p.call, p.name, p.arguments, p.id) for p in parts if isinstance(p, ToolCall))
    repairs = run.repairs
    circles = after_answer(run.circles, event)
    feedback = nudge_answer(circles, state.spec.guards) if state.spec and not run.final else ""
    if event.invalid and not calls:
        feedback = f"The answer does not fit the output type: {event.invalid} Answer again, corrected."
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


def _on_settings(state: SessionState, event: SettingsChanged) -> SessionState:
    """An open run goes on with the new model at its next turn, whatever it was started with; a title changes no run."""
    run = state.run
    is_other = event.model != state.model or event.settings != state.settings
    if run is not None and state.spec is not None and is_other:
        settings = state.spec.settings.merged(event.settings)
        run = replace(run, model=event.model or state.spec.model, settings=settings)
    title = state.title if event.title is None else event.title
    return replace(state, run=run, model=event.model, settings=event.settings, title=title)


def _on_call_ended(state: SessionState, event: CallEnded) -> SessionState:
    run = state.run
    call = find_call(run, event.call)
    if run is None or call is None or call.status == "ended":
        return state
    if call.background:
        return _on_background_ended(state, run, call, event)
    run = replace(
        run,
        calls=_with(run.calls, event),
        circles=after_call(run.circles, call.name, call.digest or call.arguments, event),
        seconds=run.seconds + event.seconds,
        next=run.next.joined(event.next) if event.next else run.next,
        values=_changed(run.values, event.changes, "run/"),
    )
    values = _changed(state.values, event.changes, "session/")
    revealed = state.revealed
    if event.next and event.next.reveal:
        revealed = tuple(dict.fromkeys((*revealed, *event.next.reveal)))
    spilled = state.has_spilled or event.spilled
    state = replace(state, run=run, values=values, has_spilled=spilled, revealed=revealed)
    return state if [c for c in run.calls if c.status != "ended"] else _add_results(state, run.calls)


def _on_background_ended(state: SessionState, run: RunState, call: Call, event: CallEnded) -> SessionState:
    """News for the next turn."""
    news = Text(f"[{call.background} ended: {event.outcome}]")
    run = replace(
        run,
        background=tuple(c for c in run.background if c is not call),
        arrived=(*run.arrived, news, *event.parts),
        values=_changed(run.values, event.changes, "run/"),
    )
    return replace(state, run=run, values=_changed(state.values, event.changes, "session/"))


def _changed(values: dict[str, JSON], changes: dict[str, JSON], scope: str) -> dict[str, JSON]:
    """The values of one scope after a call's changes, whose keys say their scope."""
    if not changes:
        return values
    own = {name.removeprefix(scope): value for name, value in changes.items() if name.startswith(scope)}
    return {**values, **own} if own else values


def _place_of(event: CallDecided) -> str:
    return f"{event.call}-{event.pause}"


def _add_results(state: SessionState, calls: tuple[Call, ...]) -> SessionState:
    run = state.run
    if run is not None:
        is_cut = run.response is not None and run.response.stop == "length"
        was_cut = is_cut and bool(calls) and calls[-1].rule == "schema"
        circles = after_results(run.circles, was_cut=was_cut)
        limit = state.spec.tool_errors.in_a_row if state.spec else None
        grace = grace_of(circles, limit, run.turn)
        if circles is not run.circles or grace is not circles.grace:
            hidden = run.next.joined(NextTurn(hide=(grace.tool,))) if grace and grace is not circles.grace else run.next
            state = replace(state, run=replace(run, circles=replace(circles, grace=grace), next=hidden))
    results = tuple(ToolResult(c.ordinal, c.name, c.end.outcome, c.end.parts, c.id) for c in calls if c.end is not None)
    message = ToolMessage(results)
    tokens = estimate_message(message)
    state = replace(
        state,
        history=state.history.add(message),
        estimated_tokens=state.estimated_tokens + tokens,
        context_tokens=state.context_tokens + int(tokens * state.token_ratio),
    )
    if state.run and state.spec and (feedback := nudge_results(state.run.circles, state.spec.guards)):
        return heard(state, UserMessage((Text(feedback),)))
    return state


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
    )
    return replace(drop_pushes(state, run.run), run=None, ended=state.ended.add(summary))
