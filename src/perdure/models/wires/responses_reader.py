"""Responses' answers: typed events, or one body, in; deltas and the response out.

An item is whole when the provider says that it is done; the answer when the response is completed or incomplete.
Servers that speak a part of the format leave out indexes, ids or the deltas, so each is needed only where it is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, cast

import msgspec

from perdure.core.deltas import ModelDelta
from perdure.core.errors import ModelError
from perdure.core.messages import JSON
from perdure.models.wires.answer import Answer
from perdure.models.wires.openai_events import Events
from perdure.models.wires.openai_failures import in_band
from perdure.models.wires.openai_usage import usage_of
from perdure.models.wires.openai_values import ValueStream
from perdure.models.wires.output_tool import WRAPPED
from perdure.ports import ModelResponse

T = TypeVar("T")

_CUT = "The model's answer is not the JSON that was agreed on; try again."


class _Event(msgspec.Struct, gc=False):
    """Every event, and the body of a server that does not stream; what else is in them is not read."""

    type: str = ""
    delta: JSON = None
    output_index: int | None = None
    item_id: str | None = None
    item: JSON = None
    response: JSON = None
    error: JSON = None
    code: JSON = None
    message: JSON = None
    object: JSON = None


class _Item(msgspec.Struct):
    type: str = ""
    id: str | None = None
    call_id: str | None = None
    name: str = ""
    arguments: str | None = None
    status: str | None = None
    phase: str | None = None
    content: list[dict[str, JSON]] | None = None
    summary: list[dict[str, JSON]] | None = None


class _Response(msgspec.Struct):
    status: str | None = None
    output: list[JSON] | None = None
    usage: JSON = None
    error: JSON = None
    incomplete_details: dict[str, JSON] | None = None


class _Open(msgspec.Struct):
    """A call under way and what has come of its arguments."""

    key: int
    id: str
    is_answer: bool
    arguments: str = ""
    is_closed: bool = False


_decode = msgspec.json.Decoder(_Event).decode
_decode_body = msgspec.json.Decoder(_Response).decode


class ResponsesReader:
    """`tool` is the forced one whose arguments are the answer."""

    def __init__(self, answer: Answer, *, tool: str = "", is_wrapped: bool = False) -> None:
        self._answer = answer
        self._events = Events()
        self._tool = tool
        self._value = ValueStream((WRAPPED,), is_raw=True) if is_wrapped else None
        self._is_done = False
        self._failure: ModelError | None = None
        self._is_simple = not is_wrapped
        self._calls: list[_Open] = []
        self._indexes: dict[int, _Open] = {}
        self._has_said = False
        self._has_thought = False
        self._has_refused = False
        self._items = 0

    @property
    def is_done(self) -> bool:
        return self._is_done or self._failure is not None

    def read(self, data: bytes) -> Sequence[ModelDelta]:
        if self._failure is not None:
            raise self._failure
        try:
            for event in self._events.split(data):
                self._take(event)
        except ModelError as error:
            # What was closed before the failure has to come out before it; the next to ask gets the failure.
            self._failure = None if self._is_done else error
        return self._answer.take()

    def finish(self) -> ModelResponse:
        if self._failure is not None:
            raise self._failure
        if not self._is_done:
            for event in self._events.finish():
                self._take(event)
        return self._answer.response()

    def _take(self, data: bytes) -> None:
        if self._is_done:
            if data != b"[DONE]":
                self._answer.note("data after the end")
            return
        if data == b"[DONE]":
            # Only the event that ends a response ends it; without one the answer was cut.
            return
        try:
            event = _decode(data)
        except (ValueError, RecursionError):
            if self._events.is_plain:
                return
            raise ModelError(_CUT, kind="cut") from None
        if event.type == "response.output_text.delta" and self._is_simple and isinstance(event.delta, str):
            self._has_said = True
            self._answer.add_text(event.delta)
        else:
            self._take_slowly(event, data)

    def _take_slowly(self, event: _Event, data: bytes) -> None:
        match event.type:
            case "response.output_text.delta":
                self._add_words(_words(event.delta))
            case "response.refusal.delta":
                self._has_said = self._has_refused = True
                self._answer.add_text(_words(event.delta))
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                self._has_thought = True
                self._answer.add_thinking(_words(event.delta))
            case "response.reasoning_summary_part.added" if self._has_thought:
                self._answer.add_thinking("\n\n")
            case "response.function_call_arguments.delta":
                call = self._find_call(event)
                if call is None:
                    raise ModelError("The model wrote arguments of a call that never began; try again.", kind="cut")
                self._add_arguments(call, _words(event.delta))
            case "response.output_item.added":
                self._begin(_read(event.item, _Item), event.output_index)
            case "response.output_item.done":
                self._end_item(event.item, event)
            case "response.completed" | "response.incomplete" | "response.failed" | "response.cancelled":
                self._end(_read(event.response, _Response), event.type.removeprefix("response."))
            case "error":
                raise in_band(event.error or {"code": event.code, "message": event.message})
            case "" if event.error is not None:
                raise in_band(event.error)
            case "" if event.object == "response":
                self._end(_read_body(data), "")
            case _:
                pass

    def _begin(self, item: _Item, index: int | None) -> _Open | None:
        self._has_said = self._has_thought = False
        if item.type != "function_call":
            return None
        if not item.name:
            raise ModelError("The model called a tool without a name; try again.", kind="cut")
        call = _Open(len(self._calls), item.id or "", item.name == self._tool)
        self._calls.append(call)
        if index is not None:
            self._indexes[index] = call
        if call.is_answer:
            self._answer.drop_text()
        else:
            self._answer.open_call(call.key, item.name, item.call_id or "")
        self._add_arguments(call, item.arguments or "")
        return call

    def _find_call(self, event: _Event) -> _Open | None:
        """By index, then by the item's id; else the last one that is open."""
        if event.output_index is not None and event.output_index in self._indexes:
            return self._indexes[event.output_index]
        item_id = event.item_id or _id_of(event.item)
        for call in reversed(self._calls):
            if not call.is_closed and (not item_id or not call.id or call.id == item_id):
                return call
        return None

    def _add_arguments(self, call: _Open, piece: str) -> None:
        if not piece:
            return
        if call.is_closed:
            raise ModelError("The model's answer went on with a call that had ended; try again.", kind="cut")
        call.arguments += piece
        if not call.is_answer:
            self._answer.add_arguments(call.key, piece)
        elif call.key == self._first_answer:
            self._unwrap(piece)
        else:
            self._answer.note("a second answer was left out")

    @property
    def _first_answer(self) -> int:
        return next((call.key for call in self._calls if call.is_answer), -1)

    def _end_item(self, value: JSON, event: _Event | None) -> None:
        item = _read(value, _Item)
        self._items += 1
        match item.type:
            case "function_call":
                self._end_call(item, event)
            case "reasoning":
                if not self._has_thought and (shown := _shown(item)):
                    self._answer.add_thinking(shown)
                self._answer.close_thinking(extras=value)
            case "message":
                self._end_message(item)
            case _:
                pass
        self._has_said = self._has_thought = False

    def _end_call(self, item: _Item, event: _Event | None) -> None:
        call = (self._find_call(event) if event else None) or self._begin(item, None)
        if call is None or call.is_closed:
            return
        whole = item.arguments
        if whole is not None and whole != call.arguments:
            if not whole.startswith(call.arguments):
                raise ModelError("The model's answer contradicts itself about a call; try again.", kind="cut")
            self._add_arguments(call, whole[len(call.arguments) :])
        if item.status == "incomplete":
            return
        call.is_closed = True
        if not call.is_answer:
            self._answer.close_call(call.key)

    def _end_message(self, item: _Item) -> None:
        if not self._has_said:
            for part in item.content or ():
                self._has_refused = self._has_refused or part.get("type") == "refusal"
                self._add_words(_words(part.get("text") or part.get("refusal")))
        self._answer.end_text({"phase": item.phase} if item.phase else None)

    def _add_words(self, text: str) -> None:
        self._has_said = True
        if self._tool:
            self._answer.add_text(text)
        else:
            self._unwrap(text)

    def _unwrap(self, text: str) -> None:
        said = self._value.add(text) if self._value is not None else text
        if said:
            self._answer.add_text(said)

    def _end(self, response: _Response, status: str) -> None:
        status = status or response.status or ""
        if response.error is not None or status in ("failed", "cancelled"):
            raise in_band(response.error)
        if not self._items and not self._calls and not self._has_said and not self._has_thought:
            for item in response.output or ():
                self._end_item(item, None)
        self._answer.usage = usage_of(response.usage)
        if response.usage is not None and self._answer.usage is None:
            self._answer.note("the usage cannot be true")
        if status == "incomplete":
            self._end_early(_words((response.incomplete_details or {}).get("reason")))
        else:
            if self._value is not None and self._value.undecided:
                self._answer.add_text(self._value.undecided)
            self._answer.stop = "refusal" if self._has_refused else "calls" if self._answer.calls else "end"
        self._is_done = True

    def _end_early(self, reason: str) -> None:
        if reason == "content_filter":
            raise ModelError(
                "The provider's filter stopped the answer (content_filter); change what is asked.",
                kind="content_filtered",
            )
        if reason not in ("max_output_tokens", "max_messages"):
            raise ModelError(f"The provider broke the answer off ({reason[:40]}); try again.", kind="in_band")
        self._answer.stop = "length"


def _read(value: JSON, kind: type[T]) -> T:
    try:
        return msgspec.convert(value, kind)
    except (ValueError, RecursionError):
        raise ModelError(_CUT, kind="cut") from None


def _read_body(data: bytes) -> _Response:
    try:
        return _decode_body(data)
    except (ValueError, RecursionError):
        raise ModelError(_CUT, kind="cut") from None


def _id_of(item: JSON) -> str:
    return _words(cast(dict[str, JSON], item).get("id")) if isinstance(item, dict) else ""


def _shown(item: _Item) -> str:
    return "\n\n".join(_words(part.get("text")) for part in item.summary or item.content or ())


def _words(value: JSON) -> str:
    return value if isinstance(value, str) else ""
