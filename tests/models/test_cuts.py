"""Streams cut at every byte: what is kept is whole, what is continued is a true prefix, nothing else comes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.core.codec import decode_json
from perdure.core.deltas import ModelDelta
from perdure.core.errors import ModelError
from perdure.core.messages import Text, Thinking, ToolCall, Usage, UserMessage
from perdure.models.wires.chat import ChatWire
from perdure.models.wires.gemini import GeminiWire
from perdure.models.wires.messages import MessagesWire
from perdure.models.wires.responses import ResponsesWire
from perdure.models.wires.wire import Wire
from perdure.ports import ModelRequest, ModelResponse
from perdure.runtime.recovery import Continue, Keep, Restart, plan_after, receive
from perdure.testing.provider_streams import FORMATS, Format, error_event, stream_of

WIRES: dict[Format, Wire] = {
    "openai": ChatWire(),
    "openai-responses": ResponsesWire(),
    "anthropic": MessagesWire(),
    "google": GeminiWire(),
}
FOLDERS: dict[str, Wire] = {
    "openai": WIRES["openai"],
    "anthropic": WIRES["anthropic"],
    "google": WIRES["google"],
}
ASKED = ModelRequest("m", "", (UserMessage((Text("Do it."),)),))
ANSWERS = {
    "words": ModelResponse((Text("Ein längerer Satz, mit „Zeichen“ 🎈."),), "end", Usage(9, 9)),
    "thought": ModelResponse((Thinking("hm, so", "c2ln"), Text("It is so.")), "end", Usage(9, 9)),
    "calls": ModelResponse(
        (
            Thinking("pay first", "c2ln"),
            Text("I pay."),
            ToolCall(0, "pay", '{"cents":990,"to":{"name":"Zoë"}}', "a"),
            ToolCall(0, "look", '{"what":"[{]}"}', "b"),
        ),
        "calls",
        Usage(9, 9),
    ),
}


def read(wire: Wire, data: bytes) -> tuple[list[ModelDelta], ModelResponse | ModelError]:
    """What a stream that ends here has shown, and how it ends."""
    reader = wire.from_wire(ASKED)
    shown: list[ModelDelta] = []
    try:
        shown += reader.read(data)
        return shown, reader.finish()
    except ModelError as error:
        return shown, error


def check(wire: Wire, stream: bytes, whole: ModelResponse) -> set[str]:
    """Every cut, and the names of the plans that came up."""
    said = "".join(part.text for part in whole.parts if isinstance(part, Text))
    calls = [(p.name, decode_json(p.arguments)) for p in whole.parts if isinstance(p, ToolCall)]
    plans: set[str] = set()
    for cut in range(len(stream)):
        shown, end = read(wire, stream[:cut])
        received = receive(shown)
        assert said.startswith(received.text), cut
        if isinstance(end, ModelResponse):
            assert (end.parts, end.stop) == (whole.parts, whole.stop), f"half an answer passed for a whole one at {cut}"
            continue
        assert end.kind == "cut", (cut, end)
        plan = plan_after(received, continues=True)
        plans.add(type(plan).__name__)
        match plan:
            case Keep(parts=parts):
                kept = [(p.name, decode_json(p.arguments)) for p in parts if isinstance(p, ToolCall)]
                assert kept == calls[: len(kept)], cut
                assert kept
            case Continue(prefix=prefix):
                text = "".join(part.text for part in prefix if isinstance(part, Text))
                assert text
                assert said.startswith(text), cut
            case Restart():
                assert received.open_thought or not received.text.strip(), cut
    return plans


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", ANSWERS)
def test_a_stream_cut_at_any_byte_comes_to_a_defined_end(format: Format, name: str) -> None:
    wire = WIRES[format]
    stream = stream_of(format, ANSWERS[name], chunk=3)
    _, whole = read(wire, stream)
    assert isinstance(whole, ModelResponse)
    plans = check(wire, stream, whole)
    assert plans == ({"Restart", "Continue", "Keep"} if name == "calls" else {"Restart", "Continue"})


RECORDED = sorted((Path(__file__).parent / "recorded").glob("*/*.sse"))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_recorded_stream_cut_at_any_byte_comes_to_a_defined_end(path: Path) -> None:
    is_responses = path.parent.name == "openai" and path.stem.startswith("responses")
    wire = WIRES["openai-responses"] if is_responses else FOLDERS[path.parent.name]
    stream = path.read_bytes()
    _, whole = read(wire, stream)
    if isinstance(whole, ModelResponse) and whole.stop != "length":
        check(wire, stream, whole)


@pytest.mark.parametrize("format", FORMATS)
def test_what_was_closed_before_an_error_in_the_same_read_comes_out_before_it(format: Format) -> None:
    wire = WIRES[format]
    stream = stream_of(format, ANSWERS["calls"], chunk=3)
    shown: list[ModelDelta] = []
    for cut in range(len(stream)):
        shown, _ = read(wire, stream[:cut])
        if sum(isinstance(part, ToolCall) for part in receive(shown).parts) == 1:
            break
    last_event = stream[:cut].rfind(b"\n\n") + 2 if format != "google" else stream[:cut].rfind(b"\r\n\r\n") + 4
    reader = wire.from_wire(ASKED)
    together = list(reader.read(stream[:last_event] + error_event(format)))
    with pytest.raises(ModelError):
        reader.finish()
    alone, _ = read(wire, stream[:last_event])
    assert together == alone
