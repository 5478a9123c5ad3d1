"""What facts about calls make of a run: their outcomes, their results in the history, what sub-agents have used.

Rule: the results of a turn reach the history together, in the order of its calls.
"""

from __future__ import annotations

from msgspec.structs import replace

from perdure.core.calls import Call, CallFact, evolve_call, place_of, with_call
from perdure.core.events import CallAdvanced, CallEnded, CallStarted, Spent
from perdure.core.guards import after_call, after_results, grace_of, nudge_results
from perdure.core.history import heard
from perdure.core.messages import JSON, Text, ToolMessage, ToolResult, UserMessage
from perdure.core.specs import NextTurn
from perdure.core.state import RunState, SessionState, find_call
from perdure.core.window import estimate_message


def with_fact(run: RunState | None, event: CallFact) -> RunState | None:
    if run is None:
        return None
    if not run.background:
        return replace(run, calls=_with(run.calls, event))
    return replace(run, calls=_with(run.calls, event), background=_with(run.background, event))


def _with(calls: tuple[Call, ...], event: CallFact) -> tuple[Call, ...]:
    at = place_of(calls, event.call)
    return calls if at is None else with_call(calls, at, evolve_call(calls[at], event))


def start_child(run: RunState | None, event: CallStarted) -> RunState | None:
    run = with_fact(run, event)
    call = find_call(run, event.call)
    if run is None or call is None or call.child != event.child:
        return run
    begun, children = replace(call, since=run.seconds), run.children + (event.attempt == 1)
    at = place_of(run.calls, event.call)
    if at is None or call.background:
        return replace(run, background=tuple(begun if c is call else c for c in run.background), children=children)
    return replace(run, calls=with_call(run.calls, at, begun), children=children)


def go_background(state: SessionState, event: CallAdvanced) -> SessionState:
    """The call goes on elsewhere; to its turn it has ended, with the name under which there will be news of it."""
    run = state.run
    call = find_call(run, event.call)
    if run is None or call is None or call.status == "ended":
        return state
    if call.background:
        return replace(state, run=with_fact(run, event))
    text = f"Started in the background as {event.operation}. You will be told what comes of it."
    told = replace(call, status="ended", end=CallEnded(call.ordinal, "ok", (Text(text),)))
    calls = tuple(told if c is call else c for c in run.calls)
    run = replace(run, calls=calls, background=(*run.background, replace(call, background=event.operation)))
    state = replace(state, run=run)
    return _add_results(state, run.calls) if all(c.status == "ended" for c in run.calls) else state


def end_call(state: SessionState, event: CallEnded, seq: int) -> SessionState:
    run = state.run
    call = find_call(run, event.call)
    if run is None or call is None or call.status == "ended":
        return replace(state, seq=seq)
    if event.spent is not None:
        state, run = _with_spent(state, run, event.spent)
    # Time that sub-agents take at once is not counted twice.
    seconds = max(run.seconds, call.since + event.seconds) if call.child else run.seconds + event.seconds
    if call.background:
        run = replace(run, seconds=seconds) if call.child else run
        return _on_background_ended(replace(state, seq=seq), run, call, event)
    run = replace(
        run,
        calls=_with(run.calls, event),
        circles=after_call(run.circles, call.name, call.digest or call.arguments, event),
        seconds=seconds,
        next=run.next.joined(event.next) if event.next else run.next,
        wanted=run.wanted or (event.next.agent if event.next else ""),
        values=changed_values(run.values, event.changes, "run/"),
    )
    values = changed_values(state.values, event.changes, "session/")
    revealed = state.revealed
    if event.next and event.next.reveal:
        revealed = tuple(dict.fromkeys((*revealed, *event.next.reveal)))
    spilled = state.has_spilled or event.spilled
    state = replace(state, seq=seq, run=run, values=values, has_spilled=spilled, revealed=revealed)
    for other in run.calls:
        if other.status != "ended":
            return state
    return _add_results(state, run.calls)


def _with_spent(state: SessionState, run: RunState, spent: Spent) -> tuple[SessionState, RunState]:
    """What a sub-agent has used counts here too."""
    cost, is_priced = spent.cost_usd or 0.0, spent.cost_usd is not None
    run = replace(
        run,
        usage=run.usage + spent.usage,
        cost_usd=run.cost_usd + cost,
        is_priced=run.is_priced and is_priced,
        called=run.called + spent.calls,
    )
    usage, is_priced = state.usage + spent.usage, state.is_priced and is_priced
    return replace(state, usage=usage, cost_usd=state.cost_usd + cost, is_priced=is_priced), run


def _on_background_ended(state: SessionState, run: RunState, call: Call, event: CallEnded) -> SessionState:
    """News for the next turn."""
    news = Text(f"[{call.background} ended: {event.outcome}]")
    run = replace(
        run,
        background=tuple(c for c in run.background if c is not call),
        arrived=(*run.arrived, news, *event.parts),
        values=changed_values(run.values, event.changes, "run/"),
    )
    return replace(state, run=run, values=changed_values(state.values, event.changes, "session/"))


def changed_values(values: dict[str, JSON], changes: dict[str, JSON], scope: str) -> dict[str, JSON]:
    """The values of one scope after a call's changes, whose keys say their scope."""
    if not changes:
        return values
    own = {name.removeprefix(scope): value for name, value in changes.items() if name.startswith(scope)}
    return {**values, **own} if own else values


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
    results = [ToolResult(c.ordinal, c.name, c.end.outcome, c.end.parts, c.id) for c in calls if c.end is not None]
    message = ToolMessage(tuple(results))
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
