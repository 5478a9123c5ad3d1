"""An event loop in a thread of its own, for callers that have none."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from perdure.core.errors import UsageError

T = TypeVar("T")

END_PATIENCE = 1.0


class LoopThread:
    """Runs from its making until it is stopped."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="perdure-loop", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of the work; refuses where waiting for it could never end."""
        if self._pid != os.getpid():
            work.close()
            raise UsageError("This Runtime was opened before fork(); open a new one in the child.")
        if threading.current_thread() is self._thread:
            work.close()
            raise UsageError("run_sync would stop the loop that does the work; in async code use session.run.")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            # Ctrl-C in the caller's thread detaches; the run itself goes on in the log.
            future.cancel()
            raise

    def stop(self) -> None:
        if self._pid == os.getpid():
            self.run(_end_tasks())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


async def _end_tasks() -> None:
    """What was left behind must not be found by the collector: it would complain about tasks that never ended."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=END_PATIENCE)
    loop = asyncio.get_running_loop()
    await loop.shutdown_asyncgens()
    with suppress(TimeoutError):
        await asyncio.wait_for(loop.shutdown_default_executor(), END_PATIENCE)
