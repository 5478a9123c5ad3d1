"""Watching files for the sessions that have triggers of files, in every process that has their agents.

Rule 1: what the system tells is only a reason to look; what has changed since the last look that is in the log is
worked out anew, so several watchers fire once. Rule 2: nothing that goes wrong with files stops a process.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextlib import suppress
from functools import partial

from perdure.core.errors import Conflict, NotFound, PerdureError, TooNew, UsageError
from perdure.core.events import Event, TriggerSet
from perdure.core.specs import Files
from perdure.core.state import SessionState
from perdure.ports import SessionQuery, SessionRow
from perdure.runtime.ear import Ear
from perdure.runtime.files import compare, load_listing, save_listing, scan
from perdure.runtime.firing import changed_events, watch_events
from perdure.runtime.log import SessionLog, as_kept
from perdure.runtime.world import World

LOOK_EVERY = 2.0
TRIES = 20

Place = tuple[str, str]
"""A session and the name of a trigger."""

Identity = tuple[int, int]
"""Device and number of a file."""


class Watching:
    """One thread listens for all paths; one task looks at what may have changed, trigger by trigger."""

    def __init__(
        self,
        world: World,
        load: Callable[[str], Awaitable[SessionLog]],
        rows: Callable[[SessionQuery], AsyncIterator[SessionRow]],
        submit: Callable[[str], None],
    ) -> None:
        self._world = world
        self._load = load
        self._rows = rows
        self._submit = submit
        self._logs: dict[str, SessionLog] = {}
        self._wanted: dict[Place, Files] = {}
        self._dirty: set[Place] = set()
        self._ear: Ear | None = None
        self._present: dict[str, Identity] = {}
        self._problem = ""
        self._task: asyncio.Task[None] | None = None
        self._finding: asyncio.Task[None] | None = None
        self._looked = float("-inf")
        self._is_over = False

    def hurry(self) -> None:
        """A trigger was set here: look at the next opportunity."""
        self._looked = float("-inf")

    def look(self, agents: Collection[str]) -> None:
        """Finds what is to be watched now, beside everything else: a disk that hangs must hold up nobody."""
        now = self._world.clock.monotonic()
        is_free = not self._is_over and (self._finding is None or self._finding.done())
        if is_free and now - self._looked >= LOOK_EVERY:
            self._looked = now
            self._finding = asyncio.get_running_loop().create_task(self._find(tuple(agents)))

    async def _find(self, agents: Collection[str]) -> None:
        # What the store cannot tell now, it is asked for again soon.
        with suppress(PerdureError):
            await self._find_wanted(agents)

    async def _find_wanted(self, agents: Collection[str]) -> None:
        wanted: dict[Place, Files] = {}
        logs: dict[str, SessionLog] = {}
        async for row in self._rows(SessionQuery(watches=True)):
            if row.agent in agents and (log := await self._log(row)) is not None:
                logs[row.uid] = log
                wanted |= _watched(log)
        self._dirty |= {place for place, files in wanted.items() if self._wanted.get(place) != files}
        self._wanted, self._logs = wanted, logs
        paths = {files.path for files in wanted.values()}
        self._listen(await self._world.threads.submit(partial(_present, paths)) if paths else {})
        self._work()

    async def stop(self) -> None:
        self._is_over = True
        tasks = [task for task in (self._finding, self._task) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listen({})

    async def _log(self, row: SessionRow) -> SessionLog | None:
        try:
            log = self._logs.get(row.uid) or await self._load(row.uid)
            if log.state.seq < row.head:
                await log.refresh()
        except (NotFound, TooNew):
            return None  # deleted meanwhile, or left to newer workers
        return log

    # Listening

    def _listen(self, present: dict[str, Identity]) -> None:
        """To these paths; what happened while nobody did is found by looking."""
        if self._present == present and (self._ear is not None or not present):
            return
        if self._ear is not None:
            self._ear.close()
        self._ear = Ear(present, self._hear, self._go_deaf) if present else None
        if self._present != present:
            self._present = present
            self._dirty |= self._wanted.keys()

    def _hear(self, paths: Iterable[str]) -> None:
        self._problem = ""
        changed = list(paths)
        for path in changed:
            # It may have gone and come back as another one, which this ear does not hear.
            self._present.pop(path, None)
        near = {place for place, files in self._wanted.items() if any(_is_in(path, files.path) for path in changed)}
        # Some systems name a file by another path than the one that was asked for.
        self._dirty |= near or self._wanted.keys()
        self._work()

    def _go_deaf(self, problem: str) -> None:
        self._ear = None
        if self._problem != problem:
            self._problem = problem
            self._dirty |= self._wanted.keys()
            self._work()

    # Looking

    def _work(self) -> None:
        if self._dirty and not self._is_over and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._look_at_all())

    async def _look_at_all(self) -> None:
        while self._dirty:
            place = self._dirty.pop()
            try:
                await self._look_at(place)
            except PerdureError:
                # Whatever it is, it is found when we look the next time, or the session is gone.
                self._wanted.pop(place, None)

    async def _look_at(self, place: Place) -> None:
        uid, name = place
        log, files = self._logs.get(uid), self._wanted.get(place)
        if log is None or files is None:
            return
        for _ in range(TRIES):
            await log.refresh()
            known = log.state.triggers.get(name)
            if known is None or known.is_paused or known.trigger != files:
                return
            news = await self._news(uid, known, files)
            try:
                if await log.propose(partial(_unless_moved, known, news)):
                    self._submit(uid)
                return
            except Conflict:
                continue  # somebody else was first, perhaps with the same news

    async def _news(self, uid: str, known: TriggerSet, files: Files) -> Callable[[SessionState], list[Event]]:
        """What is to be told, for the trigger as it is known."""
        now = self._world.clock.now()
        store, threads = self._world.store, self._world.threads
        try:
            after = await threads.submit(partial(scan, files))
        except (UsageError, OSError) as error:
            problem = str(error)
            self._present.pop(files.path, None)
            return lambda _: watch_events(known, problem, now)
        before = await load_listing(store, uid, known.artifact)
        changes = await threads.submit(partial(compare, files, before, after, now))
        if not changes:
            return lambda _: watch_events(known, self._problem, now)
        artifact = await save_listing(store, uid, after)
        return lambda state: changed_events(state, known, changes, artifact, now)


def _present(paths: Iterable[str]) -> dict[str, Identity]:
    """Those that are there. A folder that was made anew is another one: an ear that hears the old one hears nothing."""
    found: dict[str, Identity] = {}
    for path in paths:
        with suppress(OSError):
            stat = os.stat(path)
            found[path] = (stat.st_dev, stat.st_ino)
    return found


def _watched(log: SessionLog) -> dict[Place, Files]:
    triggers = log.state.triggers.values()
    return {(log.uid, t.name): t.trigger for t in triggers if isinstance(t.trigger, Files) and not t.is_paused}


def _is_in(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip(os.sep) + os.sep)


def _unless_moved(known: TriggerSet, news: Callable[[SessionState], list[Event]], state: SessionState) -> list[Event]:
    if state.triggers.get(known.name) != known:
        raise Conflict(f"The trigger {known.name!r} has changed meanwhile.")
    return [as_kept(event) for event in news(state)]
