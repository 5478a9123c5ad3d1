"""A generateContent stream -> deltas and the response.

Rule 1: calls come whole, so each is closed at once; a thought is closed by whatever comes after it.
Rule 2: the answer is whole when a finish reason has come and then the bytes end; there is no other mark.
Rule 3: a signature stays on the very part that it came with, also on an empty one.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from perdure.core.deltas import ModelDelta
from perdure.core.errors import ModelError
from perdure.core.messages import StopReason, Usage
from perdure.models.wires.answer import Answer
from perdure.models.wires.gemini_failures import ErrorObject, failure_of
from perdure.models.wires.output_tool import OutputTool
from perdure.models.wires.sse import EventSplitter
from perdure.models.wires.wire import MAX_TOKENS
from perdure.ports import ModelResponse

_WITHHELD = frozenset(
    (
        "SAFETY",
        "RECITATION",
        "LANGUAGE",
        "BLOCKLIST",
        "PROHIBITED_CONTENT",
        "SPII",
        "IMAGE_SAFETY",
        "IMAGE_PROHIBITED_CONTENT",
        "IMAGE_RECITATION",
    )
)
_SPOILT = frozenset(
    (
        "MALFORMED_FUNCTION_CALL",
        "UNEXPECTED_TOOL_CALL",
        "TOO_MANY_TOOL_CALLS",
        "MALFORMED_RESPONSE",
        "OTHER",
        "IMAGE_OTHER",
        "NO_IMAGE",
    )
)
"""The model failed by itself and mostly does better when asked again."""


class _Call(msgspec.Struct, gc=False):
    name: str
    id: str | None = None
    args: msgspec.Raw = msgspec.Raw(b"{}")


class _Part(msgspec.Struct, gc=False, rename="camel"):
    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    function_call: _Call | None = None


class _Content(msgspec.Struct, gc=False):
    parts: list[_Part] | None = None


class _Candidate(msgspec.Struct, gc=False, rename="camel"):
    content: _Content | None = None
    finish_reason: str | None = None
    finish_message: str | None = None


class _Counts(msgspec.Struct, gc=False, rename="camel"):
    prompt_token_count: int | None = None
    candidates_token_count: int | None = None
    thoughts_token_count: int | None = None
    cached_content_token_count: int | None = None
    tool_use_prompt_token_count: int | None = None


class _Feedback(msgspec.Struct, gc=False, rename="camel"):
    block_reason: str | None = None


class _Event(msgspec.Struct, gc=False, rename="camel"):
    candidates: list[_Candidate] | None = None
    usage_metadata: _Counts | None = None
    prompt_feedback: _Feedback | None = None
    error: ErrorObject | None = None


_decode = msgspec.json.Decoder(_Event).decode


class GeminiReader:
    """Deltas that came before a failure are given out first; the failure is raised by the next call."""

    __slots__ = ("_answer", "_counts", "_failure", "_given", "_is_thinking", "_output", "_reason", "_splitter")

    def __init__(self, output: OutputTool | None = None) -> None:
        self._splitter = EventSplitter()
        self._answer = Answer()
        self._counts: _Counts | None = None
        self._failure: ModelError | None = None
        self._given: str | None = None
        self._is_thinking = False
        self._output = output
        self._reason: str | None = None

    @property
    def is_done(self) -> bool:
        return self._failure is not None

    def read(self, data: bytes) -> Sequence[ModelDelta]:
        if self._failure is not None:
            raise self._failure
        try:
            for event in self._splitter.split(data):
                self._take(event)
        except ModelError as error:
            if not self._answer.deltas:
                raise
            self._failure = error
        return self._answer.take()

    def finish(self) -> ModelResponse:
        if self._failure is None:
            for event in self._splitter.finish():
                self._take(event)
        if self._failure is not None:
            raise self._failure
        self._answer.usage = self._counted()
        return self._answer.response()

    def _take(self, data: bytes) -> None:
        try:
            event = _decode(data)
        except (ValueError, RecursionError):
            raise _nonsense() from None
        if event.error is not None:
            failure = failure_of(event.error, "in_band")
            raise ModelError(failure.message, kind=failure.kind, retry_after=failure.retry_after)
        if event.usage_metadata is not None:
            self._counts = event.usage_metadata
        if event.candidates:
            self._take_candidate(event.candidates[0])
        elif event.prompt_feedback is not None and event.prompt_feedback.block_reason:
            reason = event.prompt_feedback.block_reason[:40]
            raise ModelError(f"Google blocked the prompt ({reason}); change what is asked.", kind="content_filtered")

    def _take_candidate(self, candidate: _Candidate) -> None:
        parts = candidate.content.parts if candidate.content is not None else None
        if self._reason is not None:
            if parts:
                self._answer.note("The stream went on after its end; that was ignored.")
            return
        for part in parts or ():
            if part.function_call is not None:
                self._add_call(part.function_call, part.thought_signature)
            elif part.text is None and part.thought_signature is None:
                self._answer.note("A part that is neither text nor a call was left out.")
            elif part.thought:
                self._add_thought(part.text or "", part.thought_signature)
            else:
                self._add_text(part.text or "", part.thought_signature)
        if candidate.finish_reason is not None:
            self._end(candidate.finish_reason, candidate.finish_message)

    def _add_text(self, text: str, signature: str | None) -> None:
        if self._is_thinking:
            self._end_thought()
        if signature is not None:
            self._answer.end_text()
            self._answer.add_text(text, {"thoughtSignature": signature})
        elif text:
            self._answer.add_text(text)

    def _add_thought(self, text: str, signature: str | None) -> None:
        self._is_thinking = True
        if text:
            self._answer.add_thinking(text)
        if signature is not None:
            self._end_thought(signature)

    def _end_thought(self, signature: str = "") -> None:
        self._is_thinking = False
        self._answer.close_thinking(signature)

    def _add_call(self, call: _Call, signature: str | None) -> None:
        if not call.name:
            raise _nonsense()
        if self._is_thinking:
            self._end_thought()
        try:
            # What is kept raw was never read as text.
            arguments = bytes(call.args).decode()
        except UnicodeDecodeError:
            raise _nonsense() from None
        if arguments == "null":
            arguments = "{}"
        if self._output is not None and call.name == self._output.name:
            self._given = self._output.read(arguments)
            return
        key = self._answer.calls
        self._answer.open_call(key, call.name, call.id or "")
        self._answer.add_arguments(key, arguments)
        self._answer.close_call(key, None if signature is None else {"thoughtSignature": signature})

    def _end(self, reason: str, message: str | None) -> None:
        if self._is_thinking:
            self._end_thought()
        self._reason = reason
        stop: StopReason = "calls" if self._answer.calls else "end"
        if reason in ("MAX_TOKENS", "CONTINUATION"):
            stop = "length"
        elif reason in _WITHHELD:
            stop = "refusal"
            self._answer.note(f"Google withheld the rest of the answer ({reason}).")
        elif reason in _SPOILT:
            words = f"{reason}: {message[:200]}" if message else reason
            raise ModelError(f"The model's answer was spoilt ({words}); ask again.", kind="in_band")
        elif reason != "STOP":
            self._answer.note(f"The finish reason {reason[:40]!r} is unknown; the answer was taken as it is.")
        if self._given is not None:
            # What was said beside it is no part of the output.
            self._answer.drop_text()
            self._answer.add_text(self._given)
        self._answer.stop = stop

    def _counted(self) -> Usage | None:
        counts = self._counts
        if counts is None or counts.prompt_token_count is None:
            return None
        prompt = counts.prompt_token_count + (counts.tool_use_prompt_token_count or 0)
        cached = counts.cached_content_token_count or 0
        reasoning = counts.thoughts_token_count or 0
        output = (counts.candidates_token_count or 0) + reasoning
        if not all(0 <= count <= MAX_TOKENS for count in (prompt, output, cached, reasoning)):
            self._answer.note("The provider's token counts make no sense and were left out.")
            return None
        return Usage(prompt, output, cached, 0, reasoning)


def _nonsense() -> ModelError:
    return ModelError("The model sent something that is no Gemini stream.", kind="cut")
