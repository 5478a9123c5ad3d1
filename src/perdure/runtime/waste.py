"""What attempts that came to nothing have cost: nobody says, so it is estimated, and an unknown price stays unknown."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from perdure.core.deltas import ModelDelta
from perdure.core.messages import Usage, estimate_tokens
from perdure.ports import Model
from perdure.runtime.recovery import receive


def asked_price(model: Model, usage: Usage) -> float | None:
    """What the price function says: a Decimal cannot be added to other costs, and NaN or less than nothing is none."""
    cost = model.cost(usage)
    cost = None if cost is None else float(cost)
    return cost if cost is None or 0.0 <= cost < inf else None


def price_of(model: Model, usage: Usage) -> float | None:
    """A price function is anybody's code: one that fails does not know the price."""
    try:
        return asked_price(model, usage)
    except Exception:  # noqa: BLE001 - a price function is user code
        return None


_NOTHING = Usage()


class Waste:
    """The sum over one turn's attempts."""

    __slots__ = ("cost_usd", "usage")

    def __init__(self, usage: Usage = _NOTHING, cost_usd: float | None = 0.0) -> None:
        self.usage = usage
        self.cost_usd = cost_usd

    def join(self, other: Waste) -> None:
        self.usage += other.usage
        is_known = self.cost_usd is not None and other.cost_usd is not None
        self.cost_usd = (self.cost_usd or 0.0) + (other.cost_usd or 0.0) if is_known else None

    def add(self, model: Model, prompt: int, items: Sequence[ModelDelta]) -> None:
        """An attempt that had begun to answer is paid for: the prompt, and what had come."""
        if not items:
            return
        wasted = Usage(prompt, estimate_tokens(receive(items).parts), estimated=True)
        cost = price_of(model, wasted)
        self.usage += wasted
        self.cost_usd = None if cost is None or self.cost_usd is None else self.cost_usd + cost
