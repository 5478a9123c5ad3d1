"""A key's quota is that of the process: Runtimes beside each other, in one loop or in threads, wait as one."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from perdure import Agent, Runtime, models
from perdure.core.messages import Text
from perdure.ports import ModelResponse
from perdure.runtime.agreement import Agreement, _agreement_of, quotas_of
from perdure.runtime.clock import SystemClock
from perdure.stores.memory import MemoryStore
from perdure.testing import ManualClock
from perdure.testing.provider import Provider, Request, Response, Script, status
from perdure.testing.provider_streams import stream_of
from tests.runtime.scenes import until

Serve = Callable[[Script], Awaitable[Provider]]
SHUT_FOR = 1.0
DONE = Response(stream_of("openai", ModelResponse((Text("Done."),))), headers={"content-type": "text/event-stream"})


class Metered:
    """Refuses everybody for a while, from the first one on."""

    def __init__(self) -> None:
        self.refused: list[float] = []
        self.answered: list[float] = []

    def __call__(self, request: Request) -> Response:
        now = time.monotonic()
        if not self.refused or now < self.refused[0] + SHUT_FOR:
            self.refused.append(now)
            return status(429, retry_after=SHUT_FOR)
        self.answered.append(now)
        return DONE


@pytest.fixture(autouse=True)
def _as_in_a_new_process() -> None:
    _agreement_of.cache_clear()


def is_shut() -> bool:
    """Some Runtime of this process has taken in that it has to wait, and has told the others."""
    return any(row.shut_until > time.monotonic() for row in _agreement_of(os.getpid())._rows.values())


def agent(provider: Provider, key: str = "k") -> Agent[str]:
    return Agent(name="clerk", model=models.openai("m", base_url=provider.url, api_key=key))


async def test_runtimes_of_one_loop_wait_together_and_before_their_first_attempt(serve: Serve) -> None:
    meter = Metered()
    provider = await serve(meter)
    async with AsyncExitStack() as stack:
        first, *others = [await stack.enter_async_context(Runtime("memory:", agents=[agent(provider)])) for _ in "1234"]
        runs = [asyncio.ensure_future((await first.open("clerk")).run("go"))]
        await until(is_shut)
        runs += [asyncio.ensure_future((await other.open("clerk")).run("go")) for other in others for _ in "12"]
        # One that is opened only now hears of it too.
        late = await stack.enter_async_context(Runtime("memory:", agents=[agent(provider)]))
        runs.append(asyncio.ensure_future((await late.open("clerk")).run("go")))
        results = await asyncio.gather(*runs)
    assert [result.reason for result in results] == ["completed"] * len(runs)
    assert len(meter.refused) == 1, "nobody else asked while it was shut"
    assert len(meter.answered) == len(runs)


async def test_another_key_does_not_wait(serve: Serve) -> None:
    provider = await serve(
        lambda request: status(429, retry_after=30) if request.headers["authorization"] == "Bearer a" else DONE
    )
    async with (
        Runtime("memory:", agents=[agent(provider, "a")]) as one,
        Runtime("memory:", agents=[agent(provider, "b")]) as two,
    ):
        waiting = await one.open("clerk")
        await waiting.start("go")
        await until(is_shut)
        assert (await (await two.open("clerk")).run("go")).reason == "completed"
        await waiting.cancel()


async def test_runtimes_in_threads_wait_together(serve: Serve) -> None:
    meter = Metered()
    provider = await serve(meter)
    told, reasons = threading.Event(), list[str]()

    def work(is_first: bool) -> None:
        with Runtime("memory:", agents=[agent(provider)]) as runtime:
            if not is_first:
                told.wait(10.0)
            reasons.append(runtime.run_sync("clerk", "go").reason)

    threads = [threading.Thread(target=work, args=(number == 0,)) for number in range(4)]
    for thread in threads:
        thread.start()
    await until(is_shut)
    told.set()
    await asyncio.gather(*(asyncio.to_thread(thread.join, 30.0) for thread in threads))
    assert reasons == ["completed"] * 4
    assert len(meter.refused) == 1
    assert len(meter.answered) == 4


async def test_who_is_alone_asks_nobody() -> None:
    agreement = Agreement()
    agreement.follow_quotas(lambda quota, seconds: None)
    await agreement.shut_quota("q", 60.0)
    assert await agreement.enter_quota("q") is None


async def test_who_left_does_not_count_and_who_comes_late_hears() -> None:
    agreement, heard = Agreement(), list[tuple[str, float | None]]()
    ends = [agreement.follow_quotas(lambda quota, seconds: None) for _ in "12"]
    await agreement.shut_quota("q", 60.0)
    agreement.follow_quotas(lambda quota, seconds: heard.append((quota, seconds)))
    await asyncio.sleep(0)
    [(quota, seconds)] = heard
    assert quota == "q"
    assert seconds is not None
    assert 59.0 < seconds <= 60.0
    assert await agreement.enter_quota("q") == pytest.approx(60.0, abs=1.0)
    for end in ends:
        end()
    assert await agreement.enter_quota("q") is None, "nobody else is left"


async def test_with_the_last_runtime_all_is_forgotten() -> None:
    agreement, heard = Agreement(), list[str]()
    ends = [agreement.follow_quotas(lambda quota, seconds: None) for _ in "12"]
    await agreement.shut_quota("q", 60.0)
    for end in ends:
        end()
    agreement.follow_quotas(lambda quota, seconds: heard.append(quota))
    await asyncio.sleep(0)
    assert heard == []


async def test_what_nobody_cares_for_is_forgotten() -> None:
    clock = ManualClock()
    agreement = Agreement(clock.monotonic)
    for _ in "12":
        agreement.follow_quotas(lambda quota, seconds: None)
    for number in range(10):
        await agreement.shut_quota(f"q{number}", 1.0)
        await clock.advance(700.0)
    assert await agreement.enter_quota("q9") is None
    assert len(agreement._rows) == 0


async def test_a_loop_that_ended_hurts_nobody() -> None:
    agreement, heard = Agreement(), list[float | None]()

    async def follow() -> None:
        agreement.follow_quotas(lambda quota, seconds: None)

    await asyncio.to_thread(asyncio.run, follow())
    agreement.follow_quotas(lambda quota, seconds: heard.append(seconds))
    await agreement.shut_quota("q", 1.0)
    await asyncio.sleep(0)
    assert heard == [pytest.approx(1.0)]
    assert await agreement.enter_quota("q") is None, "nobody is left to agree with"


def test_a_process_has_one_and_a_time_of_one_s_own_has_none() -> None:
    store = MemoryStore()
    assert quotas_of(store, SystemClock()) is quotas_of(MemoryStore(), SystemClock())
    assert quotas_of(store, ManualClock()) is None
    assert _agreement_of(1) is not _agreement_of(2)
