"""Attending a run from the terminal: show it, answer what it asks, stop it when Ctrl-C says so."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

from perdure.cli.terminal import FAILED, OK, WAITING
from perdure.core.deltas import Delta
from perdure.core.errors import Conflict, Refused
from perdure.core.views import Pending
from perdure.ports import Record
from perdure.runtime.results import Decision, RunResult
from perdure.runtime.run import Run
from perdure.runtime.session import Session

Answer = Callable[[Pending], Awaitable[Decision | None]]


async def attend(session: Session[Any], run: Run[Any], show: Callable[[Record | Delta], None], answer: Answer) -> int:
    """Follows the run to its end, or to a wait that nobody here answers; the exit code."""
    interrupts = Interrupts(session)
    shown = Shown(session, run, show)
    try:
        while True:
            result = await run
            await shown.up_to_date()
            if not result.pending or not await _answer_all(session, result.pending, answer):
                return exit_code(result)
    finally:
        interrupts.close()
        await shown.close()


def exit_code(result: RunResult[Any]) -> int:
    if result.reason == "waiting":
        return WAITING
    return OK if result.reason == "completed" else FAILED


async def _answer_all(session: Session[Any], pending: tuple[Pending, ...], answer: Answer) -> bool:
    """True if anything was decided, here or meanwhile elsewhere."""
    decided = False
    for item in pending:
        asking = asyncio.ensure_future(answer(item))
        elsewhere = asyncio.ensure_future(_decided_elsewhere(session, item))
        await asyncio.wait((asking, elsewhere), return_when=asyncio.FIRST_COMPLETED)
        elsewhere.cancel()
        if not asking.done():
            asking.cancel()
            decided = True
            continue
        decision = asking.result()
        if decision is None:
            continue
        try:
            await session.decide(
                item.id,
                decision.decision,
                by=decision.by,
                reason=decision.reason,
                value=decision.value,
                arguments=decision.arguments,
                remember=decision.remember,
            )
        except Conflict as error:
            print(f"  {error}")
        decided = True
    return decided


async def _decided_elsewhere(session: Session[Any], item: Pending) -> None:
    async for record in session.stream(after=session.state.seq):
        if isinstance(record, Record) and item.id not in {p.id for p in await session.pending()}:
            return


class Shown:
    """Shows the run's items in the background, and can wait until all that is committed has been shown."""

    def __init__(self, session: Session[Any], run: Run[Any], show: Callable[[Record | Delta], None]) -> None:
        self._session = session
        self._show = show
        self._seq = 0
        self._moved = asyncio.Event()
        self._task = asyncio.ensure_future(self._follow(run))

    async def up_to_date(self) -> None:
        head = self._session.state.seq
        while self._seq < head and not self._task.done():
            self._moved.clear()
            await self._moved.wait()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait((self._task,))

    async def _follow(self, run: Run[Any]) -> None:
        try:
            async for item in run.stream():
                self._show(item)
                if isinstance(item, Record):
                    self._seq = item.seq
                    self._moved.set()
        finally:
            self._seq = self._session.state.seq
            self._moved.set()


class Interrupts:
    """Ctrl-C once stops gracefully, twice cancels, a third time leaves; the log keeps what happened."""

    def __init__(self, session: Session[Any]) -> None:
        self._session = session
        self._count = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._loop = asyncio.get_running_loop()
        self._loop.add_signal_handler(signal.SIGINT, self._interrupt)

    def close(self) -> None:
        self._loop.remove_signal_handler(signal.SIGINT)

    def _interrupt(self) -> None:
        self._count += 1
        if self._count > 2:
            os._exit(130)
        self._tasks.append(self._loop.create_task(self._end(self._count)))

    async def _end(self, count: int) -> None:
        try:
            await (self._session.stop(by="Ctrl-C") if count == 1 else self._session.cancel(by="Ctrl-C"))
        except Refused:
            return

