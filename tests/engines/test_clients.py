"""Many clients in two processes, three workers: one order for all, every acknowledged input served, streams as logs."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec
import pytest

from perdure import Runtime
from perdure.events import InputAccepted, RunEnded
from perdure.ports import Record, SessionQuery
from perdure.stores.memory import MemoryStore
from perdure.stores.postgres import PostgresStore
from tests.contract.test_stores import opened
from tests.crash.ledger import read_lines
from tests.engines.client_evidence import attempts, broken
from tests.engines.clients import SESSIONS, Followed, Follower, Seen, Told
from tests.engines.tellers import teller
from tests.engines.trial import Crew, Plan
from tests.postgres import OwnServer
from tests.runtime.scenes import until

SECONDS = float(os.environ.get("PERDURE_CLIENTS_SECONDS", "20"))
NAMES, CLIENTS, WORKERS = ("a", "b"), 25, 3
TELLER = f"{Path(__file__).parent / 'tellers.py'}:teller"


class Desk:
    """One of the submitting processes."""

    def __init__(self, url: str, folder: Path, name: str) -> None:
        root = str(Path(__file__).parents[2])
        paths = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), root)))
        words = [url, str(folder), name, str(CLIENTS), str(SECONDS)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.engines.clients", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": paths},
            text=True,
        )

    async def reached(self, state: str) -> None:
        assert self._process.stdout is not None
        line = await asyncio.wait_for(asyncio.to_thread(self._process.stdout.readline), SECONDS + 120)
        assert line.strip() == state, f"it said {line!r} instead of {state!r}"

    def tell(self, words: str = "") -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{words}\n")
        self._process.stdin.flush()

    async def finished(self) -> None:
        assert await asyncio.to_thread(self._process.wait, 120) == 0

    def end(self) -> None:
        self._process.kill()
        self._process.wait(20)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()


async def serve(folder: Path, server: OwnServer, engine: str) -> None:
    """The whole trial; what was told and seen is in the folder afterwards."""
    crew = Crew(folder, server, Plan(engine, pause=0.02, concurrency=SESSIONS), TELLER)
    desks: list[Desk] = []
    try:
        await crew.enlist(WORKERS)
        desks += [Desk(server.url, folder, name) for name in NAMES]
        for state in ("ready", "sent"):
            await asyncio.gather(*(desk.reached(state) for desk in desks))
            for desk in desks:
                desk.tell()
        await asyncio.gather(*(desk.reached("settled") for desk in desks))
        async with opened(PostgresStore(server.url)) as store:
            heads = {row.uid: row.head for row in (await store.list(SessionQuery())).rows}
        for desk in desks:
            desk.tell(msgspec.json.encode(heads).decode())
        await asyncio.gather(*(desk.finished() for desk in desks))
    finally:
        for desk in desks:
            desk.end()
        crew.end()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("engine", ["local", "dbos"])
async def test_fifty_clients_agree(
    engine: str, tmp_path: Path, server: OwnServer, record_property: pytest.RecordProperty
) -> None:
    await serve(tmp_path, server, engine)
    told = [one for name in NAMES for one in read_lines(tmp_path / f"told-{name}.jsonl", Told)]
    followed = [one for name in NAMES for one in read_lines(tmp_path / f"followed-{name}.jsonl", Followed)]
    async with opened(PostgresStore(server.url)) as store:
        logs = {row.id: await store.read(row.uid) for row in (await store.list(SessionQuery())).rows}
    assert (len(logs), len(followed)) == (SESSIONS, len(NAMES) * CLIENTS)
    assert list(broken(logs, told, followed)) == []
    figures = Counter(one.what for one in told)
    words = [
        sum(item.kind == "words" for one in followed if one.client[0] == name for item in one.items) for name in NAMES
    ]
    ends = Counter(r.event.reason for log in logs.values() for r in log if isinstance(r.event, RunEnded))
    records = sum(map(len, logs.values()))
    print(f"{engine}: {dict(figures)} {dict(ends)}, {records} records, {words} pieces of text, seen in each process")
    assert min(words) > 0
    assert {"input", "retract", "decide", "stop"} == set(figures)
    record_property(f"figure: inputs of 50 clients, served once ({engine})", figures["input"])
    record_property(f"figure: records that 50 clients saw in one order ({engine})", records)


Change = Callable[[dict[str, list[Record]], list[Told], list[Seen]], None]


def _without_a_record(logs: dict[str, list[Record]], told: list[Told], items: list[Seen]) -> None:
    items.remove(next(item for item in items if item.kind == "record" and item.seq == 5))


def _two_exchanged(logs: dict[str, list[Record]], told: list[Told], items: list[Seen]) -> None:
    first, second = (at for at, item in enumerate(items) if item.kind == "record" and item.seq in (5, 6))
    items[first], items[second] = items[second], items[first]


def _another_record(logs: dict[str, list[Record]], told: list[Told], items: list[Seen]) -> None:
    at = next(at for at, item in enumerate(items) if item.kind == "record" and item.seq == 5)
    items[at] = Seen("record", 5, "0" * 64)


def _words(items: list[Seen], place: int = 0) -> tuple[int, Seen]:
    return [(at, item) for at, item in enumerate(items) if item.kind == "words"][place]


def _foreign_words(logs: dict[str, list[Record]], told: list[Told], items: list[Seen]) -> None:
    at, item = _words(items)
    items[at] = Seen("words", item.seq, "nobody-1:0 ")


def _words_twice(logs: dict[str, list[Record]], told: list[Told], items: list[Seen]) -> None:
    at, item = _words(items)
    items.insert(at + 1, item)


def _late_words(logs: dict[str, list[Record]], told: list[Told], items: list[Seen]) -> None:
    _, item = _words(items)
    items.append(Seen("words", items[-1].seq, item.text))


def _lost_input(logs: dict[str, list[Record]], told: list[Told], items: list[Seen]) -> None:
    told.append(Told("input", "s0", "lost-1", 99, "say lost-1"))


def _another_number(logs: dict[str, list[Record]], told: list[Told], items: list[Seen]) -> None:
    told[0] = Told("input", "s0", told[0].key, 17, told[0].words)


def _foreign_input(logs: dict[str, list[Record]], told: list[Told], items: list[Seen]) -> None:
    told.pop(0)


def _lost_decision(logs: dict[str, list[Record]], told: list[Told], items: list[Seen]) -> None:
    at = next(at for at, one in enumerate(told) if one.what == "decide")
    told[at] = Told("decide", "s0", told[at].key, words="somebody else")


def _lost_retraction(logs: dict[str, list[Record]], told: list[Told], items: list[Seen]) -> None:
    told.append(Told("retract", "s0", "t-1", 1))


def _lost_stop(logs: dict[str, list[Record]], told: list[Told], items: list[Seen]) -> None:
    told.append(Told("stop", "s0"))


def _unserved(logs: dict[str, list[Record]], told: list[Told], items: list[Seen]) -> None:
    """As if the last input had been accepted and never been taken."""
    records = logs["s0"]
    last = max(at for at, record in enumerate(records) if isinstance(record.event, InputAccepted))
    event = records[last].event
    assert isinstance(event, InputAccepted)
    del records[last + 1 :]
    items[:] = [item for item in items if item.seq <= records[last].seq]


PLANTED: dict[str, tuple[Change, str]] = {
    "a gap": (_without_a_record, "record 5 differs"),
    "another order": (_two_exchanged, "record 5 differs"),
    "another record": (_another_record, "record 5 differs"),
    "foreign words": (_foreign_words, "where the model answered t-1"),
    "words twice": (_words_twice, "twice or too late"),
    "late words": (_late_words, "where no model was at work"),
    "a lost input": (_lost_input, "lost-1 is in the log 0 times"),
    "another number": (_another_number, "acknowledged as 17 and is 1"),
    "an input that nobody sent": (_foreign_input, "nobody sent the input t-1"),
    "a lost decision": (_lost_decision, "was acknowledged and is not in the log"),
    "a lost retraction": (_lost_retraction, "the acknowledged retraction of t-1 is lost"),
    "a lost stop": (_lost_stop, "1 stops were acknowledged and none is in the log"),
    "an input that nobody served": (_unserved, "was served 0 times"),
}


@pytest.mark.parametrize(("change", "complaint"), PLANTED.values(), ids=PLANTED)
async def test_what_is_planted_is_found(change: Change, complaint: str) -> None:
    told: list[Told] = []
    async with Runtime(MemoryStore(), agents=[teller]) as runtime:
        session = await runtime.open(teller, id="s0")
        follower = Follower(session, "c", Random(1))
        follower.stay()
        following = asyncio.ensure_future(follower.follow())
        for number, what in enumerate(("say", "pay", "look"), 1):
            words = f"{what} t-{number}"
            result = await session.run(words, key=f"t-{number}")
            told.append(Told("input", "s0", f"t-{number}", number, words))
            for one in result.pending:
                await session.decide(one.id, "approve", by="me")
                told.append(Told("decide", "s0", one.id, words="me"))
        await session.wait_idle()
        records = await session.records()
        await until(lambda: follower.head == len(records))
        following.cancel()
    seen = follower.followed()
    assert any(attempts(records).values())
    assert list(broken({"s0": records}, told, [seen])) == []
    logs, items = {"s0": list(records)}, list(seen.items)
    change(logs, told, items)
    found = list(broken(logs, told, [Followed(seen.session, seen.client, 0, items)]))
    assert [line for line in found if complaint in line], (complaint, found)
