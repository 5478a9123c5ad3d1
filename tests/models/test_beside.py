"""What a request holds beside its conversation is written once, and again as soon as anything of it is different."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.core.codec import encode_json
from perdure.core.messages import (
    AssistantMessage,
    Message,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    ToolResult,
    UserMessage,
)
from perdure.core.shared import Buffer
from perdure.core.specs import ModelSettings, ToolSpec
from perdure.models.wires.chat import ChatWire
from perdure.models.wires.gemini import GeminiWire
from perdure.models.wires.messages import MessagesWire
from perdure.models.wires.responses import ResponsesWire
from perdure.models.wires.wire import Wire, write_beside
from perdure.ports import ModelRequest

WIRES: list[Wire] = [
    ChatWire(),
    ChatWire(tools="json"),
    ChatWire(output="tool", continues=True, prefix="flags"),
    ResponsesWire(),
    MessagesWire(),
    MessagesWire(thinking="budget", continues=True, output="tool"),
    GeminiWire(),
    GeminiWire(output="tool"),
]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
ASKED = UserMessage((Text("Where?"),))
CALLED = AssistantMessage((ToolCall(1, "look", "{}", "a"),), "anthropic")
THOUGHT = AssistantMessage((Thinking("hm", "c2ln"), ToolCall(2, "look", "{}", "b")), "anthropic")
FOUND = ToolMessage((ToolResult(1, "look", (Text("here"),)),))
CHANGES: dict[str, list[Any]] = {
    "instructions": ["", "Be brief.", "Be long."],
    "tools": [(), (ToolSpec("look", "Looks."),), (ToolSpec("look", "Looks.", CITY), ToolSpec("go"))],
    "settings": [
        ModelSettings(),
        ModelSettings(thinking="high", max_tokens=5000),
        ModelSettings(tool_choice="required", cache=False),
        ModelSettings(extra={"metadata": {"user": "u1"}}),
    ],
    "output": [None, CITY, {"type": "array", "items": {"type": "string"}}],
    "prefix": [(), (Text("Once"),)],
    "cache_key": ["", "s1"],
}
STEPS = [*((name, value) for name, values in CHANGES.items() for value in values), ("model", "m"), ("model", "n")]
SAID = [(), (CALLED, FOUND), (THOUGHT, FOUND), (ASKED,)]
TURNS = st.lists(st.tuples(st.sampled_from(STEPS), st.sampled_from(SAID)), max_size=10)


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: f"{wire.name}-{WIRES.index(wire)}")
@settings(max_examples=60, deadline=None)
@given(turns=TURNS)
def test_a_request_of_a_growing_conversation_is_that_of_a_new_one(
    wire: Wire, turns: list[tuple[tuple[str, Any], tuple[Message, ...]]]
) -> None:
    history, fields, model = Buffer[Message]([ASKED]), {"instructions": ""}, "m"
    for (name, value), said in turns:
        model, fields = (value, fields) if name == "model" else (model, {**fields, name: value})
        for message in said:
            history = history.add(message)
        kept, fresh = (ModelRequest("p:m", messages=messages, **fields) for messages in (history, history[:]))
        assert wire.to_wire(kept, model, {}) == wire.to_wire(fresh, model, {})


def test_a_turn_without_thoughts_of_its_own_is_not_thought_about_further() -> None:
    # The one field beside the conversation that depends on it.
    wire, thinking = MessagesWire(thinking="budget"), ModelSettings(thinking="high")
    history = Buffer[Message]([ASKED])
    bodies: list[bytes] = []
    for said in ((), (THOUGHT, FOUND), (CALLED, FOUND)):
        for message in said:
            history = history.add(message)
        bodies.append(wire.to_wire(ModelRequest("p:m", "", history, settings=thinking), "m", {}))
    assert [b'"budget_tokens"' in body for body in bodies] == [True, True, False]


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: f"{wire.name}-{WIRES.index(wire)}")
def test_extra_is_sent_as_it_is_now(wire: Wire) -> None:
    history, extra = Buffer[Message]([ASKED]), dict[str, Any]()
    for value in ("u1", "u2", 1, True):
        extra["metadata"] = {"user": value}
        request = ModelRequest("p:m", "", history, settings=ModelSettings(extra=extra))
        assert b'"metadata":' + encode_json(extra["metadata"]) in wire.to_wire(request, "m", {})


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: f"{wire.name}-{WIRES.index(wire)}")
def test_lone_surrogates_beside_the_conversation_stop_no_request(wire: Wire) -> None:
    torn = "a\ud800b"
    settings, tool = ModelSettings(stop=(torn,), extra={"user": torn}), ToolSpec("look", torn)
    request = ModelRequest("p:m", torn, Buffer[Message]([ASKED]), (tool,), settings)
    assert "a\ufffdb" in wire.to_wire(request, "m", {}).decode()


@pytest.mark.parametrize("name", CHANGES)
def test_it_is_written_again_only_for_another_request(name: str) -> None:
    written: list[ModelRequest] = []

    def write(request: ModelRequest, model: str) -> bytes:
        written.append(request)
        return b"%d" % len(written)

    wire, history = ChatWire(), Buffer[Message]([ASKED])
    for value in CHANGES[name]:
        before = len(written)
        for _ in range(3):
            history = history.add(CALLED).add(FOUND)
            request = ModelRequest(**{"model": "p:m", "instructions": "", "messages": history, name: value})
            write_beside(request, wire, "m", write)
        assert len(written) == before + 1
