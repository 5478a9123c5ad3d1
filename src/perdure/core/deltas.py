"""Transient pieces of a stream: shown, never in the log."""

from __future__ import annotations

from typing import TypeAlias

from perdure.core.messages import JSON, Plain, Thinking, ToolCall


class TextDelta(Plain, frozen=True, tag=True, gc=False):
    text: str


class ThinkingDelta(Plain, frozen=True, tag=True, gc=False):
    text: str


class CallDelta(Plain, frozen=True, tag=True, gc=False):
    """A piece of a tool call that the model is writing; `index` counts the calls of the answer from 0."""

    index: int
    name: str = ""
    arguments: str = ""


class PartClosed(Plain, frozen=True, tag=True):
    """The provider has closed a tool call or a thought: it will be kept even if the stream breaks off after it."""

    part: Thinking | ToolCall


class AttemptDiscarded(Plain, frozen=True, tag=True):
    """What was shown of this turn so far does not count."""

    turn: int
    attempt: int
    reason: str = ""


class ToolProgressed(Plain, frozen=True, tag=True):
    call: int
    message: str
    fraction: float | None = None


class ToolEmitted(Plain, frozen=True, tag=True):
    """Whatever a tool wants its watchers to see."""

    call: int
    data: JSON


class DeltasDropped(Plain, frozen=True, tag=True):
    """This consumer was too slow; records are never among what was dropped."""

    count: int


ModelDelta: TypeAlias = TextDelta | ThinkingDelta | CallDelta | PartClosed
Delta: TypeAlias = ModelDelta | AttemptDiscarded | ToolProgressed | ToolEmitted | DeltasDropped
