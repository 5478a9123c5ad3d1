"""What the model reads, as the past grows and its view changes; and how many tokens that is.

Rule 1: a history only grows at its end; a shorter one is another view, with a number of its own. Rule 2: tokens are the
provider's count where it gave one, and else our estimate, corrected by how far the two differ.
"""

from __future__ import annotations

from msgspec.structs import replace

from perdure.core.events import HistoryCompacted, HistoryCut
from perdure.core.messages import Message, Usage, UserMessage
from perdure.core.shared import Buffer
from perdure.core.state import RunState, SessionState
from perdure.core.window import calls_of, estimate_message, estimate_view, joined_ledger, view_after

MEANINGFUL_TOKENS = 200
"""Smaller requests say little about how a provider counts."""
ENOUGH = 0.8
"""Of what makes a compaction due: a view that is longer is compacted again at once, so it counts as another try."""


def compact(state: SessionState, event: HistoryCompacted) -> SessionState:
    """The shorter view, if it was made for this one; what a try cost, it cost in any case."""
    cost = event.cost_usd or 0.0
    is_priced = event.cost_usd is not None
    state = replace(
        state,
        usage=state.usage + event.usage,
        cost_usd=state.cost_usd + cost,
        is_priced=state.is_priced and is_priced,
    )
    run = state.run
    if run is not None:
        run = replace(run, usage=run.usage + event.usage, cost_usd=run.cost_usd + cost)
        state = replace(state, run=replace(run, is_priced=run.is_priced and is_priced))
    if event.view != state.view:
        return state
    before, estimated = state.context_tokens, state.estimated_tokens
    if not event.error:
        # What the provider counted shrinks as our own count does: the two are never compared with each other.
        known = state.overhead_tokens + state.estimated_tokens
        messages, asked = view_after(state, event)
        state = replace(state, ledger=joined_ledger(state, event.ledger))
        state = replace(with_view(state, messages), asked=asked)
        left = state.overhead_tokens + state.estimated_tokens
        state = replace(state, context_tokens=before * left // max(1, known))
    helped = not event.error and state.estimated_tokens < estimated
    return _after_compaction(state, event, before, helped=helped)


def _after_compaction(state: SessionState, event: HistoryCompacted, before: int, *, helped: bool) -> SessionState:
    """An overflow is asked about again if it helped; a run in which it does not help is not held up for ever."""
    run = state.run
    if run is None:
        return state
    has_overflowed = run.failure is not None and run.failure.kind == "context_too_long"
    is_over = has_overflowed and helped
    is_urgent = has_overflowed or event.cause == "overflow"
    is_enough = helped and not is_urgent and has_room(state, run, state.context_tokens)
    # One that was made beside the run must not cost an overflow its own try.
    is_in_vain = not helped and (event.cause == "overflow" or not has_overflowed)
    run = replace(
        run,
        tokens_saved=run.tokens_saved + before - state.context_tokens,
        compactions=0 if is_enough else run.compactions + 1,
        compacted_at=run.turn,
        compacted_in_vain=run.turn + 1 if is_in_vain else run.compacted_in_vain,
        failure=None if is_over else run.failure,
        awaiting="interrupted" if is_over else run.awaiting,
    )
    return replace(state, run=run)


def has_room(state: SessionState, run: RunState, tokens: int) -> bool:
    """Whether the view is so short that a few more turns do not ask for a compaction again."""
    return not state.spec or not run.window or tokens <= ENOUGH * state.spec.window.at * run.window


def cut(state: SessionState, event: HistoryCut) -> SessionState:
    last = max([state.calls, *(call.call for message in event.messages for call in calls_of(message))])
    state = replace(state, values=event.values, ledger=event.ledger, calls=last)
    return with_view(state, [*state.history[: event.keep], *event.messages])


def with_view(state: SessionState, messages: list[Message]) -> SessionState:
    """The state with another view of the past; what it costs is our own count, corrected by the provider's."""
    estimated = estimate_view(messages)
    users = [at for at, message in enumerate(messages) if isinstance(message, UserMessage)]
    return replace(
        state,
        history=Buffer(messages),
        view=state.view + 1,
        asked=users[-1] if users else -1,
        estimated_tokens=estimated,
        context_tokens=int((estimated + state.overhead_tokens) * state.token_ratio),
    )


def heard(state: SessionState, message: UserMessage, *, is_input: bool = False) -> SessionState:
    """The history with one more message that no model wrote."""
    tokens = estimate_message(message)
    return replace(
        state,
        asked=len(state.history) if is_input else state.asked,
        history=state.history.add(message),
        estimated_tokens=state.estimated_tokens + tokens,
        context_tokens=state.context_tokens + int(tokens * state.token_ratio),
    )


def ratio_of(state: SessionState, run: RunState, usage: Usage) -> float:
    """How the provider counts what we estimated; small requests say little about that."""
    if usage.estimated or usage.input < MEANINGFUL_TOKENS or not run.asked_tokens:
        return state.token_ratio
    return max(0.25, min(usage.input, 4 * run.asked_tokens) / run.asked_tokens)
