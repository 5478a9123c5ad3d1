"""Whether every acknowledged command was acted on, and whether the laws of the log hold: from the log alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TypeAlias

from perdure.core.fold import fold
from perdure.core.state import SessionState
from perdure.core.transcript import transcript, unpaired
from perdure.events import (
    CallDecided,
    CallEnded,
    CallStarted,
    Event,
    InputAccepted,
    ModelCalled,
    RunEnded,
    RunStarted,
    StopRequested,
)

Ack: TypeAlias = tuple[str, str]
"""What kind of command, and how to find it in the log."""

Start: TypeAlias = tuple[int, int]
"""A call and its attempt, noted by the tool itself."""


def check(events: list[Event], acks: list[Ack], starts: list[Start]) -> Iterator[str]:
    """Every acknowledged command was acted on, and the laws of the log hold."""
    state = fold(events)
    if state.run or state.queue:
        yield f"work is left: {state.run}, {state.queue}"
    for what, name in acks:
        if not _CHECKS[what](events, name):
            yield f"the acknowledged {what} {name} was not acted on"
    yield from _check_laws(events, state)
    intents = Counter((event.call, event.attempt) for event in events if isinstance(event, CallStarted))
    for start, count in Counter(starts).items():
        if count > intents[start]:
            yield f"{start} started {count} times on {intents[start]} intents"
    retries = Counter(event.call for event in events if isinstance(event, CallDecided) and event.decision == "retry")
    for event in events:
        if isinstance(event, CallStarted) and event.effect == "once" and event.attempt > 1 + retries[event.call]:
            yield f"the once call {event.call} was started again without a retry"


def _check_laws(events: list[Event], state: SessionState) -> Iterator[str]:
    ends = Counter(event.call for event in events if isinstance(event, CallEnded))
    if ends != dict.fromkeys(range(1, state.calls + 1), 1):
        yield f"not every call has one end: {ends}"
    runs = Counter(event.run for event in events if isinstance(event, RunEnded))
    if runs != dict.fromkeys(range(1, state.runs + 1), 1):
        yield f"not every run has one end: {runs}"
    if unpaired(transcript(state)):
        yield "a call has no result behind it"
    stopped = {event.run for event in events if isinstance(event, StopRequested)}
    for event in events:
        if isinstance(event, RunEnded) and event.run in stopped and event.reason not in ("stopped", "cancelled"):
            yield f"run {event.run} was told to stop, but ended {event.reason}"


def _is_taken(events: list[Event], key: str) -> bool:
    numbers = [event.input for event in events if isinstance(event, InputAccepted) and event.key == key]
    taken = [n for event in events if isinstance(event, RunStarted | ModelCalled) for n in event.inputs]
    return len(numbers) == 1 and taken.count(numbers[0]) == 1


def _is_decided(events: list[Event], name: str) -> bool:
    decided = [f"{e.call} {e.pause} {e.decision}" for e in events if isinstance(e, CallDecided)]
    return decided.count(name) == 1


def _is_stopped(events: list[Event], name: str) -> bool:
    first, last = map(int, name.split())
    # What waits is a run to be: it is stopped under the number that it will have.
    return any(isinstance(event, StopRequested) and first <= event.run <= last + 1 for event in events)


_CHECKS: dict[str, Callable[[list[Event], str], bool]] = {
    "input": _is_taken,
    "decision": _is_decided,
    "stop": _is_stopped,
}
