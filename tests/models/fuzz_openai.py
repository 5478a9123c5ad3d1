"""Recorded answers in OpenAI's formats, and what must hold for their readers whatever bytes come; also for longer runs.

`python -m tests.models.fuzz_openai SECONDS` fuzzes for so long.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from perdure.core.codec import decode_json
from perdure.core.deltas import CallDelta, ModelDelta, PartClosed, TextDelta, ThinkingDelta
from perdure.core.errors import ModelError
from perdure.core.messages import Text, ToolCall, UserMessage
from perdure.core.specs import ToolSpec
from perdure.models.wires.chat import ChatWire
from perdure.models.wires.responses import ResponsesWire
from perdure.models.wires.wire import Wire
from perdure.ports import ModelRequest, ModelResponse
from tests.models.fuzzing import changed_streams, random_streams
from tests.models.fuzzing import pieces_of as cut_anywhere
from tests.models.reading import cut_call

FOLDER = Path(__file__).parent / "recorded" / "openai"

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOTAL = {
    "type": "object",
    "properties": {"total": {"type": "integer"}},
    "required": ["total"],
    "additionalProperties": False,
}
WEATHER = ToolSpec("get_weather", "The weather of a city.", CITY)

ASK = ModelRequest("m", "Be brief.", (UserMessage((Text("Hello"),)),))
ASK_TOOLS = ModelRequest("m", "Be brief.", (UserMessage((Text("Hello"),)),), tools=(WEATHER,))
ASK_TOTAL = ModelRequest("m", "Be brief.", (UserMessage((Text("Hello"),)),), output=TOTAL)
ASK_LIST = ModelRequest("m", "Be brief.", (UserMessage((Text("Hello"),)),), output={"type": "array"})

CHAT = ChatWire()
FORCED = ChatWire(output="tool")
JSON_TOOLS = ChatWire(tools="json")
RESPONSES = ResponsesWire()
FORCED_RESPONSES = ResponsesWire(output="tool")


def recordings() -> dict[str, tuple[Wire, ModelRequest, bytes]]:
    """Every recorded answer, with the format and the request that it belongs to."""
    return {path.name: (*_asked(path.name), path.read_bytes()) for path in sorted(FOLDER.iterdir())}


def _asked(name: str) -> tuple[Wire, ModelRequest]:
    if "json_output" in name:
        return JSON_TOOLS, ASK_TOTAL
    if "json_" in name:
        return JSON_TOOLS, ASK_TOOLS
    if "forced" in name:
        return (FORCED_RESPONSES if "responses" in name else FORCED), ASK_TOTAL
    if "wrapped" in name:
        return CHAT, ASK_LIST
    return (RESPONSES if "responses" in name else CHAT), ASK_TOOLS


def read_all(
    wire: Wire, request: ModelRequest, pieces: Iterable[bytes]
) -> tuple[list[ModelDelta], ModelResponse | ModelError]:
    """The deltas, and how it ended; whatever is raised besides a ModelError breaks the promise."""
    reader = wire.from_wire(request)
    deltas: list[ModelDelta] = []
    try:
        for piece in pieces:
            deltas += reader.read(piece)
        return deltas, reader.finish()
    except ModelError as error:
        return deltas, error


def check(wire: Wire, request: ModelRequest, pieces: Sequence[bytes]) -> ModelResponse | ModelError:
    """What always holds: an answer or a ModelError; closed calls are whole JSON and stay as they are."""
    deltas, end = read_all(wire, request, pieces)
    closed = [delta.part for delta in deltas if isinstance(delta, PartClosed) and isinstance(delta.part, ToolCall)]
    for call in closed:
        decode_json(call.arguments)
        assert call.name
    whole = b"".join(pieces)
    # A body without events is over when it can be read, and what follows is ignored; in one piece it cannot be read.
    if not whole.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
        others, other_end = read_all(wire, request, [whole])
        assert repr(other_end) == repr(end), f"the same bytes, cut otherwise, end otherwise: {pieces}"
        assert [d for d in others if isinstance(d, PartClosed)] == [d for d in deltas if isinstance(d, PartClosed)]
    for delta in deltas:
        assert isinstance(delta, TextDelta | ThinkingDelta | CallDelta | PartClosed)
    if isinstance(end, ModelResponse):
        calls = [part for part in end.parts if isinstance(part, ToolCall)]
        cut = cut_call(end)
        assert all(call in calls or call == cut for call in closed)
        if end.stop != "length" and request is not ASK_TOTAL:
            shown = "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
            said = "".join(part.text for part in end.parts if isinstance(part, Text))
            # What the end of the bytes alone completes was not shown piece by piece.
            assert said.startswith(shown)
    return end


def mutate(data: bytes, chance: random.Random) -> bytes:
    """The bytes with a few of them changed, dropped, doubled or moved."""
    mutated = bytearray(data)
    for _ in range(chance.randint(1, 6)):
        at, width = chance.randrange(len(mutated) + 1), chance.choice((1, 2, 8, 60))
        match chance.randrange(6):
            case 0:
                mutated[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                del mutated[at : at + width]
            case 2:
                mutated[at:at] = mutated[at : at + width]
            case 3:
                mutated[at:at] = chance.choice(
                    (b"{", b"}", b"[", b'"', b"\n\n", b"\r", b"null", b"-1", b"\\ud800", b"0")
                )
            case 4:
                events = bytes(mutated).split(b"\n\n")
                chance.shuffle(events)
                mutated[:] = b"\n\n".join(events)
            case _:
                old, new = chance.choice(_SWAPS)
                mutated[:] = bytes(mutated).replace(old, new, chance.randint(1, 3))
    return bytes(mutated)


_SWAPS = (
    (b'"index":0', b'"index":null'),
    (b'"index":1', b'"index":0'),
    (b'"finish_reason":null', b'"finish_reason":"tool_calls"'),
    (b'"stop"', b'"length"'),
    (b'"content":"', b'"content":["'),
    (b'"name":"', b'"nam":"'),
    (b'"type":"message"', b'"type":"reasoning"'),
    (b'"function_call"', b'"message"'),
    (b'"status":"completed"', b'"status":"incomplete"'),
    (b"null", b"{}"),
    (b"null", b"[]"),
    (b'"id":"', b'"i":"'),
    (b"data: ", b"data:"),
)


def pieces_of(data: bytes, chance: random.Random) -> list[bytes]:
    """The bytes, cut anywhere."""
    cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.randint(0, 8)))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def fuzz(seconds: float = 1.0, *, seed: int = 0, most: int | None = None) -> int:
    """Mutated recordings and noise through every reader; the number of tries. An AssertionError shows what broke."""
    chance = random.Random(seed)
    known = list(recordings().values())
    ends, tries = time.monotonic() + seconds, 0
    while time.monotonic() < ends and (most is None or tries < most):
        wire, request, data = chance.choice(known)
        if chance.random() < 0.05:
            data = b"data: " + chance.randbytes(chance.randrange(80)) + b"\n\n" + data
        if chance.random() < 0.1:
            wire = chance.choice((CHAT, FORCED, JSON_TOOLS, RESPONSES, FORCED_RESPONSES))
        check(wire, request, pieces_of(mutate(data, chance), chance))
        tries += 1
    return tries


def run(*, max_examples: int = 300, seconds: float | None = None) -> int:
    """Hypothesis over noise and spoilt recordings, so often; then the faster mutations, for so long."""
    known = list(recordings().values())
    ran = 0

    @settings(
        max_examples=max_examples,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.sampled_from(known), st.data())
    def holds(asked: tuple[Wire, ModelRequest, bytes], data: st.DataObject) -> None:
        nonlocal ran
        ran += 1
        wire, request, recorded = asked
        check(wire, request, data.draw(cut_anywhere(random_streams() | changed_streams([recorded]))))

    holds()
    return ran + (fuzz(seconds, seed=time.time_ns()) if seconds else 0)


if __name__ == "__main__":
    print(run(seconds=float(sys.argv[1])), "tries without a failure")
