"""What there is to drive in the database: sessions that have work and no living owner, and claims within caps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

import msgspec

from perdure.core.capacity import Cap, Capacity, by_name
from perdure.core.codec import encode_json
from perdure.stores import terms
from perdure.stores.postgres_names import kept, meant
from perdure.stores.shares import Shares

Ask = Callable[..., Awaitable[Any]]
"""A method of a connection, a statement and its values."""

LIVING = "EXISTS (SELECT FROM @schema.owners o WHERE o.owner = s.owner AND o.beat_at > now() - {}::interval)"
_RANK = f"CASE wake WHEN 0 THEN updated_at ELSE wake END - {terms.LEVEL_MICROS} * priority::bigint"
_DUE = (
    "FROM @schema.sessions s WHERE wake IS NOT NULL AND wake <= $1"
    f" AND (owner IS NULL OR NOT {LIVING.format('$2')})"
    " AND ($3::text[] IS NULL OR coalesce(queue, agent) = ANY($3)) AND ($4::text[] IS NULL OR agent = ANY($4))"
)
_IN_ORDER = f"SELECT uid {_DUE} ORDER BY {_RANK}, no LIMIT $5"
_IN_TURN = (
    f"SELECT uid, tenant, agent {_DUE} AND tenant <> ALL($6::text[]) AND agent <> ALL($7::text[])"
    f" ORDER BY row_number() OVER (PARTITION BY tenant, agent ORDER BY {_RANK}, no), {_RANK}, no LIMIT $5"
)
_WAITING = (
    "SELECT count(*) FROM (SELECT FROM @schema.sessions s WHERE wake IS NOT NULL AND wake <= $1"
    f" AND (owner IS NULL OR NOT {LIVING.format('$2')}) AND ($3::text IS NULL OR tenant = $3) LIMIT $4) AS found"
)
_HELD = (
    "SELECT tenant, agent, count(*) FROM @schema.sessions WHERE md5(owner) = ANY (ARRAY("
    "SELECT md5(owner) FROM @schema.owners WHERE beat_at > now() - $1::interval)) GROUP BY tenant, agent"
)
CLAIM_WITHIN = "SELECT epoch, head, last FROM @schema.claim_within($1, $2, $3, $4::jsonb, $5::jsonb)"


class Due(msgspec.Struct, frozen=True):
    """Work of before `now` that no living owner has; of these queues and agents, or of any."""

    now: int
    dead_after: timedelta
    queues: Sequence[str] | None = None
    agents: Sequence[str] | None = None


async def runnable(ask: Ask, due: Due, limit: int, capacity: Capacity | None) -> list[str]:
    values = (due.now, due.dead_after, _names(due.queues), _names(due.agents), max(limit, 0))
    if capacity is None or not capacity.caps:
        return [meant(row["uid"]) for row in await ask("fetch", _IN_ORDER, *values)]
    held = await ask("fetch", _HELD, due.dead_after)
    shares = Shares(capacity, [(meant(tenant), meant(agent), count) for tenant, agent, count in held])
    full = (_names(shares.full_tenants), _names(shares.full_agents))
    rows = await ask("fetch", _IN_TURN, *values, *full)
    return shares.trim([(meant(uid), meant(tenant), meant(agent)) for uid, tenant, agent in rows])


async def count_waiting(ask: Ask, due: Due, tenant: str | None, limit: int) -> int:
    named = None if tenant is None else kept(tenant)
    return await ask("fetchval", _WAITING, due.now, due.dead_after, named, max(limit, 0))


def cap_values(capacity: Capacity) -> tuple[str, str]:
    """The caps as the database's own function takes them."""
    return _as_json(capacity.per_tenant), _as_json(capacity.per_agent)


def _as_json(cap: Cap) -> str:
    return encode_json({kept(name): number for name, number in by_name(cap).items()}).decode()


def _names(names: Sequence[str] | None) -> list[str] | None:
    return None if names is None else [kept(name) for name in names]
