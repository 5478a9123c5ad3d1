"""Chat Completions' answers: chunks, or one body, in; deltas and the response out.

Chat has no mark for the end of a call: it is closed when the next one has begun or the finish reason says that all is
well. The end is [DONE], or the end of the bytes after a finish reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import msgspec

from perdure.core.deltas import ModelDelta
from perdure.core.errors import ModelError
from perdure.core.messages import JSON
from perdure.models.wires.answer import Answer
from perdure.models.wires.json_tools import JsonAnswer
from perdure.models.wires.openai_events import Events
from perdure.models.wires.openai_failures import in_band
from perdure.models.wires.openai_usage import usage_of
from perdure.models.wires.openai_values import ValueStream
from perdure.models.wires.output_tool import WRAPPED
from perdure.models.wires.wire import encode
from perdure.ports import ModelResponse

_LENGTH = frozenset(("length", "max_tokens", "model_length"))
_FILTERED = frozenset(("content_filter", "sensitive"))
_BROKEN = frozenset(("error", "abort", "network_error", "insufficient_system_resource"))
_NORMAL = frozenset(("stop", "tool_calls", "function_call", "eos", "stop_sequence"))


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | dict[str, JSON] | None = None


class _CallPiece(msgspec.Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None
    extra_content: JSON = None


class _Said(msgspec.Struct, gc=False):
    """A delta, or a whole message. Content is a list where a server (Mistral) mixes thinking into it."""

    content: str | list[dict[str, JSON]] | None = None
    tool_calls: list[_CallPiece] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: list[dict[str, JSON]] | None = None
    refusal: str | None = None


class _Choice(msgspec.Struct, gc=False):
    index: int | None = 0
    delta: _Said | None = None
    message: _Said | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: JSON = None
    error: JSON = None
    message: JSON = None
    detail: JSON = None
    code: JSON = None
    type: JSON = None


class _Open(msgspec.Struct):
    """A call under way: the server's id for it, and whether it has any arguments yet."""

    key: int
    id: str
    is_answer: bool
    has_arguments: bool = False
    extras: JSON = None


_decode = msgspec.json.Decoder(_Chunk).decode


