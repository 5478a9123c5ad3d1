"""Capacity: how many sessions may be driven at once, and how many may wait.

Rule: a cap is kept where sessions are claimed; who gets no claim waits, and nothing that was accepted is lost.
"""

from __future__ import annotations

from typing import TypeAlias, cast

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
        for name in ("per_tenant", "per_agent"):
            cap: object = getattr(self, name)
            if not (_is_count(cap) or (isinstance(cap, dict) and _are_counts(cast("dict[object, object]", cap)))):
                raise UsageError(f"Capacity({name}={cap!r}): give a number of at least 0, a dict of them, or None.")
        for name in ("waiting", "waiting_per_tenant"):
            if not _is_count(getattr(self, name)):
                raise UsageError(f"Capacity({name}={getattr(self, name)!r}): give a number of at least 0, or None.")

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


def _is_count(value: object) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0)


def _are_counts(caps: dict[object, object]) -> bool:
    return all(isinstance(name, str) and number is not None and _is_count(number) for name, number in caps.items())
