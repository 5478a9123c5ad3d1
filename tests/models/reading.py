"""Drives readers over bytes in pieces, and what must hold whatever the bytes are."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from perdure.core.deltas import ModelDelta, PartClosed, TextDelta
from perdure.core.errors import ModelError
from perdure.core.messages import Thinking, ToolCall
from perdure.models.wires.wire import Reader
from perdure.ports import ModelResponse

RECORDED = Path(__file__).parent / "recorded"

MakeReader = Callable[[], Reader]


class Read(msgspec.Struct):
    """What came out: the deltas, and the response or the error."""

    deltas: list[ModelDelta]
    end: ModelResponse | ModelError

    @property
    def response(self) -> ModelResponse:
        assert isinstance(self.end, ModelResponse), self.end
        return self.end

    @property
    def error(self) -> ModelError:
        assert isinstance(self.end, ModelError), self.end
        return self.end

    @property
    def shown(self) -> str:
        return "".join(delta.text for delta in self.deltas if isinstance(delta, TextDelta))

    @property
    def closed(self) -> list[Thinking | ToolCall]:
        return [delta.part for delta in self.deltas if isinstance(delta, PartClosed)]


def recorded(provider: str) -> dict[str, bytes]:
    found = {path.stem: path.read_bytes() for path in sorted((RECORDED / provider).glob("*.sse"))}
    assert found
    return found


def read(make: MakeReader, pieces: Iterable[bytes]) -> Read:
    """As a client reads: until the bytes end; once the reader is done, nothing matters that it says of the rest."""
    reader = make()
    deltas: list[ModelDelta] = []
    try:
        for piece in pieces:
            if reader.is_done:
                with suppress(ModelError):
                    reader.read(piece)
            else:
                deltas += reader.read(piece)
        return Read(deltas, reader.finish())
    except ModelError as error:
        return Read(deltas, error)


def in_bytes(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


def check_read(got: Read) -> None:
    """Closed parts are whole, and a response has them all."""
    for part in got.closed:
        if isinstance(part, ToolCall):
            assert part.name
            json.loads(part.arguments)
    if isinstance(got.end, ModelResponse):
        cut = cut_call(got.end)
        assert all(part in got.end.parts or part == cut for part in got.closed)


def cut_call(response: ModelResponse) -> ToolCall | None:
    """A call that the output limit cut right behind its name, as it was closed: that is not one without arguments."""
    last = response.parts[-1] if response.parts else None
    if not isinstance(last, ToolCall) or last.arguments or response.stop != "length":
        return None
    return ToolCall(0, last.name, "{}", last.id, last.extras)


def check_cuts(make: MakeReader, data: bytes, prefix_kinds: set[str]) -> None:
    """Cut at every byte: what is shown and closed is a beginning of the whole, and the end is a defined one."""
    whole = read(make, [data])
    for cut in range(len(data)):
        got = read(make, [data[:cut]])
        check_read(got)
        assert whole.shown.startswith(got.shown)
        assert got.closed == whole.closed[: len(got.closed)]
        if isinstance(got.end, ModelError):
            assert got.end.kind in prefix_kinds, (cut, got.end)
        else:
            assert got.end.parts == whole.response.parts, cut
