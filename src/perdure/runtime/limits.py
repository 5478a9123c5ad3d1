"""Reserving before a model call, so that a run never spends more than its limits plus one call's excess."""

from __future__ import annotations

from perdure.core.events import Reservation
from perdure.core.messages import Plain, Usage
from perdure.core.state import RunState, SessionState
from perdure.ports import Model
from perdure.runtime.waste import price_of

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
    output = wanted or DEFAULT_OUTPUT
    if final:
        output = min(output, ANSWER_OUTPUT)
        return Room(_reservation(model, prompt, output), output)
    if limits.tokens is not None:
        output = min(output, limits.tokens - run.usage.total - prompt)
        if output < 1:
            return Room(limit="tokens")
    if limits.cost_usd is not None:
        left = limits.cost_usd - run.cost_usd
        output = _affordable(model, prompt, output, left)
        if output < 1:
            return Room(limit="cost_usd")
    return Room(_reservation(model, prompt, output), output)


def has_room_for(run: RunState, model: Model, usage: Usage) -> bool:
    """Whether a call beside the turns may take so much of what the run has left."""
    limits = run.limits
    if limits.tokens is not None and run.usage.total + run.reserved.tokens + usage.total > limits.tokens:
        return False
    cost = price_of(model, usage) if limits.cost_usd is not None else None
    return cost is None or run.cost_usd + run.reserved.cost_usd + cost <= (limits.cost_usd or 0.0)


def _reservation(model: Model, prompt: int, output: int) -> Reservation:
    cost = model.cost(Usage(input=prompt, output=output))
    return Reservation(prompt + output, cost or 0.0)


def _affordable(model: Model, prompt: int, output: int, left: float) -> int:
    """How many output tokens the money left pays for; all of them where the price is unknown."""
    base = model.cost(Usage(input=prompt))
    full = model.cost(Usage(input=prompt, output=output))
    if base is None or full is None or full <= left:
        return output
    if full <= base:
        return 0
    return int(output * max(0.0, left - base) / (full - base))
