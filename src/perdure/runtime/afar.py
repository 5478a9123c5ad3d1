"""Deltas between processes: a mouth where a session is driven, an ear where it is followed.

Rule 1: a piece that is shown comes behind the records it belongs to. Rule 2: pieces of one attempt are numbered from 0;
where one is missing, whoever follows is told that deltas were dropped, and finds the answer in the log.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import msgspec

from perdure.core.deltas import CallDelta, Delta, DeltasDropped, TextDelta, ThinkingDelta
from perdure.core.events import ModelCalled
from perdure.core.state import RunState
from perdure.ports import Record, SharesDeltas
from perdure.runtime.feed import Feed, Lagged, Shown

PAUSE = 0.03
"""Seconds between two pieces of a stream that does not pause by itself."""
WANTED_FOR = 12.0
LONGEST = 6_000
HELD = 1_000

Tag = tuple[int, int, int]


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """Deltas shown at one head of the log, in one attempt of a turn."""

    head: int
    run: int
    turn: int
    attempt: int
    number: int
    deltas: tuple[Delta, ...]


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Piece)


class Mouth:
    """Passes on what is shown of a session that is driven here, as long as somebody elsewhere follows it."""

    def __init__(self, store: SharesDeltas, uid: str, feed: Feed, run: Callable[[], RunState | None]) -> None:
        self._store = store
        self._uid = uid
        self._feed = feed
        self._run = run
        self._wanted_until = 0.0
        self._is_closed = False
        self._task: asyncio.Task[None] | None = None
        self._end = store.serve_deltas(uid, self._asked)

    def close(self) -> None:
        # What came in the very moment of it can swallow the cancelling; then this ends it, before the next one speaks.
        self._is_closed = True
        self._end()
        if self._task is not None:
            self._task.cancel()

    def _asked(self) -> None:
        self._wanted_until = asyncio.get_running_loop().time() + WANTED_FOR
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._speak())

    async def _speak(self) -> None:
        loop, consumer, run = asyncio.get_running_loop(), self._feed.subscribe(), self._run()
        tag = (run.run, run.turn, run.attempt) if run else (0, 0, 0)
        # Of an answer that is under way the beginning is missing.
        cutter = Cutter(tag, 1 if run and run.awaiting == "model" else 0)
        while loop.time() < self._wanted_until:
            try:
                items = await asyncio.wait_for(consumer.take(), self._wanted_until - loop.time())
            except TimeoutError:
                return
            if not items or self._is_closed:
                return
            for piece in cutter.cut(items):
                await self._store.send_deltas(self._uid, _encoder.encode(piece))
            await asyncio.sleep(PAUSE)


class Cutter:
    """Makes pieces of what a feed shows: as few as possible, none too long, each of one attempt."""

    def __init__(self, tag: Tag, number: int) -> None:
        self._tag = tag
        self._number = number

    def cut(self, items: Sequence[Record | Shown | Lagged]) -> Iterator[Piece]:
        head, deltas = 0, list[Delta]()
        for item in items:
            if isinstance(item, Shown) and item.head == head:
                deltas.append(item.delta)
                continue
            yield from self._pieces(head, deltas)
            deltas = []
            match item:
                case Shown():
                    head, deltas = item.head, [item.delta]
                case Record(event=ModelCalled(turn=turn, attempt=attempt)):
                    self._tag, self._number = (item.run, turn, attempt), 0
                case Lagged():
                    self._number += 1
                case _:
                    pass
        yield from self._pieces(head, deltas)

    def _pieces(self, head: int, deltas: Sequence[Delta]) -> Iterator[Piece]:
        group, size = list[Delta](), 0
        for delta in _joined(deltas):
            length = len(_encoder.encode(delta))
            if length > LONGEST:
                self._number += 1  # the log will have it
                continue
            if size + length > LONGEST:
                yield self._piece(head, group)
                group, size = [], 0
            group.append(delta)
            size += length
        if group:
            yield self._piece(head, group)

    def _piece(self, head: int, deltas: Sequence[Delta]) -> Piece:
        piece = Piece(head, *self._tag, self._number, tuple(deltas))
        self._number += 1
        return piece


def _joined(deltas: Sequence[Delta]) -> Iterator[Delta]:
    """Neighbours of one kind become one, up to a length."""
    before: Delta | None = None
    for delta in deltas:
        match before, delta:
            case TextDelta(text=a), TextDelta(text=b) if len(a) + len(b) < LONGEST // 6:
                before = TextDelta(a + b)
            case ThinkingDelta(text=a), ThinkingDelta(text=b) if len(a) + len(b) < LONGEST // 6:
                before = ThinkingDelta(a + b)
            case CallDelta(index=i, name=name, arguments=a), CallDelta(index=j, name="", arguments=b) if (
                i == j and len(a) + len(b) < LONGEST // 6
            ):
                before = CallDelta(i, name, a + b)
            case _:
                if before is not None:
                    yield before
                before = delta
    if before is not None:
        yield before


class Ear:
    """Shows what a driver elsewhere says of a session, while somebody here follows it and nobody here drives it."""

    def __init__(
        self, store: SharesDeltas, uid: str, feed: Feed, reached: Callable[[int], asyncio.Future[None]]
    ) -> None:
        self._store = store
        self._uid = uid
        self._feed = feed
        self._reached = reached
        self._followers = 0
        self._is_driven = False
        self._pieces: deque[Piece] = deque(maxlen=HELD)
        self._is_waiting = False
        self._tag: Tag = (0, 0, 0)
        self._number = 0
        self._end: Callable[[], None] | None = None

    def follow(self, more: int) -> None:
        self._followers += more
        self._prick()

    def drive(self, is_driven: bool) -> None:
        self._is_driven = is_driven
        self._prick()

    def _prick(self) -> None:
        wanted = self._followers > 0 and not self._is_driven
        if wanted and self._end is None:
            self._end = self._store.follow_deltas(self._uid, self._heard)
        elif not wanted and self._end is not None:
            self._end()
            self._end = None

    def _heard(self, data: bytes) -> None:
        with suppress(msgspec.DecodeError):  # a newer version has more kinds
            self._pieces.append(_decoder.decode(data))
        self._show()

    def _show(self) -> None:
        while self._pieces and not self._is_waiting:
            reached = self._reached(self._pieces[0].head)
            if not reached.done():
                self._is_waiting = True
                reached.add_done_callback(self._go_on)
                return
            self._tell(self._pieces.popleft())

    def _go_on(self, reached: asyncio.Future[None]) -> None:
        self._is_waiting = False
        if reached.cancelled() or reached.exception() is not None:
            self._pieces.clear()
        self._show()

    def _tell(self, piece: Piece) -> None:
        tag = (piece.run, piece.turn, piece.attempt)
        if tag < self._tag or not self._feed.watched:
            return
        expected = self._number if tag == self._tag else 0
        self._tag, self._number = tag, piece.number + 1
        if piece.number != expected:
            self._feed.show(piece.head, DeltasDropped(1))
        for delta in piece.deltas:
            self._feed.show(piece.head, delta)
