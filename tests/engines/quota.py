"""Many processes with one key: a provider that takes so many requests a second, and then none for a while.

By hand: python -m tests.engines.quota WORKERS SESSIONS PER_SECOND
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perdure import Agent, Runtime, Session
from perdure.core.events import RunEnded
from perdure.core.messages import Text, Usage
from perdure.ports import ModelResponse
from perdure.stores.postgres import PostgresStore
from perdure.testing import ScriptedModel
from perdure.testing.provider import Provider, Request, Response, silent, status
from perdure.testing.provider_streams import error_body, stream_of

EVERY = 0.2
ROOT = Path(__file__).parents[2]
caller = Agent(name="caller", model=ScriptedModel(lambda request: "not asked"))


@dataclass
class Office:
    """Takes `per_second` requests; whoever comes beyond that is sent away, and so is everybody for `shut` seconds.

    The first to come finds it shut; those who come next, as many as `stalls` says, are never answered.
    """

    per_second: int
    shut: float
    taken: list[float] = field(default_factory=list[float])
    refused: list[float] = field(default_factory=list[float])
    shut_at: list[float] = field(default_factory=list[float])
    shut_until: float = 0.0
    stalls: int = 0
    stalled: list[Request] = field(default_factory=list[Request])

    def __call__(self, request: Request) -> Response:
        now = time.monotonic()
        is_full = sum(now - at < 1.0 for at in self.taken) >= self.per_second
        if now >= self.shut_until and (is_full or not self.shut_at):
            self.shut_until = now + self.shut
            self.shut_at.append(now)
        if now < self.shut_until:
            self.refused.append(now)
            return status(429, error_body("openai", 429), retry_after=math.ceil(self.shut_until - now))
        if len(self.stalled) < self.stalls:
            self.stalled.append(request)
            return silent()
        self.taken.append(now)
        return Response(stream_of("openai", ModelResponse((Text("done"),), usage=Usage(5, 1))))

    def knocked(self, grace: float) -> int:
        """Requests while it was shut, but for those that were on their way when it shut its door."""
        return sum(any(at + grace < refused < at + self.shut for at in self.shut_at) for refused in self.refused)


@dataclass
class Seen:
    seconds: float
    completed: int
    taken: int
    refused: int
    knocked: int
    shut: int


@dataclass
class Rush:
    """A session more has something to ask every few milliseconds; whoever asks in vain is killed."""

    store: PostgresStore
    workers: int
    sessions: int
    shares: bool = True
    patience: float = 120.0

    async def run(self, office: Office) -> Seen:
        async with Provider(office) as provider, Runtime(self.store, agents=[caller], engine=None) as runtime:
            opened = [await runtime.open(caller) for _ in range(self.sessions)]
            started = [self._start(provider.url) for _ in range(self.workers)]
            try:
                for process in started:
                    assert process.stdout is not None
                    assert await asyncio.to_thread(process.stdout.readline) == "ready\n"
                return await self._watch(runtime, opened, office)
            finally:
                for process in started:
                    process.kill()
                    process.wait()
                    assert process.stdout is not None
                    process.stdout.close()

    def _start(self, provider: str) -> subprocess.Popen[str]:
        path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(ROOT))))
        how = "on" if self.shares else "off"
        command = [sys.executable, "-m", "tests.engines.caller", self.store.url, self.store.schema, provider, how]
        env = {**os.environ, "PYTHONPATH": path}
        return subprocess.Popen(command, stdout=subprocess.PIPE, env=env, cwd=ROOT, text=True)

    async def _watch(self, runtime: Runtime, opened: list[Session[Any]], office: Office) -> Seen:
        began = time.monotonic()
        runs = [asyncio.ensure_future(_run(session, number * EVERY)) for number, session in enumerate(opened)]
        while office.stalls and time.monotonic() < began + self.patience:
            await asyncio.sleep(0.02)
            if office.stalled:
                await _kill(runtime, opened, office.stalled[0])
                break
        await asyncio.wait(runs, timeout=self.patience)
        seconds = time.monotonic() - began
        for run in runs:
            run.cancel()
        await asyncio.gather(*runs, return_exceptions=True)
        ends = [event for session in opened for event in await _ends(session)]
        completed = sum(end.reason == "completed" for end in ends)
        return Seen(
            seconds, completed, len(office.taken), len(office.refused), office.knocked(0.5), len(office.shut_at)
        )


async def _kill(runtime: Runtime, opened: list[Session[Any]], asked: Request) -> None:
    """The worker whose request was never answered."""
    session = next(session for session in opened if session.uid in asked.body.decode())
    owner = await runtime.driver_of(session)
    pids = [worker.about["pid"] for worker in await runtime.workers() if worker.owner == owner]
    assert len(pids) == 1
    assert isinstance(pids[0], int)
    os.kill(pids[0], signal.SIGKILL)


async def _run(session: Session[Any], delay: float) -> None:
    await asyncio.sleep(delay)
    await session.run(session.uid, key="ask")


async def _ends(session: Session[Any]) -> list[RunEnded]:
    return [record.event for record in await session.records() if isinstance(record.event, RunEnded)]


async def main(workers: int, sessions: int, per_second: int) -> None:
    from tests.postgres import OwnServer

    for shares in (True, False):
        server = OwnServer()
        try:
            seen = await Rush(PostgresStore(server.url), workers, sessions, shares).run(Office(per_second, 3.0))
            print("shared" if shares else "each on its own", seen, flush=True)
        finally:
            server.stop()


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
