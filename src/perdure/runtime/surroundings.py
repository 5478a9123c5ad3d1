"""What a request carries beside the conversation: context messages, reminders, the notice of the last turns.

Rule 1: nothing of it is in the log, and nothing of it stays for the next request. Rule 2: what stands before the
conversation is in a stable order, so that a provider's prompt cache holds.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, cast, get_args

import msgspec

from perdure.core.errors import UsageError
from perdure.core.messages import Message, Text, ToolMessage, ToolResult, UserMessage
from perdure.core.specs import Reminder, matches
from perdure.core.state import RunState, SessionState
from perdure.runtime.context import ToolContext

LAST_TURNS = 2
"""So many turns before the end of a run its model is told, unless the run is that short itself."""

Position = Literal["system", "start", "end"]


class ContextMessage(msgspec.Struct, frozen=True):
    """Words for the model, for one request: behind the instructions, before the conversation, or at its end.

    Of two with the same key the later one counts; of one position the higher priority comes first.
    """

    key: str
    text: str
    position: Position = "end"
    priority: int = 0

    def __post_init__(self) -> None:
        if self.position not in get_args(Position):
            raise UsageError(f"ContextMessage(position={self.position!r}): take 'system', 'start' or 'end'.")


Given = str | ContextMessage | Sequence[str | ContextMessage] | None
ContextSource = str | ContextMessage | Callable[[ToolContext[Any, Any]], Given | Awaitable[Given]]


class Surroundings(msgspec.Struct, frozen=True):
    """The same, put together for one request."""

    instructions: str
    preface: tuple[Message, ...] = ()
    suffix: tuple[Message, ...] = ()


async def gather(
    sources: Sequence[ContextSource], instructions: str, state: SessionState, turn: int, context: ToolContext[Any, Any]
) -> Surroundings:
    """Everything that belongs to the request for this turn."""
    found: dict[str, ContextMessage] = {}
    for number, source in enumerate(sources):
        for message in await _ask(source, number, context):
            found.pop(message.key, None)
            found[message.key] = message
    ordered = sorted(found.values(), key=lambda message: -message.priority)
    system = "\n\n".join([instructions, *_texts(ordered, "system")]) if ordered else instructions
    suffix = behind(state, turn, _texts(ordered, "end"))
    return Surroundings(system.strip() if ordered else system, _message(_texts(ordered, "start")), suffix)


def behind(state: SessionState, turn: int, texts: Sequence[str] = ()) -> tuple[Message, ...]:
    """What stands at the end of the request: these texts, and what is due."""
    due = _due(state, turn)
    return _message([*texts, *due]) if texts or due else ()


async def _ask(source: ContextSource, number: int, context: ToolContext[Any, Any]) -> list[ContextMessage]:
    given: object = source
    if callable(source):
        given = source(context)
        if inspect.isawaitable(given):
            given = await given
    items = cast(Sequence[object], given) if isinstance(given, list | tuple) else [given]
    made: list[ContextMessage] = []
    for at, item in enumerate(items):
        match item:
            case ContextMessage():
                made.append(item)
            case str() if item.strip():
                made.append(ContextMessage(f"{number}.{at}", item))
            case None | str():
                pass
            case _:
                raise UsageError(f"A context function returned {type(item).__name__}; return text or ContextMessage.")
    return made


def _texts(messages: Sequence[ContextMessage], position: Position) -> list[str]:
    return [message.text for message in messages if message.position == position]


def _message(texts: Sequence[str]) -> tuple[Message, ...]:
    return (UserMessage(tuple(Text(text) for text in texts)),) if texts else ()


def _due(state: SessionState, turn: int) -> list[str]:
    """The agent's reminders that the last results call for, and how many turns are left if they are few."""
    run = state.run
    if run is None:
        return []
    reminders = state.spec.reminders if state.spec else ()
    if not reminders:
        return _notice(run, turn)
    results = _last_results(state)
    due = [reminder.text for reminder in reminders if _calls_for(reminder, results, turn)]
    return [*due, *_notice(run, turn)]


def _notice(run: RunState, turn: int) -> list[str]:
    limit = run.limits.turns
    if limit is None or limit <= LAST_TURNS or turn <= limit - LAST_TURNS:
        return []
    left = "This is the last turn" if turn >= limit else "Only this turn and one more are left"
    return [f"[{left} of this run; come to an answer.]"]


def _last_results(state: SessionState) -> tuple[ToolResult, ...]:
    """The results that nobody has answered yet; a nudge of ours may stand behind them."""
    for message in reversed(state.history[-2:]):
        if isinstance(message, ToolMessage):
            return message.results
    return ()


def _calls_for(reminder: Reminder, results: Sequence[ToolResult], turn: int) -> bool:
    if reminder.every is not None and (turn < 2 or (turn - 1) % reminder.every):
        return False
    if not (reminder.tool or reminder.outcome or reminder.contains):
        return reminder.every is not None or bool(results)
    return any(_fits(reminder, result) for result in results)


def _fits(reminder: Reminder, result: ToolResult) -> bool:
    words = "".join(part.text for part in result.parts if isinstance(part, Text))
    return (
        (not reminder.tool or matches(reminder.tool, result.name))
        and (not reminder.outcome or reminder.outcome == result.outcome)
        and reminder.contains in words
    )
