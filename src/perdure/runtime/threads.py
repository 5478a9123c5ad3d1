"""Threads for sync tools: reused while busy, ended when idle, never joined at exit.

Rule 1: a job never waits for a thread. Rule 2: nothing a job raises leaves its thread but through its
future, and nothing that would end the loop (SystemExit, StopIteration). Rule 3: a thread ends only while
no job is on its way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, TypeVar

T = TypeVar("T")

_Job = tuple[Callable[[], Any], asyncio.Future[Any], asyncio.AbstractEventLoop]
_Outcome = tuple[Any, Exception | None]


class DaemonThreads:
    """Runs functions in daemon threads, as many as there are jobs at once."""

    def __init__(self, *, idle_seconds: float = 10.0, name: str = "perdure-tool") -> None:
        self._idle_seconds = idle_seconds
        self._name = name
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._lock = Lock()
        self._idle = 0

    def submit(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Runs it in a copy of the caller's context, for the running loop; cancelling drops the result."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        job: _Job = (partial(copy_context().run, function), future, loop)
        with self._lock:
            reuse = self._idle > 0
            self._idle -= reuse
        if not reuse:
            # Before the job is queued: if no thread can be started, it must not run later, unnoticed.
            Thread(target=self._work, name=self._name, daemon=True).start()
        self._jobs.put(job)
        return future

    def _work(self) -> None:
        while job := self._next_job():
            call, future, loop = job
            outcome = (None, None) if future.cancelled() else _perform(call)
            # Idle before the result is out: who submits again on receiving it finds this thread.
            with self._lock:
                self._idle += 1
            _deliver(loop, future, outcome)
            # An idle thread must not keep the values of its last job alive.
            del job, call, future, loop, outcome

    def _next_job(self) -> _Job | None:
        while True:
            try:
                return self._jobs.get(timeout=self._idle_seconds)
            except Empty:
                with self._lock:
                    if self._idle > 0:
                        self._idle -= 1
                        return None


def _perform(call: Callable[[], Any]) -> _Outcome:
    try:
        return call(), None
    except StopIteration as raised:
        return None, RuntimeError(f"the function raised {raised!r}")
    except Exception as raised:  # noqa: BLE001 - user code: whatever it raises belongs to its caller
        return None, raised
    except BaseException as raised:  # noqa: BLE001 - the SystemExit of a tool must not end the loop
        return None, RuntimeError(f"the function ended its thread with {raised!r}")


def _deliver(loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], outcome: _Outcome) -> None:
    try:
        loop.call_soon_threadsafe(_settle, future, outcome)
    except RuntimeError:
        return  # the loop is closed: nobody waits any more


def _settle(future: asyncio.Future[Any], outcome: _Outcome) -> None:
    if future.done():
        return
    result, error = outcome
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
