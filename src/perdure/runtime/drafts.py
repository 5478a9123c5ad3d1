"""Drafts: what a model has streamed so far, saved beside the log while the turn is unfinished.

Rule 1: nothing for the first second, then at most one write a second, and never in the way of the stream. Rule 2: a
draft may be lost or late; it is only believed for the run and the turn that it names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from perdure.core.codec import encode_json
from perdure.core.deltas import ModelDelta
from perdure.core.errors import PerdureError
from perdure.core.messages import Plain
from perdure.ports import Clock, Store, Timer

SAVE_EVERY = 1.0


class DraftChunk(Plain, frozen=True):
    """More of what a model has streamed in one turn of one run; `fresh`: what was saved before it was discarded."""

    run: int
    turn: int
    model: str
    provider: str
    items: tuple[ModelDelta, ...]
    fresh: bool = False


class Draft(Plain, frozen=True):
    """What there is of an answer, and who gave it."""

    model: str = ""
    provider: str = ""
    items: tuple[ModelDelta, ...] = ()


_decoder: msgspec.json.Decoder[DraftChunk] = msgspec.json.Decoder(DraftChunk)


class DraftTimer:
    """One timer for the drafts of all sessions: a stream that ends within the second costs none."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._writers: set[DraftWriter] = set()
        self._timer: Timer | None = None

    def add(self, writer: DraftWriter) -> None:
        self._writers.add(writer)
        if self._timer is None:
            self._timer = self._clock.call_later(SAVE_EVERY, self._tick)

    def discard(self, writer: DraftWriter) -> None:
        self._writers.discard(writer)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer = self._clock.call_later(SAVE_EVERY, self._tick) if self._writers else None
        now = self._clock.monotonic()
        for writer in self._writers:
            writer.save(now)


class DraftWriter:
    """Saves a growing list of deltas, of which it sees the new ones once a second."""

    __slots__ = (
        "_began",
        "_epoch",
        "_fresh",
        "_items",
        "_model",
        "_place",
        "_provider",
        "_saved",
        "_saving",
        "_session",
        "_store",
        "_timer",
    )

    def __init__(self, store: Store, timer: DraftTimer, session: str, epoch: int, place: tuple[int, int]) -> None:
        self._store = store
        self._timer = timer
        self._began = 0.0
        self._session = session
        self._epoch = epoch
        self._place = place
        self._model = self._provider = ""
        self._items: Sequence[ModelDelta] = ()
        self._saved = 0
        self._fresh = True
        self._saving: asyncio.Task[None] | None = None

    def begin(self, items: Sequence[ModelDelta], model: str, provider: str, now: float) -> None:
        """Follows this list from now on; a list that it followed before goes on, another one is a new draft."""
        self._began = now
        if items is not self._items or model != self._model:
            self._items, self._fresh, self._saved = items, True, 0
            self._model, self._provider = model, provider
        self._timer.add(self)

    def end(self) -> bool:
        """Stops saving; True if something of it is still under way."""
        self._timer.discard(self)
        return self._saving is not None and not self._saving.done()

    async def settle(self) -> None:
        """A write that overtook the answer's commit would leave a draft of nothing."""
        if self._saving is not None:
            await asyncio.wait((self._saving,))

    def save(self, now: float) -> None:
        """What is new, unless the stream has only begun or the last save is still under way."""
        is_busy = self._saving is not None and not self._saving.done()
        if is_busy or len(self._items) == self._saved or now - self._began < SAVE_EVERY:
            return
        new = tuple(self._items[self._saved :])
        chunk = DraftChunk(*self._place, self._model, self._provider, new, self._fresh)
        self._saved, self._fresh = len(self._items), False
        self._saving = asyncio.get_running_loop().create_task(self._save(encode_json(chunk)))

    async def _save(self, chunk: bytes) -> None:
        try:
            await self._store.append_draft(self._session, chunk, epoch=self._epoch)
        except PerdureError:
            # It costs a repetition after a crash, never the turn. What follows must not close up over the gap.
            self._saved, self._fresh = 0, True


async def read_draft(store: Store, session: str, place: tuple[int, int]) -> Draft:
    """What a predecessor saved of this run's turn; nothing where it cannot be read."""
    draft = Draft()
    try:
        for data in await store.read_draft(session):
            chunk = _decoder.decode(data)
            if (chunk.run, chunk.turn) != place:
                continue
            items = chunk.items if chunk.fresh else (*draft.items, *chunk.items)
            draft = Draft(chunk.model, chunk.provider, items)
    except (PerdureError, ValueError):
        return Draft()
    return draft
