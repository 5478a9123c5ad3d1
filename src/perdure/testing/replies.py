"""What a scripted model may say: text, calls, thinking, errors, and a Reply for the details of the stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, cast

import msgspec

from perdure.core.codec import encode_json
from perdure.core.deltas import CallDelta, ModelDelta, PartClosed, TextDelta, ThinkingDelta
from perdure.core.errors import ModelError, UsageError
from perdure.core.messages import JSON, AnswerPart, StopReason, Text, Thinking, ToolCall, Usage
from perdure.ports import ModelResponse

ReplyPart: TypeAlias = str | Text | Thinking | ToolCall


def call(name: str, /, **arguments: JSON) -> ToolCall:
    """A tool call as the model would write it."""
    return ToolCall(0, name, encode_json(arguments).decode())


class Reply:
    """An answer with its details.

    `deltas` or `chunk` (characters) cut the text into pieces; `delay` is the silence before the first piece
    and `stall` the one after it, in seconds; `cut_after` breaks the stream off after so many pieces. A call and a
    thought are two pieces each: what they say, and that they are closed.
    """

    __slots__ = ("chunk", "cut_after", "delay", "deltas", "parts", "stall", "stop", "usage")

    def __init__(
        self,
        *parts: ReplyPart,
        deltas: Sequence[str] = (),
        chunk: int | None = None,
        usage: Usage | None = None,
        stop: StopReason | None = None,
        delay: float = 0.0,
        stall: float = 0.0,
        cut_after: int | None = None,
    ) -> None:
        self.parts = parts
        self.deltas = tuple(deltas)
        self.chunk = chunk
        self.usage = usage
        self.stop: StopReason | None = stop
        self.delay = delay
        self.stall = stall
        self.cut_after = cut_after


Answer: TypeAlias = ReplyPart | Sequence[ReplyPart] | Reply | ModelResponse | Exception


class Stream(msgspec.Struct, frozen=True):
    """An answer, made ready: pieces, then the whole or the error."""

    pieces: tuple[ModelDelta, ...]
    end: ModelResponse | Exception
    delay: float = 0.0
    stall: float = 0.0


def prepare(answer: object, usage: Usage | None) -> Stream:
    """Any answer as pieces and an end; what is no answer is refused when the script is written."""
    match answer:
        case Exception():
            return Stream((), answer)
        case ModelResponse():
            return Stream(_cut(answer.parts, None, ()), answer)
        case Reply():
            return _read_reply(answer, usage)
        case str() | Text() | Thinking() | ToolCall():
            return _read_reply(Reply(answer), usage)
        case list() | tuple():
            return _read_reply(Reply(*cast(Sequence[ReplyPart], answer)), usage)
        case _:
            raise UsageError(f"{type(answer).__name__} is no answer; take text, call(…), a list, Reply(…) or an error.")


def _read_reply(reply: Reply, usage: Usage | None) -> Stream:
    parts = tuple(_read_part(part) for part in reply.parts)
    if reply.chunk is not None and reply.chunk < 1:
        raise UsageError(f"Reply(chunk={reply.chunk}): a piece has at least 1 character.")
    if reply.deltas:
        text = "".join(reply.deltas)
        written = "".join(part.text for part in parts if isinstance(part, Text))
        if written not in ("", text):
            raise UsageError(f"Reply(deltas=…) add up to {text!r}, but the text is {written!r}; leave one out.")
        parts = (Text(text), *(part for part in parts if not isinstance(part, Text)))
    pieces = _cut(parts, reply.chunk, reply.deltas)
    if reply.cut_after is not None:
        cut = ModelError(f"The stream was cut after {reply.cut_after} pieces.", kind="cut")
        return Stream(pieces[: reply.cut_after], cut, reply.delay, reply.stall)
    has_calls = any(isinstance(part, ToolCall) for part in parts)
    stop = reply.stop or ("calls" if has_calls else "end")
    return Stream(pieces, ModelResponse(parts, stop, reply.usage or usage), reply.delay, reply.stall)


def _read_part(part: object) -> AnswerPart:
    match part:
        case str():
            return Text(part)
        case Text() | Thinking() | ToolCall():
            return part
        case _:
            raise UsageError(f"{type(part).__name__} is no part of an answer; take text, Thinking or call(…).")


def _cut(parts: tuple[AnswerPart, ...], chunk: int | None, deltas: tuple[str, ...]) -> tuple[ModelDelta, ...]:
    pieces: list[ModelDelta] = []
    calls = 0
    for part in parts:
        match part:
            case Text(text=text):
                size = chunk or max(1, len(text))
                cuts = deltas or tuple(text[at : at + size] for at in range(0, len(text), size))
                pieces += (TextDelta(piece) for piece in cuts)
            case Thinking(text=text):
                pieces += (ThinkingDelta(text), PartClosed(part))
            case ToolCall(name=name, arguments=arguments):
                pieces += (CallDelta(calls, name, arguments), PartClosed(part))
                calls += 1
    return tuple(pieces)
