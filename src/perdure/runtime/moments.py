"""What a hook sees: one moment per phase, with what it is about; the session around it is `here`.

Rule 1: a moment is read-only, but for state keys: `here.set` is committed with what the moment is part of. Rule 2: of
several hooks of a phase each sees what those before it have changed.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

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


class Here(msgspec.Struct, eq=False, gc=False):
    """The session around a moment: `state` is a snapshot, `deps` are the Runtime's, `run` is what it happens in."""

    place: Place
    state: SessionState
    run: int = 0
    wishes: Wishes | None = None

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
    def turn(self) -> int:
        return self.state.run.turn if self.state.run else 0

    def get(self, key: StateKey[T]) -> T:
        """The value of a state key as it stands."""
        return self._wishes().get(key, self.state)

    def set(self, key: StateKey[T], value: T) -> None:
        """Changes a state key, through an event."""
        self._wishes().set(key, value, self.state)

    def _wishes(self) -> Wishes:
        if self.wishes is None:
            self.wishes = Wishes(self.place.shelf)
        return self.wishes


class Moment(Protocol):
    """What all moments have."""

    @property
    def here(self) -> Here: ...


class SessionMoment(msgspec.Struct, eq=False, gc=False):
    """A session begins (before its first run), or was deleted."""

    here: Here


class RunMoment(msgspec.Struct, eq=False, gc=False):
    """A run has started, for these inputs."""

    here: Here
    inputs: tuple[int, ...] = ()


class RunEndMoment(msgspec.Struct, eq=False, gc=False):
    """A run has ended: reason, detail and output are in `end`."""

    here: Here
    end: RunEnded


class TurnMoment(msgspec.Struct, eq=False, gc=False):
    """A turn has started, or is over: its answer and all its calls."""

    here: Here
    number: int = 0


class ErrorMoment(msgspec.Struct, eq=False, gc=False):
    """A model call or a tool call has failed; `kind` is the model error's, or the call's outcome."""

    here: Here
    kind: str = ""
    detail: str = ""
    call: int = 0
    tool: str = ""


class InputMoment(msgspec.Struct, eq=False, gc=False):
    """An input that waits; `by` names the hook or the call that sent it where no person did."""

    here: Here
    input: int = 0
    parts: tuple[Part, ...] = ()
    by: str = ""
    overrides: Overrides = Overrides()

    @property
    def text(self) -> str:
        return _text(self.parts)


class RequestMoment(msgspec.Struct, eq=False, gc=False):
    """A request that is about to be sent."""

    here: Here
    request: ModelRequest = ModelRequest("", "", ())
    attempt: int = 1


class ResponseMoment(msgspec.Struct, eq=False, gc=False):
    """An answer that has come, and what was asked."""

    here: Here
    request: ModelRequest = ModelRequest("", "", ())
    response: ModelResponse = ModelResponse(())

    @property
    def text(self) -> str:
        return _text(self.response.parts)

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return tuple(part for part in self.response.parts if isinstance(part, ToolCall))


class AnswerMoment(msgspec.Struct, eq=False, gc=False):
    """A whole answer before anything of it is kept; `output` is the value where it fits the run's output type."""

    here: Here
    message: AssistantMessage = AssistantMessage(())
    output: JSON = None

    @property
    def text(self) -> str:
        return self.message.text

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return self.message.calls


class CallMoment(msgspec.Struct, eq=False, gc=False):
    """A call: `arguments` are the values that the tool gets, `verdict` is the policy's and the gates' so far."""

    here: Here
    call: int = 0
    name: str = ""
    arguments: dict[str, Any] = {}
    effect: Effect = "once"
    attempt: int = 1
    idempotency_key: str = ""
    verdict: Verdict = "allow"


class ResultMoment(msgspec.Struct, eq=False, gc=False):
    """A call that a tool carried out, and its outcome."""

    here: Here
    call: int = 0
    name: str = ""
    arguments: dict[str, Any] = {}
    outcome: Outcome = "ok"
    parts: tuple[Part, ...] = ()

    @property
    def text(self) -> str:
        return _text(self.parts)


class CompactionMoment(msgspec.Struct, eq=False, gc=False):
    """The messages that are to stand back behind a summary, and why."""

    here: Here
    action: CompactHistory | None = None
    messages: tuple[Message, ...] = ()


class EndMoment(msgspec.Struct, eq=False, gc=False):
    """The run would be completed with this output; `pushes` is how often it was pushed on already."""

    here: Here
    output: JSON = None
    text: str = ""
    pushes: int = 0


def _text(parts: tuple[Any, ...]) -> str:
    return "".join(part.text for part in parts if isinstance(part, Text))
