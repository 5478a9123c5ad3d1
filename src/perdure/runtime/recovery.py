"""What becomes of an answer that broke off: kept, continued or begun again. A cut and a dead process are the same.

Rule 1: only calls that the provider closed are ever kept. Rule 2: what is continued is text, from its very prefix.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from perdure.core.deltas import CallDelta, ModelDelta, PartClosed, TextDelta, ThinkingDelta
from perdure.core.messages import AnswerPart, Text, Thinking, ToolCall


class Keep(msgspec.Struct, frozen=True):
    """The turn ends with the calls that are whole."""

    parts: tuple[AnswerPart, ...]


class Continue(msgspec.Struct, frozen=True):
    """The model goes on from here. `is_clean`: nothing else was shown, so a watcher sees one text."""

    prefix: tuple[AnswerPart, ...]
    is_clean: bool


class Restart(msgspec.Struct, frozen=True):
    """Nothing of it can be used."""


Plan: TypeAlias = Keep | Continue | Restart


class Received(msgspec.Struct, frozen=True):
    """What had come: whole parts and text so far, and whether a call or a thought was still being written."""

    parts: tuple[AnswerPart, ...] = ()
    open_call: bool = False
    open_thought: bool = False

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, Text))


def receive(items: Iterable[ModelDelta]) -> Received:
    """The pieces of a stream, put together as far as they go."""
    parts: list[AnswerPart] = []
    words: list[str] = []
    open_calls: set[int] = set()
    closed_calls = 0
    open_thought = False

    def end_text() -> None:
        if words:
            parts.append(Text("".join(words)))
            words.clear()

    for item in items:
        match item:
            case TextDelta(text=text):
                words.append(text)
            case ThinkingDelta():
                end_text()
                open_thought = True
            case CallDelta(index=index):
                end_text()
                open_calls.add(index)
            case PartClosed(part=part):
                end_text()
                parts.append(part)
                if isinstance(part, ToolCall):
                    closed_calls += 1
                else:
                    open_thought = False
    end_text()
    return Received(tuple(parts), len(open_calls) > closed_calls, open_thought)


def plan_after(received: Received, *, continues: bool) -> Plan:
    """First match wins; `continues` says whether the next model to be asked goes on from a prefix."""
    parts = received.parts
    calls = [index for index, part in enumerate(parts) if isinstance(part, ToolCall)]
    if calls:
        return Keep(parts[: calls[-1] + 1])
    if received.open_thought or not continues or not received.text.strip():
        return Restart()
    return Continue(parts, is_clean=not received.open_call)


def translate(received: Received) -> Received:
    """For another provider, to which thoughts and opaque parts mean nothing."""
    kept = [replace(part, extras=None) for part in received.parts if isinstance(part, Text | ToolCall)]
    merged = receive(as_items(kept)).parts
    return Received(merged, received.open_call, received.open_thought)


def as_items(parts: Iterable[AnswerPart]) -> list[ModelDelta]:
    """Parts as the pieces of a stream that has said just them."""
    return [TextDelta(part.text) if isinstance(part, Text) else PartClosed(part) for part in parts]


def join_answer(prefix: tuple[AnswerPart, ...], rest: tuple[AnswerPart, ...]) -> tuple[AnswerPart, ...]:
    """Prefix and continuation as one answer; a thought that only the continuation had is left where it came."""
    if not prefix:
        return rest
    last = prefix[-1]
    for index, part in enumerate(rest):
        if isinstance(part, Thinking):
            continue
        if isinstance(part, Text) and isinstance(last, Text):
            return (*prefix[:-1], *rest[:index], Text(last.text + part.text, part.extras), *rest[index + 1 :])
        break
    return (*prefix, *rest)
