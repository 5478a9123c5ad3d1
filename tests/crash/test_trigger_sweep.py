"""Triggers under SIGKILL, at every append: no planned time is lost and none comes twice."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from perdure import Agent, Runtime
from perdure.core.fold import fold
from perdure.events import Event, InputAccepted, RunEnded, TriggerSet
from perdure.ports import Store
from perdure.stores.sqlite import SqliteStore
from perdure.testing import ManualClock, ScriptedModel, crash_sweep
from perdure.triggers import Every, Files
from tests.runtime.scenes import turned, until

TIMES = 3


async def log_of(folder: Path) -> list[Event]:
    store = SqliteStore(folder / "sweep.db")
    await store.open()
    row = await store.find("", "desk")
    assert row is not None
    log = [record.event for record in await store.read(row.uid)]
    await store.close()
    return log


def words_of(log: list[Event]) -> list[str]:
    return [event.parts[0].text for event in log if isinstance(event, InputAccepted)]  # type: ignore[union-attr]


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
        log = await log_of(crash.folder)
        first = next(event for event in log if isinstance(event, TriggerSet))
        times = [datetime.fromisoformat(text).timestamp() for text in words_of(log)]
        assert times == [float(int(first.until + 10 * number)) for number in range(1, len(times) + 1)], crash
        assert len(times) >= TIMES
        state = fold(log)
        assert state.triggers["often"].fired == len(times)
        assert len({event.run for event in log if isinstance(event, RunEnded)}) >= TIMES
    fired = [name for name in names if "InputAccepted TriggerSet" in name]
    assert {name.split()[0] for name in fired} == {"before", "after"}
    assert len(names) >= 3 * 2 * TIMES


async def inbox_scenario(store: Store) -> None:
    agent = Agent(name="clerk", model=ScriptedModel(lambda request: "Done."))
    inbox = Path("inbox")
    inbox.mkdir(exist_ok=True)
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="desk")
        await session.set_trigger("inbox", Files("inbox"), "{changes}", missed="all")
        for name in ("a.csv", "b.csv"):
            if not (inbox / name).exists():
                (inbox / f".{name}").write_text(name)
                (inbox / f".{name}").rename(inbox / name)
        await until(lambda: len(session.state.ended) >= 2 and session.state.run is None)


async def test_no_changed_file_is_lost_or_told_twice() -> None:
    names: list[str] = []
    async for crash in crash_sweep(inbox_scenario, sample=10):
        names.append(crash.name)
        words = sorted(words_of(await log_of(crash.folder)))
        assert words == [f"added {crash.folder}/inbox/{name}" for name in ("a.csv", "b.csv")], crash
    assert len(names) >= 8
