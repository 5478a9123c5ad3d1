"""What was given to a session, once more: inputs, decisions, stops and changes, fitted to the state as it is now."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from perdure.core.calls import Call
from perdure.core.events import (
    CallAdvanced,
    CallDecided,
    CallEnded,
    Event,
    HistoryCompacted,
    InputAccepted,
    RunResumed,
    StateChanged,
    StopRequested,
)
from perdure.core.fold import evolve
from perdure.core.state import SessionState
from perdure.runtime.log import as_kept
from perdure.testing.recorded import CallKey, Item, call_key


def given_now(state: SessionState, items: Iterable[Item], *, asks: bool) -> list[Event]:
    """What was given, as it is given now: to the same call, with the next number.

    `asks`: a model is really asked, so that the time which passed then is not the time that passes now.
    """
    fitting: list[Event] = []
    for item in items:
        if asks and isinstance(item.event, StopRequested) and item.event.cause == "seconds":
            continue
        for event in _given_now(state, item):
            fitting.append(as_kept(event))
            state = evolve(state, event)
    return fitting


def _given_now(state: SessionState, item: Item) -> Iterable[Event]:
    match item.event:
        case InputAccepted() as event:
            return (replace(event, input=state.inputs + 1),)
        case CallDecided() | CallAdvanced() | CallEnded() as event:
            return _for_call(state, event, item.key)
        case StopRequested() as event:
            return (replace(event, run=state.run.run if state.run else state.runs + 1),)
        case HistoryCompacted() as event:
            return (replace(event, view=state.view),)
        case RunResumed():
            return ()
        case StateChanged(origin=origin) if origin and state.origins.get(origin) is not None:
            return ()
        case event:
            return (event,)


def _for_call(state: SessionState, event: CallDecided | CallAdvanced | CallEnded, key: CallKey | None) -> list[Event]:
    """The call of the same tool and arguments that waits for this."""
    run = state.run
    calls = (*run.background, *run.calls) if run else ()
    same = [call for call in calls if call_key(call.name, call.arguments) == key and _waits_for(call, event)]
    found = next((call for call in same if call.ordinal == event.call), same[0] if same else None)
    if found is None:
        return []
    if isinstance(event, CallAdvanced | CallEnded):
        return [replace(event, call=found.ordinal)]
    return [replace(event, call=found.ordinal, pause=found.pauses if event.pause else 0)]


def _waits_for(call: Call, event: CallDecided | CallAdvanced | CallEnded) -> bool:
    if isinstance(event, CallEnded):
        return bool(call.child) and call.status in ("suspended", "recalled", "interrupted")
    if isinstance(event, CallAdvanced):
        return call.status == "started" and not call.operation
    return call.pause is not None if event.pause else bool(call.background)
