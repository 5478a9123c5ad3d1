"""Triggers under SIGKILL, at every append: no planned time is lost and none comes twice."""

from __future__ import annotations

from datetime import datetime

from perdure import Agent, Runtime
from perdure.core.fold import fold
from perdure.events import InputAccepted, RunEnded, TriggerSet
from perdure.ports import Store
from perdure.stores.sqlite import SqliteStore
from perdure.testing import ManualClock, ScriptedModel, crash_sweep
from perdure.triggers import Every
from tests.runtime.scenes import turned

TIMES = 3


async def scenario(store: Store) -> None:
    """Every life has a clock that begins anew: what is due is for the log to say."""
    clock = ManualClock()
    agent = Agent(name="clerk", model=ScriptedModel(lambda request: "Done."))
    async with Runtime(store, agents=[agent], clock=clock) as runtime:
        session = await runtime.open(agent, id="desk")
        await session.set_trigger("often", Every(10), "{time}", missed="all")
        await turned(clock, lambda: len(session.state.ended) >= TIMES and session.state.run is None, step=0.5)


async def test_no_planned_time_is_lost_or_doubled() -> None:
    names: list[str] = []
    async for crash in crash_sweep(scenario):
        names.append(crash.name)
        store = SqliteStore(crash.folder / "sweep.db")
        await store.open()
        row = await store.find("", "desk")
        assert row is not None
        log = [record.event for record in await store.read(row.uid)]
        await store.close()
        first = next(event for event in log if isinstance(event, TriggerSet))
        inputs = [event for event in log if isinstance(event, InputAccepted)]
        texts = [event.parts[0].text for event in inputs]  # type: ignore[union-attr]
        times = [datetime.fromisoformat(text).timestamp() for text in texts]
        assert times == [float(int(first.until + 10 * number)) for number in range(1, len(times) + 1)], crash
        assert len(times) >= TIMES
        state = fold(log)
        assert state.triggers["often"].fired == len(times)
        assert len({event.run for event in log if isinstance(event, RunEnded)}) >= TIMES
    fired = [name for name in names if "InputAccepted TriggerSet" in name]
    assert {name.split()[0] for name in fired} == {"before", "after"}
    assert len(names) >= 3 * 2 * TIMES
