"""What people and stores see of a state: pending decisions and the session's row."""

from __future__ import annotations

from typing import Literal

from msgspec.structs import replace

from perdure.core.accept import pending_id
from perdure.core.codec import decode_json
from perdure.core.events import PauseKind
from perdure.core.messages import JSON, Plain
from perdure.core.queues import tool_queue
from perdure.core.rules import next_actions
from perdure.core.specs import Files
from perdure.core.state import SessionState, agent_of, in_flight

Status = Literal["idle", "running", "waiting"]


class Pending(Plain, frozen=True, forbid_unknown_fields=False):
    """A suspended call, as it is put before a person."""

    id: str
    kind: PauseKind
    session: str
    call: int
    tool: str
    arguments: JSON
    prompt: str = ""
    expires_at: float | None = None


class Summary(Plain, frozen=True, forbid_unknown_fields=False):
    """What a store keeps beside the log, in the same transaction: true for the head it was made for.

    `dead` are the messages of the session that could not be brought. `triggers` is how many there are, `watches` how
    many of them wait for files. `queue` is that of the tool that is to run next, if it has one.
    """

    agent: str
    status: Status = "idle"
    runnable: bool = False
    wake_at: float | None = None
    pending: tuple[Pending, ...] = ()
    title: str = ""
    dead: int = 0
    triggers: int = 0
    watches: int = 0
    queue: str = ""
    priority: int = 0

    @property
    def served_by(self) -> str:
        """The queue whose workers go on with it."""
        return self.queue or self.agent


def pending_of(state: SessionState) -> tuple[Pending, ...]:
    """What a person can decide here; what a child waits for is decided in its own session."""
    waiting = [call for call in state.run.calls if call.pause and not call.child] if state.run else []
    return (
        tuple(
            Pending(
                pending_id(state, call),
                call.pause.kind,
                state.id,
                call.ordinal,
                call.name,
                _shown(call.arguments),
                call.pause.prompt,
                call.pause.expires_at,
            )
            for call in waiting
            if call.pause
        )
        if waiting
        else ()
    )


def summarise(state: SessionState) -> Summary:
    if in_flight(state):
        runnable, status = True, "running"
    else:
        runnable = bool(next_actions(state))
        status = "running" if runnable else "waiting" if state.run else "idle"
    run = state.run
    calls = (*run.calls, *run.background) if run and run.background else run.calls if run else ()
    paused = [call.pause for call in calls if call.pause]
    times = [pause.expires_at for pause in paused if pause.expires_at is not None] if paused else []
    if state.queue:
        times += [queued.at for queued in state.queue if queued.at is not None]
    wake_at = min(times) if times else None
    pending = pending_of(state) if paused else ()
    summary = Summary(agent_of(state), status, runnable, wake_at, pending, state.title, len(state.dead))
    queue = tool_queue(state)
    if queue or state.priority:
        summary = replace(summary, queue=queue, priority=state.priority)
    return _with_triggers(summary, state) if state.triggers else summary


def _with_triggers(summary: Summary, state: SessionState) -> Summary:
    live = [trigger for trigger in state.triggers.values() if not trigger.is_paused]
    times = [at for at in (summary.wake_at, *(trigger.next_at for trigger in live)) if at is not None]
    watches = sum(isinstance(trigger.trigger, Files) for trigger in live)
    return replace(summary, wake_at=min(times, default=None), triggers=len(state.triggers), watches=watches)


def _shown(arguments: str) -> JSON:
    try:
        return decode_json(arguments or "{}")
    except ValueError:
        return arguments
