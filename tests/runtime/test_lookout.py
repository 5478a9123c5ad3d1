"""The lookout for engines with queues elsewhere: what it finds it submits, less and less often, and at last begins."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from perdure.runtime.lookout import Lookout
from perdure.testing import ManualClock


class Found:
    """There is always one session that has work."""

    owner = "w"
    queues: Sequence[str] = ("clerk",)

    async def drive(self, session: str) -> None: ...

    async def sweep(self, queues: Sequence[str] | None) -> Sequence[str]:
        return ["s"]

    def watch(self, notify: Callable[[], None]) -> Callable[[], None]:
        return lambda: None

    async def living(self) -> Sequence[str]:
        return ["w"]


async def test_what_its_queue_does_not_bring_about_is_begun_here() -> None:
    clock, submitted, begun = ManualClock(), list[float](), list[float]()

    async def nothing() -> None: ...

    lookout = Lookout(
        clock,
        Found(),
        lambda session, queue: submitted.append(clock.monotonic()),
        nothing,
        lambda session: begun.append(clock.monotonic()),
    )
    looking = asyncio.ensure_future(lookout.keep(["clerk"]))
    for _ in range(200):
        await clock.advance(0.1)
    looking.cancel()
    assert submitted[0] == 0.0
    assert len(submitted) < 10, "less and less often"
    assert begun
    assert 3.0 <= begun[0] < 6.0, "its queue had its time"
