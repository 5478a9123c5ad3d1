"""DBOS as the engine: its queues in PostgreSQL say which process drives which session.

A unit of work is a workflow with a session's uid as its only argument, on the queue of the session's agent, and at most
one waits or runs for a session at a time. Rule 1: DBOS does not take over what a dead process left, so every process
looks for units of owners that are not living and puts them back on their queue. Rule 2: units never fail; what has
still work is found by the sweep. Rule 3: what a session did is in its log, so DBOS remembers no steps.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from dbos import DBOS, Serializer

from perdure.core.errors import StoreError, UsageError
from perdure.ports import Clock, Work
from perdure.runtime.lookout import QUIET_POLL, Lookout, Unavailable
from perdure.runtime.units import Units

T = TypeVar("T")

UNIT = "perdure_drive"
PROTOCOL = "perdure-1"
"""What a unit means: changed only when units of older processes could no longer be carried out."""
POLL_EVERY = 1.0
TAKE_OVER_EVERY = 5
"""Looks: so often units of the dead are looked for although nobody was seen to die."""
FORGET_EVERY = 30
"""Looks: so often finished units are removed."""
KEPT_FOR = timedelta(hours=1)
PAGE = 1000
PAGES = 20
"""So many are removed at a time, so that a look does not take too long."""
LOCKS_HELD_FOR = 3.0


class Json(Serializer):
    """Plain data only: nothing that is read back can run."""

    def serialize(self, data: Any) -> str:
        return json.dumps(data, default=str)

    def deserialize(self, serialized_data: str) -> Any:
        return json.loads(serialized_data)

    def name(self) -> str:
        return "perdure_json"


class DbosEngine:
    """One for a process, because DBOS is. `concurrency`: so many sessions of each queue at once, per process.

    `poll`: so often each process looks at a queue, in seconds: what is submitted waits half of that on average.
    """

    def __init__(
        self,
        url: str,
        clock: Clock,
        *,
        schema: str = "perdure_dbos",
        concurrency: int | None = None,
        queues: Sequence[str] | None = None,
        poll: float = POLL_EVERY,
    ) -> None:
        self.concurrency = concurrency
        self._url = url
        self._clock = clock
        self._schema = schema
        self.queues = queues
        self._poll = poll
        self._served: list[str] = []
        self._work: Work | None = None
        self._dbos: DBOS | None = None
        self._units: Units | None = None
        self._asked: dict[str, str] = {}
        self._asking: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._looks = 0
        self._seen: set[str] = set()

    async def start(self, work: Work) -> None:
        self._served = [queue for queue in work.queues if self.queues is None or queue in self.queues]
        # What is begun past the queues counts as well.
        room = None if self.concurrency is None else self.concurrency * max(1, len(self._served))
        self._units = Units(self._clock, work.drive, room)
        try:
            await asyncio.to_thread(self._launch, work.owner, asyncio.get_running_loop())
        except UsageError:
            raise
        except Exception as error:
            await asyncio.to_thread(DBOS.destroy)
            said = " ".join(str(error).split())
            raise StoreError(
                f"DBOS cannot start ({said}); it needs a PostgreSQL in which it may make tables."
            ) from error
        self._work = work
        begin = partial(self._units.begin_beside, room)
        beside = partial(self._look_after_others, work)
        lookout = Lookout(self._clock, work, self.submit, beside, begin, self._keep_pace)
        self._looking = asyncio.ensure_future(lookout.keep(self._served))

    def submit(self, session: str, queue: str) -> None:
        """Queues it, here or for others; what is driven here already hears of it at once."""
        if self._work is None or self._units is None:
            return
        if self._units.is_under_way(session):
            self._units.begin(session)
            return
        self._asked[session] = queue
        if self._asking is None or self._asking.done():
            self._asking = asyncio.ensure_future(self._ask())

    def wake(self, session: str, queue: str, at: float) -> None:
        if self._units is not None:
            self._units.begin_at(at, session, partial(self.submit, session, queue))

    def cancel(self, session: str) -> None:
        self._asked.pop(session, None)
        if self._units is not None:
            self._units.cancel(session)

    async def drain(self, grace: float) -> None:
        """Units that are broken off stay under our name; who sees us leave puts them back on their queue."""
        if self._work is None:
            return
        self._work = None
        for task in (self._looking, self._asking):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        await asyncio.to_thread(self._take_no_more)
        if self._units is not None:
            await self._units.drain(grace)
        await asyncio.to_thread(DBOS.destroy)

    def _take_no_more(self) -> None:
        """What a queue gives while DBOS ends would be lost on DBOS's closed loop, and found by the sweep only."""
        if self._dbos is not None:
            for event in self._dbos.background_thread_stop_events:
                event.set()
        taking = {f"queue-worker-{_queue(queue)}" for queue in self._served}
        for thread in threading.enumerate():
            if thread.name in taking:
                thread.join(LOCKS_HELD_FOR)

    def _launch(self, owner: str, loop: asyncio.AbstractEventLoop) -> None:
        self._dbos = DBOS(
            config={
                "name": "perdure",
                "system_database_url": self._url,
                "dbos_system_schema": self._schema,
                "executor_id": owner,
                "application_version": PROTOCOL,
                "serializer": Json(),
                "use_listen_notify": False,
                # What it could not do is tried again; what that comes to is said here.
                "log_level": "CRITICAL",
                "sys_db_pool_size": 4,
                # A process that is stopped in the middle of a transaction must not lock the queues for the others.
                "sys_db_idle_transaction_timeout_sec": LOCKS_HELD_FOR,
            }
        )
        if DBOS.executor_id != owner:
            raise UsageError("DBOS runs in this process already; give Perdure's worker a process of its own.")

        async def unit(session: str) -> None:
            # DBOS has a loop of its own; sessions are driven in ours.
            with suppress(asyncio.CancelledError):
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._carry_out(session), loop))

        DBOS.workflow(name=UNIT)(unit)
        DBOS.listen_queues([_queue(queue) for queue in self._served])
        DBOS.launch()
        for queue in self._served:
            DBOS.register_queue(
                _queue(queue),
                worker_concurrency=self.concurrency,
                polling_interval_sec=self._poll,
                on_conflict="always_update",
            )

    async def _carry_out(self, session: str) -> None:
        if self._units is not None and self._work is not None:
            await asyncio.wait([self._units.begin(session)])

    async def _ask(self) -> None:
        """Puts what was submitted on its queue; one that waits there already stands for all that ask for it."""
        while self._asked:
            asked, self._asked = self._asked, {}
            with suppress(Unavailable):
                await _in_thread(partial(_enqueue, asked))

    async def _keep_pace(self, is_quiet: bool) -> None:
        """For all processes that have these queues: they hear the same news."""
        await _in_thread(partial(_poll_every, self._served, max(self._poll, QUIET_POLL) if is_quiet else self._poll))

    async def _look_after_others(self, work: Work) -> None:
        """What dead processes left: it would stand in the way of a new unit."""
        living = await work.living()
        if self._looks % TAKE_OVER_EVERY == 0 or not self._seen.issubset(living):
            await _in_thread(partial(_take_over, living))
        self._seen = set(living)
        self._looks += 1
        if self._looks % FORGET_EVERY == 0:
            await _in_thread(_forget)


