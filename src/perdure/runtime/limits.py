"""Reserving before a model call, so that a run never spends more than its limits plus one call's excess."""

from __future__ import annotations

from perdure.core.events import Reservation
from perdure.core.messages import Plain, Usage
from perdure.core.specs import EFFORT_TOKENS, Effort, Limits
from perdure.core.state import RunState, SessionState
from perdure.ports import Model
from perdure.runtime.waste import asked_price, price_of

DEFAULT_OUTPUT = 4096
ANSWER_OUTPUT = 1024


class Room(Plain, frozen=True):
    """What the next model call may take; `limit` names what leaves no room for it."""

    reserved: Reservation = Reservation()
    max_tokens: int | None = None
    limit: str = ""


def find_room(state: SessionState, run: RunState, model: Model, *, final: bool) -> Room:
    """The reservation for the next call. A final answer is owed even at the limit, but it is kept short."""
    wanted = run.settings.max_tokens
    limits = run.limits
    if limits.tokens is None and limits.cost_usd is None:
        return Room(max_tokens=wanted)
    prompt = state.context_tokens
    output = wanted or DEFAULT_OUTPUT + _thinking_room(run.settings.thinking)
    if final:
        output = min(output, ANSWER_OUTPUT)
        return Room(_reservation(model, prompt, output), output)
    away = granted_by(run)
    if limits.tokens is not None:
        output = min(output, limits.tokens - run.usage.total - away.tokens - prompt)
        if output < 1:
            return Room(limit="tokens")
    if limits.cost_usd is not None:
        left = limits.cost_usd - run.cost_usd - away.cost_usd
        output = _affordable(model, prompt, output, left)
        if output < 1:
            return Room(limit="cost_usd")
    return Room(_reservation(model, prompt, output), output)


def _thinking_room(thinking: Effort | int | None) -> int:
    """What a model thinks counts as written: without room for it nothing would be said."""
    return max(0, thinking) if isinstance(thinking, int) else EFFORT_TOKENS[thinking or "off"]


class Granted(Plain, frozen=True):
    tokens: int = 0
    cost_usd: float = 0.0
    calls: int = 0


def granted_by(run: RunState) -> Granted:
    """What sub-agents that are under way may still spend, and what was given to children that go their own way."""
    calls = [call for call in (*run.calls, *run.background) if call.granted and call.status != "ended"]
    granted = [*run.given, *(call.granted for call in calls if call.granted)]
    return Granted(
        sum(item.tokens or 0 for item in granted),
        sum(item.cost_usd or 0.0 for item in granted),
        sum(item.calls or 0 for item in granted),
    )


def grant(run: RunState, *wanted: Limits | None, beside: bool = False) -> Limits:
    """What a sub-agent may spend: no more than it wants, and than its share of what the run has left.

    The agent calls of a turn that have not begun share equally; what one does not use is there for those behind it.
    `beside`: the run itself goes on meanwhile, and has a share as well.
    """
    limits, away, own = run.limits, granted_by(run), [item for item in wanted if item is not None]
    waiting = [call for call in run.calls if not call.attempts and call.status not in ("ended", "refused", "invalid")]
    share = max(1, len([call for call in waiting if call.kind == "agent" or call.status == "proposed"])) + beside
    left: dict[str, float | None] = {
        "turns": None,
        "tokens": None if limits.tokens is None else (limits.tokens - run.usage.total - away.tokens) // share,
        "cost_usd": None if limits.cost_usd is None else (limits.cost_usd - run.cost_usd - away.cost_usd) / share,
        "calls": None if limits.calls is None else (limits.calls - run.called - away.calls) // share,
        "seconds": None if limits.seconds is None else limits.seconds - run.seconds,
        "silence": limits.silence,
        "depth": None if limits.depth is None else limits.depth - 1,
        "children": limits.children,
    }
    values = {name: _least(value, *(getattr(item, name) for item in own)) for name, value in left.items()}
    return Limits(**values, at_limit=own[-1].at_limit if own else "stop")  # pyright: ignore[reportArgumentType]


def narrowed(own: Limits, given: Limits | None) -> Limits:
    """Neither more than the one nor more than the other."""
    if given is None:
        return own
    names = [name for name in Limits.__struct_fields__ if name != "at_limit"]
    values = {name: _least(getattr(own, name), getattr(given, name)) for name in names}
    return Limits(**values, at_limit=given.at_limit)  # pyright: ignore[reportArgumentType]


def _least(*values: float | None) -> float | None:
    known = [value for value in values if value is not None]
    return max(0, min(known)) if known else None


def has_room_for(run: RunState, model: Model, usage: Usage) -> bool:
    """Whether a call beside the turns may take so much of what the run has left."""
    limits = run.limits
    if limits.tokens is not None and run.usage.total + run.reserved.tokens + usage.total > limits.tokens:
        return False
    cost = price_of(model, usage) if limits.cost_usd is not None else None
    return cost is None or run.cost_usd + run.reserved.cost_usd + cost <= (limits.cost_usd or 0.0)


def _reservation(model: Model, prompt: int, output: int) -> Reservation:
    cost = asked_price(model, Usage(input=prompt, output=output))
    return Reservation(prompt + output, cost or 0.0)


def _affordable(model: Model, prompt: int, output: int, left: float) -> int:
    """How many output tokens the money left pays for; all of them where the price is unknown."""
    base = asked_price(model, Usage(input=prompt))
    full = asked_price(model, Usage(input=prompt, output=output))
    if base is None or full is None or full <= left:
        return output
    if full <= base:
        return 0
    return int(output * max(0.0, left - base) / (full - base))
