"""A session's log as this process sees it: the folded state, and the only path by which facts reach the store.

Rule 1: `state` is always the fold of what is durably committed. Rule 2: a change is made for one state; if the log has
moved on meanwhile, the append is a Conflict and nothing of it is written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, ParamSpec, TypeVar

import msgspec

from perdure.core.codec import encode_event
from perdure.core.errors import Conflict, NotFound, Refused, StoreError, TooNew, UsageError
from perdure.core.events import Event, ModelFailed, ModelResponded, RunEnded
from perdure.core.fold import evolve
from perdure.core.state import SessionState, new_state
from perdure.core.views import summarise
from perdure.ports import Batch, Clock, Entry, Opening, OpenTransaction, Record, SharesDeltas, Store
from perdure.runtime.afar import Ear, Mouth
from perdure.runtime.clock import sleep
from perdure.runtime.feed import Feed
from perdure.runtime.recourse import OnModelError

ASK_AGAIN_AFTER = 1.0
STORE_PATIENCE = (0.1, 0.5, 2.0, 5.0)
PAGE = 2_000
ENDS_DRAFT = frozenset((ModelResponded, ModelFailed, RunEnded))

P = ParamSpec("P")
T = TypeVar("T")

_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def as_kept(event: Event) -> Event:
    """The event as it will be read back; a UsageError if callers or user code put in what no log can hold."""
    try:
        return _decoder.decode(encode_event(event))
    except msgspec.ValidationError as error:
        raise UsageError(f"{type(event).__name__} cannot hold what it was given: {error}.") from None


async def patiently(clock: Clock, ask: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """A store that is out of order for a while must not cost us what is in flight."""
    for patience in STORE_PATIENCE:
        try:
            return await ask(*args, **kwargs)
        except TooNew:
            raise
        except StoreError:
            await sleep(clock, patience)
    return await ask(*args, **kwargs)


class Change:
    """Events not yet committed, and the state that they lead to."""

    __slots__ = ("after", "before", "events", "runs")

    def __init__(self, before: SessionState) -> None:
        self.before = before
        self.after = before
        self.events: list[Event] = []
        self.runs: list[int] = []

    def add(self, events: Iterable[Event]) -> None:
        for event in events:
            was = self.after.run
            self.after = evolve(self.after, event)
            run = self.after.run or was
            self.events.append(event)
            self.runs.append(run.run if run else 0)


class SessionLog:
    """One session's state, feed and waiters in this process.

    By input it has what callers want done on a model error; `scratch` holds the state keys that are not persistent;
    `ear` is for what is said of the session elsewhere, where the store carries that.
    """

    def __init__(self, uid: str, store: Store, clock: Clock) -> None:
        self.uid = uid
        self.state = new_state()
        self.feed = Feed()
        self.recourses: dict[int, OnModelError] = {}
        self.scratch: dict[str, tuple[int, Any]] = {}
        self.ear = Ear(store, uid, self.feed, self._reached) if isinstance(store, SharesDeltas) else None
        self._store = store
        self._clock = clock
        self._lock = asyncio.Lock()
        self._waiters: list[tuple[Callable[[SessionState], bool], asyncio.Future[None]]] = []
        self._listener: Callable[[], None] | None = None
        self._attached = 0
        self._unwatch: Callable[[], None] | None = None
        self._hint = 0
        self._refreshing: asyncio.Task[None] | None = None
        self._unsure: Change | None = None
        self._mouth: Mouth | None = None

    def keep_recourse(self, input: int, function: OnModelError) -> None:
        """For as long as the input's run is open; those of runs that have ended are dropped."""
        taken, ended = self.state.taken, len(self.state.ended)
        runs = {number: taken.get(number) for number in self.recourses}
        kept = {n: known for n, known in self.recourses.items() if (run := runs[n]) is None or run > ended}
        self.recourses = {**kept, input: function}

    async def load(self) -> None:
        """Folds the log from where this process left off."""
        await self.refresh()
        if self.state.seq == 0:
            raise NotFound(f"There is no session {self.uid}.")

    async def refresh(self) -> None:
        try:
            async with self._lock:
                await self._catch_up()
        finally:
            self._heed_hint()

    async def append(
        self,
        change: Change,
        *,
        epoch: int | None = None,
        opening: Opening | None = None,
        within: OpenTransaction | None = None,
    ) -> None:
        """Commits the change durably, with what a tool has written, then shows it to whoever watches."""
        await self._lock.acquire()
        try:
            await self._append(change, epoch, opening, within)
        finally:
            self._lock.release()
            self._heed_hint()

    async def propose(self, decide: Callable[[SessionState], Iterable[Event]]) -> tuple[Event, ...]:
        """Appends what follows from the state as it is when its turn has come: nobody here can overtake it for ever.

        Whatever `decide` raises is raised; a Conflict means that another process was first.
        """
        try:
            async with self._lock:
                change = Change(self.state)
                change.add(decide(self.state))
                if change.events:
                    await self._append(change, None, None)
                return tuple(change.events)
        finally:
            self._heed_hint()

    async def adopt(
        self, entries: tuple[Entry, ...], state: SessionState, opening: Opening | None, *, behind: int = 0
    ) -> None:
        """Commits a log that was written elsewhere, byte for byte; `state` is the fold of it.

        Without an opening, `entries` are what it has more than the first `behind` records, which are here.
        """
        async with self._lock:
            await self._store.append(Batch(self.uid, behind, entries, summarise(state), opening=opening))
            self.state = state

    async def _append(
        self, change: Change, epoch: int | None, opening: Opening | None, within: OpenTransaction | None = None
    ) -> None:
        if self._unsure is change and await self._is_written(change):
            return
        if change.before is not self.state:
            raise Conflict("The session has moved on; look again.")
        # Stores keep microseconds: what is shown live must equal what is read later.
        at = round(self._clock.now() * 1_000_000) / 1_000_000
        entries = [Entry(at, run, encode_event(event)) for event, run in zip(change.events, change.runs, strict=True)]
        answered = not ENDS_DRAFT.isdisjoint(map(type, change.events))
        batch = Batch(
            self.uid,
            change.before.seq,
            tuple(entries),
            summarise(change.after),
            epoch=epoch,
            opening=opening,
            drops_draft=answered,
        )
        try:
            await (within or self._store).append(batch)
        except StoreError:
            self._unsure = change
            raise
        self._unsure = None
        self._apply(change, at)

    async def _is_written(self, change: Change) -> bool:
        """Whether an append of which nobody knew has come through: it must not be made a second time."""
        if change.before.seq == 0:
            return False
        written = await self._store.read(self.uid, after=change.before.seq, limit=len(change.events))
        same = [encode_event(record.event) for record in written] == [encode_event(event) for event in change.events]
        if same:
            self._unsure = None
            await self._catch_up()
        return same

    def until(self, predicate: Callable[[SessionState], bool]) -> asyncio.Future[None]:
        """Done as soon as the committed state satisfies the predicate."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if predicate(self.state):
            future.set_result(None)
        else:
            self._waiters.append((predicate, future))
        return future

    def _reached(self, head: int) -> asyncio.Future[None]:
        """Done as soon as this process has caught up with the head that another one speaks of."""
        self._notified(head)
        return self.until(lambda state: state.seq >= head)

    def fail(self, error: Exception) -> None:
        """Tells whoever waits that this process cannot go on with the session."""
        waiters, self._waiters = self._waiters, []
        for _, future in waiters:
            if not future.done():
                future.set_exception(error)

    def listen(self, listener: Callable[[], None] | None) -> None:
        """The driver's ear: called after every commit."""
        self._listener = listener
        if self.ear is not None:
            self.ear.drive(listener is not None)
        if self._mouth is not None:
            self._mouth.close()
            self._mouth = None
        if listener is not None and isinstance(self._store, SharesDeltas):
            self._mouth = Mouth(self._store, self.uid, self.feed, lambda: self.state.run)

    def attach(self) -> None:
        """Notices other processes' commits from now on; every attach has its detach."""
        self._attached += 1
        if self._unwatch is None:
            self._unwatch = self._store.watch(self.uid, self._notified)

    def detach(self) -> None:
        self._attached -= 1
        if not self._attached and self._unwatch is not None:
            self._unwatch()
            self._unwatch = None

    def close(self) -> None:
        self.feed.close()
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None
        self._hint = 0
        if self._refreshing is not None:
            self._refreshing.cancel()
        self.fail(Refused("The Runtime was closed while this was awaited; open it again and ask for the same key."))

    def _notified(self, head: int) -> None:
        if head <= self.state.seq:
            return
        self._hint = max(self._hint, head)
        # While an append of ours is under way the news is most likely our own; who holds the lock looks afterwards.
        if not self._lock.locked():
            self._heed_hint()

    def _heed_hint(self) -> None:
        if self._hint > self.state.seq and (self._refreshing is None or self._refreshing.done()):
            self._refreshing = asyncio.ensure_future(self._follow_hint())

    async def _follow_hint(self) -> None:
        """Nobody tells us twice, so a store that is out of order for a while is asked again."""
        while self._hint > self.state.seq:
            try:
                await self.refresh()
            except (NotFound, TooNew):
                return
            except StoreError:
                await sleep(self._clock, ASK_AGAIN_AFTER)

    async def _catch_up(self) -> None:
        state, seen = self.state, list[Record]()
        while True:
            # In pages: a long life would fill the memory with records that are folded already, and hold up the loop.
            records = await self._store.read(self.uid, after=state.seq, limit=PAGE)
            for record in records:
                state = evolve(state, record.event)
            # Who watches reads what is missing before these in the store.
            seen = records or seen
            if len(records) < PAGE:
                break
        if state is not self.state:
            self.state = state
            self._announce(seen if self.feed.watched else [])

    def _apply(self, change: Change, at: float) -> None:
        records: list[Record] = []
        if self.feed.watched:
            seqs = range(change.before.seq + 1, change.after.seq + 1)
            records = [
                Record(self.uid, seq, at, run, event)
                for seq, run, event in zip(seqs, change.runs, change.events, strict=True)
            ]
        self.state = change.after
        self._announce(records)

    def _announce(self, records: list[Record]) -> None:
        if records:
            self.feed.publish(records)
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for predicate, future in waiters:
                if future.done():
                    continue
                if predicate(self.state):
                    future.set_result(None)
                else:
                    self._waiters.append((predicate, future))
        if self._listener is not None:
            self._listener()
