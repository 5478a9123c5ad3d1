"""The view of a long past: what a compaction may stand in for, what it must keep, and the view after it.

Rule 1: a call is never without its result, and a call whose result is still to come stays. Rule 2: the last input and
the ledger (decisions, denials, unknown outcomes, paths) stand in every view, word for word. Rule 3: the log is whole:
a view only hides.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any, cast

from perdure.core.codec import canonical, decode_json, encode_json
from perdure.core.events import HistoryCompacted
from perdure.core.messages import (
    JSON,
    AssistantMessage,
    Message,
    Plain,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    UserMessage,
    estimate_tokens,
)
from perdure.core.specs import AgentSpec
from perdure.core.state import SessionState

MAX_LEDGER = 300
"""Lines; what is older goes, paths first."""
LEDGER_ROOM = 24_000
"""Characters of the ledger; where the window is known, no more than a quarter of it."""
PRUNED_ABOVE = 2000
"""Characters: a result that is shorter is not worth a hint in its place."""
REPEATED_ABOVE = 200
MAX_ARGUMENTS = 500
SUMMARY = "[Summary of the conversation until here]"
LEFT_OUT = " earlier messages are left out]"
ON_RECORD = "[On record, word for word]"

_PATH_NAMES = frozenset(("path", "file", "file_path", "filename", "directory", "dir", "folder"))
_PATH = re.compile(r"[\w.~@+-]*(?:/[\w.~@+-]+)+/?")


class Range(Plain, frozen=True):
    """The messages from `start` to `stop` of a view."""

    start: int
    stop: int


def estimate_message(message: Message) -> int:
    match message:
        case AssistantMessage(parts=parts):
            return 4 + estimate_tokens(parts)
        case ToolMessage(results=results):
            tokens = 4
            for result in results:
                tokens += 10 + estimate_tokens(result.parts)
            return tokens
        case UserMessage(parts=parts):
            return 4 + estimate_tokens(parts)


def estimate_view(messages: Iterable[Message]) -> int:
    return sum(map(estimate_message, messages))


def overhead_of(spec: AgentSpec) -> int:
    """What every request carries beside the messages: instructions and the schemas of the tools that are shown."""
    shown = [
        [tool.name, tool.description, tool.parameters] for tool in spec.tools if not (tool.hidden or tool.deferred)
    ]
    return (len(spec.instructions) + len(encode_json(shown))) // 4


def find_range(messages: Sequence[Message], keep_first: int, keep_last: int) -> Range | None:
    """The largest range between the messages to keep; None if there is nothing in it worth a summary."""
    start = next((at for at in range(keep_first, len(messages)) if _may_cut(messages, at)), len(messages))
    stop = next((at for at in range(len(messages) - keep_last, start, -1) if _may_cut(messages, at)), start)
    return Range(start, stop) if stop - start > 1 else None


def _may_cut(messages: Sequence[Message], at: int) -> bool:
    before = messages[at - 1] if at > 0 else None
    return not (isinstance(before, AssistantMessage) and before.calls)


def superseded(state: SessionState, keep_first: int, keep_last: int) -> tuple[int, ...]:
    """The calls whose results tell nothing new, oldest first: a read that was repeated later, or a long old output.

    Errors stay, and so does what a person decided or answered.
    """
    messages, spec = state.history, state.spec
    reads = {tool.name for tool in (spec.tools if spec else ()) if tool.effect == "read"}
    arguments = {call.call: _canonical(call) for message in messages for call in calls_of(message)}
    latest = {(name, arguments.get(call)): call for call, name in _results(messages) if name in reads}
    found: list[int] = []
    for message in messages[keep_first : max(0, len(messages) - keep_last)]:
        for result in message.results if isinstance(message, ToolMessage) else ():
            is_repeated = latest.get((result.name, arguments.get(result.call)), result.call) != result.call
            is_long = _size(result) > (REPEATED_ABOVE if is_repeated else PRUNED_ABOVE)
            if result.outcome == "ok" and is_long and state.decided.get(f"{result.call}-1") is None:
                found.append(result.call)
    return tuple(found)


def _results(messages: Sequence[Message]) -> list[tuple[int, str]]:
    tool_messages = [message for message in messages if isinstance(message, ToolMessage)]
    return [(result.call, result.name) for message in tool_messages for result in message.results]


def calls_of(message: Message) -> tuple[ToolCall, ...]:
    return message.calls if isinstance(message, AssistantMessage) else ()


def _size(result: ToolResult) -> int:
    return sum(len(part.text) if isinstance(part, Text) else 4000 for part in result.parts)


def _canonical(call: ToolCall) -> bytes:
    try:
        return canonical(call.arguments)
    except ValueError:
        return call.arguments.encode("utf-8", "replace")


def ledger_of(state: SessionState, messages: Iterable[Message]) -> tuple[str, ...]:
    """What these messages hold that no summary may put in other words, without what is in the ledger already."""
    lines: dict[str, None] = {}
    calls: dict[int, ToolCall] = {}
    for message in messages:
        for call in calls_of(message):
            calls[call.call] = call
            for path in _paths(call.arguments):
                lines[f"path {path}"] = None
        for result in message.results if isinstance(message, ToolMessage) else ():
            for line in _lines_of(state, result, calls.get(result.call)):
                lines[line] = None
    known = set(state.ledger)
    return tuple(line for line in lines if line not in known)


def _lines_of(state: SessionState, result: ToolResult, call: ToolCall | None) -> list[str]:
    what = f"call {result.call}, {result.name} {(call.arguments if call else '')[:MAX_ARGUMENTS]}".rstrip()
    said = " ".join(part.text for part in result.parts if isinstance(part, Text))[:MAX_ARGUMENTS]
    lines: list[str] = []
    pause = 1
    while (decided := state.decided.get(f"{result.call}-{pause}")) is not None:
        decision, _, by = decided.partition("|")
        # What a person answered, or wrote in the place of the arguments, stands in the result alone.
        words = f": {said}" if decision in ("answer", "edit") else ""
        lines.append(f"{what}: {decision}{f' by {by}' if by else ''}{words}")
        pause += 1
    if result.outcome in ("denied", "unknown"):
        lines.append(f"{what}: {result.outcome}: {said}")
    return lines


def _paths(arguments: str) -> list[str]:
    """The paths in a call's arguments, by the name of the argument or by how they are written."""
    try:
        values = decode_json(arguments or "{}")
    except ValueError:
        return []
    return [
        text
        for name, value in (cast(dict[str, JSON], values).items() if isinstance(values, dict) else ())
        for text in (cast(list[Any], value) if isinstance(value, list) else [value])
        if isinstance(text, str) and 0 < len(text) <= 300 and (name in _PATH_NAMES or _PATH.fullmatch(text))
    ]


