"""The lookout for engines with queues elsewhere: what it finds it submits, less and less often, and at last begins."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from perdure.runtime.lookout import DIRECT_FOR, Lookout
from perdure.testing import ManualClock


class Found:
    """Sessions that have work, for ever."""

    owner = "w"
    queues: Sequence[str] = ("clerk",)

    def __init__(self, *sessions: str) -> None:
        self.sessions = sessions

    async def drive(self, session: str) -> None: ...

    async def sweep(self, queues: Sequence[str] | None) -> Sequence[str]:
        return self.sessions

    def watch(self, notify: Callable[[], None]) -> Callable[[], None]:
        return lambda: None

    async def living(self) -> Sequence[str]:
        return ["w"]


async def nothing() -> None: ...


async def test_what_its_queue_does_not_bring_about_is_begun_here() -> None:
    clock, submitted, begun = ManualClock(), list[float](), list[float]()
    lookout = Lookout(
        clock,
        Found("s"),
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


async def test_where_it_was_quiet_what_comes_is_begun_at_once_until_the_queue_is_polled_again() -> None:
    clock, work, begun, paces = ManualClock(), Found(), list[str](), list[bool]()

    async def pace(is_quiet: bool) -> None:
        paces.append(is_quiet)

    lookout = Lookout(clock, work, lambda session, queue: None, nothing, begun.append, pace)
    looking = asyncio.ensure_future(lookout.keep(["clerk"]))
    try:
        await clock.advance(10)
        assert paces == []
        await clock.advance(10)
        assert paces == [True]
        work.sessions = ("first",)
        await clock.advance(2.1)
        assert (begun, paces) == (["first"], [True, False])
        work.sessions = ("second",)
        await clock.advance(2.1)
        assert begun == ["first", "second"], "the queue is still polled at long intervals"
        work.sessions = ("busy",)
        await clock.advance(DIRECT_FOR)
        work.sessions = ("busy", "third")
        await clock.advance(2.1)
        assert "third" not in begun, "it has its queue"
        assert paces == [True, False]
    finally:
        looking.cancel()
