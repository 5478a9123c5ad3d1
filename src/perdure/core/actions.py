"""The closed union of work that the rules ask somebody to perform."""

from __future__ import annotations

from typing import TypeAlias

from perdure.core.events import CompactionCause, Event, PauseKind, RunEnded, StopCause
from perdure.core.messages import JSON, Plain
from perdure.core.specs import ModelSettings, NextTurn


class AppendEvents(Plain, frozen=True):
    """Facts that follow from the log alone."""

    events: tuple[Event, ...]


class StartRun(Plain, frozen=True):
    """Pins the agent as it is now and opens a run for these inputs."""

    inputs: tuple[int, ...]


class CallModel(Plain, frozen=True):
    """One turn's request. `inputs` join the run with it; `final` asks for an answer without tools.

    Middleware may set `model` and `settings` for this turn alone.
    """

    turn: int
    attempt: int = 1
    inputs: tuple[int, ...] = ()
    final: bool = False
    model: str = ""
    settings: ModelSettings | None = None
    next: NextTurn | None = None


class CheckCall(Plain, frozen=True):
    """Arguments against the schema, then the policy; user code may run, so its verdict is an event."""

    call: int
    name: str
    arguments: str
    approved: bool = False
    bound: str = ""


class SuspendCall(Plain, frozen=True):
    """Puts the call before a person."""

    call: int
    pause: int
    kind: PauseKind
    prompt: str = ""
    response: JSON = None


class VetInput(Plain, frozen=True):
    """Puts an input before the guardrails, before anything of it reaches the history."""

    input: int


class CompactHistory(Plain, frozen=True):
    """Makes the view shorter. In the `background` the run goes on; otherwise there is no room to go on."""

    cause: CompactionCause
    view: int
    background: bool = False


class SwitchAgent(Plain, frozen=True):
    """Another agent takes over, between two turns; `call` is the one that handed over, 0 if somebody else wants it."""

    agent: str
    call: int = 0


class MakeTools(Plain, frozen=True):
    """The tools that an agent has for one run alone: they are made before anything else of it is done."""

    run: int


class EndRun(Plain, frozen=True):
    """The run would end so; whoever stands around it may push it on."""

    end: RunEnded


class RunTool(Plain, frozen=True):
    """Starts the tool; the intent is committed first."""

    call: int
    name: str
    arguments: str
    attempt: int = 1
    digest: str = ""
    bound: str = ""
    operation: str = ""


class EndOperation(Plain, frozen=True):
    """Ends an operation that nobody follows any more."""

    call: int
    name: str
    operation: str


class RecallChild(Plain, frozen=True):
    """Ends the session in which a sub-agent works, and with it the call that waits for it."""

    call: int
    name: str
    child: str
    cause: StopCause


class ReportEnd(Plain, frozen=True):
    """Tells whoever waits for an input's end what came of it."""

    input: int


class DeliverMessage(Plain, frozen=True):
    """Brings a message to its session."""

    message: int


class AbortModel(Plain, frozen=True):
    """Breaks off the model's stream."""

    turn: int


class AbortCall(Plain, frozen=True):
    """Cancels a started tool; a tool that will not end in time is left behind, honestly."""

    call: int


Action: TypeAlias = (
    AppendEvents
    | StartRun
    | VetInput
    | CompactHistory
    | CallModel
    | CheckCall
    | SuspendCall
    | RunTool
    | EndOperation
    | AbortModel
    | AbortCall
    | RecallChild
    | ReportEnd
    | DeliverMessage
    | EndRun
    | SwitchAgent
    | MakeTools
)
