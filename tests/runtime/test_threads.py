"""Daemon threads: sync work beside the loop, without a pool's limits and without its joins."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from itertools import count

import pytest

from perdure.runtime.threads import DaemonThreads

colour: ContextVar[str] = ContextVar("colour", default="none")
numbers = count()


@pytest.fixture
def name() -> str:
    return f"test-{next(numbers)}"


def living(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


async def test_results_and_errors_come_back_to_the_loop() -> None:
    threads = DaemonThreads()

    def fail() -> None:
        raise LookupError("no")

    assert await threads.submit(lambda: 7) == 7
    assert await threads.submit(threading.get_ident) != threading.get_ident()
    with pytest.raises(LookupError, match="no"):
        await threads.submit(fail)


@pytest.mark.parametrize("raised", [SystemExit(3), KeyboardInterrupt(), StopIteration(1), GeneratorExit()])
async def test_nothing_a_function_raises_ends_the_loop(raised: BaseException) -> None:
    def fail() -> None:
        raise raised

    with pytest.raises(RuntimeError, match=type(raised).__name__):
        await DaemonThreads().submit(fail)


async def test_context_variables_are_copied() -> None:
    colour.set("red")

    def read_and_write() -> str:
        seen = colour.get()
        colour.set("blue")
        return seen

    threads = DaemonThreads()
    assert await threads.submit(read_and_write) == "red"
    assert colour.get() == "red"
    colour.set("green")
    assert await threads.submit(read_and_write) == "green"


async def test_a_thread_is_used_again(name: str) -> None:
    threads = DaemonThreads(name=name)
    idents = {await threads.submit(threading.get_ident) for _ in range(50)}
    assert len(idents) == 1
    assert len(living(name)) == 1


async def test_no_job_waits_for_another(name: str) -> None:
    threads = DaemonThreads(name=name)
    together = threading.Barrier(40, timeout=20)
    assert len(await asyncio.gather(*(threads.submit(together.wait) for _ in range(40)))) == 40
    assert len(living(name)) == 40


async def test_threads_are_daemons_and_end_when_idle(name: str) -> None:
    threads = DaemonThreads(idle_seconds=0.05, name=name)
    together = threading.Barrier(5, timeout=20)
    await asyncio.gather(*(threads.submit(together.wait) for _ in range(5)))
    assert all(thread.daemon for thread in living(name))
    await until(lambda: not living(name))
    assert await threads.submit(lambda: 7) == 7


async def test_jobs_that_meet_ending_threads_are_not_lost(name: str) -> None:
    threads = DaemonThreads(idle_seconds=0.001, name=name)
    for number in range(300):
        await asyncio.sleep(0.001)
        async with asyncio.timeout(20):
            assert await threads.submit(lambda number=number: number) == number


async def test_the_result_of_a_cancelled_wait_is_dropped_quietly() -> None:
    threads = DaemonThreads()
    go = threading.Event()
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))

    def fail() -> None:
        go.wait(20)
        raise LookupError("no")

    abandoned = threads.submit(fail)
    await asyncio.sleep(0)
    abandoned.cancel()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await abandoned
    assert await threads.submit(lambda: 7) == 7
    await asyncio.sleep(0.05)
    del abandoned
    gc.collect()
    assert complaints == []


async def test_a_job_cancelled_before_it_began_is_not_run() -> None:
    threads = DaemonThreads()
    await threads.submit(lambda: None)
    ran: list[int] = []
    before = sys.getswitchinterval()
    sys.setswitchinterval(30)  # the thread does not get its turn until this one waits
    try:
        threads.submit(lambda: ran.append(1)).cancel()
    finally:
        sys.setswitchinterval(before)
    assert await threads.submit(lambda: 7) == 7
    await asyncio.sleep(0.02)
    assert ran == []


async def test_a_job_without_a_thread_is_refused_and_never_run(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = DaemonThreads()
    ran: list[int] = []

    def exhausted(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", exhausted)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            threads.submit(lambda: ran.append(1))
    assert await threads.submit(lambda: 7) == 7
    await asyncio.sleep(0.02)
    assert ran == []


class Value:
    pass


async def test_an_idle_thread_keeps_nothing_alive() -> None:
    threads = DaemonThreads(idle_seconds=600)
    value = Value()
    trace = weakref.ref(value)
    assert await threads.submit(lambda value=value: value) is value
    del value
    await until(lambda: gc.collect() >= 0 and trace() is None)


def test_a_job_that_outlives_its_loop_hurts_nobody(name: str) -> None:
    threads = DaemonThreads(idle_seconds=0.05, name=name)
    go = threading.Event()
    failures: list[object] = []
    before, threading.excepthook = threading.excepthook, failures.append

    async def leave() -> None:
        threads.submit(lambda: go.wait(20))
        await asyncio.sleep(0)

    try:
        asyncio.run(leave())
        go.set()
        deadline = time.monotonic() + 20
        while living(name) and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        threading.excepthook = before
    assert not living(name)
    assert failures == []


def test_the_process_does_not_wait_for_a_stuck_tool() -> None:
    script = (
        "import asyncio, time\n"
        "from perdure.runtime.threads import DaemonThreads\n"
        "async def main():\n"
        "    DaemonThreads().submit(lambda: time.sleep(600))\n"
        "    await asyncio.sleep(0.05)\n"
        "asyncio.run(main())\n"
        "print('left')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "left\n"
