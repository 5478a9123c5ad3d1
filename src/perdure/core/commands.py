"""The closed union of requests from outside: each is accepted, as events, or refused with a typed error."""

from __future__ import annotations

from typing import Literal, TypeAlias

from perdure.core.events import Address, CallEnded, DecisionKind, HistoryCompacted, HistoryCut, HistoryImported, Reply
from perdure.core.messages import JSON, Part, Plain
from perdure.core.specs import Busy, Limits, ModelSettings, Overrides


class SendInput(Plain, frozen=True):
    """New work. The same key with the same digest is the same input; with another digest a conflict."""

    parts: tuple[Part, ...]
    busy: Busy = "queue"
    key: str | None = None
    digest: str = ""
    overrides: Overrides = Overrides()
    at: float | None = None
    by: str = ""
    reply: Reply | None = None
    hops: int = 0


class ChangeInput(Plain, frozen=True):
    """Other words for an input that waits, or without `parts` its retraction. The first of this and a run gets it."""

    input: int
    parts: tuple[Part, ...] | None = None
    by: str = ""


class ContinueRun(Plain, frozen=True):
    """The last run goes on after a limit, a stop or a failure, without new input."""

    overrides: Overrides = Overrides()


class Decide(Plain, frozen=True):
    """Answers one suspended call; `pending` is the id that was shown. The same decision `id` again changes nothing."""

    pending: str
    decision: DecisionKind
    by: str = ""
    reason: str = ""
    value: JSON = None
    arguments: str | None = None
    remember: str = ""
    id: str = ""


class DecideAll(Plain, frozen=True):
    """Several decisions at once: all of them, or none."""

    decisions: tuple[Decide, ...]


class StopRun(Plain, frozen=True):
    """`stop` lets started tools finish, `cancel` does not; `seconds` and `silence` are the run's own limits.

    With a `reply` only the work for that call ends; an input that waits for its run is retracted.
    """

    cause: Literal["stop", "cancel", "seconds", "silence"]
    by: str = ""
    reply: Reply | None = None


class EndChild(Plain, frozen=True):
    """A sub-agent's session tells how it ended; what comes twice, or too late, changes nothing."""

    child: str
    ended: CallEnded


class SendMessage(Plain, frozen=True):
    """A message for another session. With an `agent` it starts a child; without parts it stops one."""

    to: Address
    parts: tuple[Part, ...] = ()
    agent: str = ""
    limits: Limits | None = None
    by: str = ""


class SendAgain(Plain, frozen=True):
    """A dead letter is sent once more."""

    message: int


class ChangeSettings(Plain, frozen=True):
    """The session's own model, settings and agent from its next turn on, what people call it, or how urgent it is."""

    model: str = ""
    settings: ModelSettings = ModelSettings()
    title: str | None = None
    agent: str = ""
    priority: int | None = None


class ChangeState(Plain, frozen=True):
    """State keys, from outside of a call; each name says its scope."""

    changes: dict[str, JSON]
    by: str = ""
    origin: str = ""


class CompactView(Plain, frozen=True):
    """A compaction that somebody made for the view as it was then."""

    compacted: HistoryCompacted


class CutHistory(Plain, frozen=True):
    """The conversation goes back: what is left of it was worked out for the session at seq `head`."""

    cut: HistoryCut
    head: int


class ImportHistory(Plain, frozen=True):
    """Messages from elsewhere, mended by whoever imports them, numbered behind the session's last call."""

    imported: HistoryImported


class CancelBackground(Plain, frozen=True):
    """Ends background calls: those of these names, or all of them."""

    names: tuple[str, ...] = ()
    by: str = ""


class ExpireCalls(Plain, frozen=True):
    """The clock's word that it is `now`: suspended calls past their time are denied, inputs of then are due."""

    now: float


Command: TypeAlias = (
    SendInput
    | ChangeInput
    | ContinueRun
    | Decide
    | DecideAll
    | StopRun
    | CancelBackground
    | EndChild
    | SendMessage
    | SendAgain
    | ChangeSettings
    | ChangeState
    | CompactView
    | CutHistory
    | ImportHistory
    | ExpireCalls
)
