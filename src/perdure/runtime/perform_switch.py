"""SwitchAgent: another agent takes over between two turns, with the history that its hand-off leaves it.

Rule: all of it is committed in one append, worked out for the state that it is committed behind; or it failed, the
model is told, and the same agent goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, cast, get_args

import msgspec

from perdure.core.actions import SwitchAgent
from perdure.core.errors import UsageError
from perdure.core.events import AgentPinned, Event, HistoryCut, Switched
from perdure.core.messages import Message
from perdure.core.repair import parted, repair
from perdure.core.rules import next_actions
from perdure.core.state import SessionState
from perdure.runtime.agent import Binding, check_data
from perdure.runtime.desk import Desk, describe
from perdure.runtime.flight import Flight, not_switched
from perdure.runtime.handoffs import Filter
from perdure.runtime.intents import terms_of
from perdure.runtime.making import tools_for
from perdure.runtime.patience import Unanswered, answered


class Taking(msgspec.Struct, frozen=True, eq=False):
    """What was worked out for the view of the past as it was then; `messages` where a filter has chosen them."""

    binding: Binding
    tools: tuple[Any, ...]
    seen: tuple[int, int]
    messages: tuple[Message, ...] | None


async def switch_agent(desk: Desk, flight: Flight, action: SwitchAgent) -> Event:
    state = desk.log.state
    try:
        taking = await _take(desk, action, state)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - filters and resolvers are user code
        reason = str(error) if isinstance(error, UsageError | Unanswered) else describe(error)
        return not_switched(action, state, reason)
    flight.settle = partial(_settle, desk, action, taking)
    return AgentPinned(taking.binding.digest, taking.binding.spec, Switched())


async def _take(desk: Desk, action: SwitchAgent, state: SessionState) -> Taking:
    binding = await desk.world.agents(action.agent)
    if binding is None:
        raise UsageError(f"The agent {action.agent!r} is not known here.")
    check_data(binding, state.id, state.data)
    declared = {tool.name for tool in state.run.overrides.tools} if state.run else set[str]()
    if both := declared.intersection(binding.tools):
        raise UsageError(f"The agent {action.agent!r} has a tool {min(both)!r}, and so has this run.")
    made = await tools_for(desk, binding, state)
    handoff = desk.binding.handoffs.get(action.agent) if action.call else None
    messages = None
    if handoff is not None and handoff.filter is not None:
        messages = await _filtered(desk, handoff.filter, state)
    return Taking(binding, tuple(tool.spec for tool in made), _seen(state), messages)


async def _filtered(desk: Desk, filter: Filter, state: SessionState) -> tuple[Message, ...]:
    """What the filter leaves; where that breaks the pairing of calls and results, mended as a foreign history is."""
    given: object = await answered(desk.world.clock, partial(filter, state.history[:]))
    kinds = get_args(Message)
    if not isinstance(given, list | tuple) or not all(isinstance(item, kinds) for item in cast(Sequence[Any], given)):
        raise UsageError("The filter of the hand-off has to return a list of messages.")
    if not given:
        raise UsageError("The filter of the hand-off left no message.")
    messages = cast(Sequence[Message], given)
    mended = repair(messages, state.calls)
    return mended.messages if mended.repairs else tuple(messages)


def _settle(desk: Desk, action: SwitchAgent, taking: Taking, event: Event, state: SessionState) -> Iterable[Event]:
    """Nothing if it is not wanted any more, or if the past has another view meanwhile: then it is asked for again."""
    run = state.run
    if run is None or action not in next_actions(state):
        return ()
    if not isinstance(event, AgentPinned) or event.switched is None or event.switched.error:
        return (event,)
    binding = taking.binding
    terms = terms_of(desk.world, binding, state, run.overrides, taking.tools)
    pinned = AgentPinned(binding.digest, binding.spec, terms)
    if taking.messages is None:
        return (pinned,)
    if taking.seen != _seen(state):
        return ()
    keep, rest = parted(state.history, taking.messages)
    if keep == len(state.history) and not rest:
        return (pinned,)
    by = f"hand-off to {action.agent}"
    return pinned, HistoryCut(state.seq, keep, rest, state.values, by, state.ledger)


def _seen(state: SessionState) -> tuple[int, int]:
    return state.view, len(state.history)
