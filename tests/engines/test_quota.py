"""Three processes with one key: who is told to wait tells the others, and when the time is over one tries first."""

from __future__ import annotations

import pytest

from perdure.stores.postgres import PostgresStore
from tests.engines.quota import Office, Rush
from tests.postgres import new_schema


@pytest.mark.slow
async def test_one_is_refused_and_nobody_else_asks_before_it_is_time_though_the_first_to_try_dies(
    postgres: str,
) -> None:
    office = Office(per_second=50, shut=3.0, stalls=1)
    seen = await Rush(PostgresStore(postgres, schema=new_schema()), workers=3, sessions=12).run(office)
    assert (seen.completed, seen.taken) == (12, 12), seen
    # Those that were on their way when the first was refused are refused as well; whoever comes later waits.
    assert (seen.shut, seen.knocked) == (1, 0), seen
    assert seen.refused <= 3, seen
    assert len(office.stalled) == 1


@pytest.mark.slow
async def test_without_sharing_each_process_has_to_be_told(postgres: str) -> None:
    store = PostgresStore(postgres, schema=new_schema())
    seen = await Rush(store, workers=3, sessions=12, shares=False).run(Office(per_second=50, shut=3.0))
    assert seen.completed == 12, seen
    assert seen.refused > 1, seen
