"""A driver that is stopped with SIGSTOP in the middle of a run, overtaken by another process, and continued.

Both processes write down every append that the store took from them, outside of it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import apsw
import msgspec
from msgspec.structs import replace

from perdure import Agent, Runtime, ToolContext, tool
from perdure.core.errors import StaleEpoch
from perdure.core.fold import fold
from perdure.core.messages import Text
from perdure.core.transcript import transcript, unpaired
from perdure.events import CallEnded, Event, ModelResponded, RunEnded, RunResumed
from perdure.ports import Batch, Claim
from perdure.stores import sqlite_reads
from perdure.stores.sqlite import SqliteStore
from perdure.testing import ScriptedModel, call
from perdure.testing.children import end, fork, in_child
from tests.crash.ledger import read_lines, write_line

APPENDS = Path("appends.jsonl")
TICKS = Path("ticks.jsonl")
WAKE = Path("wake")
QUIT = Path("quit")
PATIENCE = 20.0


class Appended(msgspec.Struct, frozen=True):
    """An append that the store took or refused."""

    by: str
    epoch: int | None
    first: int
    last: int
    taken: bool = True


class Tick(msgspec.Struct, frozen=True):
    by: str
    what: Literal["tick", "stopped", "settled"] = "tick"


class WitnessedStore(SqliteStore):
    """`by` is the name of the process."""

    by = ""

    async def append(self, batch: Batch) -> None:
        first, last = batch.expect + 1, batch.expect + len(batch.entries)
        try:
            await super().append(batch)
        except StaleEpoch:
            write_line(APPENDS, Appended(self.by, batch.epoch, first, last, taken=False))
            raise
        write_line(APPENDS, Appended(self.by, batch.epoch, first, last))


class EpochlessStore(WitnessedStore):
    """A planted bug: every claim has the same epoch, and nobody looks at it."""

    async def claim(self, session: str, owner: str, *, force: bool = False, capacity: Any = None) -> Claim | None:
        claim = await super().claim(session, owner, force=force, capacity=capacity)
        return claim and Claim(1, claim.head)

    async def append(self, batch: Batch) -> None:
        await super().append(replace(batch, epoch=None))

    async def release(self, session: str, *, epoch: int, head: int) -> bool:
        row = await self.get(session)
        assert row is not None
        return await super().release(session, epoch=row.epoch, head=head)


def make_agent(by: str, variant: str) -> Agent[Any]:
    """The model asks for a tool that ticks: for ever in the first process, a few times in the second."""

    def go_on(ctx: ToolContext, ticks: int) -> bool:
        write_line(TICKS, Tick(by))
        return not ctx.cancelled and (ctx.attempt == 1 or ticks < 3)

    @tool(effect="idempotent", name="tick")
    async def tick(ctx: ToolContext) -> str:
        """Tick in the loop."""
        ticks = 0
        try:
            while go_on(ctx, ticks):
                ticks += 1
                await asyncio.sleep(0.001)
        finally:
            write_line(TICKS, Tick(by, "stopped"))
        return by

    @tool(effect="idempotent", name="tick")
    def tick_in_thread(ctx: ToolContext) -> str:
        """Tick in a thread."""
        ticks = 0
        while go_on(ctx, ticks):
            ticks += 1
            time.sleep(0.001)
        write_line(TICKS, Tick(by, "stopped"))
        return by

    @tool(effect="read")
    async def nap(milliseconds: int) -> str:
        """Sleeps a little."""
        await asyncio.sleep(milliseconds / 1000)
        return by

    @tool(effect="read")
    async def doze(ctx: ToolContext) -> str:
        """Sleeps until the zombie is woken: its end is the zombie's next append."""
        while ctx.attempt == 1 and not WAKE.exists():
            await asyncio.sleep(0.001)
        return by

    naps = [call("nap", milliseconds=1), call("nap", milliseconds=5), call("doze")] if "naps" in variant else []
    return Agent(
        name="ticker",
        model=ScriptedModel([[call("tick"), *naps], [call("nap", milliseconds=1)], "Done."]),
        tools=[tick_in_thread if "thread" in variant else tick, nap, doze],
    )


async def live(store: WitnessedStore, by: str, variant: str) -> None:
    """Drives the run, or follows whoever does; stays alive, so that it is the runtime that stops the tools."""
    store.by = by
    agent = make_agent(by, variant)
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.open(agent, id="s")
        result = await session.run("go", key="go")
        assert result.output == "Done."
        write_line(TICKS, Tick(by, "settled"))
        deadline = time.monotonic() + PATIENCE
        while by == "zombie" and not QUIT.exists() and time.monotonic() < deadline:
            await asyncio.sleep(0.005)


async def overtake(store: WitnessedStore, variant: str) -> None:
    """Claims by force and gives the session up again, so that this process's own sweep finds it."""
    if "beat" not in variant:
        await store.open()
        await store.join("usurper")
        row = await store.find("", "s")
        assert row is not None
        assert await store.claim(row.uid, "usurper") is None, "a stopped process still counts as living"
        assert await store.claim(row.uid, "usurper", force=True)
        await store.leave("usurper")
        await store.close()
    await live(store, "heir", variant)


