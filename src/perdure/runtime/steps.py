"""Records -> steps: what an agent was given, decided and came to, without what differs from time to time.

Rule: times, seconds, ids, epochs, keys, prices, resumptions and notes are no part of a step, so two logs of the same
decisions have equal steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeAlias, cast

import msgspec

from perdure.core.codec import decode_json, encode_json
from perdure.core.events import (
    AgentPinned,
    CallChecked,
    CallDecided,
    CallEnded,
    CallStarted,
    CallSuspended,
    Event,
    HistoryCompacted,
    HistoryCut,
    HistoryImported,
    InputAccepted,
    InputChanged,
    ModelCalled,
    ModelFailed,
    ModelResponded,
    RunEnded,
    RunStarted,
    SettingsChanged,
    StateChanged,
    StopRequested,
)
from perdure.core.messages import JSON, Plain, Thinking
from perdure.ports import Record

StepKind: TypeAlias = Literal[
    "agent",
    "input",
    "change",
    "run",
    "turn",
    "answer",
    "failure",
    "call",
    "check",
    "pause",
    "decision",
    "start",
    "outcome",
    "history",
    "stop",
    "end",
]

GIVEN: frozenset[StepKind] = frozenset(("input", "change", "stop"))
"""What comes from outside: when it comes is chance."""


class Step(Plain, frozen=True):
    """`call` counts the calls of a turn, `tool` is the name of its tool; `value` is what was decided."""

    seq: int
    run: int
    turn: int
    kind: StepKind
    call: int = 0
    tool: str = ""
    value: JSON = None


class Walk:
    """Goes through a log and knows in which turn it is, and which call is which of its turn."""

    def __init__(self) -> None:
        self._run = 0
        self._turn = 0
        self._is_open = False
        self._agent: JSON = None
        self._calls: dict[int, tuple[int, str]] = {}

    def steps(self, record: Record) -> list[Step]:
        event = record.event
        if isinstance(event, RunStarted):
            self._run, self._turn, self._is_open = event.run, 0, True
        elif isinstance(event, ModelCalled):
            self._turn = event.turn
        # What happens between runs belongs to the next one.
        run, turn = (self._run, self._turn) if self._is_open else (self._run + 1, 0)
        self._is_open = self._is_open and not isinstance(event, RunEnded)
        return [
            Step(record.seq, run, turn, kind, *self._calls.get(call, (0, "")), value)
            for kind, call, value in self._read(event)
        ]

    def _read(self, event: Event) -> list[tuple[StepKind, int, JSON]]:
        match event:
            case ModelResponded():
                return self._answer(event)
            case CallSuspended(kind="child"):
                return []  # where a sub-agent works is nobody's decision
            case CallChecked() | CallSuspended() | CallDecided() | CallStarted() | CallEnded():
                return [_read_call(event)]
            case ModelCalled(inputs=inputs, final=final):
                return [("turn", 0, {"inputs": list(inputs), "final": final})]
            case RunEnded(reason=reason, detail=detail, output=output):
                return [("end", 0, {"reason": reason, "detail": detail, "output": output})]
            case AgentPinned(spec=spec):
                known, self._agent = self._agent, _plain(spec, "model")
                return [] if known == self._agent else [("agent", 0, self._agent)]
            case _:
                return _read_other(event)

    def _answer(self, event: ModelResponded) -> list[tuple[StepKind, int, JSON]]:
        self._calls |= {call.call: (at, call.name) for at, call in enumerate(event.message.calls, 1)}
        thinking = "".join(part.text for part in event.message.parts if isinstance(part, Thinking))
        answer: dict[str, JSON] = {"text": event.message.text, "stop": event.stop}
        answer |= {"thinking": thinking} if thinking else {}
        answer |= {"output": event.output} if event.output is not None else {}
        answer |= {"invalid": event.invalid} if event.invalid else {}
        read: list[tuple[StepKind, int, JSON]] = [("answer", 0, answer)]
        read.extend(("call", call.call, {"arguments": value_of(call.arguments)}) for call in event.message.calls)
        return read


def steps_of(records: Iterable[Record]) -> list[Step]:
    walk = Walk()
    return [step for record in records for step in walk.steps(record)]


def value_of(arguments: str) -> JSON:
    """Arguments as a value, or as they were written where they are no JSON."""
    try:
        return decode_json(arguments or "{}")
    except ValueError:
        return arguments


def _read_call(
    event: CallChecked | CallSuspended | CallDecided | CallStarted | CallEnded,
) -> tuple[StepKind, int, JSON]:
    match event:
        case CallChecked():
            checked = _plain(event, "call", "bound", "digest", "snapshot", "revision", "valid_until")
            return "check", event.call, checked
        case CallSuspended():
            return "pause", event.call, _plain(event, "call", "expires_at")
        case CallDecided():
            return "decision", event.call, _plain(event, "call", "id")
        case CallStarted():
            return "start", event.call, _plain(event, "call", "key", "child")
        case CallEnded():
            return "outcome", event.call, _plain(event, "call", "seconds")


def _read_other(event: Event) -> list[tuple[StepKind, int, JSON]]:
    match event:
        case InputAccepted():
            return [("input", 0, _plain(event, "digest", "key", "at"))]
        case InputChanged() | SettingsChanged() | StateChanged() | HistoryImported():
            return [("change", 0, _plain(event))]
        case HistoryCut():
            return [("change", 0, _plain(event, "to"))]
        case HistoryCompacted():
            return [("history", 0, _plain(event, "usage", "cost_usd", "tokens_before", "tokens_after"))]
        case RunStarted():
            return [("run", 0, _plain(event))]
        case StopRequested():
            return [("stop", 0, _plain(event))]
        case ModelFailed():
            return [("failure", 0, {"kind": event.kind, "detail": event.detail})]
        case _:
            return []


def _plain(value: Any, *without: str) -> JSON:
    fields: dict[str, JSON] = msgspec.to_builtins(value)
    return {name: field for name, field in fields.items() if name not in without}


def show_step(step: Step) -> str:
    """A step in one line."""
    value = step.value
    match step.kind:
        case "input":
            words = _words(value.get("parts", ()))
            return f"input {words}" if words else f"go on with run {value.get('continues')}"
        case "answer":
            return f"answer {_short(value['text'])}" if value["text"] else "answer without words"
        case "call":
            return f"call {_call(step.tool, value['arguments'])}"
        case "outcome":
            return f"{step.tool} → {value['outcome']}: {_words(value.get('parts', ()))}"
        case "check":
            return f"{step.tool}: {value['verdict']}" + _why(value.get("rule"), value.get("reason"))
        case "pause":
            return f"{step.tool} waits: {value['kind']}" + _why(value.get("prompt"))
        case "decision":
            by = f" by {value['by']}" if value.get("by") else ""
            return f"{step.tool}: {value['decision']}{by}" + _why(value.get("reason"))
        case "start":
            return f"{step.tool} starts"
        case "failure":
            return f"no answer: {value['kind']}" + _why(value["detail"])
        case "end":
            return f"{value['reason']}" + _why(value["detail"])
        case "turn":
            heard = f" hears {', '.join(map(str, value['inputs']))}" if value["inputs"] else ""
            return f"the model is asked{heard}{', for the last time' if value['final'] else ''}"
        case "change":
            return _show_change(value)
        case _:
            return f"{step.kind} {_short(encode_json(value).decode())}"


def _show_change(value: JSON) -> str:
    match value:
        case {"type": "HistoryCut"}:
            return f"goes back to {value.get('keep', 0) + len(value.get('messages', ()))} messages"
        case {"type": "HistoryImported"}:
            return f"imports {len(value['messages'])} messages" + _why(value.get("source"))
        case {"type": "InputChanged", "retracted": True, "input": number}:
            return f"input {number} is retracted"
        case {"type": "InputChanged", "parts": parts, "input": number}:
            return f"input {number} is now {_words(parts)}"
        case {"type": "SettingsChanged", "title": str(title)}:
            return f"is called {_short(title)!r}"
        case _:
            return f"change {_short(encode_json(value).decode())}"


def _call(tool: str, arguments: JSON) -> str:
    if not isinstance(arguments, dict):
        return f"{tool}({arguments})"
    named = cast(dict[str, JSON], arguments)
    return f"{tool}({', '.join(f'{name}={encode_json(value).decode()}' for name, value in named.items())})"


def _words(parts: Iterable[JSON]) -> str:
    return _short(" ".join(part["text"] if part["type"] == "text" else f"[{part['kind']}]" for part in parts))


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= 300 else f"{flat[:299]}…"


def _why(*words: str | None) -> str:
    said = ", ".join(word for word in words if word)
    return f" ({_short(said)})" if said else ""
