"""One conversation with everything in it, for comparing request bodies."""

from __future__ import annotations

from perdure.core.messages import (
    AssistantMessage,
    Media,
    Message,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    ToolResult,
    UserMessage,
)
from perdure.core.specs import ToolSpec

PNG = b"\x89PNG\r\n\x1a\n..."
PDF = b"%PDF-1.7 ..."
NOTES = "line 1\nline 2 wörld".encode()
FILES = {"png": PNG, "pdf": PDF, "notes": NOTES}

WEATHER = ToolSpec(
    "get_weather",
    "The weather at a place.",
    {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
)
NOW = ToolSpec("now", "", {"type": "object", "properties": {}})
TOOLS = (WEATHER, NOW)

ASKED = UserMessage(
    (
        Text("What is this?"),
        Media("image", "png", "image/png", len(PNG)),
        Media("document", "pdf", "application/pdf", len(PDF), "report.pdf"),
        Media("document", "notes", "text/plain", len(NOTES)),
    )
)
RESULTS = ToolMessage(
    (
        ToolResult(1, "get_weather", "ok", (Text("12 °C"), Media("image", "png", "image/png", len(PNG)))),
        ToolResult(2, "now", "error", (Text("no clock"),)),
    )
)
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def answered(provider: str, thought: Thinking | None, extras: object = None) -> AssistantMessage:
    calls = (ToolCall(1, "get_weather", '{"place": "Rome"}', "theirs-1", extras), ToolCall(2, "now", "{}", "theirs-2"))
    return AssistantMessage((*([thought] if thought else []), Text("I look."), *calls), provider)


def conversation(answer: AssistantMessage) -> list[Message]:
    return [ASKED, answer, RESULTS]
