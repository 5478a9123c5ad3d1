"""The closed union of facts. Never changed, never renamed: a new shape is a new kind, an upcast and a golden log.

Kinds that later work adds are listed in docs/decisions/0002-event-kinds.md, so that the union stays under 26.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from perdure.core.messages import JSON, AssistantMessage, Message, Outcome, Part, Plain, StopReason, Usage
from perdure.core.specs import (
    AgentSpec,
    Busy,
    Effect,
    Limits,
    Missed,
    ModelSettings,
    NextTurn,
    OnUnknown,
    Overrides,
    ToolKind,
    ToolSpec,
    TriggerSpec,
    Verdict,
)

EndReason = Literal["completed", "limit", "stopped", "cancelled", "failed", "refusal"]
PauseKind = Literal["approval", "question", "frontend", "external", "unknown", "listen", "child"]
DecisionKind = Literal["approve", "deny", "edit", "answer", "retry"]
DefaultDecision = Literal["approve", "deny", "answer"]
StopCause = Literal["stop", "cancel", "interrupt", "seconds", "silence"]
OrphanPolicy = Literal["end", "finish"]
CompactionCause = Literal["threshold", "overflow", "request"]


class Origin(Plain, frozen=True):
    """Where a session comes from: a fork's past, or a parent that started it (`agents`: whose, from the root down).

    An `orphan` finishes its work when its parent is gone; otherwise it is ended with it.
    """

    session: str
    seq: int = 0
    call: int = 0
    agents: tuple[str, ...] = ()
    orphan: OrphanPolicy = "end"


class Address(Plain, frozen=True):
    """Whom a message is for: the parent, a child that was started under this name, or a session of the same tenant."""

    kind: Literal["parent", "child", "session"]
    name: str = ""


class Reply(Plain, frozen=True, gc=False):
    """Who is told of the end of an input's run: a session (by uid), and there the call that waits for it, if any."""

    session: str
    call: int = 0


class Spent(Plain, frozen=True):
    """What a sub-agent has used; with None for `cost_usd` a price was not known."""

    usage: Usage = Usage()
    cost_usd: float | None = 0.0
    calls: int = 0


class Reservation(Plain, frozen=True, gc=False):
    """What a model call may cost at most; what it did cost settles it."""

    tokens: int = 0
    cost_usd: float = 0.0


class Switched(Plain, frozen=True):
    """A change of agents in the middle of a run, and what the run has from then on of what an agent decides.

    With an `error` nothing has changed: the agent that is pinned is the one that goes on.
    """

    model: str = ""
    settings: ModelSettings = ModelSettings()
    output: JSON = None
    tools: tuple[ToolSpec, ...] = ()
    window: int | None = None
    error: str = ""


# A session and what comes into it


class SessionOpened(Plain, frozen=True, tag=True):
    """The first fact of a log, or of a fork's own part of it. What has priority comes first."""

    uid: str
    id: str
    agent: str
    tenant: str = ""
    data: JSON = None
    metadata: dict[str, str] = {}
    origin: Origin | None = None
    priority: int = 0


class AgentPinned(Plain, frozen=True, tag=True):
    """The agent's definition, written when it differs from the last one. A run keeps the one that it began with.

    Unless it is `switched`: then another agent goes on with the open run.
    """

    digest: str
    spec: AgentSpec
    switched: Switched | None = None


class InputAccepted(Plain, frozen=True, tag=True):
    """Somebody's words, or (`continues`) the wish that an ended run goes on.

    `at`: not before that time. `by` is set where no person speaks: the hook that pushes a run on, the call that
    scheduled it, the session that sent it, whose `reply` says who hears of its run's end. `hops` counts the sessions
    that it came through.
    """

    input: int
    parts: tuple[Part, ...] = ()
    busy: Busy = "queue"
    key: str | None = None
    digest: str = ""
    overrides: Overrides = Overrides()
    continues: int | None = None
    at: float | None = None
    by: str = ""
    reply: Reply | None = None
    hops: int = 0


class InputChanged(Plain, frozen=True, tag=True):
    """What became of an input that waits: other words, a guardrail's verdict (`vetted`, or `blocked` why), its time.

    `overrides` are what a hook wants for the input's run, in place of those that came with it. Words without a verdict
    are somebody's edit, which is put before the guardrails again; `retracted`: no run will take it.
    """

    input: int
    parts: tuple[Part, ...] | None = None
    vetted: bool = False
    blocked: str = ""
    due: bool = False
    by: str = ""
    overrides: Overrides | None = None
    retracted: bool = False


