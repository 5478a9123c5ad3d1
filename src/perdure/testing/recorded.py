"""A recorded session taken apart: what came from outside, what came of work, and what stood together.

Rule: whatever else is in a record follows from these and from the agent.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from perdure.core.codec import encode_json
from perdure.core.events import (
    CallAdvanced,
    CallChecked,
    CallDecided,
    CallEnded,
    CallSuspended,
    Event,
    HistoryCompacted,
    HistoryCut,
    HistoryImported,
    InputAccepted,
    InputChanged,
    MessageSettled,
    ModelFailed,
    ModelResponded,
    Noted,
    RunResumed,
    SessionOpened,
    SettingsChanged,
    StateChanged,
    StopRequested,
    TriggerSet,
)
from perdure.core.fold import evolve, fold
from perdure.core.rules import next_actions
from perdure.core.state import SessionState, find_call, in_flight, new_state
from perdure.ports import Record
from perdure.runtime.steps import value_of

Place: TypeAlias = tuple[int, int]
"""Run and turn; between runs the turn is beyond any other."""

IDLE = 10**9
PUSHED_ON = "natural_end"
"""Whose inputs the agent's own hooks send, and send again."""
NOWHERE = 10**9

CallKey: TypeAlias = tuple[str, bytes]


class Item(msgspec.Struct, frozen=True, eq=False):
    """Something that no rule brought about. Items of one `group` have no other event between them."""

    index: int
    group: int
    place: Place
    event: Event
    key: CallKey | None = None


class Recorded:
    """A part of a session's record, ready to be played back: what is behind its first `start` records.

    `is_open`: work was under way or due at its end. `checks` are those of calls that were prepared: nobody prepares
    them again.
    """

    def __init__(self, records: Sequence[Record], start: int = 1) -> None:
        self.given: deque[Item] = deque()
        self.answers: deque[Item] = deque()
        self.compactions: deque[Item] = deque()
        self.results: defaultdict[CallKey, deque[Item]] = defaultdict(deque)
        self.checks: defaultdict[CallKey, deque[Item]] = defaultdict(deque)
        self.settled: dict[int, MessageSettled] = {}
        self.state = fold([record.event for record in records[:start]])
        self._group = 0
        for index, record in enumerate(records[start:], start):
            self._read(index, record.event)
            self.state = evolve(self.state, record.event)
        self.is_open = in_flight(self.state) or bool(next_actions(self.state))

    @property
    def is_played(self) -> bool:
        """Whether nothing is left that came from outside or of work."""
        return not (self.given or self.answers or self.compactions or any(self.results.values()))

    def take_result(self, key: CallKey, ordinal: int) -> Item | None:
        """The next result of such a call; of twins, each has its own."""
        queue = self.results.get(key)
        if not queue:
            return None
        own = [i for i in queue if isinstance(i.event, CallEnded | CallSuspended) and i.event.call == ordinal]
        found = own[0] if own else queue[0]
        queue.remove(found)
        return found

    def _read(self, index: int, event: Event) -> None:
        state = self.state
        item = Item(index, self._group, place_of(state), event)
        match event:
            case ModelResponded() | ModelFailed() if state.run and state.run.awaiting == "model":
                self.answers.append(item)
            case HistoryCompacted(cause=cause) if cause != "request":
                self.compactions.append(item)
            case CallEnded() | CallSuspended(kind="child") if key := _landed(state, event):
                self.results[key].append(Item(index, self._group, item.place, event, key))
                # How a child ended is heard by a call that waits for it, not before.
                self._group += isinstance(event, CallSuspended)
            case CallEnded(call=ordinal) if _is_away(state, ordinal):
                self.given.append(Item(index, self._group, item.place, event, _key_of(state, ordinal)))
            case MessageSettled(message=number) if number:
                self.settled[number] = event
            case CallDecided():
                self.given.append(Item(index, self._group, item.place, event, _key_of(state, event.call)))
            case CallAdvanced(background=False):
                self.given.append(Item(index, self._group, item.place, event, _key_of(state, event.call)))
            case CallChecked(verdict=verdict) if verdict != "stale" and _listens(state, event.call):
                key = _key_of(state, event.call)
                if key is not None:
                    self.checks[key].append(item)
                self._group += 1
            case HistoryCut() if state.run is not None:
                pass  # a hand-off's filter made it, and makes it again
            case _ if _is_given(event):
                self.given.append(item)
            case Noted() | TriggerSet():
                # What a trigger sent was given; a replay sets none, so nothing is sent twice.
                pass
            case _:
                self._group += 1


def parts_of(records: Sequence[Record]) -> list[tuple[int, int]]:
    """Where each part of a record begins and ends: one for the session, and one for each fork in its past.

    A part of a fork begins behind the facts that closed what was open at the cut.
    """
    parts: list[tuple[int, int]] = []
    state, start, is_closing = new_state(), 1, False
    for index, record in enumerate(records):
        if isinstance(record.event, SessionOpened) and index:
            parts.append((start, index))
            is_closing = True
        state = evolve(state, record.event)
        if is_closing:
            start, is_closing = index + 1, state.run is not None
    return [*parts, (start, len(records))]


def place_of(state: SessionState) -> Place:
    return (state.run.run, state.run.turn) if state.run else (state.runs, IDLE)


def call_key(name: str, arguments: str) -> CallKey:
    """The same for the same tool and arguments, however they were written."""
    return name, encode_json(value_of(arguments))


def _is_given(event: Event) -> bool:
    match event:
        case InputAccepted(by=by):
            return by != PUSHED_ON
        case InputChanged(vetted=vetted, blocked=blocked):
            return not (vetted or blocked)
        case StopRequested() | SettingsChanged() | StateChanged() | HistoryCut() | HistoryImported() | RunResumed():
            return True
        case HistoryCompacted():
            return True
        case _:
            return False


def _key_of(state: SessionState, ordinal: int) -> CallKey | None:
    call = find_call(state.run, ordinal)
    return call_key(call.name, call.arguments) if call else None


def _listens(state: SessionState, ordinal: int) -> bool:
    call = find_call(state.run, ordinal)
    tools = state.spec.tools if state.spec else ()
    return call is not None and any(tool.listens for tool in tools if tool.name == call.name)


def _is_away(state: SessionState, ordinal: int) -> bool:
    """Whether a sub-agent's session goes on for the call: how that ends comes from outside."""
    call = find_call(state.run, ordinal)
    return call is not None and (call.is_away or (bool(call.child) and call.status == "interrupted"))


def _landed(state: SessionState, event: CallEnded | CallSuspended) -> CallKey | None:
    """The key of a call that was under way, or whose operation was told to end; other ends follow from the log."""
    run = state.run
    call = find_call(run, event.call)
    if run is None or call is None:
        return None
    is_told = call.status == "interrupted" and bool(call.operation) and run.stop is not None
    return call_key(call.name, call.arguments) if call.status == "started" or is_told else None
