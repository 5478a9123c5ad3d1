"""Capacity: how many sessions may be driven at once, and how many may wait.

Rule: a cap is kept where sessions are claimed; who gets no claim waits, and nothing that was accepted is lost.
"""

from __future__ import annotations

from typing import TypeAlias

from perdure.core.errors import UsageError
from perdure.core.messages import Plain

Cap: TypeAlias = int | dict[str, int] | None
"""A number for each, or one by name, where "*" is for all others; None: as many as there are."""

ALL_OTHERS = "*"


class Capacity(Plain, frozen=True):
    """`per_tenant`, `per_agent`: so many sessions of each are driven at once, over all processes; 0 drives none.

    `waiting`, `waiting_per_tenant`: while so many have work and nobody who drives them, no input for another one is
    taken.
    """

    per_tenant: Cap = None
    per_agent: Cap = None
    waiting: int | None = None
    waiting_per_tenant: int | None = None

    def __post_init__(self) -> None:
        for name in ("per_tenant", "per_agent", "waiting", "waiting_per_tenant"):
            value: object = getattr(self, name)
            given = list(value.values()) if isinstance(value, dict) and name.startswith("per_") else [value]  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
            if value is not None and not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in given):  # pyright: ignore[reportUnknownVariableType]
                by_name = " or a dict of them by name," if name.startswith("per_") else ""
                raise UsageError(f"Capacity({name}={value!r}): give a number of at least 0,{by_name} or None.")

    @property
    def caps(self) -> bool:
        """Whether it bounds what is driven."""
        return self.per_tenant is not None or self.per_agent is not None

    def of_tenant(self, tenant: str) -> int | None:
        return _cap(self.per_tenant, tenant)

    def of_agent(self, agent: str) -> int | None:
        return _cap(self.per_agent, agent)


def by_name(cap: Cap) -> dict[str, int]:
    """The same cap as a dict."""
    if cap is None:
        return {}
    return dict(cap) if isinstance(cap, dict) else {ALL_OTHERS: cap}


def _cap(cap: Cap, name: str) -> int | None:
    return cap.get(name, cap.get(ALL_OTHERS)) if isinstance(cap, dict) else cap
