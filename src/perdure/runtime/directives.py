"""What a hook, a guardrail or a tool may ask for, and the facts that it becomes.

Rule: a directive counts with the work that it came from: it is committed in the same append, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import replace

from perdure.core.accept import accept
from perdure.core.commands import Command, SendInput, SendMessage, StopRun
from perdure.core.errors import PerdureError, UsageError
from perdure.core.events import Address, Event, Noted, RunEnded
from perdure.core.fold import fold
from perdure.core.messages import JSON, Part
from perdure.core.specs import Limits
from perdure.core.state import SessionState, has_due_input
from perdure.runtime.given import given_name, given_text
from perdure.runtime.limits import grant
from perdure.runtime.log import Change
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


class Send(msgspec.Struct, frozen=True):
    """A message to another session: to="parent", to="child NAME", or the id of a session of the same tenant."""

    to: str
    input: Input


class StartChild(msgspec.Struct, frozen=True):
    """A child under this name, whose end comes as news: an agent that is known by name, and its task.

    A child that is there already hears the input.
    """

    name: str
    agent: str
    input: str
    limits: Limits | None = None


class StopChild(msgspec.Struct, frozen=True):
    """Ends the child that was started under this name."""

    name: str


Directive: TypeAlias = Emit | Schedule | Stop | Send | StartChild | StopChild


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


class Sending(msgspec.Struct, frozen=True):
    """A Send, StartChild or StopChild, checked; the bytes of its artifacts are to be saved before it is committed."""

    command: SendMessage
    artifacts: dict[str, bytes]


def sending(wish: Send | StartChild | StopChild, state: SessionState) -> Sending:
    """Checks what was asked for; a UsageError or Refused says what is wrong with it."""
    match wish:
        case Send(to=to, input=input):
            parts, artifacts = to_parts(input)
            command = SendMessage(address(to), parts)
        case StartChild(name=name, agent=agent, input=input, limits=limits):
            parts, artifacts = to_parts(given_text(input, "A child's task"))
            command = SendMessage(_child(name), parts, given_name(agent, "A child's agent"), limits)
        case StopChild(name=name):
            command, artifacts = SendMessage(_child(name)), {}
    accept(state, command)
    return Sending(command, artifacts)


def _child(name: str) -> Address:
    return Address("child", given_name(name, "A child's name"))


def address(to: str) -> Address:
    """Whom the words name: the parent, a child, or a session by its id."""
    to = given_text(to, "An address").strip()
    if not to:
        raise UsageError("The address is empty; take 'parent', 'child NAME' or a session's id.")
    kind, _, name = to.partition(" ")
    if to == "parent":
        return Address("parent")
    if kind == "child" and name.strip():
        return Address("child", name.strip())
    return Address("session", to)


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


def dispatched(wish: Sending, by: str) -> Late:
    """A child that goes its own way takes its share of what the run has left with it."""
    command = replace(wish.command, by=by)

    def late(state: SessionState) -> Iterable[Event]:
        is_given = bool(command.agent) and state.run is not None
        limits = grant(state.run, command.limits, beside=True) if is_given and state.run else command.limits
        return accepted(state, replace(command, limits=limits))

    return late


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


def add_facts(change: Change, facts: Iterable[Fact]) -> None:
    """Each in its turn; an end of a run that somebody ended meanwhile is left out."""
    for fact in facts:
        if isinstance(fact, RunEnded) and (change.after.run is None or change.after.run.run != fact.run):
            continue
        change.add(fact(change.after) if callable(fact) else (fact,))


def _commanded(command: Command) -> Late:
    def late(state: SessionState) -> Iterable[Event]:
        return accepted(state, command)

    return late
