"""The address of a PostgreSQL store, in which its options may stand beside those that are PostgreSQL's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perdure.stores.addresses import seconds, split_options, text, whole_number, yes_or_no
from perdure.stores.postgres import PostgresStore

OPTIONS: dict[str, Callable[[str], Any]] = {
    "schema": text,
    "direct": text,
    "pooled": yes_or_no,
    "connections": whole_number,
    "timeout": seconds,
    "poll": seconds,
    "deltas": yes_or_no,
    "quotas": yes_or_no,
    "artifacts": text,
    "artifacts_inside": whole_number,
    "beat": seconds,
    "dead_after": seconds,
}


def at_address(address: str) -> PostgresStore:
    """The store of an address in which options may stand; what is none of ours is for PostgreSQL."""
    url, options = split_options(address, OPTIONS)
    return PostgresStore(url, **options)
