"""Telling followers that a session moved, whoever moved it.

Rule 1: local commits are told in the loop, right after their answers. Rule 2: other processes' commits are
found by polling `data_version`, only while somebody watches. Rule 3: whoever starts watching is told the
present head once, because a commit may have slipped in before the first look.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterable

import apsw

from perdure.stores import terms
from perdure.stores.sqlite_file import Connection, SqliteFile
from perdure.stores.sqlite_owners import Owners

Notify = Callable[[int], None]
Head = tuple[str, int]

_UNSEEN = -1


class Watch:
    """The watchers of one store, and the thread that looks at other processes and beats for the owners."""

    def __init__(self, file: SqliteFile, owners: Owners, *, poll: float, beat: float) -> None:
        self._file = file
        self._owners = owners
        self._poll = poll
        self._beat = beat
        self._watchers: dict[asyncio.AbstractEventLoop, dict[str | None, dict[object, Notify]]] = {}
        self._seen: dict[str, int] = {}
        self._fresh = False
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = False
        self._thread: threading.Thread | None = None

    def add(self, session: str | None, notify: Notify) -> Callable[[], None]:
        loop = asyncio.get_running_loop()
        token = object()
        with self._lock:
            first = not self._watchers
            self._watchers.setdefault(loop, {}).setdefault(session, {})[token] = notify
            if session is not None:
                self._seen[session] = _UNSEEN
                self._fresh = True
        if first:
            self.start()

        def end() -> None:
            with self._lock:
                sessions = self._watchers.get(loop, {})
                watchers = sessions.get(session, {})
                watchers.pop(token, None)
                if not watchers:
                    sessions.pop(session, None)
                if not sessions:
                    self._watchers.pop(loop, None)
                if session is not None and not any(session in others for others in self._watchers.values()):
                    self._seen.pop(session, None)

        return end

    def loops(self) -> Iterable[asyncio.AbstractEventLoop]:
        return tuple(self._watchers)

    def tell(self, loop: asyncio.AbstractEventLoop, heads: Iterable[Head]) -> None:
        """Runs in the loop."""
        sessions = self._watchers.get(loop)
        if not sessions:
            return
        for session, head in heads:
            watchers = sessions.get(session)
            if watchers:
                self._seen[session] = head
                terms.tell(watchers.values(), head)
        if watchers := sessions.get(None):
            terms.tell(watchers.values(), 0)

    def start(self) -> None:
        """Starts the thread, or wakes it to look at what it has to do now."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="perdure-watch", daemon=True)
            self._thread.start()
        self._wake.set()

    def close(self) -> None:
        self._closing = True
        self._watchers.clear()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        next_beat = 0.0
        with contextlib.closing(_Foreign(self._file)) as foreign:
            while not self._closing:
                if self._watchers:
                    self._look(foreign)
                if self._owners and time.monotonic() >= next_beat:
                    next_beat = time.monotonic() + self._beat
                    self._owners.beat()
                self._wake.wait(self._poll if self._watchers else self._beat if self._owners else None)
                self._wake.clear()

    def _look(self, foreign: _Foreign) -> None:
        with self._lock:
            seen = dict(self._seen)
            fresh, self._fresh = self._fresh, False
        heads = foreign.heads(seen, fresh)
        if heads is None:
            return
        for loop in self.loops():
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                loop.call_soon_threadsafe(self.tell, loop, heads)


class _Foreign:
    """What other connections committed, seen from a connection of its own."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._connection: Connection | None = None
        self._version = -1
        self._numbers: dict[str, int] = {}

    def heads(self, seen: dict[str, int], fresh: bool) -> list[Head] | None:
        """The sessions whose head is not the one seen last; None if nobody committed since the last look."""
        try:
            if self._connection is None:
                self._connection = self._file.reader()
            version = self._connection.pragma("data_version")
            if version == self._version and not fresh:
                return None
            heads = self._moved(self._connection, seen)
            self._version = version
            return heads
        except apsw.Error:
            self.close()  # the next look gets a new connection
            return None

    def _moved(self, connection: Connection, seen: dict[str, int]) -> list[Head]:
        numbers = {uid: no for uid, no in self._numbers.items() if uid in seen}
        for uid in seen.keys() - numbers.keys():
            no = connection.execute("SELECT no FROM sessions WHERE uid = ? AND deleted = 0", (uid,)).get
            if no is not None:
                numbers[uid] = no
        rows = connection.execute(
            "SELECT uid, head FROM sessions WHERE no IN (SELECT value FROM json_each(?)) AND deleted = 0",
            (json.dumps(list(numbers.values())),),
        ).fetchall()
        heads: dict[str, int] = dict(rows)
        self._numbers = {uid: no for uid, no in numbers.items() if uid in heads}
        return [(uid, head) for uid, head in heads.items() if head != seen[uid]]

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            self._version = _UNSEEN
