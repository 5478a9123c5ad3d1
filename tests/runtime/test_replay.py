"""Recorded sessions against an agent as it is now: the same decisions, or what differs."""

from __future__ import annotations

from collections import Counter

import pytest

from perdure.testing import replay
from perdure.testing.replay import show_differences
from tests.runtime.recordings import record
from tests.runtime.scenes import check_log, soon

SESSIONS = 100
TOGETHER = 10


@pytest.mark.parametrize("first", range(0, SESSIONS, TOGETHER))
async def test_the_same_agent_decides_the_same(first: int, record_property: pytest.RecordProperty) -> None:
    kinds: Counter[str] = Counter()
    for seed in range(first, first + TOGETHER):
        scene, agent, records = await record(seed)
        ran = list(scene.ran)
        done = await soon(replay(records, agent))
        assert done.identical, f"seed {seed}: {show_differences(done.differences)}"
        assert scene.ran == ran, "no tool was run"
        check_log(list(done.records))
        kinds.update(type(item.event).__name__ for item in records)
    record_property("figure: sessions recorded and replayed without a difference", TOGETHER)
    record_property("figure: events in them", kinds.total())
