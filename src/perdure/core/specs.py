"""What a programmer described, as plain data: written to the log once per change, by digest."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from math import inf
from types import NoneType
from typing import Literal, TypeAlias, cast, get_args

from msgspec.structs import force_setattr, replace

from perdure.core.errors import UsageError
from perdure.core.messages import JSON, Plain

Effect = Literal["read", "idempotent", "once", "resumable", "transactional"]
CERTAIN: frozenset[Effect] = frozenset(("read", "transactional"))
"""Broken off before their outcome was kept, these have not changed anything."""
REPEATABLE: frozenset[Effect] = frozenset(("read", "idempotent", "transactional"))
"""After a crash these are simply run again."""
ToolKind = Literal["function", "frontend", "external", "question", "agent"]
OnUnknown = Literal["ask", "tell"]
AtLimit = Literal["stop", "answer"]
Busy = Literal["join", "queue", "interrupt", "refuse"]
Effort = Literal["off", "low", "medium", "high"]
EFFORT_TOKENS: dict[Effort, int] = {"off": 0, "low": 1024, "medium": 8192, "high": 24576}
"""About as many tokens of thinking as an effort takes, where somebody wants a number."""
Verdict = Literal["allow", "ask", "deny", "invalid", "stale"]
Missed = Literal["once", "skip", "all"]


class ToolSpec(Plain, frozen=True):
    """A tool as the model sees it, and how a call of it is carried out.

    A function runs here; of the other kinds the result is brought by somebody else: the client that declared it,
    whoever hands it in, the person who is asked, or another agent in a session of its own. `response` is the schema
    that such a result has to fit. `listens`: the call is prepared before anybody judges it. A `hidden` tool is shown
    when another one asks for it, a `deferred` one when the model has found it. `queue`: only workers that serve it run
    the tool.
    """

    name: str
    description: str = ""
    parameters: JSON = None
    effect: Effect = "once"
    on_unknown: OnUnknown = "ask"
    sequential: bool = False
    timeout: float | None = None
    asks: bool = False
    kind: ToolKind = "function"
    response: JSON = None
    listens: bool = False
    retries: int = 0
    background: bool = False
    hidden: bool = False
    deferred: bool = False
    queue: str = ""


_COUNTS = frozenset(("turns", "tokens", "calls", "depth", "children"))


class Limits(Plain, frozen=True):
    """What one run may spend, with its sub-agents; None is without limit. `seconds` does not count waiting.

    `silence`: so many seconds without any sign of life from work under way. `depth`: how deep sub-agents may be nested
    below it, `children`: how many of them it may start.
    """

    turns: int | None = 50
    tokens: int | None = None
    cost_usd: float | None = None
    calls: int | None = None
    seconds: float | None = None
    at_limit: AtLimit = "stop"
    silence: float | None = None
    depth: int | None = 5
    children: int | None = None

    def __post_init__(self) -> None:
        for name in ("turns", "tokens", "cost_usd", "calls", "seconds", "silence", "depth", "children"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0):
                raise UsageError(f"Limits({name}={value!r}): give a number of at least 0, or None.")
            if isinstance(value, float) and name in _COUNTS:
                # As in Limits(tokens=1e6); a log in which a count has a point could not be read again.
                if value != inf and not value.is_integer():
                    raise UsageError(f"Limits({name}={value!r}): give a whole number of at least 0, or None.")
                force_setattr(self, name, None if value == inf else int(value))
        if self.at_limit not in ("stop", "answer"):
            raise UsageError(f"Limits(at_limit={self.at_limit!r}): take 'stop' or 'answer'.")


class PolicySpec(Plain, frozen=True):
    """Rules by name or glob; predicates appear by their name only, their verdicts are events."""

    allow: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()


class Guards(Plain, frozen=True):
    """After how many useless steps a run is ended; the model is told one step before. None switches a guard off."""

    empty_answers: int | None = 2
    repeated_calls: int | None = 4
    truncated_calls: int | None = 3


_NUMBER = (int, float, NoneType), "a number, or None"
_WHOLE = (int, NoneType), "a whole number, or None"
_SWITCH = (bool, NoneType), "True, False or None"
_SETTINGS: dict[str, tuple[tuple[type, ...], str]] = {
    "temperature": _NUMBER,
    "top_p": _NUMBER,
    "max_tokens": _WHOLE,
    "seed": _WHOLE,
    "stop": ((tuple, list), "a list of texts, such as ['END']"),
    "top_k": _WHOLE,
    "presence_penalty": _NUMBER,
    "frequency_penalty": _NUMBER,
    "thinking": ((str, int, NoneType), f"one of {', '.join(get_args(Effort))}, a number of tokens, or None"),
    "tool_choice": ((str,), "auto, none, required or the name of a tool"),
    "parallel_calls": _SWITCH,
    "cache": _SWITCH,
    "extra": ((dict,), "a dict"),
}


class ModelSettings(Plain, frozen=True):
    """How to sample and to think; None, or nothing, leaves it to the provider.

    `thinking` is an effort or a budget in tokens. `tool_choice` is auto, none, required or a tool's name. `cache=False`
    sends no prompt-cache marks. `extra` goes into the request's body as it is.
    """

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    top_k: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    thinking: Effort | int | None = None
    tool_choice: str = ""
    parallel_calls: bool | None = None
    cache: bool | None = None
    extra: dict[str, JSON] = {}

    def __post_init__(self) -> None:
        for name, (kinds, wanted) in _SETTINGS.items():
            value = getattr(self, name)
            # To Python a bool is a number; to those who read the log it is none.
            if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
                raise UsageError(f"ModelSettings({name}={value!r}): give {wanted}.")
        if isinstance(self.thinking, str) and self.thinking not in get_args(Effort):
            raise UsageError(f"ModelSettings(thinking={self.thinking!r}): give {_SETTINGS['thinking'][1]}.")
        if not all(isinstance(text, str) for text in cast(Sequence[object], self.stop)):
            raise UsageError(f"ModelSettings(stop={self.stop!r}): give {_SETTINGS['stop'][1]}.")

    def merged(self, over: ModelSettings | None) -> ModelSettings:
        """These settings, with whatever `over` sets in their place: agent < run < turn."""
        if over is None or over == _UNSET:
            return self
        values = {name: getattr(over, name) for name in over.__struct_fields__}
        changed = {name: value for name, value in values.items() if value != getattr(_UNSET, name)}
        return replace(self, **changed)


_UNSET = ModelSettings()


class ToolErrors(Plain, frozen=True):
    """What follows when tools fail: the model is told (default), or the run is stopped.

    `in_a_row`: so many failures of one tool in a row, then the model has one round without it, then the run is stopped.
    """

    then: Literal["report", "stop"] = "report"
    in_a_row: int | None = None


class Window(Plain, frozen=True):
    """How much of the past a model reads; None for `tokens` is what the model itself can read.

    Past `at` of it the older messages are compacted: `keep_first` and `keep_last` messages stay as they are. In the
    `background` the run goes on meanwhile, until there is no room left.
    """

    tokens: int | None = None
    at: float = 0.8
    keep_first: int = 0
    keep_last: int = 10
    background: bool = True
    is_on: bool = True

    def check(self) -> None:
        if self.tokens is not None and (type(self.tokens) is not int or self.tokens < 1):
            raise UsageError(f"Window(tokens={self.tokens!r}): give a number of tokens, or None for the model's own.")
        if type(self.at) not in (int, float) or not 0 < self.at <= 1:
            raise UsageError(f"Window(at={self.at!r}): give a part of the window, more than 0 and at most 1.")
        if self.keep_first < 0 or self.keep_last < 1:
            raise UsageError("Window: keep_first has to be at least 0, keep_last at least 1.")


class Reminder(Plain, frozen=True):
    """Words behind the conversation, for the next request alone, when the results of the last turn call for them.

    Each condition that is given has to hold: a result of such a tool, with such an outcome, with these words in it;
    `every` so many turns.
    """

    text: str
    tool: str = ""
    outcome: str = ""
    contains: str = ""
    every: int | None = None

    def check(self) -> None:
        if self.every is not None and self.every < 1:
            raise UsageError(f"Reminder(every={self.every!r}): give a number of turns, at least 1.")


class StopWhen(Plain, frozen=True):
    """A reason to end a run after a turn: all that is given has to hold. `text` is a pattern in the answer's words."""

    turns: int | None = None
    seconds: float | None = None
    tokens: int | None = None
    cost_usd: float | None = None
    errors: int | None = None
    tool: str = ""
    text: str = ""
    repeats: int | None = None

    def check(self) -> None:
        if not any(getattr(self, name) for name in self.__struct_fields__):
            raise UsageError("StopWhen() has no condition; give at least one, such as StopWhen(tool='submit').")
        try:
            re.compile(self.text)
        except re.error as error:
            raise UsageError(f"StopWhen(text={self.text!r}) is no pattern: {error}.") from None


