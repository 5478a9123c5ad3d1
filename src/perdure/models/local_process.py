"""LocalServer: the process that serves one file of weights to every model of this process that wants it.

Rule: it is started when it is first asked for, ends with its last user or with this process, however that dies, and is
started again if it died. It belongs to no event loop and to no thread.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import secrets
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import IO
from weakref import WeakSet

import msgspec

from perdure.core.errors import ModelError, UsageError

SCRIPT = Path(__file__).with_name("local_server.py")
MAX_WINDOW = 8192
START_SECONDS = 120.0
DYING_LOOKS = 50
_POLL_SECONDS = 0.02
_LOG_PREFIX = " E "


class LocalEndpoint(msgspec.Struct, frozen=True):
    """Where a server listens, and the key that it wants; both are new whenever it is started."""

    address: str
    key: str

    def __repr__(self) -> str:
        return f"LocalEndpoint({self.address!r})"


class _Running(msgspec.Struct):
    """One life of the process. `parent` tells a fork that this is not its child."""

    process: subprocess.Popen[bytes]
    errors: IO[bytes]
    key: str
    parent: int
    said: bytes = b""
    endpoint: LocalEndpoint | None = None


class LocalServer:
    def __init__(self, weights: Path) -> None:
        self.weights = weights
        self._lock = Lock()
        self._users: WeakSet[object] = WeakSet()
        self._running: _Running | None = None

    async def endpoint(self, user: object) -> LocalEndpoint:
        """Where it listens, once it does; from now on `user` needs it."""
        deadline = monotonic() + START_SECONDS
        while True:
            with self._lock:
                self._users.add(user)
                found = self._look()
            if found is not None:
                return found
            if monotonic() > deadline:
                with self._lock:
                    self._end()
                raise ModelError(
                    f"The server of {self.weights.name} was not ready after {START_SECONDS:.0f} seconds; try a smaller "
                    "model, or a machine that is less busy.",
                    kind="connect",
                )
            await asyncio.sleep(_POLL_SECONDS)

    async def dying(self) -> None:
        """Waits for the end of a process that broke a connection: its threads may outlive its sockets for a moment."""
        for _ in range(DYING_LOOKS):
            if self.pid is None:
                break
            await asyncio.sleep(_POLL_SECONDS)

    def leave(self, user: object) -> None:
        """The last one to leave ends it."""
        with self._lock:
            self._users.discard(user)
            if not self._users:
                self._end()

    @property
    def pid(self) -> int | None:
        """Of the process, while it runs."""
        running = self._running
        return running.process.pid if running and running.process.poll() is None else None

    def _look(self) -> LocalEndpoint | None:
        """One look: starts what is not there, reads what it has said; None while it is not ready."""
        running = self._running
        if running is None or running.parent != os.getpid():
            self._running = _start(self.weights)
            return None
        code = running.process.poll()
        if code is not None:
            self._running = None
            why = _last_words(running)
            _close(running)
            if running.endpoint is None:
                raise _no_start(self.weights, code, why)
            return None
        if running.endpoint is None:
            _listen(running)
        return running.endpoint

    def _end(self) -> None:
        running, self._running = self._running, None
        if running is not None and running.parent == os.getpid():
            running.process.kill()
            running.process.wait()
            _close(running)


def check_extra() -> None:
    if importlib.util.find_spec("xllamacpp") is None:
        raise UsageError("Local models need an extra; install it with pip install 'perdure[local]'.")


def _start(weights: Path) -> _Running:
    check_extra()
    if not weights.is_file():
        raise ModelError(f"{weights} is not there any more; pull the model again.", kind="not_found")
    key = secrets.token_urlsafe(16)
    errors = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
    # By its path and without the current folder, where a file might have the name of a module. In a session of its own:
    # a Ctrl-C is for us, and the answer that is under way may still be wanted.
    process = subprocess.Popen(
        [sys.executable, "-P", str(SCRIPT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        env={"OMP_WAIT_POLICY": "passive", **os.environ},
        start_new_session=True,
        bufsize=0,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    order = {"weights": str(weights), "window": MAX_WINDOW, "threads": _cores(), "key": key, "parent": os.getpid()}
    with suppress(BrokenPipeError):
        process.stdin.write(json.dumps(order).encode() + b"\n")
    os.set_blocking(process.stdout.fileno(), False)
    return _Running(process, errors, key, os.getpid())


def _cores() -> int:
    """Those that this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _listen(running: _Running) -> None:
    """Takes in what it has said; its first line has its address."""
    assert running.process.stdout is not None
    running.said += running.process.stdout.read() or b""
    line, end, _ = running.said.partition(b"\n")
    if end:
        running.endpoint = LocalEndpoint(json.loads(line)["address"], running.key)


def _close(running: _Running) -> None:
    for file in (running.process.stdin, running.process.stdout, running.errors):
        if file is not None:
            file.close()


def _last_words(running: _Running) -> str:
    """The first error that it logged, which is the cause of the others, or its last line."""
    running.errors.seek(0)
    lines = [line for line in running.errors.read().decode(errors="replace").splitlines() if line.strip()]
    logged = [words for line in lines if (words := line.partition(_LOG_PREFIX)[2].strip())]
    return (logged or lines[-1:] or [""])[0].strip().rstrip(".")


def _no_start(weights: Path, code: int, why: str) -> ModelError:
    """A server that gave up will do so again; one that a signal ended may have met a shortage of memory."""
    if code < 0:
        return ModelError(f"The server of {weights.name} was ended by signal {-code} while it started.", kind="connect")
    if "libgomp" in why:
        return ModelError(f"Local models cannot run ({why}); install the system's package libgomp1.", kind="not_found")
    return ModelError(
        f"{weights.name} cannot be loaded ({why or f'exit code {code}'}); pull it again, or take another file.",
        kind="not_found",
    )
