"""State -> the messages to send. The pairing of calls and results is a law of `evolve`, so nothing is repaired here."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from perdure.core.events import Event, HistoryCompacted, HistoryCut
from perdure.core.fold import evolve
from perdure.core.messages import AssistantMessage, Message, ToolMessage
from perdure.core.shared import Buffer
from perdure.core.state import SessionState, new_state


def transcript(state: SessionState) -> Buffer[Message]:
    """What the model reads next; a view, so asking for it costs the same at turn 1 and at turn 10,000."""
    return state.history


class FullHistory:
    """The conversation as it would be if nothing of it had ever been compacted; what was cut stays cut."""

    def __init__(self) -> None:
        self._state = new_state()
        self._past = [self._state.history]

    def add(self, events: Iterable[Event]) -> None:
        for event in events:
            seq = self._state.seq + 1
            match event:
                case HistoryCompacted():
                    self._state = replace(self._state, seq=seq)
                case HistoryCut(to=to, keep=keep, messages=messages, values=values):
                    # What it keeps counts the messages of a view; here they are those of the same moment.
                    is_cleared = not keep and not messages
                    kept: Buffer[Message] = Buffer() if is_cleared else self._past[min(to, seq - 1)]
                    self._state = replace(self._state, seq=seq, history=kept, values=values)
                case _:
                    self._state = evolve(self._state, event)
            self._past.append(self._state.history)

    @property
    def messages(self) -> list[Message]:
        return self._state.history[:]


def unpaired(messages: Buffer[Message]) -> list[int]:
    """The calls without exactly one result right behind them: empty, or the log breaks its law."""
    broken: list[int] = []
    for index, message in enumerate(messages):
        if not isinstance(message, AssistantMessage) or not message.calls:
            continue
        follower = messages[index + 1] if index + 1 < len(messages) else None
        results = [r.call for r in follower.results] if isinstance(follower, ToolMessage) else []
        broken += [call.call for call in message.calls if results.count(call.call) != 1]
    return broken