class Inputs(Plain, frozen=True):
    """How inputs that wait are taken: `queued` ones when a run starts, `joined` ones at a turn.

    `one` at a time, or `all` that are due; a run starts with several only if they ask for the same overrides.
    """

    queued: Literal["one", "all"] = "one"
    joined: Literal["one", "all"] = "all"

    def check(self) -> None:
        for name in ("queued", "joined"):
            if getattr(self, name) not in ("one", "all"):
                raise UsageError(f"Inputs({name}={getattr(self, name)!r}): take 'one' or 'all'.")


AS_USUAL = Inputs()
"""The very object that agents have by default: what is at its default is not written, so it changes no digest."""


class AgentSpec(Plain, frozen=True):
    name: str
    model: str = ""
    instructions: str = ""
    tools: tuple[ToolSpec, ...] = ()
    policy: PolicySpec = PolicySpec()
    limits: Limits = Limits()
    settings: ModelSettings = ModelSettings()
    output: JSON = None
    concurrency: int | None = None
    guards: Guards = Guards()
    tool_errors: ToolErrors = ToolErrors()
    window: Window = Window()
    reminders: tuple[Reminder, ...] = ()
    stop_when: tuple[StopWhen, ...] = ()
    vets_input: bool = False
    inputs: Inputs = AS_USUAL


