"""A year of cron in three time zones that change their clocks, with twenty restarts: exactly the expected times."""

from __future__ import annotations

from datetime import UTC, datetime
from random import Random

import pytest

from perdure import Agent, Runtime
from perdure.events import InputAccepted
from perdure.runtime.local import LocalEngine
from perdure.stores.memory import MemoryStore
from perdure.testing import ManualClock, ScriptedModel
from perdure.triggers import Cron
from tests.runtime.scenes import check_store
from tests.runtime.wall_clock import fires

DAY = 86_400.0
SWEEP = 3_600.0
RESTARTS = 20
ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe")
LINES = (
    "30 2 * * *",  # in the gap, and in the hour that comes twice
    "45 1 * * 0",
    "0 */6 * * *",
    "*/20 1-3 28-31,1-8 3,4,10,11 *",  # around the days on which clocks are changed
    "0 9 * * 1-5",
    "15 12 29 2,3 *",
)


def moment(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.slow
@pytest.mark.parametrize("zone", ZONES)
async def test_a_year_with_twenty_restarts(zone: str, record_property: pytest.RecordProperty) -> None:
    start, end = moment("2026-01-01"), moment("2027-01-01")
    random = Random(zone)
    # Down at any time, mostly for minutes or hours, and once over a change of clocks.
    stops = sorted([random.uniform(start, end - 12 * DAY) for _ in range(RESTARTS - 1)] + [moment("2026-10-03 20:00")])
    pauses = [random.choice((0.0, 300.0, 7_200.0, 2 * DAY, 9 * DAY)) for _ in stops]
    store, clock = MemoryStore(), ManualClock(start)
    agent = Agent(name="clerk", model=ScriptedModel(lambda request: "Done."))
    lives: list[tuple[float, float]] = []
    for stop, pause in zip([*stops, end], [*pauses, 0.0], strict=True):
        began = clock.now()
        async with Runtime(store, agents=[agent], clock=clock, engine=LocalEngine(clock, SWEEP)) as runtime:
            for number, line in enumerate(LINES):
                session = await runtime.open(agent, id=f"s{number}")
                await session.set_trigger("cron", Cron(line, zone), "{time}", missed="all")
            while clock.now() < stop:
                await clock.advance(min(DAY, stop - clock.now()))
        lives.append((began, clock.now()))
        clock.skip(pause)
    async with Runtime(store, agents=[agent], clock=clock) as runtime:
        await clock.advance(SWEEP)
        for number, line in enumerate(LINES):
            session = await runtime.session(f"s{number}")
            records = [record for record in await session.records() if isinstance(record.event, InputAccepted)]
            words = [record.event.parts[0].text for record in records]  # type: ignore[union-attr]
            times = [datetime.fromisoformat(text).timestamp() for text in words]
            assert [at for at in times if at < end] == fires(line, zone, start, end), line
            assert len(session.state.ended) == len(times), "each had its run"
            in_time = [(at, at + SWEEP) for at in times if any(began <= at <= over - SWEEP for began, over in lives)]
            assert len(in_time) > len(times) / 2
            fired = dict(zip(times, [record.at for record in records], strict=True))
            assert all(fired[at] <= latest for at, latest in in_time), line
            record_property("figure: planned times of a year of cron, each fired once", len(times))
    await check_store(store)
