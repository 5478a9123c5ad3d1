"""Gates that processes share: one probe for all, more for each that got through, and alone where nobody answers."""

from __future__ import annotations

import asyncio

import pytest

from perdure import ModelError
from perdure.core.errors import StoreError
from perdure.ports import ModelTraits
from perdure.runtime.agreement import PATIENCE, Agreement
from perdure.runtime.gates import Gate, Gates
from perdure.testing import ManualClock, ScriptedModel


class Watched:
    """An agreement that is watched, and that may be in trouble."""

    def __init__(self, clock: ManualClock) -> None:
        self._agreement = Agreement(clock.monotonic)
        self.follow_quotas = self._agreement.follow_quotas
        self.asked = 0
        self.is_out_of_order = False
        self.hangs = False
        self.quotas = set[str]()

    async def shut_quota(self, quota: str, seconds: float) -> None:
        await self._ask(quota)
        await self._agreement.shut_quota(quota, seconds)

    async def enter_quota(self, quota: str) -> float | None:
        await self._ask(quota)
        return await self._agreement.enter_quota(quota)

    async def answer_quota(self, quota: str, *, passed: bool) -> None:
        await self._ask(quota)
        await self._agreement.answer_quota(quota, passed=passed)

    async def _ask(self, quota: str) -> None:
        self.asked += 1
        self.quotas.add(quota)
        if self.hangs:
            await asyncio.Event().wait()
        if self.is_out_of_order:
            raise StoreError("out of order")


METERED = ScriptedModel([], traits=ModelTraits(quota="a secret key"))


class Scene:
    """Some processes with a line of callers each; `passed` says who was let in, in which process."""

    def __init__(self, processes: int) -> None:
        self.clock = ManualClock()
        self.agreement = Watched(self.clock)
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
