"""Forked processes that do one piece of work in a folder, and may be killed at it."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from time import monotonic

KILLED = -signal.SIGKILL
"""The exit code of a process that SIGKILL ended."""

PATIENCE = 60.0

_POLL_SECONDS = 0.001


async def in_child(folder: Path, work: Callable[[], None], *, kill_after: float = PATIENCE) -> int:
    """Does the work in a forked process; its exit code, negative if a signal ended it."""
    pid = fork(folder, work)
    deadline = monotonic() + kill_after
    try:
        while True:
            code = exit_code(pid)
            if code is not None:
                return code
            if monotonic() >= deadline:
                os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(min(_POLL_SECONDS, max(0.0, deadline - monotonic())))
    except asyncio.CancelledError:
        end(pid)
        raise


def fork(folder: Path, work: Callable[[], None]) -> int:
    """Starts a process with the folder as its current directory; exits with 0, or with 1 and a trace in trace.txt."""
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        # The parent's other threads do not matter: the child touches nothing of theirs.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.chdir(folder)
            # Collecting what the parent made would copy its pages, for nothing.
            gc.freeze()
            code = _work_in_thread(folder, work)
        finally:
            os._exit(code)
    return pid


def exit_code(pid: int) -> int | None:
    """How the process ended; None while it lives."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def end(pid: int) -> None:
    """Kills a process that was not waited for yet."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _work_in_thread(folder: Path, work: Callable[[], None]) -> int:
    """A fresh thread has no running loop and no context, whatever the parent was doing when it forked."""
    failed: list[bool] = []

    def guarded() -> None:
        try:
            work()
        except BaseException:  # noqa: BLE001 - the parent reads the trace from the folder
            failed.append(True)
            (folder / "trace.txt").write_text(traceback.format_exc())

    thread = threading.Thread(target=guarded)
    thread.start()
    thread.join()
    return 1 if failed else 0