def joined_ledger(state: SessionState, new: tuple[str, ...]) -> tuple[str, ...]:
    """The lines that stand in the next view; if there are too many, the oldest paths go first, then what is oldest."""
    lines = (*state.ledger, *new)
    tokens = (state.run.window if state.run else None) or (state.spec.window.tokens if state.spec else None)
    room = LEDGER_ROOM if tokens is None else min(LEDGER_ROOM, tokens)
    if len(lines) <= MAX_LEDGER and sum(map(len, lines)) <= room:
        return lines
    kept: set[int] = set()
    for is_path in (False, True):
        for at in range(len(lines) - 1, -1, -1):
            if lines[at].startswith("path ") is is_path:
                room -= len(lines[at])
                if room < 0 or len(kept) >= MAX_LEDGER:
                    break
                kept.add(at)
    return tuple(lines[at] for at in sorted(kept))


def view_after(state: SessionState, event: HistoryCompacted) -> tuple[list[Message], int]:
    """The messages of the view that a compaction makes, and where in it the last input stands."""
    messages: list[Message] = prune(state.history[:], event.pruned)
    start, stop = _fitted(messages, event.start, event.stop)
    asked = state.asked
    kept = [messages[asked]] if start <= asked < stop else []
    if stop - start <= len(kept):
        return messages, asked
    summary = summary_message(event, stop - start - len(kept), joined_ledger(state, event.ledger))
    view = [*messages[:start], summary, *kept, *messages[stop:]]
    if kept:
        return view, start + 1
    return view, asked - (stop - start) + 1 if asked >= stop else asked


def _fitted(messages: Sequence[Message], start: int, stop: int) -> tuple[int, int]:
    """Anybody may have made the event: a range that would part a call from its result is made smaller."""
    start, stop = max(0, start), min(stop, len(messages))
    while start < stop and not _may_cut(messages, start):
        start += 1
    while start < stop and not _may_cut(messages, stop):
        stop -= 1
    return start, stop


def summary_message(event: HistoryCompacted, count: int, ledger: tuple[str, ...]) -> UserMessage:
    title = SUMMARY if event.parts else f"[{count}{LEFT_OUT}"
    record = "\n".join((ON_RECORD, *ledger)) if ledger else ""
    return UserMessage((Text(title), *event.parts, *((Text(record),) if record else ())))


def is_summary(message: Message) -> bool:
    """Whether the message stands for others that an earlier compaction took out of the view."""
    first = message.parts[0] if isinstance(message, UserMessage) and message.parts else None
    return isinstance(first, Text) and (first.text == SUMMARY or first.text.endswith(LEFT_OUT))


def prune(messages: list[Message], calls: Collection[int]) -> list[Message]:
    """The messages with a hint in the place of these calls' results."""
    if not calls:
        return messages
    wanted = frozenset(calls)
    return [_pruned(message, wanted) if isinstance(message, ToolMessage) else message for message in messages]


def _pruned(message: ToolMessage, calls: frozenset[int]) -> ToolMessage:
    return ToolMessage(
        tuple(
            ToolResult(r.call, r.name, r.outcome, (Text(_hint(r)),), r.id) if r.call in calls else r
            for r in message.results
        )
    )


def _hint(result: ToolResult) -> str:
    return (
        f"[The result of {result.name}, {_size(result):,} characters, is left out to save room; ask again if needed.]"
    )
