"""Fault points: a store that is wrapped to die can do what it could before."""

from __future__ import annotations

import pytest

from perdure.ports import SharesDeltas, SharesQuota, Store, Transacts
from perdure.stores.memory import MemoryStore
from perdure.stores.postgres import PostgresStore
from perdure.stores.sqlite import SqliteStore
from perdure.testing.faults import FaultPoints, FaultyStore


@pytest.mark.parametrize(
    ("store", "ports"),
    [
        (MemoryStore(), []),
        (SqliteStore("never-opened.db"), [Transacts]),
        (PostgresStore("postgresql://nowhere/x"), [Transacts, SharesDeltas, SharesQuota]),
    ],
)
def test_a_store_with_fault_points_has_the_ports_of_the_store(store: Store, ports: list[type]) -> None:
    faulty = FaultyStore(store, FaultPoints())
    assert [port for port in (Transacts, SharesDeltas, SharesQuota) if isinstance(store, port)] == ports
    assert [port for port in (Transacts, SharesDeltas, SharesQuota) if isinstance(faulty, port)] == ports
