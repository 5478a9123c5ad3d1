"""Other systems' conversations -> our messages: lists of chat messages, or of messages with content blocks.

Rule: it reads, and repairs nothing but what our messages cannot say at all; each such change is told in a line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from perdure.core.codec import encode_json
from perdure.core.errors import UsageError
from perdure.core.messages import (
    JSON,
    AnswerPart,
    AssistantMessage,
    Message,
    Part,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    ToolResult,
    UserMessage,
)
from perdure.runtime.media import clean_text

TEXT_BLOCKS = ("text", "input_text", "output_text", "refusal")


class Reader:
    """Reads one conversation; `places` has where each message stood, `notes` what could not be kept as it was."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.places: list[int] = []
        self.notes: list[str] = []
        self._place = 0

    def read(self, items: Sequence[JSON]) -> None:
        for self._place, item in enumerate(items, 1):
            if isinstance(item, UserMessage | AssistantMessage | ToolMessage):
                self._add(item)
            elif isinstance(item, Mapping):
                self._read_message(cast(Mapping[str, Any], item))
            else:
                raise self._wrong(f"it is a {type(item).__name__}, not a message")

    def _read_message(self, item: Mapping[str, Any]) -> None:
        role = item.get("role")
        match role:
            case "user":
                self._read_user(item)
            case "assistant" | "model":
                self._read_assistant(item)
            case "tool" | "function":
                self._add(ToolMessage((self._result(item, str(item.get("tool_call_id") or "")),)))
            case str():
                self._note(f"the role {role!r} is unknown here; its words are a user's")
                words = " ".join(part.text for part in self._parts(item.get("content")) if isinstance(part, Text))
                self._add(UserMessage((Text(f"[{role}] {words}"),) if words else ()))
            case _:
                raise self._wrong("it has no role")

    def _read_user(self, item: Mapping[str, Any]) -> None:
        """Results may stand among a user's words; they belong to the calls before them."""
        rest: list[JSON] = []
        results: list[ToolResult] = []
        for block in self._blocks(item.get("content")):
            match block:
                case {"type": "tool_result"}:
                    results.append(self._result(block, str(block.get("tool_use_id") or "")))
                case _:
                    rest.append(block)
        if results:
            self._add(ToolMessage(tuple(results)))
        if rest or not results:
            self._add(UserMessage(self._parts(rest)))

    def _read_assistant(self, item: Mapping[str, Any]) -> None:
        parts: list[AnswerPart] = []
        for block in self._blocks(item.get("content")):
            match block:
                case {"type": "tool_use", "name": str(name)}:
                    parts.append(_call(name, block.get("input") or {}, block.get("id")))
                case {"type": "thinking", "thinking": str(text)}:
                    parts.append(Thinking(clean_text(text), str(block.get("signature") or "")))
                case _:
                    parts += [part for part in self._parts([block]) if isinstance(part, Text)]
        for call in cast(Sequence[Any], item.get("tool_calls") or ()):
            match call:
                case {"function": {"name": str(name), **function}}:
                    parts.append(_call(name, function.get("arguments"), call.get("id")))
                case _:
                    raise self._wrong("a tool call in it has no function with a name")
        match item.get("function_call"):
            case {"name": str(name), **function}:
                parts.append(_call(name, function.get("arguments"), name))
            case _:
                pass
        self._add(AssistantMessage(tuple(parts)))

    def _result(self, item: Mapping[str, Any], id: str) -> ToolResult:
        name = clean_text(str(item.get("name") or ""))
        parts = self._parts(item.get("content"))
        # In the oldest shape a call has no id: its result names the function.
        return ToolResult(0, name, "error" if item.get("is_error") else "ok", parts, clean_text(id or name))

    def _add(self, message: Message) -> None:
        self.messages.append(message)
        self.places.append(self._place)

    def _note(self, what: str) -> None:
        self.notes.append(f"message {self._place}: {what}")

    def _blocks(self, content: JSON) -> list[JSON]:
        if content is None:
            return []
        if isinstance(content, str | Mapping):
            return [content]
        if isinstance(content, Sequence):
            return list(cast(Sequence[JSON], content))
        raise self._wrong(f"its content is a {type(content).__name__}, not text or a list of parts")

    def _parts(self, content: JSON) -> tuple[Part, ...]:
        parts: list[Part] = []
        for block in self._blocks(content):
            match block:
                case str():
                    parts.append(Text(clean_text(block)))
                case {"type": kind, **rest} if kind in TEXT_BLOCKS:
                    parts.append(Text(clean_text(str(rest.get("text") or rest.get("refusal") or ""))))
                case {"type": kind}:
                    self.notes.append(
                        f"message {self._place}: a part of type {kind!r} cannot be kept, and is named only"
                    )
                    parts.append(Text(f"[{kind} left out]"))
                case _:
                    raise self._wrong("a part in it has no type")
        return tuple(parts)

    def _wrong(self, why: str) -> UsageError:
        return UsageError(f"Message {self._place} of the history cannot be read: {why}; mend it and import again.")


def _call(name: str, arguments: JSON, id: JSON) -> ToolCall:
    """The arguments as they were written, or as canonical JSON where they came as a value."""
    written = arguments if isinstance(arguments, str) else encode_json({} if arguments is None else arguments).decode()
    return ToolCall(0, clean_text(name), clean_text(written), clean_text(str(id or "")))
