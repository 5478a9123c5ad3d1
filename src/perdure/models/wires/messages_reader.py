"""A Messages stream -> deltas and the response.

Rule 1: a call or a thought is closed by its content_block_stop, the answer by message_stop; nothing else will do.
Rule 2: blocks are known by their index; servers other than Anthropic's may close them all at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from perdure.core.deltas import ModelDelta
from perdure.core.errors import ModelError
from perdure.core.messages import StopReason, Usage
from perdure.models.wires.answer import Answer
from perdure.models.wires.messages_failures import ErrorObject, failure_of
from perdure.models.wires.output_tool import OutputTool
from perdure.models.wires.sse import EventSplitter
from perdure.models.wires.wire import MAX_TOKENS
from perdure.ports import ModelResponse

_STOPS: dict[str, StopReason] = {
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
}
_ENDS = frozenset(("end_turn", "stop_sequence", "tool_use"))
_KNOWN = frozenset(
    (
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
        "error",
    )
)


class _Reasoning(msgspec.Struct, gc=False):
    thinking_tokens: int | None = None


class _Usage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    output_tokens_details: _Reasoning | None = None


class _Message(msgspec.Struct):
    usage: _Usage | None = None


class _Block(msgspec.Struct):
    type: str
    id: str | None = None
    name: str | None = None
    text: str = ""
    thinking: str = ""
    signature: str | None = None
    data: str | None = None
    input: msgspec.Raw = msgspec.Raw(b"")


class _StopDetails(msgspec.Struct, gc=False):
    explanation: str | None = None


class _Delta(msgspec.Struct, gc=False):
    type: str = ""
    text: str = ""
    partial_json: str = ""
    thinking: str = ""
    signature: str = ""
    stop_reason: str | None = None
    stop_details: _StopDetails | None = None


class _Event(msgspec.Struct, gc=False):
    type: str
    index: int = 0
    delta: _Delta | None = None
    content_block: _Block | None = None
    message: _Message | None = None
    usage: _Usage | None = None
    error: ErrorObject | None = None


class _Kind(msgspec.Struct, gc=False):
    type: str


_decode = msgspec.json.Decoder(_Event).decode
_decode_kind = msgspec.json.Decoder(_Kind).decode


class _Open:
    """A block as far as it has come. `given` is what its beginning held already."""

    __slots__ = ("given", "is_closed", "kind", "pieces", "signature")

    def __init__(self, kind: Literal["text", "call", "output", "thinking", "redacted", "other"], given: str) -> None:
        self.kind = kind
        self.given = given
        self.pieces: list[str] = []
        self.signature = ""
        self.is_closed = False


class MessagesReader:
    """Deltas that came before a failure are given out first; the failure is raised by the next call."""

    __slots__ = (
        "_answer",
        "_blocks",
        "_failure",
        "_given",
        "_is_done",
        "_output",
        "_reason",
        "_skip",
        "_splitter",
        "_usage",
    )

    def __init__(self, output: OutputTool | None = None, skip: str = "") -> None:
        self._splitter = EventSplitter()
        self._answer = Answer()
        self._blocks: dict[int, _Open] = {}
        self._failure: ModelError | None = None
        self._given: str | None = None
        self._is_done = False
        self._output = output
        self._reason: str | None = None
        self._skip = skip
        self._usage = _Usage()

    @property
    def is_done(self) -> bool:
        return self._is_done or self._failure is not None

    def read(self, data: bytes) -> Sequence[ModelDelta]:
        if self._failure is not None:
            raise self._failure
        try:
            for event in self._splitter.split(data):
                self._take(event)
        except ModelError as error:
            self._fail(error)
        return self._answer.take()

    def finish(self) -> ModelResponse:
        if self._failure is None:
            for event in self._splitter.finish():
                self._take(event)
        if self._failure is not None:
            raise self._failure
        self._answer.usage = self._counted()
        try:
            return self._answer.response()
        except ModelError as error:
            # A full window is an output limit for an answer that has begun; for one that has not, a shorter request
            # is all that helps.
            if error.kind != "truncated" or self._reason != "model_context_window_exceeded":
                raise
            raise ModelError(
                "The conversation fills the model's window; shorten it.", kind="context_too_long"
            ) from None

    def _fail(self, error: ModelError) -> None:
        if not self._answer.deltas:
            raise error
        self._failure = error

    def _take(self, data: bytes) -> None:
        if self._is_done:
            self._answer.note("The stream went on after its end; that was ignored.")
            return
        try:
            event = _decode(data)
        except (ValueError, RecursionError):
            if _is_unknown(data):
                return
            raise _nonsense() from None
        match event.type:
            case "content_block_delta":
                self._add(event)
            case "content_block_start":
                self._start(event)
            case "content_block_stop":
                self._stop(event.index)
            case "message_start":
                self._count(event.message.usage if event.message else None)
            case "message_delta":
                self._count(event.usage)
                if event.delta is not None:
                    self._reason = event.delta.stop_reason or self._reason
                    if event.delta.stop_details and event.delta.stop_details.explanation:
                        self._answer.note(event.delta.stop_details.explanation)
            case "message_stop":
                self._end()
            case "error":
                failure = failure_of(event.error or ErrorObject(), "in_band")
                raise ModelError(failure.message, kind=failure.kind)
            case _:
                pass

    def _add(self, event: _Event) -> None:
        delta = event.delta
        if delta is None:
            raise _nonsense()
        match delta.type:
            case "text_delta":
                if self._skip:
                    self._add_continued(delta.text)
                elif delta.text:
                    self._answer.add_text(delta.text)
            case "input_json_delta":
                block = self._open(event.index)
                if block.kind == "call" and delta.partial_json:
                    self._answer.add_arguments(event.index, delta.partial_json)
                block.pieces.append(delta.partial_json)
            case "thinking_delta":
                self._open(event.index)
                if delta.thinking:
                    self._answer.add_thinking(delta.thinking, event.index)
            case "signature_delta":
                self._open(event.index).signature += delta.signature
            case _:
                pass

    def _add_continued(self, text: str) -> None:
        """The first words after a prefix whose white space at the end was not sent: it is not said twice."""
        while text and self._skip and text[0] == self._skip[0]:
            text, self._skip = text[1:], self._skip[1:]
        if text:
            self._skip = ""
            self._answer.add_text(text)

    def _start(self, event: _Event) -> None:
        block, index = event.content_block, event.index
        if block is None or index in self._blocks:
            raise _nonsense()
        match block.type:
            case "text":
                opened = _Open("text", "")
                if block.text:
                    self._answer.add_text(block.text)
            case "thinking":
                opened = _Open("thinking", "")
                opened.signature = block.signature or ""
                if block.thinking:
                    self._answer.add_thinking(block.thinking, index)
            case "redacted_thinking" if block.data is not None:
                opened = _Open("redacted", block.data)
            case "tool_use" if block.name:
                is_output = self._output is not None and block.name == self._output.name
                opened = _Open("output" if is_output else "call", _text_of(block.input))
                if not is_output:
                    self._answer.open_call(index, block.name, block.id or "")
            case "redacted_thinking" | "tool_use":
                raise _nonsense()
            case _:
                opened = _Open("other", "")
                self._answer.note(f"A block of the type {block.type[:40]!r} was left out.")
        self._blocks[index] = opened

    def _open(self, index: int) -> _Open:
        block = self._blocks.get(index)
        if block is None or block.is_closed:
            raise _nonsense()
        return block

    def _stop(self, index: int) -> None:
        block = self._open(index)
        block.is_closed = True
        written = "".join(block.pieces)
        match block.kind:
            case "call":
                # Arguments come in deltas; some servers put them into the block's beginning instead.
                if not written and block.given not in ("", "{}", "null"):
                    self._answer.add_arguments(index, block.given)
                self._answer.close_call(index)
            case "output" if self._output is not None:
                self._given = self._output.read(written or block.given or "{}")
            case "thinking":
                self._answer.close_thinking(block.signature, key=index)
            case "redacted":
                self._answer.close_thinking(extras={"redacted": block.given}, key=index)
            case _:
                pass

    def _end(self) -> None:
        self._is_done = True
        reason = self._reason
        if reason is None:
            return
        stop = _STOPS.get(reason)
        if stop is None:
            if reason == "pause_turn":
                self._answer.note("The provider paused the turn; what it said so far is the answer.")
            elif reason not in _ENDS:
                self._answer.note(f"The stop reason {reason[:40]!r} is unknown; the answer was taken as it is.")
            stop = "calls" if self._answer.calls else "end"
        if stop != "length" and any(b.kind in ("call", "output") and not b.is_closed for b in self._blocks.values()):
            raise ModelError("The model's answer ended inside of a tool call.", kind="cut")
        if self._given is not None:
            # What was said beside it is no part of the output.
            self._answer.drop_text()
            self._answer.add_text(self._given)
        self._answer.stop = stop

    def _count(self, usage: _Usage | None) -> None:
        """Counts are cumulative, and a later event may leave out what an earlier one said."""
        if usage is not None:
            for name in usage.__struct_fields__:
                value = getattr(usage, name)
                if value is not None:
                    setattr(self._usage, name, value)

    def _counted(self) -> Usage | None:
        counted = self._usage
        cached = counted.cache_read_input_tokens or 0
        cache_written = counted.cache_creation_input_tokens or 0
        details = counted.output_tokens_details
        reasoning = details.thinking_tokens or 0 if details else 0
        if counted.input_tokens is None or counted.output_tokens is None:
            return None
        counts = (counted.input_tokens, counted.output_tokens, cached, cache_written, reasoning)
        if not all(0 <= count <= MAX_TOKENS for count in counts):
            self._answer.note("The provider's token counts make no sense and were left out.")
            return None
        return Usage(sum((counts[0], cached, cache_written)), counts[1], cached, cache_written, reasoning)


def _is_unknown(data: bytes) -> bool:
    """Whether this is an event of a kind that was not there when this was written; such events are left out."""
    try:
        return _decode_kind(data).type not in _KNOWN
    except (ValueError, RecursionError):
        return False


def _text_of(raw: msgspec.Raw) -> str:
    """What is kept raw was never read as text."""
    try:
        return bytes(raw).decode()
    except UnicodeDecodeError:
        raise _nonsense() from None


def _nonsense() -> ModelError:
    return ModelError("The model sent something that is no Messages stream.", kind="cut")