async def overtake_a_zombie(
    folder: Path, variant: str, delay: float, kind: type[WitnessedStore] = WitnessedStore, patience: float = PATIENCE
) -> list[str]:
    """One trial; what is broken."""
    folder.mkdir()

    def open_store() -> WitnessedStore:
        beats = {"beat": 0.05, "dead_after": 0.3} if "beat" in variant else {}
        # With something to append, the refusal alone has to stop it: it is not told of others' commits.
        return kind(folder / "zombie.db", poll=60.0 if "naps" in variant else 0.1, **beats)

    pid = fork(folder, lambda: asyncio.run(live(open_store(), "zombie", variant)))
    try:
        await _until(folder, Tick("zombie"), patience)
        await asyncio.sleep(delay)
        await _stop(pid, folder)
        if "beat" in variant:
            await asyncio.sleep(0.4)
        heir = await in_child(folder, lambda: asyncio.run(overtake(open_store(), variant)))
        (folder / WAKE).touch()
        os.kill(pid, signal.SIGCONT)
        if heir != 0:
            return [f"the heir failed: {(folder / 'trace.txt').read_text()}"]
        await _until(folder, Tick("zombie", "stopped"), patience)
        await _until(folder, Tick("zombie", "settled"), patience)
        (folder / QUIT).touch()
        return check_overtaken(folder, is_refused="naps" in variant)
    finally:
        end(pid)


async def _stop(pid: int, folder: Path) -> None:
    """Stops the process outside of a transaction: in one, it would hold the file's lock, and nobody could write."""
    connection = apsw.Connection(str(folder / "zombie.db"))
    try:
        for _ in range(1000):
            _stop_all_threads(pid)
            try:
                connection.execute("BEGIN IMMEDIATE; ROLLBACK")
            except apsw.BusyError:
                os.kill(pid, signal.SIGCONT)
                await asyncio.sleep(0.001)
            else:
                return
    finally:
        connection.close()
    raise TimeoutError("the driver always holds the lock")


def _stop_all_threads(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    os.waitpid(pid, os.WUNTRACED)


async def _until(folder: Path, tick: Tick, patience: float) -> None:
    """Waits for a line that never comes if something is broken; the check finds it missing."""
    deadline = time.monotonic() + patience
    while tick not in read_lines(folder / TICKS, Tick) and time.monotonic() < deadline:
        await asyncio.sleep(0.002)


def check_overtaken(folder: Path, *, is_refused: bool) -> list[str]:
    connection = apsw.Connection(str(folder / "zombie.db"), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        row = sqlite_reads.find(connection, "", "s")
        assert row is not None
        events = [record.event for record in sqlite_reads.read(connection, row.uid, 0, None)]
    finally:
        connection.close()
    broken = [*_check_appends(folder, row.head), *_check_log(events), *_check_ticks(folder)]
    if is_refused and all(append.taken for append in read_lines(folder / APPENDS, Appended)):
        broken.append("nothing of the zombie's was refused")
    return broken


def _check_appends(folder: Path, head: int) -> Iterator[str]:
    appends = sorted(read_lines(folder / APPENDS, Appended), key=lambda append: append.first)
    taken = [append for append in appends if append.taken]
    if [seq for append in taken for seq in range(append.first, append.last + 1)] != list(range(1, head + 1)):
        yield f"the appends do not make up the log: {taken}"
    epochs = [append.epoch for append in taken if append.epoch is not None]
    if epochs != sorted(epochs):
        yield f"an old epoch comes after a new one: {epochs}"
    writers = [append.by for append in taken]
    if writers != sorted(writers, reverse=True):
        yield f"the zombie appends after the heir: {taken}"


def _check_log(events: list[Event]) -> Iterator[str]:
    ends = [event for event in events if isinstance(event, CallEnded)]
    calls = [call for event in events if isinstance(event, ModelResponded) for call in event.message.calls]
    if sorted(event.call for event in ends) != [call.call for call in calls]:
        yield f"not every call has one end: {ends}"
    if [event.parts for event in ends if event.call == 1] != [(Text("heir"),)]:
        yield f"the result of the tool that ticked is not the heir's: {ends}"
    resumed = [event.epoch for event in events if isinstance(event, RunResumed)]
    if len(resumed) != 1:
        yield f"the run was resumed {len(resumed)} times"
    ended = [event.reason for event in events if isinstance(event, RunEnded)]
    if ended != ["completed"]:
        yield f"the run ended {ended}"
    if unpaired(transcript(fold(events))):
        yield "a call has no result behind it"


def _check_ticks(folder: Path) -> Iterator[str]:
    whats = [tick.what for tick in read_lines(folder / TICKS, Tick) if tick.by == "zombie"]
    if "stopped" not in whats:
        yield "the zombie's tool was not stopped"
    elif "tick" in whats[whats.index("stopped") :]:
        yield "the zombie's tool ticks after it was stopped"
    if "settled" not in whats:
        yield "the zombie did not hear how the run ended"
