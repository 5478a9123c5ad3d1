"""Gates that processes share: one probe for all, more for each that got through, and alone where nobody answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from perdure import Agent, ModelError, Runtime
from perdure.core.errors import StoreError
from perdure.events import Noted
from perdure.ports import Model, ModelTraits
from perdure.runtime import agreement
from perdure.runtime.clock import SystemClock
from perdure.runtime.gates import Entry, Gate, Gates
from perdure.testing import ManualClock, ScriptedModel
from tests.runtime.scenes import events, soon, until

PATIENCE = 5.0


class Agreement:
    """What a store keeps for processes that share a quota, in memory."""

    def __init__(self, clock: ManualClock, processes: int) -> None:
        self.clock = clock
        self.processes = processes
        self.asked = 0
        self.is_out_of_order = False
        self.hangs = False
        self.quotas = set[str]()
        self._row: list[float] | None = None  # shut until, permits, passed, patience
        self._followers: list[Callable[[str, float | None], None]] = []

    def follow_quotas(self, heard: Callable[[str, float | None], None]) -> Callable[[], None]:
        self._followers.append(heard)
        return lambda: self._followers.remove(heard)

    async def shut_quota(self, quota: str, seconds: float) -> None:
        await self._asked(quota)
        until = max(self.clock.monotonic() + seconds, self._row[0] if self._row else 0.0)
        self._row = [until, 1, 0, 0.0]
        self._tell(quota, until - self.clock.monotonic())

    async def enter_quota(self, quota: str) -> float | None:
        await self._asked(quota)
        now = self.clock.monotonic()
        if self._row is None or self._row[0] > now:
            return None if self._row is None else self._row[0] - now
        if not self._row[1] and self._row[3] > now:
            return self._row[3] - now
        self._row[1:] = max(0, self._row[1] - 1), self._row[2], now + PATIENCE
        return 0.0

    async def answer_quota(self, quota: str, *, passed: bool) -> None:
        await self._asked(quota)
        if self._row is None or self._row[0] > self.clock.monotonic():
            return
        self._row[1] += 2 if passed else 1
        self._row[2] += passed
        if passed and self._row[2] >= self.processes:
            self._row = None
            self._tell(quota, None)
        else:
            self._tell(quota, 0.0)

    async def _asked(self, quota: str) -> None:
        self.asked += 1
        self.quotas.add(quota)
        if self.hangs:
            await asyncio.Event().wait()
        if self.is_out_of_order:
            raise StoreError("out of order")

    def _tell(self, quota: str, seconds: float | None) -> None:
        for heard in (*self._followers,):
            heard(quota, seconds)


METERED = ScriptedModel([], traits=ModelTraits(quota="a secret key"))


class Scene:
    """Some processes with a line of callers each; `passed` says who was let in, in which process."""

    def __init__(self, processes: int) -> None:
        self.clock = ManualClock()
        self.agreement = Agreement(self.clock, processes)
        self.all = [Gates(self.clock) for _ in range(processes)]
        for gates in self.all:
            gates.share(self.agreement)
        self.passed: list[int] = []
        self._tasks: list[asyncio.Future[None]] = []

    def gate(self, process: int) -> Gate:
        return self.all[process].quota(METERED)

    def line_up(self, process: int, many: int) -> None:
        self._tasks += [asyncio.ensure_future(self._enter(process)) for _ in range(many)]

    async def refuse(self, process: int, seconds: float) -> None:
        gates = self.all[process]
        entry = gates.approach(METERED)
        gates.fail(entry, ModelError("slow down", kind="rate_limited"), seconds)
        await self.clock.advance(0)

    async def _enter(self, process: int) -> None:
        await self.gate(process).enter()
        self.passed.append(process)


async def test_while_nobody_was_told_to_wait_nothing_is_asked() -> None:
    scene = Scene(3)
    for process in range(3):
        scene.line_up(process, 5)
    await scene.clock.advance(0)
    assert len(scene.passed) == 15
    assert scene.agreement.asked == 0


async def test_who_is_told_to_wait_tells_all_and_never_whose_key_it_is() -> None:
    scene = Scene(3)
    await scene.refuse(0, 10)
    for process in range(3):
        assert scene.gate(process).opens_in == 10
        scene.line_up(process, 5)
    await scene.clock.advance(9.9)
    assert scene.passed == []
    assert all("secret" not in quota and len(quota) == 32 for quota in scene.agreement.quotas)


async def test_one_tries_for_all_then_two_more_for_each_that_got_through_until_each_goes_on_by_itself() -> None:
    scene = Scene(3)
    await scene.refuse(0, 10)
    for process in range(3):
        scene.line_up(process, 20)
    await scene.clock.advance(10)
    assert len(scene.passed) == 1, "one for all"
    scene.gate(scene.passed[0]).succeed()
    await scene.clock.advance(0)
    assert len(scene.passed) == 3, "two more"
    for process in scene.passed[1:3]:
        scene.gate(process).succeed()
        await scene.clock.advance(0)
    # As many got through as there are processes: each that has no probe of its own under way lets one in.
    assert 3 < len(scene.passed) <= 3 + 2 + 3
    for _ in range(100):
        probing = len(scene.passed)
        for process in scene.passed[3:probing]:
            scene.gate(process).succeed()
        scene.passed[3:probing] = []
        await scene.clock.advance(0)
    assert all(scene.gate(process).is_open for process in range(3)), "nobody is left in line anywhere"


async def test_who_tries_and_is_refused_makes_all_wait_on() -> None:
    scene = Scene(2)
    await scene.refuse(0, 10)
    scene.line_up(0, 3)
    scene.line_up(1, 3)
    await scene.clock.advance(10)
    [prober] = scene.passed
    scene.gate(prober).shut(20, by_probe=True)
    await scene.clock.advance(19)
    assert len(scene.passed) == 1
    await scene.clock.advance(1)
    assert len(scene.passed) == 2


async def test_who_tries_and_dies_holds_nobody_up() -> None:
    scene = Scene(2)
    await scene.refuse(0, 10)
    scene.line_up(0, 1)
    await scene.clock.advance(10)
    assert scene.passed == [0]
    scene.line_up(1, 3)
    await scene.clock.advance(PATIENCE - 0.1)
    assert scene.passed == [0], "it may be at it still"
    await scene.clock.advance(0.2)
    assert scene.passed == [0, 1]


async def test_who_steps_back_leaves_its_try_to_another_process() -> None:
    scene = Scene(2)
    await scene.refuse(0, 10)
    scene.line_up(0, 1)
    await scene.clock.advance(10)
    scene.line_up(1, 1)
    await scene.clock.advance(0)
    assert scene.passed == [0]
    scene.gate(0).step_back()
    await scene.clock.advance(0)
    assert scene.passed == [0, 1]


@pytest.mark.parametrize("trouble", ["is_out_of_order", "hangs"])
async def test_where_the_store_does_not_answer_each_process_is_on_its_own(trouble: str) -> None:
    scene = Scene(2)
    setattr(scene.agreement, trouble, True)
    await scene.refuse(0, 10)
    assert scene.gate(0).opens_in == 10
    assert scene.gate(1).is_open, "it was not told"
    scene.line_up(0, 5)
    await scene.clock.advance(10)
    await scene.clock.advance(2.1)
    assert scene.passed == [0]
    for seen in range(1, 6):
        scene.gate(0).succeed()
        await scene.clock.advance(2.1)
        assert len(scene.passed) >= min(5, seen + 1)
    assert scene.gate(0).is_open


async def test_after_parting_nobody_waits_for_the_others() -> None:
    scene = Scene(2)
    await scene.refuse(0, 10)
    scene.line_up(1, 1)
    await scene.clock.advance(10)
    scene.line_up(0, 1)
    await scene.clock.advance(0)
    assert scene.passed == [1]
    scene.all[0].part()
    await scene.clock.advance(0)
    assert scene.passed == [1, 0]


async def test_a_model_that_says_of_no_quota_shares_none() -> None:
    scene = Scene(2)
    entry = scene.all[0].approach(ScriptedModel([]))
    scene.all[0].fail(entry, ModelError("slow down", kind="rate_limited"), 10)
    await scene.clock.advance(0)
    assert scene.agreement.asked == 0
    assert scene.all[1].quota(ScriptedModel([])).is_open


# The Runtimes of one process


class Household:
    """Two Runtimes' gates that agree in memory, and who was let in."""

    def __init__(self, many: int = 2) -> None:
        self.clock = ManualClock()
        self.agreement = agreement.Agreement(self.clock)
        self.all = [Gates(self.clock) for _ in range(many)]
        for gates in self.all:
            gates.share(self.agreement)
        self.entered: list[int] = []
        self.tasks: list[asyncio.Future[Entry]] = []

    async def refuse(self, at: int, seconds: float) -> None:
        gates = self.all[at]
        gates.fail(gates.approach(METERED), ModelError("slow down", kind="rate_limited"), seconds)
        await self.clock.advance(0)

    async def line_up(self, *places: int) -> None:
        self.tasks += [asyncio.ensure_future(self._enter(at)) for at in places]
        await self.clock.advance(0)

    async def _enter(self, at: int) -> Entry:
        gates = self.all[at]
        entry = await gates.enter(gates.approach(METERED))
        self.entered.append(at)
        return entry