class SettingsChanged(Plain, frozen=True, tag=True):
    """From its next turn on the session has this model; nothing for a field means the agent's own again.

    `title` is what people call the session; None leaves it, or the priority, as it is. So does no name of an `agent`;
    another one is the session's from now on, and an open run's from its next turn on.
    """

    model: str = ""
    settings: ModelSettings = ModelSettings()
    title: str | None = None
    agent: str = ""
    priority: int | None = None


class StateChanged(Plain, frozen=True, tag=True):
    """State keys changed outside of a call; each name says its scope. The same `origin` twice counts once."""

    changes: dict[str, JSON]
    by: str = ""
    origin: str = ""


class TriggerSet(Plain, frozen=True, tag=True):
    """A trigger as it is from now on, whole: what sends the session an input by itself. Without a `trigger` it is gone.

    Every planned time up to `until` is settled; at `next_at` somebody has to look again. The `artifact` is the list of
    files as they were last seen. With an `error` the last time came to nothing, or the next is not known.
    """

    name: str
    trigger: TriggerSpec | None = None
    template: str = ""
    missed: Missed = "once"
    busy: Busy = "queue"
    until: float = 0.0
    next_at: float | None = None
    is_paused: bool = False
    fired: int = 0
    last_at: float | None = None
    artifact: str = ""
    error: str = ""
    by: str = ""


# What the model reads of the past


class HistoryCompacted(Plain, frozen=True, tag=True):
    """The messages from `start` to `stop` of the view stand back behind a summary; nothing is lost, the log is whole.

    `view` is the view that it was made for: made for an older one it changes nothing. `ledger` has the new lines to be
    kept word for word, `pruned` the calls whose results are only hinted at from now on. With an `error` it failed.
    """

    view: int
    cause: CompactionCause
    start: int = 0
    stop: int = 0
    parts: tuple[Part, ...] = ()
    ledger: tuple[str, ...] = ()
    pruned: tuple[int, ...] = ()
    tokens_before: int = 0
    tokens_after: int = 0
    model: str = ""
    usage: Usage = Usage()
    cost_usd: float | None = 0.0
    error: str = ""
    by: str = ""


class HistoryCut(Plain, frozen=True, tag=True):
    """The conversation goes back to what it was at seq `to`: the first `keep` messages of the view, then these.

    The session's state keys and its ledger go back with it; the world, and what was paid, do not.
    """

    to: int
    keep: int = 0
    messages: tuple[Message, ...] = ()
    values: dict[str, JSON] = {}
    by: str = ""
    ledger: tuple[str, ...] = ()


class HistoryImported(Plain, frozen=True, tag=True):
    """A conversation from elsewhere, with our ordinals, repaired once: `repairs` says what had to be mended."""

    messages: tuple[Message, ...]
    repairs: tuple[str, ...] = ()
    source: str = ""


# A run


class RunStarted(Plain, frozen=True, tag=True):
    run: int
    inputs: tuple[int, ...]
    limits: Limits = Limits()
    model: str = ""
    settings: ModelSettings = ModelSettings()
    output: JSON = None
    continues: int | None = None
    tools: tuple[ToolSpec, ...] = ()
    window: int | None = None


class RunResumed(Plain, frozen=True, tag=True):
    """A new driver found open intents: whatever was under way is interrupted."""

    epoch: int


class StopRequested(Plain, frozen=True, tag=True):
    run: int
    cause: StopCause
    by: str = ""


class RunEnded(Plain, frozen=True, tag=True):
    run: int
    reason: EndReason
    detail: str = ""
    output: JSON = None


# A model call


class ModelCalled(Plain, frozen=True, tag=True):
    """The intent: committed before the request leaves. `inputs` joined the run at this turn."""

    turn: int
    attempt: int = 1
    inputs: tuple[int, ...] = ()
    reserved: Reservation = Reservation()
    final: bool = False


class ModelResponded(Plain, frozen=True, tag=True):
    """`model` is set where a fallback answered. `seconds`: active time since the fact before it.

    `output` and `invalid` say how the answer fits the run's output type. `wasted` was paid for attempts that came to
    nothing; `cost_usd` has all of it, or None where a price is not known.
    """

    message: AssistantMessage
    model: str = ""
    stop: StopReason = "end"
    usage: Usage = Usage()
    cost_usd: float | None = None
    seconds: float = 0.0
    output: JSON = None
    invalid: str = ""
    wasted: Usage = Usage()


