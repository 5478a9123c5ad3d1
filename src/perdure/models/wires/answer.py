"""Answer: what a stream has said so far. Readers put pieces in; deltas and, at the end, the response come out.

Rule: a call or a thought counts as closed only if the provider said so; only closed ones outlive a broken stream.
"""

from __future__ import annotations

from typing import cast

from msgspec.structs import replace

from perdure.core.codec import decode_json
from perdure.core.deltas import CallDelta, ModelDelta, PartClosed, TextDelta, ThinkingDelta
from perdure.core.errors import ModelError
from perdure.core.messages import JSON, AnswerPart, StopReason, Text, Thinking, ToolCall, Usage
from perdure.ports import ModelResponse


class _Words:
    __slots__ = ("extras", "pieces")

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.extras: JSON = None


class _Thought:
    __slots__ = ("extras", "is_closed", "pieces", "signature")

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.signature = ""
        self.extras: JSON = None
        self.is_closed = False


class _Call:
    __slots__ = ("extras", "id", "index", "is_closed", "name", "pieces")

    def __init__(self, index: int, name: str, id: str) -> None:
        self.index = index
        self.name = name
        self.id = id
        self.pieces: list[str] = []
        self.extras: JSON = None
        self.is_closed = False


class Answer:
    """`stop` and `usage` are set by the reader; `notes` say what was odd and did no harm."""

    __slots__ = ("_calls", "_parts", "_thoughts", "_words", "deltas", "notes", "stop", "usage")

    def __init__(self) -> None:
        self.deltas: list[ModelDelta] = []
        self.stop: StopReason | None = None
        self.usage: Usage | None = None
        self.notes: list[str] = []
        self._parts: list[_Words | _Thought | _Call] = []
        self._words: _Words | None = None
        self._calls: dict[object, _Call] = {}
        self._thoughts: dict[object, _Thought] = {}

    def take(self) -> list[ModelDelta]:
        """The deltas since it was last asked."""
        taken, self.deltas = self.deltas, []
        return taken

    def add_text(self, piece: str, extras: JSON = None) -> None:
        words = self._words
        if words is None:
            words = self._words = _Words()
            self._parts.append(words)
        words.pieces.append(piece)
        self.deltas.append(TextDelta(piece))
        if extras is not None:
            words.extras = extras
            self._words = None

    def end_text(self, extras: JSON = None) -> None:
        """What text comes next is a part of its own."""
        if self._words is not None and extras is not None:
            self._words.extras = extras
        self._words = None

    def drop_text(self) -> None:
        """What was said so far is no part of the answer, where the answer proper has come by another way."""
        self._words = None
        self._parts = [part for part in self._parts if not isinstance(part, _Words)]

    def add_thinking(self, piece: str, key: object = None) -> None:
        """A piece of the thought that is open last, or of the one with this key, where a format names them."""
        self._open_thought(key).pieces.append(piece)
        self.deltas.append(ThinkingDelta(piece))

    def close_thinking(self, signature: str = "", extras: JSON = None, key: object = None) -> None:
        """The thought is whole; one that was never shown in words is made now."""
        thought = self._open_thought(key)
        thought.signature, thought.extras, thought.is_closed = signature, extras, True
        self.deltas.append(PartClosed(Thinking("".join(thought.pieces), signature, extras)))

    def open_call(self, key: object, name: str, id: str = "") -> None:
        if key in self._calls:
            return
        self._words = None
        call = self._calls[key] = _Call(len(self._calls), name, id)
        self._parts.append(call)
        self.deltas.append(CallDelta(call.index, name))

    def add_arguments(self, key: object, piece: str) -> None:
        call = self._calls[key]
        call.pieces.append(piece)
        self.deltas.append(CallDelta(call.index, "", piece))

    def close_call(self, key: object, extras: JSON = None) -> None:
        """The provider says that the call is whole; what cannot be read as JSON is not, whatever it says."""
        call = self._calls[key]
        if call.is_closed:
            return
        call.extras = extras
        arguments = _arguments_of(call)
        if _is_json(arguments):
            call.is_closed = True
            self.deltas.append(PartClosed(ToolCall(0, call.name, arguments, call.id, extras)))

    @property
    def calls(self) -> int:
        return len(self._calls)

    def is_closed(self, key: object) -> bool:
        return key in self._calls and self._calls[key].is_closed

    def note(self, note: str) -> None:
        """Each is said once, however often it is true."""
        if note not in self.notes:
            self.notes.append(note)

    def response(self) -> ModelResponse:
        """The whole answer; a ModelError if the stream ended before its end, or said nothing up to its limit."""
        if self.stop is None:
            raise ModelError("The model's answer broke off before its end.", kind="cut")
        parts = tuple([part for piece in self._parts if (part := _part_of(piece)) is not None])
        if self.stop == "length" and isinstance(last := self._parts[-1] if self._parts else None, _Call):
            # A call that was cut right behind its name is not one without arguments.
            parts = (*parts[:-1], replace(cast(ToolCall, parts[-1]), arguments="".join(last.pieces)))
        if self.stop == "length" and not any(isinstance(part, Text | ToolCall) for part in parts):
            raise ModelError(
                "The model reached its output limit before it said anything; raise max_tokens or lower thinking.",
                kind="truncated",
            )
        return ModelResponse(parts, self.stop, self.usage, tuple(self.notes))

    def _open_thought(self, key: object) -> _Thought:
        last = self._parts[-1] if key is None and self._parts else self._thoughts.get(key)
        if isinstance(last, _Thought) and not last.is_closed:
            return last
        self._words = None
        thought = _Thought()
        self._parts.append(thought)
        if key is not None:
            self._thoughts[key] = thought
        return thought


def _part_of(piece: _Words | _Thought | _Call) -> AnswerPart | None:
    match piece:
        case _Words():
            text = "".join(piece.pieces)
            return Text(text, piece.extras) if text or piece.extras is not None else None
        case _Thought():
            return Thinking("".join(piece.pieces), piece.signature, piece.extras)
        case _Call():
            return ToolCall(0, piece.name, _arguments_of(piece), piece.id, piece.extras)


def _arguments_of(call: _Call) -> str:
    return "".join(call.pieces) or "{}"


def _is_json(text: str) -> bool:
    try:
        decode_json(text)
    except ValueError:
        return False
    return True
