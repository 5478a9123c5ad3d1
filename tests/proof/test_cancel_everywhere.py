"""Cancel at every point of a run, whatever is under way: acknowledged at once, ended in time, once, nothing started."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest

from tests.proof.cancel_kinds import KINDS
from tests.proof.cancel_scene import IN_TIME, INSIDE, Cancelled, Cast, Place, Who, play

Record = Callable[[str, object], None]

ACKNOWLEDGED = 0.2
AT_ONCE: dict[Place, int] = {"memory": 30, "sqlite": 5}
"""So many runs are cancelled beside each other: those that nobody can end take two seconds each."""


async def _cancel_everywhere(kind: Cast, who: Who, place: Place, folder: Path) -> list[Cancelled]:
    """One run per point, until a run passes fewer points than that."""
    undisturbed, names = await play(kind, 0, who, place, folder)
    assert undisturbed.broken == []
    room = asyncio.Semaphore(AT_ONCE[place])

    async def cancel_at(point: int) -> Cancelled:
        async with room:
            cancelled, _ = await play(kind, point, who, place, folder)
            return cancelled

    # How many there are differs a little from run to run: completions that are ready at once share an append.
    cancels = await asyncio.gather(*map(cancel_at, range(1, len(names) + 1)))
    return [cancelled for cancelled in cancels if cancelled.point]


async def _prove(kind: Cast, who: Who, place: Place, folder: Path, record_property: Record) -> None:
    cancels = await _cancel_everywhere(kind, who, place, folder)
    assert len(cancels) >= 12
    assert [(cancelled.point, cancelled.broken) for cancelled in cancels if cancelled.broken] == []
    assert [cancelled for cancelled in cancels if cancelled.ended >= IN_TIME] == []
    accepted = [cancelled for cancelled in cancels if not cancelled.refused]
    assert median(cancelled.acknowledged for cancelled in accepted) < ACKNOWLEDGED
    # Where nobody waits for the cancel, its run may be over when its turn to be committed comes.
    assert sum(cancelled.refused for cancelled in cancels if cancelled.point != INSIDE) <= 2
    in_time = sum(cancelled.acknowledged < ACKNOWLEDGED for cancelled in accepted)
    record_property("figure: cancels, one per point", len(cancels))
    record_property("figure: cancels refused, as the run had ended", len(cancels) - len(accepted))
    record_property("figure: cancels acknowledged", len(accepted))
    record_property("figure: cancels acknowledged within 200 ms", in_time)
    record_property("acknowledged", [round(cancelled.acknowledged * 1000, 1) for cancelled in accepted])
    record_property("ended", [round(cancelled.ended, 3) for cancelled in accepted])


@pytest.mark.slow
@pytest.mark.parametrize(("who", "place"), [("own", "memory"), ("other", "sqlite")])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
async def test_cancel_at_every_point(
    kind: Cast, who: Who, place: Place, tmp_path: Path, record_property: Record
) -> None:
    await _prove(kind, who, place, tmp_path, record_property)


@pytest.mark.sweep
@pytest.mark.parametrize(("who", "place"), [("own", "sqlite"), ("other", "memory")])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
async def test_cancel_at_every_point_elsewhere(
    kind: Cast, who: Who, place: Place, tmp_path: Path, record_property: Record
) -> None:
    await _prove(kind, who, place, tmp_path, record_property)
