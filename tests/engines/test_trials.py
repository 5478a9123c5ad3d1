"""Workers that are killed, stopped and cut off: every session finishes, and nothing is done twice or lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.engines.restate_server import RestateServer
from tests.engines.temporal_server import TemporalServer
from tests.engines.trial import Plan, Trial
from tests.postgres import OwnServer

TRIALS = int(os.environ.get("PERDURE_TRIALS", "2"))
SESSIONS, TURNS = 60, 20


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(TRIALS))
@pytest.mark.parametrize("engine", ["local", "dbos", "temporal", "restate"])
async def test_workers_die_and_nothing_is_lost(
    engine: str, seed: int, tmp_path: Path, server: OwnServer, record_property: pytest.RecordProperty
) -> None:
    behind: TemporalServer | RestateServer | None = None
    if engine == "temporal":
        behind = TemporalServer(tmp_path)
        engine = f"temporal://{behind.address}"
    elif engine == "restate":
        behind = RestateServer(tmp_path)
        engine = behind.address
    if behind is not None:
        await behind.start()
    try:
        trial = Trial(tmp_path, server, Plan(engine, SESSIONS, TURNS, seed=seed, concurrency=SESSIONS // 2), behind)
        assert await trial.run() == []
    finally:
        if behind is not None:
            behind.kill()
    figures = trial.figures
    assert figures.engine_killed == (behind is not None)
    assert (figures.killed, figures.stopped, figures.restarted) == (2, 1, 1)
    name = engine.partition(":")[0]
    print(f"{name}: {figures}")
    record_property("figure: workers killed", figures.killed)
    record_property(f"figure: sessions finished by workers ({name})", trial.plan.sessions)
