"""Hand-offs: the agents that another one may hand the conversation over to, and the tool by which it does.

Rule: who takes over is named in the outcome of a call; the change itself is made between two turns.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec

from perdure.core.errors import ToolError, UsageError
from perdure.core.messages import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from perdure.runtime.context import ToolContext
from perdure.runtime.tools import Tool, tool

HAND_OFF = "hand_off"
LONGEST_LINE = 200

Filter: TypeAlias = Callable[[list[Message]], Sequence[Message] | Awaitable[Sequence[Message]]]
"""What the next agent reads of the conversation so far."""


class Described(Protocol):
    """An agent, as far as a hand-off has to know it."""

    @property
    def name(self) -> str: ...

    @property
    def instructions(self) -> object: ...


class Handoff(msgspec.Struct, frozen=True, eq=False):
    """Whom to hand over to: an agent, or the name of one, which is looked up when it is used."""

    to: Described | str
    description: str = ""
    filter: Filter | None = None

    @property
    def name(self) -> str:
        return self.to if isinstance(self.to, str) else self.to.name

    @property
    def purpose(self) -> str:
        """What the agent is for, in one line."""
        words = "" if isinstance(self.to, str) else self.to.instructions
        first = words.strip().partition("\n")[0] if isinstance(words, str) else ""
        return (self.description or first)[:LONGEST_LINE]


def handoff(agent: Described | str, *, description: str = "", filter: Filter | None = None) -> Handoff:
    """An item of `Agent(handoffs=[…])` with more to say.

    `description`: what the other one is for, as the model reads it. `filter`: a function, async or not, of the list of
    messages, that returns those which the other one reads; the log keeps them all.
    """
    if filter is not None and not callable(filter):
        raise UsageError(f"handoff(filter={filter!r}): give a function of the list of messages.")
    return Handoff(agent, description, filter)


def targets_of(agent: str, given: Sequence[Handoff | Described | str]) -> dict[str, Handoff]:
    """The hand-offs of an agent by name; what makes no sense is refused."""
    found: dict[str, Handoff] = {}
    for item in given:
        target = item if isinstance(item, Handoff) else Handoff(item)
        name: object = getattr(target.to, "name", target.to)
        if not isinstance(name, str) or not name.strip():
            raise UsageError(f"Agent {agent!r}: handoffs takes agents, names or handoff(…), not {item!r}.")
        if name == agent:
            raise UsageError(f"Agent {agent!r} hands over to itself; take it out of its handoffs.")
        if name in found:
            raise UsageError(f"Agent {agent!r}: two of its handoffs are named {name!r}; keep one of them.")
        found[name] = target
    return found


def hand_off_tools(targets: dict[str, Handoff]) -> list[Tool[..., Any]]:
    """The one tool for all the targets, if there are any."""
    if not targets:
        return []
    names = ", ".join(targets)

    async def hand_off(to: str, ctx: ToolContext[Any, Any], reason: str = "") -> str:
        if to not in targets:
            raise ToolError(f"There is no agent {to!r} to hand over to; take one of: {names}.")
        ctx.next_turn(agent=to)
        return f"{to} takes over from the next turn on."

    lines = [f"- {target.name}: {target.purpose}".rstrip(": ") for target in targets.values()]
    words = "Hand the conversation over to another agent, which goes on from the next turn on. There are:"
    return [tool(hand_off, name=HAND_OFF, effect="read", sequential=True, description="\n".join([words, *lines]))]


# Filters


def last_messages(count: int) -> Filter:
    """Only the last messages; calls and their results stay together."""
    if isinstance(count, bool) or count < 1:
        raise UsageError(f"last_messages({count!r}): give a number of messages, at least 1.")

    def filter(messages: list[Message]) -> list[Message]:
        start = max(0, len(messages) - count)
        while start and isinstance(messages[start], ToolMessage):
            start -= 1
        return messages[start:]

    return filter


def without_calls(messages: list[Message]) -> list[Message]:
    """What was said, without tool calls and their results."""
    kept: list[Message] = []
    for message in messages:
        match message:
            case UserMessage():
                kept.append(message)
            case AssistantMessage(parts=parts):
                said = tuple(part for part in parts if not isinstance(part, ToolCall))
                if any(getattr(part, "text", "") for part in said):
                    kept.append(msgspec.structs.replace(message, parts=said))
            case ToolMessage():
                pass
    return kept


def inputs_only(messages: list[Message]) -> list[Message]:
    """What no agent said."""
    return [message for message in messages if isinstance(message, UserMessage)]
