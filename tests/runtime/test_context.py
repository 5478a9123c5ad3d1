"""ToolContext: read-only, usable from the loop and from threads, and without a runtime in unit tests."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError
from typing import Any

import pytest

from perdure.core.codec import digest_of
from perdure.core.deltas import Delta, ToolEmitted, ToolProgressed
from perdure.core.errors import NotFound, UsageError
from perdure.core.state import SessionState
from perdure.runtime.context import ToolContext
from perdure.runtime.media import Artifact, Artifacts
from perdure.runtime.threads import DaemonThreads
from perdure.stores.memory import MemoryStore
from perdure.testing.store_samples import first


class Watched:
    """A context in the running loop, and what its watchers see."""

    def __init__(self, **more: Any) -> None:
        self.seen: list[tuple[Delta, int]] = []
        self.ctx: ToolContext[Any, Any] = ToolContext(
            call=3, publish=self.publish, loop=asyncio.get_running_loop(), **more
        )

    def publish(self, delta: Delta) -> None:
        self.seen.append((delta, threading.get_ident()))

    @property
    def deltas(self) -> list[Delta]:
        return [delta for delta, _ in self.seen]


@pytest.fixture
def threads() -> DaemonThreads:
    return DaemonThreads()


def test_a_fake_needs_no_runtime() -> None:
    ctx = ToolContext.fake(deps="deps", data={"user": "u"}, tenant="acme", call=4)
    assert (ctx.deps, ctx.data, ctx.idempotency_key) == ("deps", {"user": "u"}, "fake")
    assert (ctx.session, ctx.tenant, ctx.call, ctx.run, ctx.attempt) == ("fake", "acme", 4, 1, 1)
    assert isinstance(ctx.state, SessionState)
    assert ctx.deadline is None
    assert not ctx.cancelled
    assert ToolContext.fake(cancelled=True).cancelled
    ctx.progress("half", 0.5)
    ctx.emit({"a": 1})


async def test_a_fake_keeps_artifacts_and_deltas() -> None:
    seen: list[Delta] = []
    ctx = ToolContext.fake(publish=seen.append)
    kept = ctx.artifacts.put(b"abc", "text/plain", "a.txt")
    assert kept == Artifact(digest_of(b"abc"), "text/plain", 3, "a.txt")
    assert await ctx.artifacts.get(kept.digest) == b"abc"
    with pytest.raises(NotFound, match="no artifact"):
        await ctx.artifacts.get("0" * 32)
    ctx.progress("half", 0.5)
    assert seen == [ToolProgressed(1, "half", 0.5)]


def test_a_fake_waits_in_a_loop_of_its_own() -> None:
    async def answer() -> int:
        await asyncio.sleep(0)
        return 7

    assert ToolContext.fake().wait(answer()) == 7


def test_a_context_is_read_only() -> None:
    ctx = ToolContext.fake()
    for name in ("deps", "data", "idempotency_key", "cancelled", "state", "artifacts"):
        with pytest.raises(AttributeError):
            setattr(ctx, name, None)


def test_a_context_does_not_show_what_it_carries() -> None:
    assert "secret" not in repr(ToolContext.fake(deps="secret", data="secret", idempotency_key="secret"))


async def test_deltas_from_the_loop_are_shown_at_once() -> None:
    watched = Watched()
    watched.ctx.progress("half", 0.5)
    watched.ctx.emit({"rows": (1, 2)})
    assert watched.deltas == [ToolProgressed(3, "half", 0.5), ToolEmitted(3, {"rows": [1, 2]})]


async def test_deltas_from_a_thread_are_shown_in_the_loop_and_in_order(threads: DaemonThreads) -> None:
    watched = Watched()

    def work() -> int:
        for number in range(5):
            watched.ctx.progress(str(number))
        return threading.get_ident()

    worker = await threads.submit(work)
    assert [delta.message for delta in watched.deltas if isinstance(delta, ToolProgressed)] == list("01234")
    assert {ident for _, ident in watched.seen} == {threading.get_ident()} != {worker}


async def test_what_cannot_be_shown_is_the_tools_error() -> None:
    with pytest.raises(ValueError, match="object"):
        Watched().ctx.emit(object())


async def test_a_closed_context_is_silent(threads: DaemonThreads) -> None:
    watched = Watched()
    watched.ctx.close()
    watched.ctx.progress("from the loop")
    await threads.submit(lambda: watched.ctx.progress("from a thread"))
    await asyncio.sleep(0)
    assert watched.seen == []


async def test_a_delta_on_its_way_when_the_call_ends_is_dropped() -> None:
    watched = Watched()
    thread = threading.Thread(target=watched.ctx.progress, args=("late",))
    thread.start()
    thread.join()  # the loop has had no chance to deliver it
    watched.ctx.close()
    await asyncio.sleep(0)
    assert watched.seen == []


def test_a_thread_that_outlives_its_loop_is_not_hurt() -> None:
    async def make() -> Watched:
        return Watched()

    watched = asyncio.run(make())
    raised: list[BaseException] = []

    async def never() -> None: ...

    def work() -> None:
        watched.ctx.progress("late")
        try:
            watched.ctx.wait(never())
        except RuntimeError as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert watched.seen == []
    assert len(raised) == 1


async def test_cancelling_is_seen_and_awaited(threads: DaemonThreads) -> None:
    watched = Watched()
    waiting = asyncio.ensure_future(watched.ctx.wait_cancelled())
    await asyncio.sleep(0)
    assert not waiting.done()
    assert not await threads.submit(lambda: watched.ctx.cancelled)
    watched.ctx.cancel()
    await waiting
    await watched.ctx.wait_cancelled()
    assert await threads.submit(lambda: watched.ctx.cancelled)


async def test_a_sync_tool_waits_for_the_loop(threads: DaemonThreads) -> None:
    watched = Watched()

    async def where() -> int:
        await asyncio.sleep(0)
        return threading.get_ident()

    async def fail() -> None:
        raise LookupError("no")

    assert await threads.submit(lambda: watched.ctx.wait(where())) == threading.get_ident()
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    waiting = threads.submit(lambda: watched.ctx.wait(future))
    asyncio.get_running_loop().call_later(0.01, future.set_result, 7)
    assert await waiting == 7
    with pytest.raises(LookupError, match="no"):
        await threads.submit(lambda: watched.ctx.wait(fail()))


async def test_cancelling_ends_a_wait(threads: DaemonThreads) -> None:
    watched = Watched()
    begun = asyncio.Event()

    async def long() -> None:
        begun.set()
        await asyncio.sleep(60)

    waiting = threads.submit(lambda: watched.ctx.wait(long()))
    await begun.wait()
    watched.ctx.cancel()
    with pytest.raises(CancelledError):
        await waiting
    with pytest.raises(CancelledError):
        await threads.submit(lambda: watched.ctx.wait(long()))


async def test_waiting_in_the_loop_itself_is_refused() -> None:
    async def never() -> None: ...

    with pytest.raises(UsageError, match="use await"):
        Watched().ctx.wait(never())


async def test_artifacts_are_written_when_the_runtime_says_so(threads: DaemonThreads) -> None:
    store, uid = MemoryStore(), "s1"
    await store.open()
    await store.append(first(uid, 1))
    artifacts = Artifacts(store, uid)
    kept = await threads.submit(lambda: artifacts.put(b"abc"))
    assert kept.digest in artifacts
    with pytest.raises(NotFound):
        await store.load_artifact(uid, kept.digest)
    await artifacts.flush()
    assert await store.load_artifact(uid, kept.digest) == b"abc"
    assert await Artifacts(store, uid).get(kept.digest) == b"abc"