class Overrides(Plain, frozen=True):
    """What one input changes for its run; `agent` is who drives it, in the place of the session's own."""

    model: str | None = None
    limits: Limits | None = None
    settings: ModelSettings | None = None
    output: JSON = None
    tools: tuple[ToolSpec, ...] = ()
    agent: str | None = None


class NextTurn(Plain, frozen=True):
    """What a tool wants of the turn after it: tools that the model does not see then, sees alone, or sees at last.

    Those of `reveal` it sees from now on. `agent` is who takes over from then on.
    """

    hide: tuple[str, ...] = ()
    only: tuple[str, ...] | None = None
    settings: ModelSettings | None = None
    show: tuple[str, ...] = ()
    reveal: tuple[str, ...] = ()
    agent: str = ""

    def joined(self, other: NextTurn) -> NextTurn:
        """The wishes of several calls of one turn, the later one first; but who was to take over first, does."""
        settings = other.settings if self.settings is None else self.settings.merged(other.settings)
        only = self.only if other.only is None else other.only
        shown, revealed = (*self.show, *other.show), (*self.reveal, *other.reveal)
        return NextTurn((*self.hide, *other.hide), only, settings, shown, revealed, self.agent or other.agent)

    def shows(self, tool: ToolSpec) -> bool:
        is_offered = not (tool.hidden or tool.deferred) or tool.name in self.show
        return is_offered and tool.name not in self.hide and (self.only is None or tool.name in self.only)


class Every(Plain, frozen=True, tag="every"):
    """So many seconds after it was set, and again and again after as many."""

    seconds: float


class Cron(Plain, frozen=True, tag="cron"):
    """The times that a cron line of five fields names on the wall clock of a time zone."""

    line: str
    tz: str = "UTC"


class At(Plain, frozen=True, tag="at"):
    """Once, at a time: seconds since 1970, or written like 2030-12-24 18:00 in the time zone."""

    at: float | str
    tz: str = "UTC"


class Files(Plain, frozen=True, tag="files"):
    """Whenever files that fit the pattern change: a file, or those in a folder and below it."""

    path: str
    pattern: str = "*"
    is_recursive: bool = True
    with_deleted: bool = False


TriggerSpec: TypeAlias = Every | Cron | At | Files


def matches(pattern: str, name: str) -> bool:
    return pattern == name or fnmatchcase(name, pattern)
