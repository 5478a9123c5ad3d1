"""Temporal as the engine: a workflow with one activity for a session that has work, on the queue of its agent.

The workflow bears the session's uid and its queue, so there is one of each at a time; its activity drives the session
and beats while it does. Rule 1: what Temporal repeats because a beat did not come is refused by the store as long as
the first owner is living. Rule 2: units never fail; what has still work is found by the sweep. Rule 3: Temporal gets
nothing but the uid.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial

from temporalio import activity, workflow
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.common import RetryPolicy, WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from perdure.core.errors import UsageError
from perdure.ports import Clock, Work
from perdure.runtime.lookout import Lookout
from perdure.runtime.units import Units

UNIT = "perdure_drive"
BEAT_EVERY = 1.0
DEAD_AFTER = timedelta(seconds=5)
TASK_TIMEOUT = timedelta(seconds=3)
LONGEST = timedelta(days=365)
MANY = 1000
LONGEST_NAME = 450
ASKED_AT_ONCE = 20

_logger = logging.getLogger("perdure")


@workflow.defn(name=UNIT)
class Drive:
    """One unit."""

    @workflow.run
    async def run(self, session: str) -> None:
        await workflow.execute_activity(
            UNIT,
            session,
            start_to_close_timeout=LONGEST,
            heartbeat_timeout=DEAD_AFTER,
            retry_policy=RetryPolicy(maximum_interval=DEAD_AFTER),
        )


class TemporalEngine:
    """`concurrency`: so many sessions of each queue at once, per process."""

    def __init__(
        self,
        address: str,
        clock: Clock,
        *,
        namespace: str = "default",
        prefix: str = "perdure",
        concurrency: int | None = None,
        queues: Sequence[str] | None = None,
    ) -> None:
        self.concurrency = concurrency
        self._address = address
        self._clock = clock
        self._namespace = namespace
        self._prefix = prefix
        self.queues = queues
        self._client: Client | None = None
        self._units: Units | None = None
        self._workers: list[Worker] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._asked: dict[str, str] = {}
        self._asking: asyncio.Task[None] | None = None

    async def start(self, work: Work) -> None:
        served = [queue for queue in work.queues if self.queues is None or queue in self.queues]
        self._client = await self._connect(work.owner)
        self._units = Units(self._clock, work.drive)
        for queue in served:
            worker = Worker(
                self._client,
                task_queue=self._queue(queue),
                workflows=[Drive],
                activities=[self._unit],
                workflow_runner=UnsandboxedWorkflowRunner(),
                max_concurrent_activities=self.concurrency or MANY,
                # Without a cache no workflow belongs to a process that may be dead.
                max_cached_workflows=0,
                max_heartbeat_throttle_interval=timedelta(seconds=BEAT_EVERY),
                default_heartbeat_throttle_interval=timedelta(seconds=BEAT_EVERY),
            )
            self._workers.append(worker)
            running = asyncio.ensure_future(worker.run())
            running.add_done_callback(partial(self._note_end, queue))
            self._tasks.append(running)
        begin = partial(self._units.begin_beside, self.concurrency)
        lookout = Lookout(self._clock, work, self.submit, _nothing, begin)
        self._tasks.append(asyncio.ensure_future(lookout.keep(served)))

    def submit(self, session: str, queue: str) -> None:
        """Queues it, here or for others; what is driven here already hears of it at once."""
        if self._client is None or self._units is None:
            return
        if self._units.is_under_way(session):
            self._units.begin(session)
            return
        self._asked[session] = queue
        if self._asking is None or self._asking.done():
            self._asking = asyncio.ensure_future(self._ask(self._client))

    def wake(self, session: str, queue: str, at: float) -> None:
        if self._units is not None:
            self._units.begin_at(at, session, partial(self.submit, session, queue))

    def cancel(self, session: str) -> None:
        self._asked.pop(session, None)
        if self._units is not None:
            self._units.cancel(session)

    async def drain(self, grace: float) -> None:
        if self._client is None or self._units is None:
            return
        self._client = None
        lookout = self._tasks.pop()
        for task in (lookout, self._asking):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        await self._units.drain(grace)
        for worker in self._workers:
            await worker.shutdown()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connect(self, owner: str) -> Client:
        """Temporal lets anybody connect; whether the namespace is there has to be asked."""
        try:
            client = await Client.connect(self._address, namespace=self._namespace, identity=owner)
            await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=self._namespace))
        except (RuntimeError, RPCError) as error:
            if isinstance(error, RPCError) and error.status is RPCStatusCode.NOT_FOUND:
                there = f"Temporal at {self._address} has no namespace {self._namespace!r}"
                raise UsageError(f"{there}; make it there, or name another one.") from None
            # What the client says of it is a Rust error of three lines; --debug shows it.
            raise UsageError(
                f"Temporal does not answer at {self._address}; start it first, or mend the address."
            ) from error
        return client

    def _note_end(self, queue: str, running: asyncio.Task[None]) -> None:
        """Nobody waits for it; the lookout goes on with its sessions, later."""
        error = None if running.cancelled() else running.exception()
        if error is not None and self._client is not None:
            said = " ".join(str(error).split())
            _logger.warning("Temporal's worker of the queue %s has ended, start this process again: %s", queue, said)

    @activity.defn(name=UNIT)
    async def _unit(self, session: str) -> None:
        if self._units is None or self._client is None:
            return
        unit = self._units.begin(session)
        while not unit.done():
            activity.heartbeat()
            await asyncio.wait([unit], timeout=BEAT_EVERY)

    async def _ask(self, client: Client) -> None:
        """One that waits or runs already stands for all that ask for it."""
        while self._asked:
            asked = [self._asked.popitem() for _ in range(min(ASKED_AT_ONCE, len(self._asked)))]
            with suppress(RPCError):  # out of order for a while: the sweep asks again
                await asyncio.gather(*(self._start(client, session, queue) for session, queue in asked))

    async def _start(self, client: Client, session: str, queue: str) -> None:
        await client.start_workflow(
            UNIT,
            session,
            # One that waits on a queue which nobody serves must not stand in the way of another.
            id=f"{self._prefix}:{session[:LONGEST_NAME]}:{queue[:LONGEST_NAME]}",
            task_queue=self._queue(queue),
            task_timeout=TASK_TIMEOUT,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        )

    def _queue(self, agent: str) -> str:
        return f"{self._prefix}:{agent}"


async def _nothing() -> None:
    """Temporal itself looks after what dead processes left."""
