"""What a hook sees: one moment per phase, with what it is about and the session around it.

Rule 1: a moment is read-only, but for state keys: `set` is committed with what the moment is part of. Rule 2: of
several hooks of a phase each sees what those before it have changed.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from perdure.core.actions import CompactHistory
from perdure.core.events import RunEnded
from perdure.core.messages import JSON, AssistantMessage, Message, Outcome, Part, Text, ToolCall
from perdure.core.specs import Effect, Overrides, Verdict
from perdure.core.state import SessionState
from perdure.ports import ModelRequest, ModelResponse
from perdure.runtime.wishes import Shelf, StateKey, Wishes

T = TypeVar("T")


class Place(msgspec.Struct, frozen=True, eq=False):
    """What all moments of a session share while it is driven."""

    session: str
    tenant: str
    deps: Any
    data: JSON
    shelf: Shelf


class Moment(msgspec.Struct, eq=False):
    """`state` is a snapshot of the session; `deps` are those of the Runtime."""

    place: Place
    state: SessionState

    @property
    def session(self) -> str:
        return self.place.session

    @property
    def tenant(self) -> str:
        return self.place.tenant

    @property
    def deps(self) -> Any:
        return self.place.deps

    @property
    def data(self) -> JSON:
        """The session's data, plain."""
        return self.place.data

    @property
    def run(self) -> int:
        """The number of the open run, or of the last one."""
        return self.state.run.run if self.state.run else self.state.runs

    @property
    def turn(self) -> int:
        return self.state.run.turn if self.state.run else 0

    wishes: Wishes | None = None

    def get(self, key: StateKey[T]) -> T:
        """The value of a state key as it stands."""
        if self.wishes is None:
            self.wishes = Wishes(self.place.shelf)
        return self.wishes.get(key, self.state)

    def set(self, key: StateKey[T], value: T) -> None:
        """Changes a state key, through an event."""
        if self.wishes is None:
            self.wishes = Wishes(self.place.shelf)
        self.wishes.set(key, value, self.state)


class PastMoment(Moment, eq=False):
    """Something that was committed, in the run number `of`; the state may have moved on since."""

    of: int = 0

    @property
    def run(self) -> int:
        return self.of


class SessionMoment(PastMoment, eq=False):
    """A session begins (before its first run), or was deleted."""


class RunMoment(PastMoment, eq=False):
    """A run has started, for these inputs."""

    inputs: tuple[int, ...] = ()


class RunEndMoment(PastMoment, eq=False):
    """A run has ended: reason, detail and output are in `end`."""

    end: RunEnded | None = None


class TurnMoment(PastMoment, eq=False):
    """A turn has started, or is over: its answer and all its calls."""

    number: int = 0

    @property
    def turn(self) -> int:
        return self.number


class ErrorMoment(PastMoment, eq=False):
    """A model call or a tool call has failed; `kind` is the model error's, or the call's outcome."""

    kind: str = ""
    detail: str = ""
    call: int = 0
    tool: str = ""


class InputMoment(Moment, eq=False):
    """An input that waits; `by` names the hook or the call that sent it where no person did."""

    input: int = 0
    parts: tuple[Part, ...] = ()
    by: str = ""
    overrides: Overrides = Overrides()

    @property
    def text(self) -> str:
        return _text(self.parts)


class RequestMoment(Moment, eq=False):
    """A request that is about to be sent."""

    request: ModelRequest = ModelRequest("", "", ())
    attempt: int = 1


class ResponseMoment(Moment, eq=False):
    """An answer that has come, and what was asked."""

    request: ModelRequest = ModelRequest("", "", ())
    response: ModelResponse = ModelResponse(())

    @property
    def text(self) -> str:
        return _text(self.response.parts)

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return tuple(part for part in self.response.parts if isinstance(part, ToolCall))


class AnswerMoment(Moment, eq=False):
    """A whole answer before anything of it is kept; `output` is the value where it fits the run's output type."""

    message: AssistantMessage = AssistantMessage(())
    output: JSON = None

    @property
    def text(self) -> str:
        return self.message.text

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return self.message.calls


class CallMoment(Moment, eq=False):
    """A call: `arguments` are the values that the tool gets, `verdict` is the policy's and the gates' so far."""

    call: int = 0
    name: str = ""
    arguments: dict[str, Any] = {}
    effect: Effect = "once"
    attempt: int = 1
    idempotency_key: str = ""
    verdict: Verdict = "allow"


class ResultMoment(Moment, eq=False):
    """A call that a tool carried out, and its outcome."""

    call: int = 0
    name: str = ""
    arguments: dict[str, Any] = {}
    outcome: Outcome = "ok"
    parts: tuple[Part, ...] = ()

    @property
    def text(self) -> str:
        return _text(self.parts)


class CompactionMoment(Moment, eq=False):
    """The messages that are to stand back behind a summary, and why."""

    action: CompactHistory | None = None
    messages: tuple[Message, ...] = ()


class EndMoment(Moment, eq=False):
    """The run would be completed with this output; `pushes` is how often it was pushed on already."""

    output: JSON = None
    text: str = ""
    pushes: int = 0


def _text(parts: tuple[Any, ...]) -> str:
    return "".join(part.text for part in parts if isinstance(part, Text))
