"""Following other processes' commits: LISTEN where there is a direct connection, looking again and again where not.

Rule: whoever watches hears of every commit; while the connection is broken, heads are looked up again and again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from perdure.core.errors import StoreError
from perdure.stores import terms
from perdure.stores.postgres_link import Connection, Link, failures, load_driver
from perdure.stores.postgres_names import key

_logger = logging.getLogger("perdure")
Notify = Callable[[int], None]
HEX = frozenset("0123456789abcdef")

CHECK_EVERY = 15.0
"""Seconds: so often a quiet connection has to show that it is there."""
COME_BACK_AFTER = 0.5
MISSED_EVERY = 5
"""Looks, where nothing can be heard."""


class Watch:
    """The watchers of one store in this process.

    `others` are told what comes over the channel besides, by its first character; `missed` looks for what nobody heard.
    """

    def __init__(
        self,
        link: Link,
        direct: str | None,
        *,
        poll: float,
        others: Mapping[str, Callable[[str], None]],
        missed: Callable[[], Awaitable[None]],
    ) -> None:
        self._link = link
        self._others = others
        self._missed = missed
        self._direct = direct
        self._poll = poll
        self._watched: dict[bytes, list[Notify]] = {}
        self._all: list[Notify] = []
        self._task: asyncio.Task[None] | None = None

    def add(self, session: str | None, notify: Notify) -> Callable[[], None]:
        if session is None:
            self._all.append(notify)
        else:
            self._watched.setdefault(key(session), []).append(notify)
        self.start()
        return lambda: self._remove(session, notify)

    def start(self) -> None:
        """Listens from now on, even if nobody watches yet."""
        if self._task is None:
            self._task = asyncio.ensure_future(self._follow())

    def tell(self, session: bytes, head: int) -> None:
        """Somebody has appended: here, or elsewhere."""
        terms.tell(self._watched.get(session, ()), head)
        terms.tell(self._all, 0)

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _remove(self, session: str | None, notify: Notify) -> None:
        watchers = self._all if session is None else self._watched.get(key(session), [])
        if notify in watchers:
            watchers.remove(notify)
        if session is not None and not watchers:
            self._watched.pop(key(session), None)

    async def _follow(self) -> None:
        looks = 0
        while True:
            looks += 1
            try:
                await self._look()
                if self._direct is not None:
                    await self._listen(self._direct)
                elif not looks % MISSED_EVERY:
                    await self._missed()
            except (StoreError, *failures()):
                pass  # out of order for a while
            except Exception as error:  # noqa: BLE001 - whoever watches would wait for ever
                _logger.warning("Following PostgreSQL failed and goes on: %s: %s", type(error).__name__, error)
            await asyncio.sleep(self._poll if self._direct is None else COME_BACK_AFTER)

    async def _listen(self, url: str) -> None:
        connection: Connection = await load_driver().connect(url, timeout=10.0, command_timeout=10.0)
        is_cut = asyncio.Event()

        def cut(_: Connection) -> None:
            is_cut.set()

        connection.add_termination_listener(cut)
        try:
            await connection.add_listener(self._link.schema, self._heard)
            await self._look()
            await self._missed()
            while not connection.is_closed():
                try:
                    await asyncio.wait_for(is_cut.wait(), CHECK_EVERY)
                except TimeoutError:
                    await connection.execute("SELECT 1")
        finally:
            connection.terminate()

    def _heard(self, _connection: Any, _pid: int, _channel: str, payload: object) -> None:
        words = str(payload)
        if words[0] in self._others:
            self._others[words[0]](words)
        elif words[0] in HEX:  # what else a newer version may say is not for us
            session, _, head = words.partition(" ")
            self.tell(bytes.fromhex(session), int(head))

    async def _look(self) -> None:
        """Heads as they are now, of all that is watched."""
        terms.tell(self._all, 0)
        if not self._watched:
            return
        sql = self._link.sql("SELECT uid_key, head FROM @schema.sessions WHERE uid_key = ANY($1) AND NOT deleted")
        keys = list(self._watched)
        with suppress(StoreError):
            for row in await self._link.ask(lambda connection: connection.fetch(sql, keys), tries=1):
                self.tell(row["uid_key"], row["head"])
