"""Deltas from the process that drives to one that follows: in order, coalesced, and never a wrong word."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from perdure import Agent, Record, Runtime, TextDelta
from perdure.core.deltas import CallDelta, Delta, DeltasDropped, ThinkingDelta, ToolEmitted
from perdure.core.events import ModelCalled, Noted
from perdure.core.state import RunState
from perdure.events import ModelResponded, RunEnded
from perdure.runtime.afar import LONGEST, Cutter, Ear, Mouth, Piece
from perdure.runtime.feed import Feed, Lagged, Shown
from perdure.stores.postgres import PostgresStore
from perdure.testing import Reply, ScriptedModel
from tests.postgres import new_schema
from tests.runtime.scenes import collect, soon, until


def texts(items: list[Any]) -> str:
    return "".join(item.text for item in items if isinstance(item, TextDelta))


class Listening(PostgresStore):
    def is_asked(self) -> bool:
        """Whether it has heard that somebody elsewhere follows."""
        return bool(self._use().lines._asked_at)


async def test_an_answer_is_seen_from_another_process_while_it_comes(postgres: str) -> None:
    schema, go_on = new_schema(), asyncio.Event()
    words = "All of this was said elsewhere, bit by bit."

    class Slow:
        name = "slow"
        inner = ScriptedModel([Reply(words, chunk=5), Reply("Bye.", chunk=2)])

        def cost(self, usage: object) -> float:
            return 0.0

        async def stream(self, request: Any) -> Any:
            async for item in self.inner.stream(request):
                if item == TextDelta(" else"):
                    await go_on.wait()
                yield item

    agent = Agent(name="clerk", model=Slow())  # type: ignore[arg-type]
    store = Listening(postgres, schema=schema)
    driving = Runtime(store, agents=[agent])
    asking = Runtime(PostgresStore(postgres, schema=schema), agents=[agent], engine=None)
    async with driving, asking:
        session = await asking.open(agent, id="s")
        items: list[Any] = []
        following = collect(session.stream(), items)
        await until(store.is_asked)
        run = await session.start("go")
        await until(lambda: texts(items) == "All of this was said")
        assert not any(isinstance(item, Record) and isinstance(item.event, ModelResponded) for item in items)
        go_on.set()
        assert (await soon(_result(run))).output == words
        await until(lambda: isinstance(items[-1], Record) and isinstance(items[-1].event, RunEnded))
        following.cancel()
        heads = [item.seq for item in items if isinstance(item, Record)]
        assert all(b == a + 1 for a, b in pairwise(heads))
        first = next(n for n, item in enumerate(items) if isinstance(item, TextDelta))
        assert any(isinstance(item, Record) and isinstance(item.event, ModelCalled) for item in items[:first])
        assert words.startswith(texts(items))
        assert "".join([text async for text in (await session.start("again")).text()]) == "Bye."


async def _result(run: Any) -> Any:
    return await run


async def test_nothing_is_sent_when_nobody_elsewhere_follows(postgres: str) -> None:
    sent: list[bytes] = []

    class Counting(PostgresStore):
        async def send_deltas(self, session: str, piece: bytes) -> None:
            sent.append(piece)

    agent = Agent(name="clerk", model=ScriptedModel([Reply("Hello there.", chunk=1)]))
    async with Runtime(Counting(postgres, schema=new_schema()), agents=[agent]) as runtime:
        session = await runtime.open(agent, id="s")
        run = await session.start("go")
        assert "".join([text async for text in run.text()]) == "Hello there."
    assert sent == []


class Wire:
    """Carries pieces between a mouth and an ear at once, and loses those that it is told to."""

    def __init__(self) -> None:
        self.heard: list[Callable[[bytes], None]] = []
        self.wanted: list[Callable[[], None]] = []
        self.lose: set[int] = set()
        self.sent = 0

    def follow_deltas(self, session: str, heard: Callable[[bytes], None]) -> Callable[[], None]:
        self.heard.append(heard)
        return lambda: self.heard.remove(heard)

    def serve_deltas(self, session: str, wanted: Callable[[], None]) -> Callable[[], None]:
        self.wanted.append(wanted)
        return lambda: self.wanted.remove(wanted)

    async def send_deltas(self, session: str, piece: bytes) -> None:
        if self.sent not in self.lose:
            for heard in self.heard:
                heard(piece)
        self.sent += 1


def done(_: int) -> asyncio.Future[None]:
    future = asyncio.get_running_loop().create_future()
    future.set_result(None)
    return future


async def shown(feed: Feed, wire: Wire, run: RunState | None, groups: list[list[Delta]], pieces: int) -> list[Delta]:
    """What a follower is shown of groups of deltas, each of which goes out before the next one comes."""
    there = Feed()
    ear = Ear(wire, "s", there, done)
    ear.follow(1)
    consumer = there.subscribe()
    mouth = Mouth(wire, "s", feed, lambda: run)
    wire.wanted[0]()
    await asyncio.sleep(0)
    for number, group in enumerate(groups, 1):
        for delta in group:
            feed.show(3, delta)
        await until(lambda number=number: wire.sent >= min(number, pieces))
    mouth.close()
    ear.follow(-1)
    assert wire.heard == wire.wanted == []
    return [item.delta for item in await consumer.take() if isinstance(item, Shown)]


async def test_a_lost_piece_is_told() -> None:
    wire = Wire()
    wire.lose = {1}
    groups: list[list[Delta]] = [[TextDelta("a"), TextDelta("b")], [TextDelta("c")], [TextDelta("d")]]
    assert await shown(Feed(), wire, None, groups, 3) == [TextDelta("ab"), DeltasDropped(1), TextDelta("d")]


async def test_of_an_answer_under_way_the_beginning_is_missing() -> None:
    run = RunState(1, (1,), turn=1, attempt=1, awaiting="model")
    assert await shown(Feed(), Wire(), run, [[TextDelta("end")]], 1) == [DeltasDropped(1), TextDelta("end")]


@pytest.mark.parametrize("ticks", range(5))
async def test_who_has_stopped_driving_speaks_no_more(ticks: int) -> None:
    """Also if something was shown in the very moment in which it stopped."""
    wire, feed = Wire(), Feed()
    before = Mouth(wire, "s", feed, lambda: None)
    wire.wanted[0]()
    await asyncio.sleep(0.01)
    feed.show(3, TextDelta("last"))
    for _ in range(ticks):
        await asyncio.sleep(0)
    before.close()
    sent = wire.sent
    after = Mouth(wire, "s", feed, lambda: None)
    wire.wanted[0]()
    await asyncio.sleep(0.01)
    feed.show(4, TextDelta("first"))
    await until(lambda: wire.sent > sent)
    await asyncio.sleep(0.1)
    assert wire.sent == sent + 1
    after.close()


async def test_pieces_wait_for_their_records_and_old_attempts_are_left_out() -> None:
    heads: dict[int, asyncio.Future[None]] = {}

    def reached(head: int) -> asyncio.Future[None]:
        return heads.setdefault(head, asyncio.get_running_loop().create_future())

    wire, there = Wire(), Feed()
    ear, consumer = Ear(wire, "s", there, reached), there.subscribe()
    ear.follow(1)
    ear.drive(True)
    assert wire.heard == [], "whoever drives the session hears nothing of it from others"
    ear.drive(False)
    for piece in (
        Piece(5, 1, 2, 1, 0, (TextDelta("new"),)),
        Piece(3, 1, 1, 1, 0, (TextDelta("old"),)),
        Piece(5, 1, 2, 1, 1, (TextDelta("er"),)),
    ):
        await wire.send_deltas("s", _encoded(piece))
    reached(3).set_result(None)
    await asyncio.sleep(0)
    taking = asyncio.ensure_future(consumer.take())
    await asyncio.sleep(0.01)
    assert not taking.done(), "the record that it belongs to is not there yet"
    reached(5).set_result(None)
    assert [item.delta for item in await soon(taking) if isinstance(item, Shown)] == [
        TextDelta("new"),
        TextDelta("er"),
    ]
    await wire.send_deltas("s", b'["nonsense"]')


def _encoded(piece: Piece) -> bytes:
    import msgspec

    return msgspec.json.encode(piece)


def test_pieces_are_few_and_none_is_too_long() -> None:
    cutter = Cutter((1, 1, 1), 0)
    many = [Shown(3, TextDelta("word ")) for _ in range(4_000)]
    pieces = [*cutter.cut(many)]
    assert "".join(texts(list(piece.deltas)) for piece in pieces) == "word " * 4_000
    assert len(pieces) < 6
    assert all(len(_encoded(piece)) < LONGEST + 500 for piece in pieces)
    assert [piece.number for piece in pieces] == list(range(len(pieces)))


def test_pieces_are_of_one_attempt_and_one_head() -> None:
    called = Record("s", 6, 0.0, 2, ModelCalled(4, attempt=2))
    items: list[Record | Shown | Lagged] = [
        Shown(3, CallDelta(0, "pay", "{")),
        Shown(3, CallDelta(0, "", "}")),
        Shown(3, CallDelta(1, "pay", "{}")),
        Record("s", 4, 0.0, 2, Noted("x", None)),
        Shown(5, ThinkingDelta("h")),
        Shown(5, ThinkingDelta("m")),
        called,
        Shown(6, ToolEmitted(1, "x" * LONGEST)),
        Shown(6, TextDelta("after")),
        Lagged(9, 3),
        Shown(6, TextDelta("late")),
    ]
    assert [*Cutter((2, 3, 1), 0).cut(items)] == [
        Piece(3, 2, 3, 1, 0, (CallDelta(0, "pay", "{}"), CallDelta(1, "pay", "{}"))),
        Piece(5, 2, 3, 1, 1, (ThinkingDelta("hm"),)),
        Piece(6, 2, 4, 2, 1, (TextDelta("after"),)),
        Piece(6, 2, 4, 2, 3, (TextDelta("late"),)),
    ]


@pytest.mark.parametrize("options", [{"deltas": False}, {"pooled": True, "poll": 0.05}])
async def test_without_them_the_records_are_there_all_the_same(postgres: str, options: dict[str, Any]) -> None:
    schema = new_schema()
    agent = Agent(name="clerk", model=ScriptedModel([Reply("Hello there.", chunk=1)]))
    driving = Runtime(PostgresStore(postgres, schema=schema), agents=[agent])
    asking = Runtime(PostgresStore(postgres, schema=schema, **options), agents=[agent], engine=None)
    async with driving, asking:
        session = await asking.open(agent, id="s")
        run = await session.start("go")
        assert "".join([text async for text in run.text()]) == "Hello there."
