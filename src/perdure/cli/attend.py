"""Attending a run from the terminal: show it, answer what it asks, stop it when Ctrl-C says so."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any

from perdure.cli.answers import Answer, Interrupted
from perdure.cli.terminal import FAILED, OK, WAITING, abandon_output, fail
from perdure.cli.views import View
from perdure.core.deltas import Delta
from perdure.core.errors import Conflict, PerdureError, Refused, StoreError, UsageError
from perdure.core.state import find_call
from perdure.core.views import Pending
from perdure.ports import FromChild, Record
from perdure.runtime.results import RunResult
from perdure.runtime.run import Run
from perdure.runtime.session import Session

SHOW_PATIENCE = 0.3


async def attend(session: Session[Any], run: Run[Any], view: View, answer: Answer) -> int:
    """Follows the run to its end, or to a wait that nobody here answers; the exit code."""
    interrupts = Interrupts(session, view)
    shown = Shown(session, run, view)
    later: set[str] = set()
    try:
        while True:
            result = await run
            await shown.up_to_date()
            asked = [item for item in result.pending if item.id not in later]
            if not asked:
                view.finish(session, result)
                return exit_code(result)
            with shown.held():
                for item in asked:
                    if not await _settle(session, item, answer, interrupts, view):
                        later.add(item.id)
    except StoreError as error:
        fail(str(error), FAILED)
    except BrokenPipeError:
        abandon_output()
        return exit_code(await run)
    finally:
        interrupts.close()
        await shown.close()
        view.close()


def exit_code(result: RunResult[Any]) -> int:
    if result.reason == "waiting":
        return WAITING
    return OK if result.reason == "completed" else FAILED


async def _settle(session: Session[Any], item: Pending, answer: Answer, interrupts: Interrupts, view: View) -> bool:
    """Asks, unless somebody elsewhere is faster; False if the call is left for later."""
    call = find_call(session.state.run, item.call) if item.session == session.id else None
    asking = asyncio.ensure_future(answer(item, call))
    elsewhere = asyncio.ensure_future(_decided_elsewhere(session, item))
    await asyncio.wait((asking, elsewhere), return_when=asyncio.FIRST_COMPLETED)
    for task in (elsewhere, asking):
        if not task.done():
            task.cancel()
    await asyncio.wait((asking, elsewhere))
    if asking.cancelled():
        return True
    try:
        decision = asking.result()
    except Interrupted:
        await interrupts.interrupt()
        return True
    if decision is None:
        return False
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
    except (Conflict, Refused, UsageError) as error:
        # What was refused still waits, so it is asked again.
        view.say(str(error))
    return True


async def _decided_elsewhere(session: Session[Any], item: Pending) -> None:
    seq = session.state.seq
    if item.id not in {pending.id for pending in await session.pending()}:
        return
    async for news in session.stream(after=seq):
        while isinstance(news, FromChild):
            news = news.item
        if isinstance(news, Record) and item.id not in {pending.id for pending in await session.pending()}:
            return


class Shown:
    """Shows the run's items in the background, and can wait until all that is committed has been shown."""

    def __init__(self, session: Session[Any], run: Run[Any], view: View) -> None:
        self._session = session
        self._view = view
        self._seq = 0
        self._held: list[Record | Delta] | None = None
        self._moved = asyncio.Event()
        self._task = asyncio.ensure_future(self._follow(run))

    async def up_to_date(self) -> None:
        """What is committed may belong to no run or to another one, so nothing newer for a moment is enough."""
        head = self._session.state.seq
        with suppress(TimeoutError):
            while self._seq < head and not self._task.done():
                self._moved.clear()
                await asyncio.wait_for(self._moved.wait(), SHOW_PATIENCE)

    @contextmanager
    def held(self) -> Generator[None]:
        """While a question is asked the terminal belongs to it; what happens meanwhile is shown afterwards."""
        self._view.pause()
        self._held = []
        try:
            yield
        finally:
            held, self._held = self._held, None
            for item in held:
                self._view.show(item)

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait((self._task,))

    async def _follow(self, run: Run[Any]) -> None:
        try:
            async for item in run.stream():
                if isinstance(item, FromChild):
                    continue
                if self._held is None:
                    self._view.show(item)
                else:
                    self._held.append(item)
                if isinstance(item, Record):
                    self._seq = item.seq
                    self._moved.set()
        except BrokenPipeError:
            # The run goes on all the same, and the exit code tells how it went.
            abandon_output()
        finally:
            self._seq = self._session.state.seq
            self._moved.set()


class Interrupts:
    """Ctrl-C once stops gracefully, twice cancels, a third time leaves; the log keeps what happened."""

    def __init__(self, session: Session[Any], view: View) -> None:
        self._session = session
        self._view = view
        self._count = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._loop = asyncio.get_running_loop()
        self._loop.add_signal_handler(signal.SIGINT, self._on_signal)

    def close(self) -> None:
        self._loop.remove_signal_handler(signal.SIGINT)

    async def interrupt(self) -> None:
        self._count += 1
        if self._count > 2:
            self._view.close()
            os._exit(FAILED)
        try:
            if self._count == 1:
                self._view.say("stopping when the calls under way have ended; Ctrl-C again cancels them")
                await self._session.stop(by="Ctrl-C")
            else:
                await self._session.cancel(by="Ctrl-C")
        except PerdureError as error:
            self._view.say(str(error))

    def _on_signal(self) -> None:
        self._tasks.append(self._loop.create_task(self.interrupt()))