class ChatReader:
    """`tool` is the forced one whose arguments are the answer; `json` reads answers of models without tools."""

    def __init__(
        self, answer: Answer, *, tool: str = "", is_wrapped: bool = False, json: JsonAnswer | None = None
    ) -> None:
        self._answer = answer
        self._events = Events()
        self._tool = tool
        self._json = json
        self._value = ValueStream((WRAPPED,), is_raw=True) if is_wrapped else None
        self._is_marked = False
        self._failure: ModelError | None = None
        self._is_simple = json is None and not is_wrapped
        self._field = ""
        self._details: list[dict[str, JSON]] = []
        self._calls: dict[int, _Open] = {}
        self._opened = 0
        self._has_answered = False
        self._has_refused = False

    @property
    def is_done(self) -> bool:
        return self._is_marked or self._failure is not None

    def read(self, data: bytes) -> Sequence[ModelDelta]:
        if self._failure is not None:
            raise self._failure
        try:
            events = self._events.split(data)
            if self._events.is_plain:
                self._is_simple = False
            for event in events:
                self._take(event)
        except ModelError as error:
            # What was closed before the failure has to come out before it; the next to ask gets the failure.
            self._failure = None if self._is_marked else error
        return self._answer.take()

    def finish(self) -> ModelResponse:
        if self._failure is not None:
            raise self._failure
        if not self._is_marked:
            for event in self._events.finish():
                self._take(event)
        return self._answer.response()

    def _take(self, event: bytes) -> None:
        if self._is_marked:
            self._answer.note("data after the end")
            return
        if event == b"[DONE]":
            self._mark()
            return
        try:
            chunk = _decode(event)
        except (ValueError, RecursionError):
            self._misread()
            return
        choices = chunk.choices
        if choices:
            choice = choices[0]
            said = choice.delta
            # Nearly all chunks are a few words and nothing else.
            if (
                self._is_simple
                and said is not None
                and said.content.__class__ is str
                and choice.finish_reason is None
                and said.tool_calls is None
                and said.reasoning_content is said.reasoning is said.reasoning_details is said.refusal is None
                and not choice.index
                and chunk.usage is chunk.error is None
            ):
                if said.content:
                    self._answer.add_text(cast(str, said.content))
                return
        self._take_slowly(chunk)

    def _take_slowly(self, chunk: _Chunk) -> None:
        if chunk.error is not None:
            raise in_band(chunk.error)
        if chunk.choices is None and isinstance(chunk.message or chunk.detail, str | list | dict):
            raise in_band(
                {"message": chunk.message, "detail": chunk.detail, "code": chunk.code, "type": chunk.type},
            )
        for choice in chunk.choices or ():
            if not choice.index:
                self._take_choice(choice)
        if chunk.usage is not None:
            self._answer.usage = usage_of(chunk.usage)
            if self._answer.usage is None:
                self._answer.note("the usage cannot be true")
        if self._events.is_plain:
            if self._answer.stop is None and chunk.choices:
                # A body that could be read is whole, calls and all.
                self._answer.note("no finish reason")
                self._end("stop")
            self._is_marked = True

    def _take_choice(self, choice: _Choice) -> None:
        said = choice.delta or choice.message
        if self._answer.stop is not None:
            if choice.finish_reason or (said and (said.content or said.tool_calls)):
                self._answer.note("data after the end")
            return
        if said is not None:
            if said.reasoning_content or said.reasoning or said.reasoning_details:
                self._take_thinking(said)
            if said.content:
                self._take_content(said.content)
            if said.refusal:
                self._has_refused = True
                self._answer.add_text(said.refusal)
            for piece in said.tool_calls or ():
                self._take_call(piece)
        if choice.finish_reason:
            self._end(choice.finish_reason)

    def _take_thinking(self, said: _Said) -> None:
        text = said.reasoning_content or said.reasoning
        if text:
            self._field, self._is_simple = "reasoning_content" if said.reasoning_content else "reasoning", False
            self._answer.add_thinking(text)
        for detail in said.reasoning_details or ():
            _merge(self._details, detail)

    def _take_content(self, content: str | list[dict[str, JSON]]) -> None:
        if isinstance(content, str):
            self._say(content)
            return
        for part in content:
            match part:
                case {"type": "thinking", "thinking": pieces} if isinstance(pieces, list):
                    # Without a field to send it back in: this server does not want it.
                    self._field, self._is_simple = "thinking", False
                    self._answer.add_thinking("".join(_text_of(piece) for piece in cast(list[JSON], pieces)))
                case _:
                    self._say(_text_of(part))

    def _say(self, text: str) -> None:
        if not text:
            return
        if self._field:
            self._close_thought()
        if self._json is not None:
            self._json.add(text)
        elif self._value is not None and not self._tool:
            self._unwrap(text)
        else:
            self._answer.add_text(text)

    def _unwrap(self, text: str) -> None:
        said = self._value.add(text) if self._value is not None else text
        if said:
            self._answer.add_text(said)

    def _close_thought(self) -> None:
        """A thought ends where words or a call begin; details without words wait for a call or the end."""
        extras: JSON = None
        if self._details:
            extras = {"reasoning_details": self._details}
        elif self._field in ("reasoning", "reasoning_content"):
            extras = {"field": self._field}
        self._answer.close_thinking(extras=extras)
        self._field, self._details = "", []
        self._is_simple = self._json is self._value is None and not self._events.is_plain

    def _take_call(self, piece: _CallPiece) -> None:
        function = piece.function or _Function()
        index = piece.index or 0
        call = self._calls.get(index)
        # Some servers number all calls 0, or none, and tell them apart by id.
        if call is None or (piece.id and call.id and piece.id != call.id and function.name):
            call = self._calls[index] = self._open_call(piece, function.name or "")
        if piece.extra_content is not None:
            call.extras = {"extra_content": piece.extra_content}
        arguments = function.arguments
        if isinstance(arguments, dict):
            arguments = encode(arguments).decode()
        if arguments:
            self._add_arguments(call, arguments)

    def _open_call(self, piece: _CallPiece, name: str) -> _Open:
        if not name:
            raise ModelError("The model called a tool without a name; try again.", kind="cut")
        if self._field or self._details:
            self._close_thought()
        for earlier in self._calls.values():
            # Arguments may come after all calls have been named, so one without any is not known to be whole.
            if earlier.has_arguments:
                self._close_call(earlier)
        is_answer = name == self._tool
        call = _Open(self._opened, piece.id or "", is_answer)
        self._opened += 1
        if is_answer and self._has_answered:
            self._answer.note("a second answer was left out")
        elif is_answer:
            self._answer.drop_text()
        else:
            self._answer.open_call(call.key, name, call.id)
        return call

    def _add_arguments(self, call: _Open, arguments: str) -> None:
        call.has_arguments = True
        if self._answer.is_closed(call.key):
            if arguments.strip():
                raise ModelError("The model's answer went on with a call that had ended; try again.", kind="cut")
        elif not call.is_answer:
            self._answer.add_arguments(call.key, arguments)
        elif not self._has_answered:
            self._unwrap(arguments)

    def _close_call(self, call: _Open) -> None:
        if call.is_answer:
            self._has_answered = True
        else:
            self._answer.close_call(call.key, call.extras)

    def _end(self, reason: str) -> None:
        if reason in _FILTERED:
            raise ModelError(
                "The provider's filter stopped the answer (content_filter); change what is asked.",
                kind="content_filtered",
            )
        if reason in _BROKEN:
            raise ModelError(f"The provider broke the answer off ({reason}); try again.", kind="in_band")
        if self._field or self._details:
            self._close_thought()
        self._is_simple = False
        # A grammar allows spaces behind the answer, and small models like to write them up to the limit.
        value = self._json or self._value
        is_truncated = reason in _LENGTH and not (value is not None and value.is_whole)
        if self._json is not None:
            self._json.finish(is_truncated=is_truncated)
        elif self._value is not None and not is_truncated and self._value.undecided:
            self._answer.add_text(self._value.undecided)
        if is_truncated:
            self._answer.stop = "length"
            return
        if reason not in _NORMAL and reason not in _LENGTH:
            self._answer.note(f"unknown finish reason {reason[:40]!r}")
        for call in self._calls.values():
            self._close_call(call)
        self._answer.stop = "refusal" if self._has_refused else "calls" if self._answer.calls else "end"

    def _mark(self) -> None:
        # A call that no finish reason confirmed may be a half one; words may not.
        if self._answer.stop is None and not self._calls:
            self._answer.note("no finish reason")
            self._end("stop")
        self._is_marked = True

    def _misread(self) -> None:
        """What cannot be read is the end of the attempt, unless the answer is complete or a body is still coming."""
        if self._answer.stop is not None:
            self._answer.note("data after the end")
        elif not self._events.is_plain:
            raise ModelError("The model's answer is not the JSON that was agreed on; try again.", kind="cut")


def _merge(details: list[dict[str, JSON]], piece: dict[str, JSON]) -> None:
    """Details come in pieces too: those of one kind and index are one."""
    last = details[-1] if details else None
    if last is None or any(last.get(key) != piece.get(key) for key in ("type", "index")):
        details.append(dict(piece))
        return
    for key, value in piece.items():
        if key in ("text", "summary", "data") and isinstance(value, str) and isinstance(last.get(key), str):
            last[key] += value
        elif value is not None:
            last[key] = value


def _text_of(part: JSON) -> str:
    match part:
        case str():
            return part
        case {"text": str() as text}:
            return text
        case _:
            return ""
