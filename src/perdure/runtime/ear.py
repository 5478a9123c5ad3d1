"""The ear for files: a thread that hears from the system when something under some paths has changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from functools import partial
from threading import Event, Thread

from perdure.runtime.cron import EXTRA
from perdure.runtime.desk import describe

QUIET_MS = 100
LONGEST_MS = 1_600
"""Changes are told together: when it has been quiet for so long, or after the longest time."""

READY_MS = 500


class Ear:
    """Tells the loop in which it was made: `heard` gets paths, at first none, when it is listening."""

    def __init__(
        self, paths: Collection[str], heard: Callable[[Iterable[str]], None], failed: Callable[[str], None]
    ) -> None:
        self.paths = frozenset(paths)
        self._heard = heard
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._closed = Event()
        Thread(target=self._listen, name="perdure-ear", daemon=True).start()

    def close(self) -> None:
        self._closed.set()

    def _listen(self) -> None:
        try:
            from watchfiles import watch
        except ImportError:
            self._tell(partial(self._failed, f"the package watchfiles is missing; {EXTRA} brings it."))
            return
        is_ready = False
        try:
            for changes in watch(
                *self.paths,
                watch_filter=None,
                debounce=LONGEST_MS,
                step=QUIET_MS,
                stop_event=self._closed,
                rust_timeout=READY_MS,
                yield_on_timeout=True,
            ):
                if changes or not is_ready:
                    self._tell(partial(self._heard, {path for _, path in changes}))
                is_ready = True
        except Exception as error:  # noqa: BLE001 - whatever the system or a network disk says, people have to read it
            self._tell(partial(self._failed, f"the system does not tell of changes ({describe(error)})."))

    def _tell(self, told: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(lambda: None if self._closed.is_set() else told())
        except RuntimeError:
            self._closed.set()  # the loop is closed: nobody listens any more
