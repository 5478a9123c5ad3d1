"""A session's stream with what its sub-agents do meanwhile.

Rule: what a child did comes before the end of the call that it was for. Of calls that were over before anybody looked,
the children are not shown, unless they are asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress

from perdure.core.errors import NotFound, PerdureError
from perdure.core.events import CallEnded, CallStarted, CallSuspended, InputAccepted, InputChanged, Reply, RunEnded
from perdure.ports import FromChild, Item, Record, Store
from perdure.runtime.follow import follow
from perdure.runtime.log import SessionLog
from perdure.runtime.post import Sessions

QUEUED = 1000


async def follow_family(
    sessions: Sessions, store: Store, log: SessionLog, after: int, since: int | None = None
) -> AsyncGenerator[Item]:
    """Every record after `after` and deltas as they come, until the session is closed here; in between, its children's.

    Children that were started behind record `since` (default: now) are shown although they may be done. A session
    without children costs no more than its own stream.
    """
    try:
        await log.refresh()
        family = _Family(sessions, store, log, after, since)
        async with aclosing(follow(log, store, after)) as items:
            first: Item | None = None
            if not family.has_children:
                async for item in items:
                    if family.is_birth(item):
                        first = item
                        break
                    yield item
                else:
                    return
            async with aclosing(family.mix(items, first)) as mixed:
                async for item in mixed:
                    yield item
    except PerdureError:
        # The store was closed, or the session deleted, while it was read: that is the end, not a failure.
        if not log.feed.is_closed:
            raise


class _Family:
    """The children of one stream; each is followed by a task of its own."""

    def __init__(self, sessions: Sessions, store: Store, log: SessionLog, after: int, since: int | None) -> None:
        self._sessions = sessions
        self._store = store
        self._log = log
        self._after, self._head = after, log.state.seq
        self._begun = self._head if since is None else since
        run = log.state.run
        calls = [call for call in (*run.calls, *run.background) if call.child] if run else []
        self._open = {call.ordinal: call.child for call in calls if call.status != "ended"}
        self._away = [call.ordinal for call in calls if call.is_away]
        self._pumps: dict[int, asyncio.Task[None]] = {}
        self._queue: asyncio.Queue[Item | None] = asyncio.Queue(QUEUED)

    @property
    def has_children(self) -> bool:
        return bool(self._open)

    def is_birth(self, item: Item) -> bool:
        """Whether a child begins here that is worth following."""
        return isinstance(item, Record) and item.seq > self._begun and bool(_child_of(item))

    async def mix(self, items: AsyncIterator[Item], first: Item | None) -> AsyncGenerator[Item]:
        if self._after >= self._head:
            self._start_away()
        main = asyncio.ensure_future(self._pump(items, first))
        try:
            while (item := await self._queue.get()) is not None:
                yield item
            await main
        finally:
            tasks = [main, *self._pumps.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pump(self, items: AsyncIterator[Item], first: Item | None) -> None:
        try:
            if first is not None:
                await self._put(first)
            async for item in items:
                await self._put(item)
        finally:
            await self._queue.put(None)

    async def _put(self, item: Item) -> None:
        match item:
            case Record(event=CallStarted(call=call, child=uid)) if self.is_birth(item):
                self._open.setdefault(call, uid)
            case Record(event=CallSuspended(call=call)) if call in self._open:
                self._start(call)
            case Record(event=CallEnded(call=call)) if call in self._open:
                self._start(call)
                await self._finish(call)
            case _:
                pass
        await self._queue.put(item)
        if isinstance(item, Record) and item.seq == self._head:
            self._start_away()

    def _start_away(self) -> None:
        """Those that were at work when the stream began come behind its past."""
        for call in self._away:
            if call in self._open:
                self._start(call)

    def _start(self, call: int) -> None:
        if call not in self._pumps:
            self._pumps[call] = asyncio.ensure_future(self._pump_child(call, self._open[call]))

    async def _finish(self, call: int) -> None:
        """What a child that has ended did is shown to the end; one that nobody waits for any more is let go."""
        pump, uid = self._pumps[call], self._open.pop(call)
        with suppress(NotFound):
            log = await self._sessions.load(uid)
            await log.refresh()
            run = log.state.run
            is_open = run is not None and Reply(self._log.uid, call) in [owed.reply for owed in run.replies]
            if not is_open and Reply(self._log.uid, call) not in [queued.reply for queued in log.state.queue]:
                await asyncio.wait({pump})
        pump.cancel()

    async def _pump_child(self, call: int, uid: str) -> None:
        with suppress(NotFound):
            child = await self._sessions.load(uid)
            async for item in _work_for(self._sessions, self._store, child, Reply(self._log.uid, call)):
                await self._queue.put(FromChild(child.state.id, child.state.agent, call, item))


def _child_of(item: Record) -> str:
    return item.event.child if isinstance(item.event, CallStarted) else ""


async def _work_for(sessions: Sessions, store: Store, log: SessionLog, reply: Reply) -> AsyncIterator[Item]:
    """What a child does for one call, from its task to the end of its run."""
    input, is_open = 0, False
    async with aclosing(follow_family(sessions, store, log, 0, 0)) as items:
        async for item in items:
            if not isinstance(item, Record):
                if is_open:
                    yield item
                continue
            event = item.event
            if isinstance(event, InputAccepted) and event.reply == reply:
                input = event.input
                yield item
                continue
            is_open = bool(input) and item.run != 0 and item.run == log.state.taken.get(input)
            if is_open:
                yield item
            if is_open and isinstance(event, RunEnded):
                return
            if isinstance(event, InputChanged) and event.retracted and event.input == input:
                return
