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
    CallDecided,
    CallEnded,
    Event,
    HistoryCompacted,
    HistoryCut,
    HistoryImported,
    InputAccepted,
    InputChanged,
    ModelFailed,
    ModelResponded,
    Noted,
    RunResumed,
    SessionOpened,
    SettingsChanged,
    StateChanged,
    StopRequested,
)
from perdure.core.fold import evolve
from perdure.core.rules import next_actions
from perdure.core.state import SessionState, find_call, in_flight, new_state
from perdure.ports import Record
from perdure.runtime.steps import canonical

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
    """The record of a session, ready to be played back; `is_open` if work was under way or due at its end."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.given: deque[Item] = deque()
        self.answers: deque[Item] = deque()
        self.compactions: deque[Item] = deque()
        self.results: defaultdict[CallKey, deque[Item]] = defaultdict(deque)
        self.state = new_state()
        self._group = 0
        self._forking = False
        for index, record in enumerate(records):
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
        own = [item for item in queue if isinstance(item.event, CallEnded) and item.event.call == ordinal]
        found = own[0] if own else queue[0]
        queue.remove(found)
        return found

    def _read(self, index: int, event: Event) -> None:
        state = self.state
        item = Item(index, self._group, place_of(state), event)
        if self._forking and state.run is not None:
            return
        self._forking = isinstance(event, SessionOpened) and index > 0
        match event:
            case ModelResponded() | ModelFailed() if state.run and state.run.awaiting == "model":
                self.answers.append(item)
            case HistoryCompacted(cause=cause) if cause != "request":
                self.compactions.append(item)
            case CallEnded() if key := _landed(state, event):
                self.results[key].append(Item(index, self._group, item.place, event, key))
            case CallDecided():
                self.given.append(Item(index, self._group, item.place, event, _key_of(state, event.call)))
            case CallAdvanced(background=False):
                self.given.append(Item(index, self._group, item.place, event, _key_of(state, event.call)))
            case _ if self._forking or _is_given(event):
                self.given.append(item)
            case Noted():
                pass
            case _:
                self._group += 1


def place_of(state: SessionState) -> Place:
    return (state.run.run, state.run.turn) if state.run else (state.runs, IDLE)


def call_key(name: str, arguments: str) -> CallKey:
    """The same for the same tool and arguments, however they were written."""
    return name, encode_json(canonical(arguments))


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


def _landed(state: SessionState, event: CallEnded) -> CallKey | None:
    """The key of a call that was under way, or whose operation was told to end; other ends follow from the log."""
    run = state.run
    call = find_call(run, event.call)
    if run is None or call is None:
        return None
    is_told = call.status == "interrupted" and bool(call.operation) and run.stop is not None
    return call_key(call.name, call.arguments) if call.status == "started" or is_told else None
