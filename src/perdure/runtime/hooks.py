"""Hooks: named functions at the phases of a session, a run, a turn, a call; HookSet: all those of an agent, in order.

Rule 1: the Runtime's come first, then those of the plug-ins, then the agent's own, each in the order of registration.
Rule 2: a gate that fails or is late says no; an observer that fails is a fact, and nothing else.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeAlias, TypeVar

import msgspec

from perdure.core.errors import UsageError
from perdure.core.events import HistoryCompacted
from perdure.core.messages import Part
from perdure.core.specs import Limits, Overrides
from perdure.ports import ModelRequest, ModelResponse
from perdure.runtime.directives import Block, Directive, Result
from perdure.runtime.moments import (
    CallMoment,
    CompactionMoment,
    EndMoment,
    ErrorMoment,
    InputMoment,
    RequestMoment,
    ResponseMoment,
    ResultMoment,
    RunEndMoment,
    RunMoment,
    SessionMoment,
    TurnMoment,
)

M = TypeVar("M")
A = TypeVar("A")
Says: TypeAlias = "A | Directive | list[A | Directive] | None"
Function: TypeAlias = "Callable[[M], Says[A] | Awaitable[Says[A]]]"
Observes: TypeAlias = "Callable[[M], Says[Directive] | Awaitable[Says[Directive]]]"

TIMEOUT = 30.0


@dataclass(frozen=True, kw_only=True)
class Hooks:
    """Functions at phases, sync or async. Each gets one moment and returns nothing, what it changes, or directives.

    input: other words, `Block`, `Limits` or `Overrides`. before_model: another request, or an answer of its own.
    after_model: another answer. tool_gate: "allow", "ask" or "deny", or one of them with a reason. before_tool: other
    arguments (a dict) or a `Result`. after_tool: another result. compaction: a summary of its own. natural_end: words
    that push the run on. The others only observe; all of them may give directives (`Emit`, `Schedule`, `Send` …).
    """

    session_start: Observes[SessionMoment] | None = None
    session_end: Observes[SessionMoment] | None = None
    input: Function[InputMoment, str | Part | Block | Limits | Overrides] | None = None
    run_start: Observes[RunMoment] | None = None
    run_end: Observes[RunEndMoment] | None = None
    turn_start: Observes[TurnMoment] | None = None
    turn_end: Observes[TurnMoment] | None = None
    before_model: Function[RequestMoment, ModelRequest | ModelResponse | str] | None = None
    after_model: Function[ResponseMoment, ModelResponse | str] | None = None
    tool_gate: Function[CallMoment, str | tuple[str, str]] | None = None
    before_tool: Function[CallMoment, dict[str, Any] | Result | str] | None = None
    after_tool: Function[ResultMoment, Result | str] | None = None
    compaction: Function[CompactionMoment, HistoryCompacted | str] | None = None
    error: Observes[ErrorMoment] | None = None
    natural_end: Function[EndMoment, str] | None = None
    timeout: float = TIMEOUT

    def __post_init__(self) -> None:
        for phase in PHASES:
            given = getattr(self, phase)
            if given is not None and not callable(given):
                raise UsageError(f"Hooks({phase}={given!r}): a hook is a function of one moment.")
        if not self.timeout > 0:
            raise UsageError(f"Hooks(timeout={self.timeout!r}): give a number of seconds, more than 0.")


PHASES = tuple(field.name for field in fields(Hooks) if field.name != "timeout")


class Hook(msgspec.Struct, frozen=True, eq=False):
    """One function at one phase; `name` says whose it is, for the log, and is the only one of its phase."""

    name: str
    phase: str
    function: Callable[[Any], Any]
    timeout: float
    is_async: bool = False


class HookSet(msgspec.Struct, frozen=True, eq=False):
    """The functions of each phase, in order; `awaited` are the phases in which one of them is async."""

    awaited: frozenset[str] = frozenset()
    session_start: tuple[Hook, ...] = ()
    session_end: tuple[Hook, ...] = ()
    input: tuple[Hook, ...] = ()
    run_start: tuple[Hook, ...] = ()
    run_end: tuple[Hook, ...] = ()
    turn_start: tuple[Hook, ...] = ()
    turn_end: tuple[Hook, ...] = ()
    before_model: tuple[Hook, ...] = ()
    after_model: tuple[Hook, ...] = ()
    tool_gate: tuple[Hook, ...] = ()
    before_tool: tuple[Hook, ...] = ()
    after_tool: tuple[Hook, ...] = ()
    compaction: tuple[Hook, ...] = ()
    error: tuple[Hook, ...] = ()
    natural_end: tuple[Hook, ...] = ()

    @property
    def observes(self) -> bool:
        """Whether anybody wants to hear of what was committed."""
        heard = (self.session_start, self.run_start, self.run_end, self.turn_start, self.turn_end, self.error)
        return any(heard)


def gather_hooks(given: Sequence[tuple[str, Sequence[Hooks]]]) -> HookSet:
    """One set of all, owner by owner."""
    phases: dict[str, list[Hook]] = {phase: [] for phase in PHASES}
    for owner, several in given:
        for hooks in several:
            if not isinstance(hooks, Hooks):  # pyright: ignore[reportUnnecessaryIsInstance] - user code
                raise UsageError(f"{hooks!r} is no Hooks; write Hooks(before_model=function, …).")
            for phase in PHASES:
                function = getattr(hooks, phase)
                if function is not None:
                    name = _name(owner, function, [hook.name for hook in phases[phase]])
                    phases[phase].append(Hook(name, phase, function, hooks.timeout, _is_async(function)))
    awaited = frozenset(phase for phase, found in phases.items() if any(hook.is_async for hook in found))
    return HookSet(awaited, **{phase: tuple(found) for phase, found in phases.items()})


def _name(owner: str, function: object, taken: list[str]) -> str:
    name = f"{owner}:{getattr(function, '__name__', None) or type(function).__name__}"
    same = sum(1 for other in taken if other.partition("#")[0] == name)
    return f"{name}#{same + 1}" if same else name


def _is_async(function: Callable[[Any], Any]) -> bool:
    """Whether it has to be awaited for sure; a function that returns an awaitable is found out later."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