async def test_who_is_told_to_wait_tells_the_other_runtimes_of_the_process_and_one_tries_first() -> None:
    house = Household()
    await house.refuse(0, 10.0)
    await house.line_up(1, 1, 0, 0)
    await house.clock.advance(9.9)
    assert house.entered == []
    await house.clock.advance(0.2)
    assert len(house.entered) == 1, "one for all"
    first = house.entered[0]
    house.all[first].succeed(await next(task for task in house.tasks if task.done()))
    await house.clock.advance(0)
    assert len(house.entered) == 3, "two more"
    for gates in house.all:
        gates.part()
    for task in house.tasks:
        task.cancel()


async def test_a_runtime_that_comes_later_hears_of_it_and_one_that_is_left_alone_goes_on() -> None:
    house = Household(many=1)
    await house.refuse(0, 10.0)
    late = Gates(house.clock)
    late.share(house.agreement)
    assert late.quota(METERED).opens_in == 10.0
    late.part()
    await house.line_up(0, 0)
    await house.clock.advance(10.1)
    assert house.entered == [0], "as without anybody else: one tries"
    house.all[0].succeed(await house.tasks[0])
    await house.clock.advance(0)
    assert house.entered == [0, 0]


async def test_who_tries_and_says_nothing_holds_the_other_runtimes_up_for_a_moment_only() -> None:
    house = Household()
    await house.refuse(0, 1.0)
    await house.line_up(0, 1)
    await house.clock.advance(1.1)
    assert len(house.entered) == 1
    await house.clock.advance(agreement.PATIENCE + 0.1)
    assert len(house.entered) == 2


