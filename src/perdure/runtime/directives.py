"""What a hook, a guardrail or a tool may ask for, and the facts that it becomes.

Rule: a directive counts with the work that it came from: it is committed in the same append, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import msgspec

from perdure.core.accept import accept
from perdure.core.commands import Command, SendInput, StopRun
from perdure.core.errors import PerdureError, UsageError
from perdure.core.events import Event, Noted
from perdure.core.fold import fold
from perdure.core.messages import JSON, Part
from perdure.core.state import SessionState, has_due_input
from perdure.runtime.media import Input, clean_text, to_parts
from perdure.runtime.plain import to_plain

Late: TypeAlias = Callable[[SessionState], Iterable[Event]]
"""Facts that are worked out for the state which they are committed behind."""
Fact: TypeAlias = Event | Late


class Emit(msgspec.Struct, frozen=True):
    """A fact of the caller's own in the log, a `Noted`; no rule reads it."""

    kind: str
    data: Any = None


FARTHEST = 100 * 366 * 86_400.0
"""A century, in seconds: stores keep times, but not any."""


class Schedule(msgspec.Struct, frozen=True):
    """An input for the session, `after` so many seconds: it gets a run of its own."""

    input: Input
    after: float = 0.0


class Stop(msgspec.Struct, frozen=True):
    """The run ends with the reason stopped, as soon as what is under way has ended."""

    why: str = ""


class Block(msgspec.Struct, frozen=True):
    """The input is not carried out, or the answer not shown: the run ends with the reason refusal."""

    why: str


class Retry(msgspec.Struct, frozen=True):
    """The answer does not count; the model reads the feedback and answers again, eight times at most."""

    feedback: str


class Result(msgspec.Struct, frozen=True):
    """A tool's result that a hook gives in its place."""

    value: Any


Directive: TypeAlias = Emit | Schedule | Stop


class Scheduled(msgspec.Struct, frozen=True):
    """A Schedule in parts; the bytes of its artifacts are to be saved before it is committed."""

    parts: tuple[Part, ...]
    after: float
    artifacts: dict[str, bytes]


def schedule(wish: Schedule) -> Scheduled:
    """Checks what was asked for; a UsageError says what is wrong with it."""
    if not isinstance(wish.after, int | float) or isinstance(wish.after, bool) or not 0 <= wish.after <= FARTHEST:  # pyright: ignore[reportUnnecessaryIsInstance] - user code
        raise UsageError(f"An input is scheduled after a number of seconds, at most a century, not {wish.after!r}.")
    parts, artifacts = to_parts(wish.input)
    return Scheduled(parts, wish.after, artifacts)


def emitted(wish: Emit) -> Noted:
    """The fact as it is kept; a UsageError says what no log can hold."""
    if not isinstance(wish.kind, str) or not wish.kind:  # pyright: ignore[reportUnnecessaryIsInstance] - user code
        raise UsageError(f"An emitted fact needs a kind that is text, not {wish.kind!r}.")
    data: JSON = to_plain(wish.data)
    return Noted(clean_text(wish.kind), data)


def stopped(run: int, by: str, why: str) -> Late:
    """Stops this run and no other; `by` and `why` are what its end will say."""
    command = StopRun("stop", clean_text(f"{by}: {why}" if why else by))

    def late(state: SessionState) -> Iterable[Event]:
        now = state.run.run if state.run else state.runs + has_due_input(state)
        is_over = state.run is None and now == state.runs
        return () if is_over or now != run else accepted(state, command)

    return late


def sent(wish: Scheduled, by: str, now: float) -> Late:
    at = now + wish.after if wish.after > 0 else None
    return _commanded(SendInput(wish.parts, at=at, by=by))


def accepted(state: SessionState, command: Command) -> tuple[Event, ...]:
    """What a tool's or a hook's request becomes; a refusal is nothing that anybody waits for."""
    try:
        return accept(state, command)
    except PerdureError as refused:
        return (Noted("request_refused", {"request": type(command).__name__, "detail": str(refused)}),)


def in_turn(state: SessionState, facts: Iterable[Fact]) -> list[Event]:
    """All the facts, each worked out for the state behind those before it."""
    made: list[Event] = []
    for fact in facts:
        events = list(fact(state)) if callable(fact) else [fact]
        state = fold(events, state)
        made += events
    return made


def _commanded(command: Command) -> Late:
    def late(state: SessionState) -> Iterable[Event]:
        return accepted(state, command)

    return late
