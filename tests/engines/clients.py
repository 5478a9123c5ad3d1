"""A process that submits and follows and never drives, with many clients in it; what they were told goes to files.

Run: python -m tests.engines.clients URL FOLDER NAME CLIENTS SECONDS. It says when it is ready for the next part, and is
told on its standard input to go on: so two of them end at the same heads.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, Literal

import msgspec

from perdure import Conflict, PerdureError, Record, Refused, Runtime, Session, StoreError, TextDelta
from perdure.core.codec import digest_of, encode_event
from perdure.core.deltas import AttemptDiscarded, DeltasDropped
from perdure.core.specs import Busy
from perdure.stores.postgres import PostgresStore
from tests.crash.ledger import write_line
from tests.engines.tellers import teller

SESSIONS = 20
PATIENCE = 60.0


class Told(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a client was told of its command; `unknown`: that nobody knows whether it holds."""

    what: Literal["input", "retract", "decide", "stop"]
    session: str
    key: str = ""
    input: int = 0
    words: str = ""
    is_unknown: bool = False


class Seen(msgspec.Struct, frozen=True, array_like=True):
    """A record by its seq and digest; words behind the record of that seq; or that something was left out."""

    kind: Literal["record", "words", "lost"]
    seq: int
    text: str = ""


class Followed(msgspec.Struct, frozen=True):
    """What one client has seen of a session, from its first record on."""

    session: str
    client: str
    breaks: int
    items: list[Seen]


class Follower:
    """Follows one session for as long as the trial lasts, and breaks off and comes back now and then."""

    def __init__(self, session: Session[Any], client: str, chance: Random) -> None:
        self.session = session
        self.head = 0
        self.items: list[Seen] = []
        self.breaks = 0
        self._client = client
        self._chance = chance
        self._stays = False

    async def follow(self) -> None:
        while True:
            patience = None if self._stays else self._chance.uniform(1.0, 6.0)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._read(), patience)
            self.breaks += 1
            self.items.append(Seen("lost", self.head))

    def stay(self) -> None:
        self._stays = True

    async def _read(self) -> None:
        async for item in self.session.stream(after=self.head):
            match item:
                case Record():
                    self.head = item.seq
                    self.items.append(Seen("record", item.seq, digest_of(encode_event(item.event))))
                case TextDelta():
                    self.items.append(Seen("words", self.head, item.text))
                case DeltasDropped() | AttemptDiscarded():
                    self.items.append(Seen("lost", self.head))
                case _:
                    pass

    def followed(self) -> Followed:
        return Followed(self.session.uid, self._client, self.breaks, self.items)


class Client:
    """Sends, decides, takes back and stops, by chance; writes down what it was told."""

    def __init__(self, runtime: Runtime, name: str, path: Path) -> None:
        self._runtime = runtime
        self._name = name
        self._path = path
        self._chance = Random(name)
        self._sent = 0
        self._mine: list[tuple[str, int, str]] = []

    async def work(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while loop.time() < until:
            session = await self._runtime.open(teller, id=f"s{self._chance.randrange(SESSIONS)}")
            with suppress(Conflict, Refused):  # the others were first, or there is nothing to do
                await self._act(session)
            await asyncio.sleep(self._chance.uniform(0.1, 1.0))

    async def _act(self, session: Session[Any]) -> None:
        match self._chance.choices(("queue", "join", "interrupt", "decide", "retract", "stop"), (30, 25, 8, 25, 7, 5)):
            case ["decide"]:
                await decide(session, self._name, self._path, self._chance)
            case ["retract"] if self._mine:
                id, number, key = self._mine[-1]
                await (await self._runtime.session(id)).retract(number, by=self._name)
                self._write(Told("retract", id, key, number))
            case ["stop"]:
                await session.stop(by=self._name)
                self._write(Told("stop", session.id))
            case ["join" | "interrupt" as busy]:
                await self._send(session, busy)
            case _:
                await self._send(session, "queue")

    async def _send(self, session: Session[Any], busy: Busy) -> None:
        self._sent += 1
        key = f"{self._name}-{self._sent}"
        words = f"{self._chance.choice(('say', 'say', 'look', 'pay'))} {key}"
        try:
            run = await session.start(words, key=key, busy=busy)
        except StoreError:
            self._write(Told("input", session.id, key, words=words, is_unknown=True))
            return
        self._mine.append((session.id, run.input, key))
        self._write(Told("input", session.id, key, run.input, words))
        if self._chance.random() < 0.2:
            with suppress(TimeoutError):
                await asyncio.wait_for(_settled(run), 2.0)

    def _write(self, told: Told) -> None:
        write_line(self._path, told)


async def _settled(run: Any) -> None:
    await run


async def decide(session: Session[Any], by: str, path: Path, chance: Random) -> bool:
    """Decides what waits for somebody, if anything does and nobody else is first."""
    pending = await session.pending()
    for one in pending:
        verdict = "approve" if chance.random() < 0.7 else "deny"
        with suppress(Conflict, Refused):
            await session.decide(one.id, verdict, by=by)
            write_line(path, Told("decide", session.id, one.id, words=by))
    return bool(pending)


async def settle(session: Session[Any], name: str, path: Path) -> None:
    chance = Random(name)
    while not await session.wait_idle(timeout=PATIENCE):
        if not await decide(session, name, path, chance):
            await asyncio.sleep(0.05)  # somebody else decided it this moment


async def take_part(url: str, folder: Path, name: str, clients: int, seconds: float) -> None:
    told = folder / f"told-{name}.jsonl"
    async with Runtime(PostgresStore(url), agents=[teller], engine=None) as runtime:
        sessions = [await runtime.open(teller, id=f"s{number}") for number in range(SESSIONS)]
        followers = [
            Follower(sessions[number % SESSIONS], f"{name}{number}", Random(f"{name}{number}"))
            for number in range(clients)
        ]
        following = [asyncio.ensure_future(follower.follow()) for follower in followers]
        await hear("ready")
        await asyncio.gather(*(Client(runtime, f"{name}{number}", told).work(seconds) for number in range(clients)))
        await hear("sent")
        await asyncio.gather(*(settle(session, f"settler-{name}", told) for session in sessions))
        heads: dict[str, int] = json.loads(await hear("settled"))
        for follower in followers:
            follower.stay()
        deadline = asyncio.get_running_loop().time() + PATIENCE
        while any(follower.head < heads[follower.session.uid] for follower in followers):
            assert asyncio.get_running_loop().time() < deadline, "a follower never saw the end"
            await asyncio.sleep(0.1)
        for task in following:
            task.cancel()
        done = await asyncio.gather(*following, return_exceptions=True)
        assert all(isinstance(error, asyncio.CancelledError) for error in done), done
        lines = [msgspec.json.encode(follower.followed()) for follower in followers]
        (folder / f"followed-{name}.jsonl").write_bytes(b"\n".join(lines))


async def hear(state: str) -> str:
    """Says how far this process is, and waits until it is told to go on."""
    print(state, flush=True)
    return await asyncio.to_thread(sys.stdin.readline)


if __name__ == "__main__":
    url, folder, name, clients, seconds = sys.argv[1:]
    try:
        asyncio.run(take_part(url, Path(folder), name, int(clients), float(seconds)))
    except PerdureError as error:
        sys.exit(str(error))