async def test_runtimes_in_threads_of_their_own_hear_of_it_and_one_whose_loop_has_ended_is_forgotten() -> None:
    shared = agreement.Agreement(SystemClock())
    heard: list[tuple[str, float | None]] = []
    follows, is_told = threading.Event(), threading.Event()

    async def follow() -> None:
        told = asyncio.Event()
        shared.follow_quotas(lambda quota, seconds: (heard.append((quota, seconds)), told.set())[1])
        follows.set()
        await told.wait()
        is_told.set()

    thread = threading.Thread(target=lambda: asyncio.run(follow()), daemon=True)
    thread.start()
    await asyncio.to_thread(follows.wait, 5)
    await shared.shut_quota("q", 30.0)
    assert await asyncio.to_thread(is_told.wait, 5)
    await asyncio.to_thread(thread.join, 5)
    assert heard[0][0] == "q"
    await shared.shut_quota("q", 60.0)
    assert len(heard) == 1
    assert await shared.enter_quota("q") is None, "nobody is left to agree with"


async def test_two_runtimes_with_stores_of_their_own_share_a_key() -> None:
    traits = ModelTraits(quota="one key of two Runtimes")
    refusal = ModelError.rate_limited(retry_after=0.3)
    one = Agent(name="one", model=ScriptedModel([refusal, "Done."], traits=traits))
    two = Agent(name="two", model=ScriptedModel(["Done."], traits=traits))
    async with Runtime("memory:", agents=[one]) as first, Runtime("memory:", agents=[two]) as second:
        session, other = await first.open(one), await second.open(two)
        run = await session.start("go")
        gate = second._host.world.gates.quota(cast(Model, two.model))  # pyright: ignore[reportPrivateUsage]
        await until(lambda: not gate.is_open)
        assert (await soon(other.run("go"))).output == "Done."
        assert [note.kind for note in await events(other, Noted)] == ["model_wait"]
        assert (await soon(_ended(run))).output == "Done."


async def _ended(run: Any) -> Any:
    return await run
