"""Attending a run from the terminal: show it, answer what it asks, stop it when Ctrl-C says so."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from typing import Any

from perdure.cli.answers import Answer, Interrupted
from perdure.cli.family import at_work_below, is_child
from perdure.cli.messaging import until_brought
from perdure.cli.terminal import FAILED, OK, WAITING, abandon_output, fail
from perdure.cli.views import View
from perdure.core.errors import Conflict, NotFound, PerdureError, Refused, StoreError, UsageError
from perdure.core.events import MessageSettled
from perdure.core.state import find_call
from perdure.core.views import Pending
from perdure.ports import FromChild, Item, Record
from perdure.runtime.results import RunResult
from perdure.runtime.run import Run
from perdure.runtime.session import Session
from perdure.wiring import Runtime

SHOW_PATIENCE = 0.3
END_PATIENCE = 5.0
ERRAND_PATIENCE = 5.0


async def attend(runtime: Runtime, session: Session[Any], run: Run[Any], view: View, answer: Answer) -> int:
    """Follows the run and its sub-agents to its end, or to a wait that nobody here answers; the exit code."""
    interrupts = Interrupts(session, view)
    shown = Shown(session, run, view)
    later: set[str] = set()
    try:
        while True:
            result = await run
            asked = [item for item in await _placed(runtime, session, result.pending) if item[0].id not in later]
            if result.reason != "waiting":
                await shown.to_the_end()
            await shown.up_to_date(session, *(place for _, place in asked))
            if not asked:
                waits = result.reason == "waiting"
                await _bring_the_rest(session, view, session.state.seq if waits else shown.seq)
                view.finish(session, result)
                if session.state.run is None and (left := await at_work_below(runtime, session)):
                    view.leave(session, [row.id for row in left])
                return exit_code(result)
            with shown.held():
                for item, place in asked:
                    if not await _settle(place, item, answer, interrupts, view):
                        later.add(item.id)
                    if interrupts.pressed:
                        break
    except StoreError as error:
        fail(str(error), FAILED)
    except BrokenPipeError:
        abandon_output()
        return exit_code(await run)
    finally:
        interrupts.close()
        await shown.close()
        view.close()


async def _bring_the_rest(session: Session[Any], view: View, seq: int) -> None:
    """The last messages of a run may leave behind its end; what cannot be brought is told here.

    Perhaps it has been found out already, behind the last record that was shown.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(ERRAND_PATIENCE):
            await until_brought(session)
    if session.state.seq > seq:
        for record in await session.records(after=seq):
            if isinstance(record.event, MessageSettled):
                view.show(record)


def exit_code(result: RunResult[Any]) -> int:
    if result.reason == "waiting":
        return WAITING
    return OK if result.reason == "completed" else FAILED


async def _placed(
    runtime: Runtime, session: Session[Any], pending: Iterable[Pending]
) -> list[tuple[Pending, Session[Any]]]:
    """Each with the session whose call it is, this one or a sub-agent's; not those that are gone meanwhile."""
    placed: list[tuple[Pending, Session[Any]]] = []
    for item in pending:
        uid = item.id.split("-")[0]
        with suppress(NotFound):
            placed.append((item, session if uid == session.uid else await runtime.session_by_uid(uid)))
    return placed


async def _settle(place: Session[Any], item: Pending, answer: Answer, interrupts: Interrupts, view: View) -> bool:
    """Asks, unless somebody elsewhere is faster; False if the call is left for later."""
    asker = f"{place.agent} asks, in session {place.id}" if is_child(place) else ""
    asking = asyncio.ensure_future(answer(item, find_call(place.state.run, item.call), asker))
    elsewhere = asyncio.ensure_future(_decided_elsewhere(place, item))
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
        await place.decide(
            item.id,
            decision.decision,
            by=decision.by,
            reason=decision.reason,
            value=decision.value,
            arguments=decision.arguments,
            remember=decision.remember,
        )
    except (Conflict, NotFound, Refused, UsageError) as error:
        # What was refused still waits, so it is asked again.
        view.say(str(error))
    return True


async def _decided_elsewhere(place: Session[Any], item: Pending) -> None:
    seq = place.state.seq
    if item.id not in {pending.id for pending in await place.pending()}:
        return
    async for record in place.stream(after=seq):
        if isinstance(record, Record) and item.id not in {pending.id for pending in await place.pending()}:
            return


class Shown:
    """Shows the run's items in the background, and can wait until all that is committed has been shown."""

    def __init__(self, session: Session[Any], run: Run[Any], view: View) -> None:
        self._session = session
        self._view = view
        self._seqs: dict[str, int] = {}
        self._held: list[Item] | None = None
        self._is_over = False
        self._moved = asyncio.Event()
        self._task = asyncio.ensure_future(self._follow(run))

    async def up_to_date(self, *sessions: Session[Any]) -> None:
        """What is committed may belong to no run or to another one, so nothing newer for a moment is enough."""
        heads = {session.id: session.state.seq for session in sessions}
        with suppress(TimeoutError):
            while not self._is_over and any(self._seqs.get(id, 0) < head for id, head in heads.items()):
                self._moved.clear()
                await asyncio.wait_for(self._moved.wait(), SHOW_PATIENCE)

    @property
    def seq(self) -> int:
        """The last record of the session that was shown."""
        return self._seqs.get(self._session.id, self._session.state.seq)

    async def to_the_end(self) -> None:
        """The stream of a run that is over ends by itself, with the last that its sub-agents did."""
        await asyncio.wait((self._task,), timeout=END_PATIENCE)

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
                if self._held is None:
                    self._view.show(item)
                else:
                    self._held.append(item)
                id = self._session.id
                while isinstance(item, FromChild):
                    id, item = item.session, item.item
                if isinstance(item, Record):
                    self._seqs[id] = item.seq
                    self._moved.set()
        except BrokenPipeError:
            # The run goes on all the same, and the exit code tells how it went.
            abandon_output()
        finally:
            self._is_over = True
            self._moved.set()


class Interrupts:
    """Ctrl-C once stops gracefully, twice cancels, a third time leaves; the log keeps what happened.

    Sub-agents are stopped and cancelled with their parent.
    """

    def __init__(self, session: Session[Any], view: View) -> None:
        self._session = session
        self._view = view
        self._count = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._loop = asyncio.get_running_loop()
        self._loop.add_signal_handler(signal.SIGINT, self._on_signal)

    @property
    def pressed(self) -> bool:
        return self._count > 0

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
