"""Logs of the past, byte for byte: they must be read, mean what they meant, and be written again as they are.

A golden log is `golden/WHAT_IT_SHOWS.jsonl`, one event a line, with its meaning beside it in a `.json`. None
is ever edited: a new kind, or a new value of a closed field, gets a new log.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import pytest

from perdure.core.codec import decode_event, decode_json, encode_event, encode_json
from perdure.core.errors import ModelErrorKind
from perdure.core.events import Event, ModelFailed
from perdure.core.fold import fold
from perdure.core.messages import Text, UserMessage
from perdure.core.rules import next_actions
from perdure.core.state import SessionState
from perdure.core.transcript import unpaired
from perdure.core.upcast import UPCASTS
from perdure.core.views import summarise
from tests.core.logs import brief

LOGS = sorted((Path(__file__).parent / "golden").glob("*.jsonl"))
KINDS: tuple[type[Event], ...] = get_args(Event)
LATER = {"said", "values", "run_values", "model"}
OWN_FAILURES = ("limit", "stopped", "internal", "rejected", "blocked")


def payloads(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines()


def meaning(events: list[Event]) -> Any:
    """What a log comes to, in plain data."""
    state = fold(events)
    summary = summarise(state)
    return _later(state) | {
        "status": summary.status,
        "runnable": summary.runnable,
        "wake_at": summary.wake_at,
        "pending": [{"id": p.id, "kind": p.kind, "tool": p.tool, "arguments": p.arguments} for p in summary.pending],
        "ended": [[end.run, end.reason, end.detail, end.output] for end in state.ended],
        "next": [brief(action) for action in next_actions(state)],
        "messages": [type(message).__name__ for message in state.history],
        "tokens": state.usage.total,
    }


def _later(state: SessionState) -> dict[str, Any]:
    """What of the later kinds a log shows."""
    users = [message for message in state.history if isinstance(message, UserMessage)]
    said = ["\n".join(part.text for part in message.parts if isinstance(part, Text)) for message in users]
    whose = summarise(state).agent
    shown = {
        "view": state.view,
        "said": said,
        "ledger": list(state.ledger),
        "values": state.values,
        "run_values": state.run.values if state.run else {},
        "title": state.title,
        "model": state.run.model if state.run else "",
        "revealed": list(state.revealed),
        "vetted": {str(number): why for number, why in state.vetted.items()},
        "agents": [] if {state.agent, whose} == {state.home} else [state.agent, whose],
        "triggers": [[known.name, known.next_at, known.is_paused, known.fired] for known in state.triggers.values()],
        "queue": summarise(state).queue,
        "priority": state.priority,
        "waits": [[queued.input, queued.at, queued.by] for queued in state.queue if queued.at or queued.by],
    }
    return {name: value for name, value in shown.items() if value}


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_a_golden_log_means_what_it_meant(path: Path) -> None:
    events = [decode_event(payload) for payload in payloads(path)]
    came_to = meaning(events)
    recorded = path.with_suffix(".json")
    assert recorded.exists(), f"record what {path.name} means in {recorded.name}: {encode_json(came_to).decode()}"
    meant = decode_json(recorded.read_bytes())
    # A meaning that was recorded before these were shown says nothing of them.
    assert {name: value for name, value in came_to.items() if name in meant or name not in LATER} == meant


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_a_golden_log_is_written_again_as_it_is(path: Path) -> None:
    for payload in payloads(path):
        if decode_json(payload)["type"] not in UPCASTS:
            assert encode_event(decode_event(payload)) == payload


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_a_golden_log_is_lawful(path: Path) -> None:
    events = [decode_event(payload) for payload in payloads(path)]
    for length in range(len(events) + 1):
        state = fold(events[:length])
        if state.run is None or not state.run.calls:
            assert unpaired(state.history) == []


def test_every_meaning_has_its_log() -> None:
    logs = {path.stem for path in LOGS}
    assert {path.stem for path in (Path(__file__).parent / "golden").glob("*.json")} == logs


def test_every_kind_of_event_has_a_golden_log() -> None:
    shown = {decode_json(payload)["type"] for path in LOGS for payload in payloads(path)}
    wanted = {kind.__name__ for kind in KINDS} | set(UPCASTS)
    assert shown == wanted, f"add a golden log that shows {sorted(wanted - shown)}"


def test_every_value_of_a_closed_field_has_a_golden_log() -> None:
    shown = {
        (type(event), field, getattr(event, field))
        for path in LOGS
        for event in map(decode_event, payloads(path))
        for field in event.__struct_fields__
        if isinstance(getattr(event, field), str)
    }
    wanted = {(kind, name, value) for kind in KINDS for name, value in closed_values(kind)}
    wanted |= {(ModelFailed, "kind", value) for value in (*get_args(ModelErrorKind), *OWN_FAILURES)}
    missing = sorted(f"{kind.__name__}.{field}={value!r}" for kind, field, value in wanted - shown)
    assert not missing, f"add golden logs that show {missing}"


def closed_values(kind: type[msgspec.Struct]) -> list[tuple[str, str]]:
    hints = get_type_hints(kind)
    return [(name, value) for name, hint in hints.items() if get_origin(hint) is Literal for value in get_args(hint)]
