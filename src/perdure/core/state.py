"""SessionState: what a log means, as plain data. `core/fold.py` makes it of events.

Rule: a state, once made, never changes.
"""

from __future__ import annotations

from typing import Literal

from perdure.core.calls import Call, place_of
from perdure.core.events import (
    EndReason,
    InputAccepted,
    MessageSent,
    ModelFailed,
    ModelResponded,
    Origin,
    Reply,
    Reservation,
    StopRequested,
    TriggerSet,
)
from perdure.core.guards import Circles
from perdure.core.messages import (
    JSON,
    Message,
    Part,
    Plain,
    Usage,
)
from perdure.core.shared import Buffer, Index
from perdure.core.specs import AgentSpec, Limits, ModelSettings, NextTurn, Overrides, ToolSpec


class Owed(Plain, frozen=True):
    """An input whose end somebody waits for; of a run that has ended, its number. One of a run's `pays` for it.

    `after`: the last message that was sent before the end.
    """

    input: int
    reply: Reply
    run: int = 0
    pays: bool = False
    hops: int = 0
    after: int = 0


class DeadLetter(Plain, frozen=True):
    """A message that could not be brought."""

    sent: MessageSent
    why: str


class RunState(Plain, frozen=True):
    """The open run and its current turn; `agent` drives it, until the one that is `wanted` takes over."""

    run: int
    inputs: tuple[int, ...]
    agent: str = ""
    wanted: str = ""
    overrides: Overrides = Overrides()
    limits: Limits = Limits()
    model: str = ""
    settings: ModelSettings = ModelSettings()
    output: JSON = None
    continues: int | None = None
    tools: tuple[ToolSpec, ...] = ()
    window: int | None = None
    blocked: str = ""
    values: dict[str, JSON] = {}
    next: NextTurn = NextTurn()
    turn: int = 0
    attempt: int = 0
    awaiting: Literal["", "model", "interrupted"] = ""
    final: bool = False
    reserved: Reservation = Reservation()
    calls: tuple[Call, ...] = ()
    background: tuple[Call, ...] = ()
    arrived: tuple[Part, ...] = ()
    response: ModelResponded | None = None
    failure: ModelFailed | None = None
    stop: StopRequested | None = None
    repairs: int = 0
    short_of: str = ""
    rejections: int = 0
    pushes: int = 0
    asked_tokens: int = 0
    tokens_saved: int = 0
    compactions: int = 0
    compacted_at: int = 0
    compacted_in_vain: int = 0
    circles: Circles = Circles()
    called: int = 0
    usage: Usage = Usage()
    cost_usd: float = 0.0
    is_priced: bool = True
    seconds: float = 0.0
    replies: tuple[Owed, ...] = ()
    hops: int = 0
    children: int = 0
    given: tuple[Limits, ...] = ()


class RunSummary(Plain, frozen=True):
    """What is left of a run that ended; if it is not priced, `cost_usd` is only what is known of its cost.

    `agent` drove it at last; `is_chosen` if that one was chosen for this run alone.
    """

    run: int
    reason: EndReason
    detail: str = ""
    output: JSON = None
    schema: JSON = None
    usage: Usage = Usage()
    cost_usd: float = 0.0
    is_priced: bool = True
    turns: int = 0
    called: int = 0
    seconds: float = 0.0
    agent: str = ""
    is_chosen: bool = False


class KeyedInput(Plain, frozen=True, gc=False):
    input: int
    digest: str


class Remembered(Plain, frozen=True, gc=False):
    """A decision that satisfies later asks: of one tool, and if `digest` is set only with those arguments."""

    pattern: str
    digest: str = ""


class SessionState(Plain, frozen=True):
    """`agent` is the session's own now, `home` the one that it was opened with.

    `history` is what the model reads: view number `view` of the past, in which `asked` is the last input.

    `ledger` stands word for word in every summary. `vetted` are inputs that a guardrail has seen, with its objection.
    `estimated_tokens` is our own count of the history, `token_ratio` how far the provider's differs. `taken` has the
    run that took each input; none, 0, took one that was retracted. `owed` and `outbox` are what other sessions have not
    been told yet.
    """

    seq: int = 0
    uid: str = ""
    id: str = ""
    tenant: str = ""
    agent: str = ""
    home: str = ""
    data: JSON = None
    metadata: dict[str, str] = {}
    origin: Origin | None = None
    spec: AgentSpec | None = None
    spec_digest: str = ""
    epoch: int = 0
    inputs: int = 0
    runs: int = 0
    calls: int = 0
    queue: tuple[InputAccepted, ...] = ()
    keys: Index[str, KeyedInput] = Index()
    taken: Index[int, int] = Index()
    ended: Buffer[RunSummary] = Buffer()
    history: Buffer[Message] = Buffer()
    view: int = 0
    asked: int = -1
    ledger: tuple[str, ...] = ()
    revealed: tuple[str, ...] = ()
    vetted: dict[int, str] = {}
    origins: Index[str, int] = Index()
    triggers: dict[str, TriggerSet] = {}
    title: str = ""
    priority: int = 0
    run: RunState | None = None
    early_stop: StopRequested | None = None
    remembered: tuple[Remembered, ...] = ()
    decided: Index[str, str] = Index()
    values: dict[str, JSON] = {}
    has_spilled: bool = False
    model: str = ""
    settings: ModelSettings = ModelSettings()
    usage: Usage = Usage()
    cost_usd: float = 0.0
    is_priced: bool = True
    context_tokens: int = 0
    estimated_tokens: int = 0
    overhead_tokens: int = 0
    token_ratio: float = 1.0
    messages: int = 0
    owed: tuple[Owed, ...] = ()
    outbox: tuple[MessageSent, ...] = ()
    dead: tuple[DeadLetter, ...] = ()


def new_state() -> SessionState:
    """The state before the first event; shares nothing with other sessions."""
    return SessionState(keys=Index(), taken=Index(), decided=Index(), ended=Buffer(), history=Buffer(), origins=Index())


def agent_of(state: SessionState) -> str:
    """Whose the next work is: that of the open run, else of the first input that is due, else the session's own."""
    if state.run is not None:
        return state.run.agent
    due = next((queued.overrides.agent for queued in state.queue if queued.at is None), None)
    return due or state.agent


def has_due_input(state: SessionState) -> bool:
    """Whether an input waits for nothing but its turn."""
    return any(queued.at is None for queued in state.queue)


def find_call(run: RunState | None, ordinal: int) -> Call | None:
    """A call of the turn, or one in the background; of a call that went there, the one that goes on."""
    if run is None:
        return None
    if run.background and (at := place_of(run.background, ordinal)) is not None:
        return run.background[at]
    at = place_of(run.calls, ordinal)
    return None if at is None else run.calls[at]


def in_flight(state: SessionState) -> bool:
    """Whether the log holds an intent without its outcome."""
    run = state.run
    if run is None:
        return False
    if run.awaiting == "model":
        return True
    calls = (*run.calls, *run.background) if run.background else run.calls
    return "started" in [call.status for call in calls]