async def _in_thread(work: Callable[[], T]) -> T:
    """DBOS's asynchronous functions would give the loop's threads to DBOS, which takes them along when it ends."""
    try:
        return await asyncio.to_thread(work)
    except Exception as error:
        raise Unavailable(f"{type(error).__name__}: {error}") from error


def _queue(agent: str) -> str:
    return f"perdure:{agent}"


def _enqueue(asked: dict[str, str]) -> None:
    for session, agent in asked.items():
        DBOS.enqueue_workflow_with_options(
            {
                "workflow_name": UNIT,
                "queue_name": _queue(agent),
                "app_version": PROTOCOL,
                "deduplication_id": session,
                "duplication_policy": "return-existing",
            },
            session,
        )


def _poll_every(agents: Sequence[str], seconds: float) -> None:
    for agent in agents:
        if (queue := DBOS.retrieve_queue(_queue(agent))) is not None:
            queue.set_polling_interval_sec(seconds)


def _take_over(living: Sequence[str]) -> None:
    under_way = DBOS.list_workflows(name=UNIT, status="PENDING", load_input=False, load_output=False)
    left: dict[str | None, list[str]] = {}
    for unit in under_way:
        if unit.executor_id not in living:
            left.setdefault(unit.queue_name, []).append(unit.workflow_id)
    for queue, units in left.items():
        DBOS.resume_workflows(units, queue_name=queue)


def _forget() -> None:
    before = (datetime.now(UTC) - KEPT_FOR).isoformat()
    for _ in range(PAGES):
        ended = DBOS.list_workflows(
            name=UNIT,
            status=["SUCCESS", "ERROR", "CANCELLED"],
            completed_before=before,
            limit=PAGE,
            load_input=False,
            load_output=False,
        )
        if ended:
            DBOS.delete_workflows([unit.workflow_id for unit in ended])
        if len(ended) < PAGE:
            return
