"""State -> the messages to send. The pairing of calls and results is a law of `evolve`, so nothing is repaired here."""

from __future__ import annotations

from perdure.core.messages import AssistantMessage, Message, ToolMessage
from perdure.core.shared import Buffer
from perdure.core.state import SessionState


def transcript(state: SessionState) -> Buffer[Message]:
    """What the model reads next; a view, so asking for it costs the same at turn 1 and at turn 10,000."""
    return state.history


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
