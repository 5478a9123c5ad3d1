"""What the sub-agents of a run have used so far, before any of them has said so.

Rule: what is counted here is in no log but the child's own; with the end of its call it is in the parent's as well.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from perdure.core.errors import NotFound
from perdure.core.events import Reply, Spent
from perdure.core.state import RunState, RunSummary, SessionState
from perdure.runtime.log import SessionLog

Load: TypeAlias = Callable[[str], Awaitable[SessionLog]]


async def spent_below(load: Load, state: SessionState) -> Spent:
    """What everything below the open run has used until now."""
    run, total = state.run, Spent()
    for call in (*run.calls, *run.background) if run else ():
        if call.child and call.status != "ended":
            total = _both(total, await spent_for(load, call.child, Reply(state.uid, call.ordinal)))
    return total


async def spent_for(load: Load, child: str, reply: Reply) -> Spent:
    """What a session, and what is below it, has used for one call that waits for it."""
    try:
        log = await load(child)
        await log.refresh()
    except NotFound:
        return Spent()
    own = spent_on(log.state, reply)
    return _both(own, await spent_below(load, log.state)) if _is_under_way(log.state, reply) else own


def spent_on(state: SessionState, reply: Reply) -> Spent:
    """What a session itself has used for a call: in its open run, or in the one whose end was not told yet."""
    if state.run is not None and _is_under_way(state, reply):
        return _of(state.run)
    owed = next((owed for owed in state.owed if owed.reply == reply and owed.pays), None)
    return _of(state.ended[owed.run - 1]) if owed is not None else Spent()


def _is_under_way(state: SessionState, reply: Reply) -> bool:
    """A run that answers several calls is paid for by the first."""
    return state.run is not None and bool(state.run.replies) and state.run.replies[0].reply == reply


def _of(run: RunState | RunSummary) -> Spent:
    return Spent(run.usage, run.cost_usd if run.is_priced else None, run.called)


def _both(one: Spent, other: Spent) -> Spent:
    is_priced = one.cost_usd is not None and other.cost_usd is not None
    cost = (one.cost_usd or 0.0) + (other.cost_usd or 0.0) if is_priced else None
    return Spent(one.usage + other.usage, cost, one.calls + other.calls)
