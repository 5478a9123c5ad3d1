"""Fuzzes the Gemini reader; `run(seconds=600)` is for a soak."""

from __future__ import annotations

from perdure.core.messages import Text, UserMessage
from perdure.models.wires.gemini import GeminiWire
from perdure.models.wires.wire import Reader
from perdure.ports import ModelRequest
from tests.models.fuzzing import fuzz
from tests.models.reading import recorded

REQUEST = ModelRequest("google:m", "", [UserMessage((Text("hi"),))])
WITH_OUTPUT = ModelRequest("google:m", "", [UserMessage((Text("hi"),))], output={"type": "integer"})


def run(*, max_examples: int = 300, seconds: float | None = None) -> int:
    def make() -> Reader:
        return GeminiWire().from_wire(REQUEST)

    def make_forced() -> Reader:
        return GeminiWire(output="tool").from_wire(WITH_OUTPUT)

    half = None if seconds is None else seconds / 2
    streams = recorded("google")
    return sum(fuzz(reader, streams, max_examples=max_examples, seconds=half) for reader in (make, make_forced))
