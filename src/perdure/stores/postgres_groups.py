"""Appends that are ready at the same moment share a round trip and a commit; each is refused on its own.

Rule 1: what is ready goes at once, and what becomes ready while the lanes are busy goes together. Rule 2: rows are
locked in the order of their keys, so that two groups never wait for each other. Rule 3: when a group fails, each of it
goes alone, so that nobody pays for another's batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cache
from typing import Any, TypeAlias

from perdure.stores.postgres_link import Connection, Link

LANES = 2
"""So many groups are under way at most."""
MOST = 16
MOST_BYTES = 1_000_000

PARAMETERS = 18
_KEY, _PAYLOADS = 0, 7

Values: TypeAlias = tuple[Any, ...]
_Waiting: TypeAlias = tuple[Values, asyncio.Future[str]]


class Groups:
    """`busy` is what has to be done before the store is closed."""

    def __init__(self, link: Link, busy: set[asyncio.Future[Any]]) -> None:
        self._link = link
        self._busy = busy
        self._waiting: list[_Waiting] = []
        self._lanes = 0
        self._begins = False

    async def append(self, values: Values) -> str:
        """Empty, or what stands in the way."""
        said: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting.append((values, said))
        if self._lanes < LANES and not self._begins:
            self._lanes += 1
            self._begins = True
            lane = asyncio.ensure_future(self._serve())
            self._busy.add(lane)
            lane.add_done_callback(self._busy.discard)
        return await said

    async def _serve(self) -> None:
        self._begins = False
        try:
            while self._waiting:
                await self._send(self._take())
        finally:
            self._lanes -= 1

    def _take(self) -> list[_Waiting]:
        size = count = 0
        for values, _ in self._waiting[:MOST]:
            count += 1
            size += sum(map(len, values[_PAYLOADS]))
            if size > MOST_BYTES:
                break
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        return sorted(taken, key=lambda one: one[0][_KEY])

    async def _send(self, group: Sequence[_Waiting]) -> None:
        if len(group) == 1:
            await self._alone(*group[0])
            return
        try:
            answers = await self._ask([values for values, _ in group], tries=1)
        except Exception:  # noqa: BLE001 - whatever it was, each may have done nothing wrong
            await asyncio.gather(*(self._alone(*one) for one in group))
            return
        for (_, said), words in zip(group, answers, strict=True):
            if not said.done():
                said.set_result(words)

    async def _alone(self, values: Values, said: asyncio.Future[str]) -> None:
        try:
            (words,) = await self._ask([values], tries=4)
        except Exception as error:  # noqa: BLE001 - a lane that dies would leave all its callers waiting
            if not said.done():
                said.set_exception(error)
            return
        if not said.done():
            said.set_result(words)

    async def _ask(self, group: Sequence[Values], *, tries: int) -> Sequence[str]:
        sql = self._link.sql(statement(len(group)))

        async def append(connection: Connection) -> Sequence[str]:
            return await connection.fetchrow(sql, *(value for values in group for value in values))

        return await self._link.ask(append, tries=tries)


@cache
def statement(appends: int) -> str:
    """So many appends in one statement, each with an answer of its own."""
    calls = (
        f"@schema.append({', '.join(f'${number}' for number in range(first, first + PARAMETERS))})"
        for first in range(1, appends * PARAMETERS + 1, PARAMETERS)
    )
    return f"SELECT {', '.join(calls)}"
