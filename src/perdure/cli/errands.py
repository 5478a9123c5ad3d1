"""What sessions have to do with each other (sub-agents, budgets, messages), in words for people."""

from __future__ import annotations

from perdure.cli.words import count, shorten, show_cost, show_parts, show_seconds, show_spent, show_until
from perdure.core.events import Address, MessageSent, MessageSettled, Origin, Spent
from perdure.core.specs import Limits

LONGEST = 300


def show_from(origin: Origin) -> str:
    """Whose child a session is."""
    whose = " / ".join(origin.agents)
    return f"sub-agent of {whose}, for call {origin.call}" if origin.call else f"sub-agent of {whose}"


def show_child(name: str, prompt: str, expires_at: float | None) -> str:
    return f"{name} · {prompt or 'a session of its own works on it'}{show_until(expires_at)}"


def show_spending(spent: Spent | None) -> str:
    """What a sub-agent has used, to stand behind its answer."""
    if spent is None or not (spent.usage.total or spent.cost_usd):
        return ""
    cost = show_spent(spent.cost_usd or 0.0, is_priced=spent.cost_usd is not None)
    return "".join(f" · {word}" for word in (count(spent.usage.total, "token"), *cost))


def show_grant(limits: Limits) -> str:
    """What a sub-agent may use; nothing where nothing limits it but the depth of the family."""
    said = [count(limits.turns, "turn")] if limits.turns is not None else []
    said += [count(limits.tokens, "token")] if limits.tokens is not None else []
    said += [show_cost(limits.cost_usd)] if limits.cost_usd is not None else []
    said += [count(limits.calls, "call")] if limits.calls is not None else []
    said += [show_seconds(limits.seconds)] if limits.seconds is not None else []
    return ", ".join(said)


def show_address(to: Address) -> str:
    match to.kind:
        case "parent":
            return "its parent"
        case "child":
            return f"its child {to.name}"
        case "session":
            return f"session {to.name}"


def show_sent(event: MessageSent) -> str:
    """A message on its way; some of them start or stop a child."""
    by = f" · by {event.by}" if event.by else ""
    if not event.parts:
        return f"{show_address(event.to)} is told to end{by}"
    words = shorten(show_parts(event.parts), LONGEST)
    if event.agent:
        return f"{event.agent} starts as {show_address(event.to)}: {words}{by}"
    return f"to {show_address(event.to)}: {words}{by}"


def show_settled(event: MessageSettled) -> tuple[str, str, str]:
    """Mark, text and style of a line."""
    what = f"message {event.message}" if event.message else f"the news of the end of input {event.input}"
    if event.dead:
        return "✗", f"{what} could not be brought: {event.dead}", "red"
    return "·", f"{what} is there", "dim"