class ModelFailed(Plain, frozen=True, tag=True):
    """`kind` is a model error's, or `limit` (no room for the call), `stopped` (broken off) or `internal`.

    A guardrail's `rejected` says what the model shall do better; its `blocked` ends the run. Nothing of such an answer
    is kept.
    """

    kind: str
    detail: str = ""
    seconds: float = 0.0
    wasted: Usage = Usage()
    cost_usd: float | None = None


# A tool call, by ordinal


class CallChecked(Plain, frozen=True, tag=True):
    """The verdict on a call; `digest` is that of its arguments, `rule` says by what.

    `bound` binds everything that an approval is for: tool, arguments, schema, policy, requester, and the `snapshot`
    that a prepared call showed. A verdict of stale takes an approval back whose binding no longer holds. `queue` is the
    tool's.
    """

    call: int
    verdict: Verdict
    rule: str = ""
    reason: str = ""
    digest: str = ""
    sequential: bool = False
    bound: str = ""
    kind: ToolKind = "function"
    prompt: str = ""
    response: JSON = None
    snapshot: JSON = None
    revision: str = ""
    valid_until: float | None = None
    queue: str = ""


class CallSuspended(Plain, frozen=True, tag=True):
    """The call waits for a decision; `pause` counts the call's suspensions, so that a late answer finds no other.

    An answer has to fit `response`. When nobody decides in time, the `default` is decided.
    """

    call: int
    pause: int
    kind: PauseKind
    prompt: str = ""
    expires_at: float | None = None
    response: JSON = None
    default: DefaultDecision = "deny"
    default_value: JSON = None


class CallDecided(Plain, frozen=True, tag=True):
    call: int
    pause: int
    decision: DecisionKind
    by: str = ""
    reason: str = ""
    value: JSON = None
    arguments: str | None = None
    remember: str = ""
    id: str = ""


class CallStarted(Plain, frozen=True, tag=True):
    """The intent: committed before the tool starts. `attempt` 2 and later repeat it after a crash.

    A sub-agent works in the session `child` (a uid) and may spend what is `granted`.
    """

    call: int
    effect: Effect = "once"
    attempt: int = 1
    key: str = ""
    on_unknown: OnUnknown = "ask"
    child: str = ""
    granted: Limits | None = None


class CallAdvanced(Plain, frozen=True, tag=True):
    """A call under way has an operation elsewhere now, which outlives this process: re-attach, never start again.

    `background`: it goes on by that name while the model does other things; its outcome comes as news.
    """

    call: int
    operation: str
    expires_at: float | None = None
    background: bool = False


class CallEnded(Plain, frozen=True, tag=True):
    """The one outcome of a call. `in_doubt`: it may have taken effect although it did not end well.

    `spilled`: the parts show only the ends of a longer text. `ends`: the run is to end with `output`. `changes` are
    those of the tool's state keys, `next` its wishes for the next turn; they are committed with the outcome. `spent` is
    what a sub-agent has used.
    """

    call: int
    outcome: Outcome
    parts: tuple[Part, ...] = ()
    in_doubt: bool = False
    seconds: float = 0.0
    spilled: bool = False
    ends: bool = False
    output: JSON = None
    changes: dict[str, JSON] = {}
    next: NextTurn | None = None
    spent: Spent | None = None


# Between sessions


class MessageSent(Plain, frozen=True, tag=True):
    """A message on its way, by number; the same number again sends it once more, and it still arrives once.

    With an `agent` it starts a child of that name where there is none. Without parts it stops the child.
    """

    message: int
    to: Address
    parts: tuple[Part, ...] = ()
    agent: str = ""
    limits: Limits | None = None
    by: str = ""
    hops: int = 0


class MessageSettled(Plain, frozen=True, tag=True):
    """What became of a message, or of the news of an input's end: it is there, or (`dead`) why it cannot be."""

    message: int = 0
    input: int = 0
    dead: str = ""


class Noted(Plain, frozen=True, tag=True):
    """What no rule reads: attempts, waits, failures of hooks."""

    kind: str
    data: JSON = None


Event: TypeAlias = (
    SessionOpened
    | AgentPinned
    | InputAccepted
    | InputChanged
    | SettingsChanged
    | StateChanged
    | TriggerSet
    | HistoryCompacted
    | HistoryCut
    | HistoryImported
    | RunStarted
    | RunResumed
    | StopRequested
    | RunEnded
    | ModelCalled
    | ModelResponded
    | ModelFailed
    | CallChecked
    | CallSuspended
    | CallDecided
    | CallStarted
    | CallAdvanced
    | CallEnded
    | MessageSent
    | MessageSettled
    | Noted
)
