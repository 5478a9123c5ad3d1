"""A trial: workers as processes, sessions sent by somebody who never drives, and a storm of deaths.

Rule 1: a worker that was killed never comes back; another takes its place. Rule 2: everything is bounded in time.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Protocol

import asyncpg

from perdure import Runtime, Session, StoreError
from perdure.ports import Record
from perdure.stores.postgres import PostgresStore
from tests.engines.clerks import DEEDS, clerk
from tests.engines.evidence import broken
from tests.postgres import OwnServer

PERDURE = str(Path(sys.executable).parent / "perdure")
CLERK = f"{Path(__file__).parent / 'clerks.py'}:clerk"
PATIENCE = 90.0
TAKEN_OVER_WITHIN = 15.0


class Behind(Protocol):
    """The server of an engine."""

    async def restart(self) -> None: ...


@dataclass
class Plan:
    """How much, and how rough."""

    engine: str
    sessions: int = 12
    turns: int = 6
    workers: int = 3
    kills: int = 2
    stops: int = 1
    restarts: int = 1
    concurrency: int = 12
    pause: float = 0.1
    seed: int = 1


@dataclass
class Figures:
    """What was seen."""

    seconds: float = 0.0
    take_over: list[float] = field(default_factory=list[float])
    killed: int = 0
    stopped: int = 0
    restarted: int = 0
    engine_killed: int = 0
    resumed: int = 0


class Crew:
    """The workers of a trial."""

    def __init__(self, folder: Path, server: OwnServer, plan: Plan, agent: str = CLERK) -> None:
        self.folder = folder
        self.server = server
        self.plan = plan
        self.agent = agent
        self.working: list[tuple[subprocess.Popen[str], str]] = []
        self._files: list[Any] = []
        self._number = 0

    def start(self) -> subprocess.Popen[str]:
        self._number += 1
        log = (self.folder / f"worker-{self._number}.log").open("w")
        self._files.append(log)
        root = str(Path(__file__).parents[2])
        env = {
            **os.environ,
            "PERDURE_TRIAL": str(self.folder),
            "PERDURE_TRIAL_PAUSE": str(self.plan.pause),
            "PYTHONPATH": os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), root))),
        }
        command = [PERDURE, "worker", "--store", self.server.url, "--engine", self.plan.engine, "-a", self.agent]
        command += ["--concurrency", str(self.plan.concurrency), "--json"]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL, env=env, text=True
        )

    async def enlist(self, count: int) -> None:
        """Starts workers and waits until they are ready."""
        started = [self.start() for _ in range(count)]
        for process in started:
            assert process.stdout is not None
            line = await asyncio.wait_for(asyncio.to_thread(process.stdout.readline), 60)
            said = json.loads(line or "{}")
            assert said.get("state") == "ready", f"a worker did not start: {line!r}"
            self.working.append((process, said["worker"]))

    def end(self) -> None:
        for process, _ in self.working:
            process.kill()
            process.send_signal(signal.SIGCONT)
        for process, _ in self.working:
            process.wait(20)
            assert process.stdout is not None
            process.stdout.close()
        for file in self._files:
            file.close()


class Trial:
    """`behind`: the server of the engine, if it has one."""

    def __init__(self, folder: Path, server: OwnServer, plan: Plan, behind: Behind | None = None) -> None:
        self.plan = plan
        self._behind = behind
        self.figures = Figures()
        self._folder = folder
        self._server = server
        self._chance = Random(plan.seed)
        self._crew = Crew(folder, server, plan)
        self._acked: dict[str, list[str]] = {}
        self.left: list[str] = []

    async def run(self) -> list[str]:
        """What is broken, in words: nothing, one hopes."""
        began = time.monotonic()
        try:
            await self._crew.enlist(self.plan.workers)
            async with Runtime(PostgresStore(self._server.url), agents=[clerk], engine=None) as runtime:
                sessions = [await runtime.open(clerk, id=f"s{number}") for number in range(self.plan.sessions)]
                runs = [asyncio.ensure_future(self._work(session)) for session in sessions]
                await self._storm()
                _, late = await asyncio.wait(runs, timeout=PATIENCE)
                for run in late:
                    run.cancel()
                self.figures.seconds = time.monotonic() - began
                logs = {session.uid: await session.records() for session in sessions}
                await asyncio.gather(*runs, return_exceptions=True)
        finally:
            self._crew.end()
        self.figures.resumed = sum(type(r.event).__name__ == "RunResumed" for log in logs.values() for r in log)
        problems = [f"{len(late)} sessions did not finish"] if late else []
        return [*problems, *self._slow(), *broken(self._folder, logs, self._acked, self.plan.turns)]

    async def _work(self, session: Session[Any]) -> None:
        """Two inputs, the second while the first is at work; each is sent until it is acknowledged."""
        half = max(1, self.plan.turns // 2)
        for key, turns in (("first", half), ("second", self.plan.turns - half)):
            await _until_acked(lambda key=key, turns=turns: session.start(f"work {turns}", key=key))
            self._acked.setdefault(session.uid, []).append(key)
        while True:
            try:
                await session.run(f"work {self.plan.turns - half}", key="second")
                return
            except StoreError:
                await asyncio.sleep(0.2)

    async def _storm(self) -> None:
        """Deaths spread over the work, in an order that chance gives."""
        plan = self.plan
        blows = ["kill"] * plan.kills + ["stop"] * plan.stops + ["restart"] * plan.restarts
        blows += ["engine"] * (1 if self._behind else 0)
        self._chance.shuffle(blows)
        expected = plan.sessions * plan.turns * 3
        stopped: list[asyncio.Future[None]] = []
        for number, blow in enumerate(blows, 1):
            await self._reached(expected * number // (len(blows) + 2))
            match blow:
                case "kill":
                    await self._kill()
                case "stop":
                    stopped.append(asyncio.ensure_future(self._stop()))
                case "engine" if self._behind:
                    await self._behind.restart()
                    self.figures.engine_killed += 1
                case _:
                    await self._server.crash()
                    await self._server.start()
                    self.figures.restarted += 1
        await asyncio.gather(*stopped)

    async def _reached(self, lines: int) -> None:
        """Until so much has been done, or nothing has come for a while."""
        deadline = time.monotonic() + 20.0
        path = self._folder / DEEDS
        while time.monotonic() < deadline:
            if path.exists() and path.read_bytes().count(b"}") >= lines:
                return
            await asyncio.sleep(0.05)

    async def _kill(self) -> None:
        process, owner = self._crew.working.pop(self._chance.randrange(len(self._crew.working)))
        held = await self._held(owner)
        process.kill()
        died = time.monotonic()
        await asyncio.to_thread(process.wait)
        assert process.stdout is not None
        process.stdout.close()
        self.figures.killed += 1
        watching = asyncio.ensure_future(self._taken_over(held, died))
        await self._crew.enlist(1)
        await watching

    async def _stop(self) -> None:
        """It looks dead for a while, comes back, and must not write what it still has in hand."""
        process, owner = self._chance.choice(self._crew.working)
        held = await self._held(owner)
        process.send_signal(signal.SIGSTOP)
        self.figures.stopped += 1
        await self._taken_over(held, time.monotonic())
        process.send_signal(signal.SIGCONT)

    async def _held(self, owner: str) -> dict[str, int]:
        rows = await self._ask("SELECT uid, epoch FROM perdure.sessions WHERE owner = $1", owner)
        return {row["uid"]: row["epoch"] for row in rows}

    async def _taken_over(self, held: dict[str, int], since: float) -> None:
        """Waits until somebody else has claimed every session of the dead one."""
        deadline = since + 2 * TAKEN_OVER_WITHIN
        while held and time.monotonic() < deadline:
            sql = "SELECT uid, epoch, wake FROM perdure.sessions WHERE uid = ANY($1)"
            for row in await self._ask(sql, list(held)):
                if row["epoch"] > held[row["uid"]]:
                    del held[row["uid"]]
                    self.figures.take_over.append(time.monotonic() - since)
                elif row["wake"] is None:
                    del held[row["uid"]]  # there is nothing left to do
            await asyncio.sleep(0.1)
        self.figures.take_over += [2 * TAKEN_OVER_WITHIN] * len(held)
        self.left += list(held)

    async def _ask(self, sql: str, *values: object) -> list[Any]:
        for _ in range(100):
            try:
                connection = await asyncpg.connect(self._server.url, timeout=5)
                try:
                    return await connection.fetch(sql, *values)
                finally:
                    connection.terminate()
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                await asyncio.sleep(0.2)
        raise AssertionError("PostgreSQL did not come back")

    def _slow(self) -> list[str]:
        slowest = max(self.figures.take_over, default=0.0)
        late = f" (never: {self.left})" if self.left else ""
        return [f"a session was taken over after {slowest:.1f} s{late}"] if slowest > TAKEN_OVER_WITHIN else []


async def _until_acked(send: Any) -> None:
    for _ in range(200):
        try:
            await send()
            return
        except StoreError:
            await asyncio.sleep(0.1)
    raise AssertionError("the input was never acknowledged")


def events(records: list[Record], kind: type) -> list[Any]:
    return [record.event for record in records if isinstance(record.event, kind)]
