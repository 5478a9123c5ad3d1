"""What there is to drive in the tables: sessions that have work and no living owner, their order, their caps.

Rule: values reach SQLite as bound parameters only.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from perdure.core.capacity import Capacity
from perdure.stores import terms
from perdure.stores.shares import Shares
from perdure.stores.sqlite_file import Connection
from perdure.stores.sqlite_owners import Owners

_RANK = f"CASE wake WHEN 0 THEN updated_at ELSE wake END - {terms.LEVEL_MICROS} * priority"


class Due(msgspec.Struct, frozen=True):
    """Work of before `now` that no living owner has; of these queues and agents, or of any."""

    now: int
    owners: Owners
    queues: Sequence[str] | None = None
    agents: Sequence[str] | None = None

    def where(self) -> tuple[str, list[object]]:
        living = list(self.owners.living())
        sql = f"wake IS NOT NULL AND wake <= ? AND (owner IS NULL OR owner NOT IN ({_marks(living)}))"
        values: list[object] = [self.now, *living]
        for column, names in (("coalesce(queue, agent)", self.queues), ("agent", self.agents)):
            if names is not None:
                sql += f" AND {column} IN ({_marks(names)})"
                values += names
        return sql, values


def runnable(connection: Connection, due: Due, limit: int, capacity: Capacity | None) -> Sequence[str]:
    where, values = due.where()
    if capacity is None:
        sql = f"SELECT uid FROM sessions WHERE {where} ORDER BY {_RANK}, no LIMIT ?"
        return [uid for (uid,) in connection.execute(sql, (*values, limit)).fetchall()]
    shares = shares_of(connection, due.owners, capacity)
    tenants, agents = shares.full_tenants, shares.full_agents
    where += f" AND tenant NOT IN ({_marks(tenants)}) AND agent NOT IN ({_marks(agents)})"
    nth = f"row_number() OVER (PARTITION BY tenant, agent ORDER BY {_RANK}, no)"
    rows = connection.execute(
        f"SELECT uid, tenant, agent FROM sessions WHERE {where} ORDER BY {nth}, {_RANK}, no LIMIT ?",
        (*values, *tenants, *agents, limit),
    )
    return shares.trim(rows.fetchall())


def count_waiting(connection: Connection, due: Due, tenant: str | None, limit: int) -> int:
    where, values = due.where()
    if tenant is not None:
        where, values = f"{where} AND tenant = ?", [*values, tenant]
    sql = f"SELECT count(*) FROM (SELECT 1 FROM sessions WHERE {where} LIMIT ?)"
    return connection.execute(sql, (*values, limit)).get


def shares_of(connection: Connection, owners: Owners, capacity: Capacity, but: int = 0) -> Shares:
    """What is driven now, without the session of number `but`."""
    living = list(owners.living())
    held = connection.execute(
        f"SELECT tenant, agent, count(*) FROM sessions WHERE owner IN ({_marks(living)}) AND no <> ?"
        " GROUP BY tenant, agent",
        (*living, but),
    )
    return Shares(capacity, held.fetchall())


def _marks(values: Sequence[str]) -> str:
    return ", ".join("?" * len(values))
