"""One tool call of a turn, and what each fact makes of it.

Rule: what ended stays ended; a late fact about such a call changes nothing.
"""

from __future__ import annotations

from typing import Literal, assert_never

from msgspec.structs import replace

from perdure.core.events import CallAdvanced, CallChecked, CallDecided, CallEnded, CallStarted, CallSuspended, PauseKind
from perdure.core.messages import JSON, Plain
from perdure.core.specs import Effect, Limits, OnUnknown, ToolKind, Verdict

CallFact = CallChecked | CallSuspended | CallDecided | CallStarted | CallAdvanced | CallEnded

CallStatus = Literal[
    "proposed",  # the model wrote it; nobody has looked at it yet
    "allowed",  # may start
    "asked",  # a rule wants a person to look at it
    "refused",  # a rule or a person said no
    "invalid",  # unknown tool or arguments that do not fit
    "suspended",  # waits for a decision
    "answered",  # a decision brought the result
    "started",  # the intent is in the log
    "interrupted",  # started by a driver that is gone
    "recalled",  # a sub-agent whose time is up
    "ended",
]

_CHECKED: dict[Verdict, CallStatus] = {
    "allow": "allowed",
    "ask": "asked",
    "deny": "refused",
    "invalid": "invalid",
    "stale": "proposed",
}


class Call(Plain, frozen=True):
    """One tool call of the current turn. A sub-agent's began when the run had been active for `since` seconds."""

    ordinal: int
    name: str
    arguments: str
    id: str = ""
    status: CallStatus = "proposed"
    digest: str = ""
    rule: str = ""
    reason: str = ""
    sequential: bool = False
    approved: bool = False
    bound: str = ""
    kind: ToolKind = "function"
    prompt: str = ""
    response: JSON = None
    snapshot: JSON = None
    revision: str = ""
    valid_until: float | None = None
    queue: str = ""
    operation: str = ""
    expires_at: float | None = None
    background: str = ""
    effect: Effect = "once"
    on_unknown: OnUnknown = "ask"
    attempts: int = 0
    pauses: int = 0
    pause: CallSuspended | None = None
    asked_as: PauseKind | None = None
    decision: CallDecided | None = None
    end: CallEnded | None = None
    child: str = ""
    granted: Limits | None = None
    since: float = 0.0

    @property
    def is_away(self) -> bool:
        """Whether its session goes on elsewhere while this one waits."""
        return bool(self.child) and self.status in ("suspended", "recalled")


def place_of(calls: tuple[Call, ...], ordinal: int) -> int | None:
    """Where a call stands; those of a turn are numbered one after the other, so that nobody has to search."""
    if not calls:
        return None
    at = ordinal - calls[0].ordinal
    if not at or (0 < at < len(calls) and calls[at].ordinal == ordinal):
        return at
    return next((at for at, call in enumerate(calls) if call.ordinal == ordinal), None)


def with_call(calls: tuple[Call, ...], at: int, call: Call) -> tuple[Call, ...]:
    return (call,) if len(calls) == 1 else (*calls[:at], call, *calls[at + 1 :])


def evolve_call(call: Call, event: CallFact) -> Call:
    """The call after one more fact about it."""
    if call.status == "ended":
        return call
    match event:
        case CallChecked():
            return _checked(call, event)
        case CallStarted(effect=effect, on_unknown=on_unknown, attempt=attempt):
            call = replace(call, status="started", effect=effect, on_unknown=on_unknown, attempts=attempt)
            return replace(call, child=event.child, granted=event.granted) if event.child else call
        case CallEnded():
            return replace(call, status="ended", end=event, pause=None)
        case CallSuspended():
            return replace(
                call, status="suspended", pause=event, pauses=event.pause, asked_as=event.kind, decision=None
            )
        case CallDecided() if call.background and not event.pause:
            return replace(call, decision=event)
        case CallDecided():
            return _decided(replace(call, decision=event, pause=None), event)
        case CallAdvanced(background=True, operation=name):
            return replace(call, background=name)
        case CallAdvanced(operation=operation, expires_at=expires_at):
            return replace(call, operation=operation, expires_at=expires_at)
        case _:
            assert_never(event)


def _checked(call: Call, event: CallChecked) -> Call:
    is_stale = event.verdict == "stale"
    return replace(
        call,
        status=_CHECKED[event.verdict],
        digest=event.digest,
        rule=event.rule,
        reason=event.reason,
        sequential=event.sequential,
        bound=event.bound,
        kind=event.kind,
        prompt=event.prompt,
        response=event.response,
        snapshot=event.snapshot,
        revision=event.revision,
        valid_until=event.valid_until,
        queue=event.queue,
        approved=call.approved and not is_stale,
        decision=None if is_stale else call.decision,
    )


def _decided(call: Call, event: CallDecided) -> Call:
    match event.decision:
        case "approve" | "retry":
            return replace(call, status="allowed")
        case "deny" if call.asked_as == "child":
            return replace(call, status="recalled", reason=event.reason)
        case "deny":
            return replace(call, status="refused", reason=event.reason)
        case "edit":
            edited = call.arguments if event.arguments is None else event.arguments
            return replace(call, status="proposed", arguments=edited, approved=True)
        case "answer":
            return replace(call, status="answered")
