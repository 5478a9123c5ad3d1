"""What models read and write, and what it cost. Plain data, provider-free."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

import msgspec

JSON: TypeAlias = Any
"""A plain JSON value: None, bool, int, float, str, list or dict with string keys."""

Outcome = Literal["ok", "error", "denied", "cancelled", "timeout", "unknown", "superseded"]
StopReason = Literal["end", "calls", "length", "refusal"]


class Plain(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Immutable plain data; fields at their default are not written, and one that is not known here is not passed over.

    It may be what the rest depends on.
    """


class Text(Plain, frozen=True, tag="text", gc=False):
    """Words; `extras` is the opaque part that a provider put on an answer's words and wants back."""

    text: str
    extras: JSON = None


class Media(Plain, frozen=True, tag="media", gc=False):
    """An image or a document; its bytes are an artifact, committed before the record that names it."""

    kind: Literal["image", "document"]
    artifact: str
    media_type: str
    size: int
    name: str = ""


class Thinking(Plain, frozen=True, tag="thinking"):
    """A model's reasoning; the signature and `extras` are the provider's opaque part, sent back untouched."""

    text: str
    signature: str = ""
    extras: JSON = None


class ToolCall(Plain, frozen=True, tag="call", gc=False):
    """A call as the model wrote it: raw argument text, our ordinal, the model's own id only for its eyes."""

    call: int
    name: str
    arguments: str
    id: str = ""
    extras: JSON = None


Part: TypeAlias = Text | Media
AnswerPart: TypeAlias = Text | Thinking | ToolCall


class ToolResult(Plain, frozen=True):
    call: int
    name: str
    outcome: Outcome
    parts: tuple[Part, ...] = ()
    id: str = ""


class UserMessage(Plain, frozen=True, tag="user"):
    parts: tuple[Part, ...]


class AssistantMessage(Plain, frozen=True, tag="assistant"):
    """An answer; `provider` says whose the signatures and extras in it are: they mean nothing to another one."""

    parts: tuple[AnswerPart, ...]
    provider: str = ""

    @property
    def text(self) -> str:
        return "".join([part.text for part in self.parts if isinstance(part, Text)])

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return tuple([part for part in self.parts if isinstance(part, ToolCall)])


class ToolMessage(Plain, frozen=True, tag="tool"):
    """The results of one turn, in call order."""

    results: tuple[ToolResult, ...]


Message: TypeAlias = UserMessage | AssistantMessage | ToolMessage


class Usage(Plain, frozen=True, gc=False):
    """Tokens of one or many model calls; `estimated` if a provider did not say."""

    input: int = 0
    output: int = 0
    cached: int = 0
    cache_written: int = 0
    reasoning: int = 0
    estimated: bool = False

    @property
    def total(self) -> int:
        return self.input + self.output

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input + other.input,
            self.output + other.output,
            self.cached + other.cached,
            self.cache_written + other.cache_written,
            self.reasoning + other.reasoning,
            self.estimated or other.estimated,
        )


def estimate_tokens(parts: Iterable[Part | AnswerPart]) -> int:
    """A rough count for what no provider has counted yet: four characters a token, an image a thousand."""
    total = 0
    for part in parts:
        match part:
            case Text(text=text):
                total += len(text) // 4 + 1
            case ToolCall(name=name, arguments=arguments):
                total += (len(name) + len(arguments)) // 4 + 1
            case Thinking(text=text):
                total += len(text) // 4
            case Media(kind="image"):
                total += 1000
            case Media(size=size):
                # Of an imported message nobody knows whether its size is one.
                total += max(0, min(size, 10**9)) // 4
    return total
