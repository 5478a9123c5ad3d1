"""Quarantine: a session whose driver dies again and again, and nothing comes of it, is ended before it takes more.

The log itself counts: each heir of a dead driver notes the death. Whatever the session brought about in between makes
it innocent again, for a dying process takes all its sessions with it.
"""

from __future__ import annotations

import msgspec

from perdure.core.commands import StopRun
from perdure.core.events import (
    CallAdvanced,
    CallDecided,
    CallEnded,
    CallSuspended,
    Event,
    HistoryCompacted,
    ModelFailed,
    ModelResponded,
    Noted,
    RunEnded,
    RunStarted,
)
from perdure.core.state import SessionState, has_due_input, in_flight
from perdure.ports import Claim, Store

MAX_DEATHS = 3
DIED = "driver_died"
QUARANTINED = "quarantined"
LOOK_BACK = 200
PROGRESS = (
    RunStarted,
    ModelResponded,
    ModelFailed,
    CallEnded,
    CallSuspended,
    CallDecided,
    CallAdvanced,
    HistoryCompacted,
    RunEnded,
)


async def is_suspect(store: Store, state: SessionState) -> bool:
    """Whether a driver died of it already, perhaps: then it is driven apart from other suspects.

    So that of all that were lost with a process again and again, one alone is held to account.
    """
    return in_flight(state) and await deaths_of(store, state) > 0


async def deaths_of(store: Store, state: SessionState) -> int:
    """How many drivers have died in a row since the session last got anywhere, as far as the log says."""
    records = await store.read(state.uid, after=max(0, state.seq - LOOK_BACK))
    for record in reversed(records):
        match record.event:
            case Noted(kind="driver_died", data={"deaths": int(deaths)}):
                return deaths
            case event if isinstance(event, PROGRESS):
                return 0
            case _:
                pass
    return 0


class Heritage(msgspec.Struct, frozen=True):
    """What a driver begins with: its epoch, and what its predecessor, if that died, leaves to be said and asked."""

    epoch: int
    facts: tuple[Event, ...] = ()
    requests: tuple[StopRun, ...] = ()


async def succession(store: Store, claim: Claim, state: SessionState) -> Heritage:
    """The heir of a dead driver notes that; if it was one death too many, the run is ended."""
    if claim.heir_of is None or (state.run is None and not has_due_input(state)):
        return Heritage(claim.epoch)
    deaths = await deaths_of(store, state) + 1
    died = Noted(DIED, {"owner": claim.heir_of, "deaths": deaths})
    if deaths < MAX_DEATHS:
        return Heritage(claim.epoch, (died,))
    stop = StopRun("cancel", f"quarantine: {deaths} drivers have died of it")
    return Heritage(claim.epoch, (died, Noted(QUARANTINED, {"deaths": deaths})), (stop,))
