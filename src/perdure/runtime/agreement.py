"""Agreement: how the Runtimes of one process agree on quotas, as processes do through a store that shares them.

Rule 1: they may live in loops of different threads; each hears in its own. Rule 2: who is alone is not made to wait.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from threading import Lock

import msgspec

from perdure.ports import Clock, HeardQuota, SharesQuota, Store
from perdure.runtime.clock import SystemClock

PATIENCE = 5.0
"""Seconds for whoever tries first and says nothing: it may have got through to a long answer."""
FORGOTTEN_AFTER = 600.0
"""Seconds after which nobody believes any more that a quota is used up."""


class _Row(msgspec.Struct):
    """A quota that is used up. When its time is over, as many may try as there are permits."""

    shut_until: float
    permits: int = 1
    passed: int = 0
    patience: float = 0.0


class Agreement:
    """A SharesQuota for those who follow it. There is a row from the first refusal until the gate is open for all."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = Lock()
        self._rows: dict[str, _Row] = {}
        self._followers: dict[object, tuple[asyncio.AbstractEventLoop, HeardQuota]] = {}

    def follow_quotas(self, heard: HeardQuota) -> Callable[[], None]:
        token, loop = object(), asyncio.get_running_loop()
        with self._lock:
            now = self._monotonic()
            self._forget_ended()
            self._followers[token] = loop, heard
            known = [(quota, row.shut_until - now) for quota, row in self._rows.items() if row.shut_until > now]
        for quota, seconds in known:
            loop.call_soon(self._hand_over, token, quota, seconds)

        def end() -> None:
            with self._lock:
                self._followers.pop(token, None)
                self._forget_ended()

        return end

    async def shut_quota(self, quota: str, seconds: float) -> None:
        with self._lock:
            now = self._monotonic()
            for known, row in list(self._rows.items()):
                if row.shut_until < now - FORGOTTEN_AFTER:
                    del self._rows[known]
            before = self._rows.get(quota)
            until = max(now + seconds, before.shut_until if before else 0.0)
            self._rows[quota] = _Row(until, patience=before.patience if before else 0.0)
            self._tell(quota, until - now)

    async def enter_quota(self, quota: str) -> float | None:
        with self._lock:
            self._forget_ended()
            now, row = self._monotonic(), self._rows.get(quota)
            if row is None or len(self._followers) < 2 or row.shut_until < now - FORGOTTEN_AFTER:
                self._rows.pop(quota, None)
                return None
            if row.shut_until > now:
                return row.shut_until - now
            if not row.permits and row.patience > now:
                return row.patience - now
            row.permits, row.patience = max(0, row.permits - 1), now + PATIENCE
            return 0.0

    async def answer_quota(self, quota: str, *, passed: bool) -> None:
        """When as many got through as there are Runtimes, each may as well let one in of its own."""
        with self._lock:
            row = self._rows.get(quota)
            if row is None or row.shut_until > self._monotonic():
                return
            row.permits += 2 if passed else 1
            row.passed += passed
            is_open = passed and row.passed >= len(self._followers)
            if is_open:
                del self._rows[quota]
            self._tell(quota, None if is_open else 0.0)

    def _tell(self, quota: str, seconds: float | None) -> None:
        for token, (loop, _) in self._followers.items():
            with suppress(RuntimeError):  # it has just ended
                loop.call_soon_threadsafe(self._hand_over, token, quota, seconds)

    def _forget_ended(self) -> None:
        """A loop that was closed without a word has no Runtime any more; where nobody is left, nothing is known."""
        for token in [token for token, (loop, _) in self._followers.items() if loop.is_closed()]:
            del self._followers[token]
        if not self._followers:
            self._rows.clear()

    def _hand_over(self, token: object, quota: str, seconds: float | None) -> None:
        """Unless the follower has left while the news was on its way."""
        if token in self._followers:
            self._followers[token][1](quota, seconds)


def quotas_of(store: Store, clock: Clock) -> SharesQuota | None:
    """Through what a Runtime agrees with others: its store, or else its process; with a time of its own, nothing."""
    if isinstance(store, SharesQuota):
        return store
    return _agreement_of(os.getpid()) if isinstance(clock, SystemClock) else None


@cache
def _agreement_of(process: int) -> Agreement:
    """The one of this process: a provider counts what a key asks for, whichever Runtime it is for.

    By pid, because what a fork inherits of its parent's Runtimes is not there any more.
    """
    return Agreement()
