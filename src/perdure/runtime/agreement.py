"""Agreement: what the Runtimes of one process tell each other about quotas, where their stores do not.

A quota belongs to a key, and a key to the process: this is the one thing here that no Runtime has to itself. Runtimes
may live in threads and loops of their own.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import TypeAlias

import msgspec

from perdure.ports import Clock
from perdure.runtime.clock import SystemClock

PATIENCE = 5.0
"""Seconds for whoever tries first and says nothing: it may be dead, or have got through to a long answer."""

Heard: TypeAlias = Callable[[str, float | None], None]
Follower: TypeAlias = tuple[asyncio.AbstractEventLoop, Heard]


class _Shut(msgspec.Struct):
    """A quota that is used up, or tried again: how many more may try, and how many got through."""

    until: float
    permits: int = 1
    passed: int = 0
    patience: float = 0.0


class Agreement:
    """Shares quotas as a store does; see SharesQuota. Whoever is the only one here goes on by itself."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = Lock()
        self._shut: dict[str, _Shut] = {}
        self._followers: list[Follower] = []
        self._process = os.getpid()

    def follow_quotas(self, heard: Heard) -> Callable[[], None]:
        follower = (asyncio.get_running_loop(), heard)
        with self._lock:
            is_forked = os.getpid() != self._process
            self._process = os.getpid()
            known = [] if is_forked else [other for other in self._followers if not other[0].is_closed()]
            self._followers = [*known, follower]
            now = self._clock.monotonic()
            shut = {quota: row.until - now for quota, row in self._shut.items() if row.until > now}
        for quota, seconds in shut.items():
            heard(quota, seconds)
        return partial(self._leave, follower)

    async def shut_quota(self, quota: str, seconds: float) -> None:
        with self._lock:
            now, known = self._clock.monotonic(), self._shut.get(quota)
            until = max(now + seconds, known.until if known else 0.0)
            self._shut[quota] = _Shut(until)
        self._tell(quota, until - now)

    async def enter_quota(self, quota: str) -> float | None:
        with self._lock:
            now, row = self._clock.monotonic(), self._shut.get(quota)
            if row is None or len(self._followers) < 2:
                self._shut.pop(quota, None)
                return None
            if row.until > now:
                return row.until - now
            if not row.permits and row.patience > now:
                return row.patience - now
            row.permits, row.patience = max(0, row.permits - 1), now + PATIENCE
            return 0.0

    async def answer_quota(self, quota: str, *, passed: bool) -> None:
        with self._lock:
            row = self._shut.get(quota)
            if row is None or row.until > self._clock.monotonic():
                return
            row.permits += 2 if passed else 1
            row.passed += passed
            is_open = row.passed >= len(self._followers)
            if is_open:
                del self._shut[quota]
        self._tell(quota, None if is_open else 0.0)

    def _tell(self, quota: str, seconds: float | None) -> None:
        here = asyncio.get_running_loop()
        for follower in (*self._followers,):
            loop, heard = follower
            if loop is here:
                heard(quota, seconds)
                continue
            try:
                loop.call_soon_threadsafe(heard, quota, seconds)
            except RuntimeError:
                # Its loop has ended without a word.
                self._leave(follower)

    def _leave(self, follower: Follower) -> None:
        with self._lock:
            self._followers = [known for known in self._followers if known is not follower]
            if not self._followers:
                self._shut.clear()


HERE = Agreement(SystemClock())
"""That of this process."""
