"""The start of a fork: the same past, with what was open at the cut closed truthfully; nothing is run again."""

from __future__ import annotations

from perdure.core.events import Event, RunEnded, SessionOpened
from perdure.core.outcomes import end_call
from perdure.core.specs import CERTAIN
from perdure.core.state import SessionState

UNDER_WAY = "It is not known here whether this call took effect: the session was forked while it was under way."


def fork_events(state: SessionState, opened: SessionOpened) -> tuple[Event, ...]:
    """Calls under way at the cut are unknown, calls not yet started superseded, and the open run is over."""
    events: list[Event] = [opened]
    if state.run is None:
        return tuple(events)
    for call in (*state.run.background, *state.run.calls):
        if call.status == "ended":
            continue
        if call.attempts and call.effect not in CERTAIN:
            events.append(end_call(call, "unknown", UNDER_WAY, in_doubt=True))
        elif call.attempts:
            events.append(end_call(call, "superseded", "The session was forked while this call was under way."))
        else:
            events.append(end_call(call, "superseded", "The session was forked before this call started."))
    events.append(RunEnded(state.run.run, "cancelled", "the session was forked here"))
    return tuple(events)
