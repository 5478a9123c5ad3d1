"""Pieces of answers under way, from the process that drives to those that follow, by NOTIFY.

Rule 1: nothing is sent that nobody elsewhere follows: who follows says so, again and again. Rule 2: what gets lost is
lost; nothing here is kept, and nobody waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from secrets import token_hex

from perdure.core.errors import StoreError
from perdure.stores.postgres_link import Link
from perdure.stores.postgres_names import key

ASK_EVERY = 4.0
WANTED_FOR = 12.0
KEYS_AT_ONCE = 200
LONGEST = 7_900
"""PostgreSQL takes less than 8,000 bytes at once."""

Heard = Callable[[bytes], None]


class DeltaLines:
    """Who follows what here, whose sessions are driven here, and what was asked for lately."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._own = token_hex(4)
        self._followed: dict[bytes, list[Heard]] = {}
        self._driven: dict[bytes, list[Callable[[], None]]] = {}
        self._asked_at: dict[bytes, float] = {}
        self._forget_at = 0.0
        self._task: asyncio.Task[None] | None = None
        self._asking: set[asyncio.Future[None]] = set()

    def follow(self, session: str, heard: Heard) -> Callable[[], None]:
        name = key(session)
        self._followed.setdefault(name, []).append(heard)
        asked = asyncio.ensure_future(self._ask([name]))
        self._asking.add(asked)
        asked.add_done_callback(self._asking.discard)
        if self._task is None:
            self._task = asyncio.ensure_future(self._keep_asking())
        return lambda: _remove(self._followed, name, heard)

    def serve(self, session: str, wanted: Callable[[], None]) -> Callable[[], None]:
        name = key(session)
        self._driven.setdefault(name, []).append(wanted)
        if self._asked_at.get(name, -WANTED_FOR) + WANTED_FOR > asyncio.get_running_loop().time():
            wanted()
        return lambda: _remove(self._driven, name, wanted)

    async def send(self, session: str, piece: bytes) -> None:
        words = f"~{key(session).hex()} {piece.decode()}"
        if len(words.encode()) < LONGEST:
            await self._notify(words)

    def heard(self, payload: str) -> None:
        """What came over the channel and is no news of a record."""
        if payload.startswith("?"):
            asker, *names = payload[1:].split()
            if asker == self._own:
                return
            now = asyncio.get_running_loop().time()
            self._forget(now)
            for name in map(bytes.fromhex, names):
                self._asked_at[name] = now
                for wanted in (*self._driven.get(name, ()),):
                    wanted()
        else:
            session, _, words = payload[1:].partition(" ")
            for heard in (*self._followed.get(bytes.fromhex(session), ()),):
                heard(words.encode())

    async def close(self) -> None:
        tasks = [*self._asking, *([self._task] if self._task else [])]
        self._task = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _forget(self, now: float) -> None:
        """What nobody wants any more goes, now and then: a process may hear of sessions that it never drives."""
        if now >= self._forget_at:
            self._asked_at = {name: at for name, at in self._asked_at.items() if at + WANTED_FOR > now}
            self._forget_at = now + WANTED_FOR

    async def _keep_asking(self) -> None:
        while True:
            await asyncio.sleep(ASK_EVERY)
            names = list(self._followed)
            for at in range(0, len(names), KEYS_AT_ONCE):
                await self._ask(names[at : at + KEYS_AT_ONCE])

    async def _ask(self, names: list[bytes]) -> None:
        await self._notify(f"?{self._own} {' '.join(name.hex() for name in names)}")

    async def _notify(self, words: str) -> None:
        with suppress(StoreError):
            await self._link.ask(
                lambda connection: connection.execute("SELECT pg_notify($1, $2)", self._link.schema, words), tries=1
            )


def _remove(lines: dict[bytes, list[Callable[..., None]]], name: bytes, one: Callable[..., None]) -> None:
    found = lines.get(name, [])
    if one in found:
        found.remove(one)
    if not found:
        lines.pop(name, None)
