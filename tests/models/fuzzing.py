"""Fuzzes a reader: random bytes, and recorded streams with pieces changed, moved, doubled or lost."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from perdure.core.messages import Text, UserMessage
from perdure.models.wires.wire import Wire
from perdure.ports import ModelRequest
from tests.models.reading import MakeReader, check_read, read, recorded

ASK = ModelRequest("m", "", [UserMessage((Text("hi"),))])
ASK_OUTPUT = ModelRequest("m", "", [UserMessage((Text("hi"),))], output={"type": "integer"})

WORDS = (
    b"null",
    b"{}",
    b"[]",
    b"-1",
    b'"',
    b"\\",
    b"\n\n",
    b"\r",
    b"data: ",
    b"\xff",
    b"\xed\xa0\x80",
    b"1e999",
    b"{",
    b"]",
)


def random_streams() -> st.SearchStrategy[bytes]:
    """Bytes, some of them in the dress of events."""
    dressed = st.lists(st.binary(max_size=60).map(lambda data: b"data: " + data + b"\n\n"), max_size=8).map(b"".join)
    return st.binary(max_size=400) | dressed


@st.composite
def changed_streams(draw: st.DrawFn, streams: Sequence[bytes]) -> bytes:
    """A recorded stream, spoilt at some places: in its bytes, and in the order of its events."""
    end = b"\r\n\r\n" if b"\r\n" in (stream := draw(st.sampled_from(streams))) else b"\n\n"
    events = stream.split(end)
    for _ in range(draw(st.integers(0, 3))):
        at, to = (draw(st.integers(0, len(events) - 1)) for _ in range(2))
        match draw(st.sampled_from(("drop", "double", "move"))):
            case "drop" if len(events) > 1:
                del events[at]
            case "double":
                events.insert(to, events[at])
            case _:
                events.insert(to, events.pop(at))
    data = end.join(events)
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        lost = draw(st.integers(0, 6))
        data = data[:at] + draw(st.sampled_from(WORDS) | st.binary(max_size=3)) + data[at + lost :]
    return data


@st.composite
def pieces_of(draw: st.DrawFn, streams: st.SearchStrategy[bytes]) -> list[bytes]:
    data = draw(streams)
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=5)))
    return [data[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def fuzz(make: MakeReader, streams: Mapping[str, bytes], seconds: float) -> int:
    """Runs the property again and again for so long; anything but a response or a ModelError raises."""
    ran = 0

    @settings(
        max_examples=300,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(pieces_of(random_streams() | changed_streams(list(streams.values()))))
    def holds(pieces: list[bytes]) -> None:
        nonlocal ran
        ran += 1
        got = read(make, pieces)
        check_read(got)
        whole = read(make, [b"".join(pieces)])
        assert repr(whole.end) == repr(got.end)
        # In one piece nothing is lost: what is closed before a failure comes out before it.
        assert whole.closed == got.closed

    until = time.monotonic() + seconds
    holds()
    while time.monotonic() < until:
        holds()
    return ran


def fuzz_wire(folder: str, wire: Wire, forced: Wire, *, seconds: float) -> int:
    """Half of the time for plain answers and half for those that a forced tool gives, over the folder's recordings."""
    streams = recorded(folder)
    plain = fuzz(lambda: wire.from_wire(ASK), streams, seconds / 2)
    return plain + fuzz(lambda: forced.from_wire(ASK_OUTPUT), streams, seconds / 2)
