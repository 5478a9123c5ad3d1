"""Shares: what of a store's work may still be claimed, where tenants and agents have caps.

Rule: a list of work is only a hint, so that those who have room come first; the claim itself keeps the cap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from perdure.core.capacity import Capacity, by_name

Ready = tuple[str, str, str]
"""A session that has work: uid, tenant, agent."""


class Shares:
    """What is driven now, by tenant and agent, against the caps."""

    def __init__(self, capacity: Capacity, held: Iterable[tuple[str, str, int]]) -> None:
        self._capacity = capacity
        self._tenants: Counter[str] = Counter()
        self._agents: Counter[str] = Counter()
        for tenant, agent, count in held:
            self._tenants[tenant] += count
            self._agents[agent] += count

    @property
    def full_tenants(self) -> list[str]:
        names = {*self._tenants, *by_name(self._capacity.per_tenant)}
        return [name for name in names if not self._has_room(self._tenants[name], self._capacity.of_tenant(name))]

    @property
    def full_agents(self) -> list[str]:
        names = {*self._agents, *by_name(self._capacity.per_agent)}
        return [name for name in names if not self._has_room(self._agents[name], self._capacity.of_agent(name))]

    def admits(self, tenant: str, agent: str) -> bool:
        """Whether one more of them may be driven."""
        return self._has_room(self._tenants[tenant], self._capacity.of_tenant(tenant)) and self._has_room(
            self._agents[agent], self._capacity.of_agent(agent)
        )

    def trim(self, ready: Sequence[Ready]) -> list[str]:
        """As many of the sessions as there is room for."""
        found: list[str] = []
        for uid, tenant, agent in ready:
            if self.admits(tenant, agent):
                self._tenants[tenant] += 1
                self._agents[agent] += 1
                found.append(uid)
        return found

    def _has_room(self, held: int, cap: int | None) -> bool:
        return cap is None or held < cap


def in_turn(ready: Sequence[Ready], limit: int) -> list[Ready]:
    """The first of every tenant and agent, then the second of each, and so on."""
    seen: Counter[tuple[str, str]] = Counter()
    numbered: list[tuple[int, int]] = []
    for at, (_, tenant, agent) in enumerate(ready):
        seen[tenant, agent] += 1
        numbered.append((seen[tenant, agent], at))
    return [ready[at] for _, at in sorted(numbered)[:limit]]
