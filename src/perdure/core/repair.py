"""A conversation from elsewhere -> one that keeps our laws, and a line for everything that had to be mended.

Rule 1: in what comes out, every call has exactly one result right behind it, and ordinals go on from the last one.
Rule 2: what comes out needs no repair. Rule 3: nothing is made up: a result that is not there is said to be unknown.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from perdure.core.messages import (
    AnswerPart,
    AssistantMessage,
    Message,
    Part,
    Plain,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    UserMessage,
)

NO_RESULT = "The history that was imported does not say what came of this call."

_Key = tuple[str, str | int]
_Line = tuple[int, str]
"""What was mended, at which place."""


class Repaired(Plain, frozen=True):
    messages: tuple[Message, ...]
    repairs: tuple[str, ...] = ()


class _Asked(msgspec.Struct, eq=False):
    """A call on its way: where it stood, what it is called now, and the result that was found for it."""

    place: int
    call: ToolCall
    key: _Key
    result: ToolResult | None = None


def repair(messages: Sequence[Message], last: int = 0, places: Sequence[int] = ()) -> Repaired:
    """The messages, mended, with ordinals behind `last`.

    `places` says where each one stood elsewhere, for the lines; they count from 1.
    """
    repairs: list[_Line] = []
    asked = _number(messages, last, repairs)
    _match(messages, asked, repairs)
    made: list[Message] = []
    for place, message in enumerate(messages, 1):
        kept = _kept(message, asked.get(place, []), repairs)
        if not kept and not (isinstance(message, ToolMessage) and message.results):
            repairs.append((place, "it was empty, and is dropped"))
        made += kept
    repairs.sort(key=lambda line: line[0])
    lines = (f"message {places[place - 1] if places else place}: {what}" for place, what in repairs)
    return Repaired(tuple(made), tuple(lines))


def parted(present: Sequence[Message], other: Sequence[Message]) -> tuple[int, tuple[Message, ...]]:
    """How long both begin alike, and how the other one goes on from there."""
    keep = 0
    for mine, yours in zip(present, other, strict=False):
        if mine != yours:
            break
        keep += 1
    return keep, tuple(other[keep:])


def _kept(message: Message, asked: list[_Asked], repairs: list[_Line]) -> list[Message]:
    """What becomes of a message; results come with the calls that they belong to."""
    match message:
        case UserMessage(parts=parts):
            kept = tuple(part for part in parts if not _is_empty(part))
            return [UserMessage(kept)] if kept else []
        case AssistantMessage():
            return _answered(message, asked, repairs)
        case ToolMessage():
            return []


def _number(messages: Sequence[Message], last: int, repairs: list[_Line]) -> dict[int, list[_Asked]]:
    """The calls of each place, with our ordinals; an id that was used before is told apart."""
    asked: dict[int, list[_Asked]] = {}
    ids = {call.id for message in messages for call in _calls(message)}
    known: set[_Key] = set()
    for place, message in enumerate(messages, 1):
        for call in _calls(message):
            last += 1
            key = _key(call)
            fresh = replace(call, call=last)
            if key in known:
                what = f"the call id {call.id!r}" if call.id else f"the call number {call.call}"
                fresh = replace(fresh, id=_fresh_id(call.id, ids)) if call.id else fresh
                repairs.append((place, f"{what} was used before; the calls are told apart"))
            known.add(key)
            asked.setdefault(place, []).append(_Asked(place, fresh, key))
    return asked


def _match(messages: Sequence[Message], asked: dict[int, list[_Asked]], repairs: list[_Line]) -> None:
    """Gives each call its first result, wherever that stood."""
    by_key: dict[_Key, list[_Asked]] = {}
    for item in (item for items in asked.values() for item in items):
        by_key.setdefault(item.key, []).append(item)
    for place, message in enumerate(messages, 1):
        for result in message.results if isinstance(message, ToolMessage) else ():
            named = f"the result of {result.name or result.id or f'call {result.call}'!r}"
            same = by_key.get(_key(result), [])
            found = _find(same, place)
            if found is None:
                why = "is there twice; the first one is kept" if same else "has no call, and is dropped"
                repairs.append((place, f"{named} {why}"))
                continue
            found.result = result
            if not _stands_behind(messages, found.place, place):
                repairs.append((place, f"{named} did not stand behind its call, and is moved there"))


def _find(same: list[_Asked], place: int) -> _Asked | None:
    """The first open call of the latest message before the result, or else of the first one behind it."""
    waiting = [item for item in same if item.result is None]
    latest = max((item.place for item in waiting if item.place < place), default=0)
    return next((item for item in waiting if not latest or item.place == latest), None)


def _stands_behind(messages: Sequence[Message], call: int, result: int) -> bool:
    """Whether nothing but results stands between the two."""
    return call < result and all(isinstance(message, ToolMessage) for message in messages[call : result - 1])


def _answered(message: AssistantMessage, asked: list[_Asked], repairs: list[_Line]) -> list[Message]:
    """The answer with its calls as they are called now, and their results in call order."""
    fresh = iter(asked)
    parts: list[AnswerPart] = []
    for part in message.parts:
        if isinstance(part, ToolCall):
            parts.append(next(fresh).call)
        elif not _is_empty(part):
            parts.append(part)
    if not parts:
        return []
    if not asked:
        return [replace(message, parts=tuple(parts))]
    lost = [item for item in asked if item.result is None]
    repairs += [(item.place, f"the call of {item.call.name!r} has no result; it is unknown") for item in lost]
    return [replace(message, parts=tuple(parts)), ToolMessage(tuple(map(_result, asked)))]


def _result(item: _Asked) -> ToolResult:
    call, found = item.call, item.result
    if found is None:
        return ToolResult(call.call, call.name, "unknown", (Text(NO_RESULT),), call.id)
    return ToolResult(call.call, call.name, found.outcome, found.parts, call.id)


def _calls(message: Message) -> tuple[ToolCall, ...]:
    return message.calls if isinstance(message, AssistantMessage) else ()


def _key(item: ToolCall | ToolResult) -> _Key:
    """A call is known by the id that a model gave it, or by our ordinal where it gave none."""
    return ("id", item.id) if item.id else ("call", item.call)


def _fresh_id(id: str, taken: set[str]) -> str:
    number = 2
    while f"{id}-{number}" in taken:
        number += 1
    taken.add(f"{id}-{number}")
    return f"{id}-{number}"


def _is_empty(part: Part | AnswerPart) -> bool:
    return isinstance(part, Text) and not part.text
