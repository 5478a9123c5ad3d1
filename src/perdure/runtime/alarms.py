"""What the clock means to a session that is driven: what is due now, and when to look again."""

from __future__ import annotations

from perdure.core.accept import accept
from perdure.core.commands import ExpireCalls, StopRun
from perdure.core.state import RunState, SessionState
from perdure.ports import Clock
from perdure.runtime.firing import due_events
from perdure.runtime.log import Change

NEVER = float("inf")


def is_timed(state: SessionState) -> bool:
    """Whether the clock has a say at all: most runs wait for nothing but their work."""
    run = state.run
    if state.queue or state.triggers or run is None:
        return bool(state.queue or state.triggers)
    if run.limits.seconds is not None or run.limits.silence is not None or run.background:
        return True
    return bool(run.calls and [call for call in run.calls if call.pause])


def left_of(run: RunState | None, clock: Clock, since: float, heard_at: float) -> tuple[float, float]:
    """How long a run may go on with work that is under way `since` then, and how long without a sign of life."""
    if run is None or (run.limits.seconds is None and run.limits.silence is None) or run.stop or run.final:
        return NEVER, NEVER
    limits, now = run.limits, clock.monotonic()
    left = NEVER if limits.seconds is None else limits.seconds - run.seconds - (now - since)
    silence = NEVER if limits.silence is None else limits.silence - (now - max(heard_at, since))
    return left, silence


def add_due(change: Change, now: float, left: float, silence: float) -> None:
    """A run out of time or without a sign of life, suspended calls past theirs, triggers whose time has come."""
    state = change.after
    if left <= 0:
        change.add(accept(state, StopRun("seconds")))
    elif silence <= 0:
        change.add(accept(state, StopRun("silence")))
    if state.queue or [at for at in _expiries(state) if at is not None]:
        change.add(accept(change.after, ExpireCalls(now)))
    if state.triggers:
        change.add(due_events(change.after, now))


def wait_for(state: SessionState, now: float) -> float:
    """Seconds until the next call expires, input is due or trigger fires."""
    times = _expiries(state)
    if state.queue:
        times += [queued.at for queued in state.queue]
    if state.triggers:
        times += [trigger.next_at for trigger in state.triggers.values()]
    return min((at - now for at in times if at is not None), default=NEVER)


def _expiries(state: SessionState) -> list[float | None]:
    run = state.run
    if run is None:
        return []
    calls = (*run.calls, *run.background) if run.background else run.calls
    return [call.pause.expires_at for call in calls if call.pause]
