"""A commit whose answer got lost: it counts once, whether or not it came through."""

from __future__ import annotations

from collections import Counter

import pytest

from perdure import Agent, Runtime, tool
from perdure.core.errors import StoreError
from perdure.events import CallEnded, RunEnded
from perdure.ports import Batch
from perdure.stores.memory import MemoryStore
from perdure.testing import ScriptedModel, call


class Lossy(MemoryStore):
    """Loses the answers of some appends, of which it has written some."""

    def __init__(self, lost: set[int], *, written: bool) -> None:
        super().__init__()
        self.lost = lost
        self.written = written
        self.appends = 0

    async def append(self, batch: Batch) -> None:
        self.appends += batch.epoch is not None
        if batch.epoch is None or self.appends not in self.lost:
            return await super().append(batch)
        self.lost.discard(self.appends)
        if self.written:
            await super().append(batch)
        raise StoreError("The connection broke; try again.")


@pytest.mark.parametrize("written", [True, False], ids=["it came through", "it did not"])
@pytest.mark.parametrize("number", range(1, 7))
async def test_a_commit_of_unknown_fate_counts_once(number: int, written: bool) -> None:
    ran: list[int] = []

    @tool
    async def charge(n: int) -> str:
        ran.append(n)
        return "charged"

    model = ScriptedModel([[call("charge", n=1), call("charge", n=2)], [call("charge", n=3)], "Done."])
    agent = Agent(name="clerk", model=model, tools=[charge])
    async with Runtime(Lossy({number}, written=written), agents=[agent]) as runtime:
        session = await runtime.open(agent)
        result = await session.run("Charge it.")
        assert result.output == "Done."
        events = [record.event for record in await session.records()]
    assert sorted(ran) == [1, 2, 3]
    assert Counter(event.call for event in events if isinstance(event, CallEnded)) == {1: 1, 2: 1, 3: 1}
    assert sum(isinstance(event, RunEnded) for event in events) == 1
