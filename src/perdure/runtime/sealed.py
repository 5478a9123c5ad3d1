"""Outcomes that are committed in one transaction with what their tools wrote.

Rule 1: one append carries at most one of them; the others wait for theirs. Rule 2: an outcome that can no longer be
committed with its writes is forgotten, and its tool run again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from perdure.core.actions import RunTool
from perdure.core.errors import UsageError
from perdure.core.events import CallEnded, Event
from perdure.core.state import SessionState, find_call
from perdure.ports import OpenTransaction, Store, Transacts
from perdure.runtime.agent import Binding
from perdure.runtime.directives import Fact, add_facts
from perdure.runtime.flight import Flight
from perdure.runtime.log import Change

RUNS = 3
"""So often a tool is run until its writes can be committed."""


def check_transactional(binding: Binding, store: Store) -> None:
    for tool in binding.tools.values():
        if tool.spec.effect != "transactional":
            continue
        if not isinstance(store, Transacts):
            raise UsageError(
                f"Tool {tool.name!r} takes a Transaction, and this store has none; take 'sqlite:…' or 'postgresql://…'."
            )
        store.check_tool(tool.name, is_async=tool.is_async)


class Sealed:
    """The outcomes of one driver that wait for their commit, in the order in which they came."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Flight, Sequence[Fact]]] = []
        self._lost: dict[int, int] = {}
        self._ending: set[asyncio.Future[None]] = set()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def takes(self, flight: Flight, event: Event) -> bool:
        """Whether the outcome waits here; one that is no success takes back what its tool wrote."""
        if flight.transaction is None:
            return False
        if not (isinstance(event, CallEnded) and event.outcome == "ok"):
            self.drop(flight)
            return False
        self._waiting.append((flight, flight.facts(event)))
        return True

    def join(self, change: Change) -> OpenTransaction | None:
        """Adds the first of them to a change; the transaction in which that is to be committed."""
        while self._waiting:
            flight, facts = self._waiting[0]
            if _is_started(change.after, flight):
                add_facts(change, facts)
                return flight.transaction
            # Its commit came through although nobody said so, or somebody else ended the call.
            self.drop(self._waiting.pop(0)[0])
        return None

    def committed(self) -> None:
        self.drop(self._waiting.pop(0)[0])

    def lost(self, why: str) -> tuple[Flight, str]:
        """The flight that has to be made again; a reason where that was done often enough."""
        flight, _ = self._waiting.pop(0)
        self.drop(flight)
        assert isinstance(flight.action, RunTool)
        times = self._lost[flight.action.call] = self._lost.get(flight.action.call, 1) + 1
        again = Flight(flight.action, key=flight.key, effect=flight.effect, deadline=flight.deadline)
        return again, why if times > RUNS else ""

    def drop(self, flight: Flight) -> None:
        """Ends a transaction; of one that is committed nothing is taken back."""
        if flight.transaction is not None:
            ending = asyncio.ensure_future(flight.transaction.roll_back())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    async def close(self, flights: Sequence[Flight]) -> None:
        for flight in (*flights, *(flight for flight, _ in self._waiting)):
            self.drop(flight)
        if self._ending:
            await asyncio.wait(self._ending)


def _is_started(state: SessionState, flight: Flight) -> bool:
    call = find_call(state.run, flight.action.call) if isinstance(flight.action, RunTool) else None
    return call is not None and call.status == "started"
