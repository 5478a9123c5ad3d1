"""Restate's server for tests: on loopback, with its state in a folder, so that it may be killed."""

from __future__ import annotations

import asyncio
import os
import platform
import socket
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

PATIENCE = 60.0
PLACE = "restate/node_modules/@restatedev/restate-server-{system}-{machine}/bin/restate-server"
MACHINES = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64"}


def binary() -> str | None:
    """Where `make setup` puts it, or what RESTATE_SERVER names."""
    machine = platform.machine().lower()
    place = PLACE.format(system=platform.system().lower(), machine=MACHINES.get(machine, machine))
    found = Path(os.environ.get("RESTATE_SERVER") or Path(sys.prefix) / place)
    return str(found) if found.is_file() else None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RestateServer:
    def __init__(self, folder: Path) -> None:
        found = binary()
        if found is None:
            pytest.skip("RESTATE IS NOT TESTED: its server is not here; install Node's npm and run `make setup` again")
        self.ingress, self.admin, fabric = (f"127.0.0.1:{free_port()}" for _ in range(3))
        self.serve = f"127.0.0.1:{free_port()}"
        self._folder = folder
        self._command = [found, "--no-logo", "--base-dir", str(folder / "restate"), "--listen-mode", "tcp"]
        self._command += ["--node-name", "test", "--bind-address", fabric, "--advertised-address", f"http://{fabric}"]
        # The smallest that it takes: two partitions, and 64 MB for its tables.
        self._settings = {
            "RESTATE_INGRESS__BIND_ADDRESS": self.ingress,
            "RESTATE_ADMIN__BIND_ADDRESS": self.admin,
            "RESTATE_DEFAULT_NUM_PARTITIONS": "2",
            "RESTATE_ROCKSDB_TOTAL_MEMORY_SIZE": "64MB",
            "RESTATE_ADMIN__DISABLE_WEB_UI": "true",
            "RESTATE_DISABLE_TELEMETRY": "true",
            "RESTATE_LOG_FILTER": "off",
            "DO_NOT_TRACK": "1",
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """What a worker is given as its engine."""
        return f"restate://{self.ingress}?admin={self.admin}&serve={self.serve}"

    async def start(self) -> None:
        env, quiet = {**os.environ, **self._settings}, subprocess.DEVNULL
        self._process = subprocess.Popen(self._command, stdout=quiet, stderr=quiet, cwd=self._folder, env=env)
        deadline = asyncio.get_running_loop().time() + PATIENCE
        async with aiohttp.ClientSession() as client:
            for url in (f"http://{self.admin}/health", f"http://{self.ingress}/restate/health"):
                while not await _is_well(client, url):
                    assert asyncio.get_running_loop().time() < deadline, "Restate did not start"
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


async def _is_well(client: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with client.get(url) as response:
            return response.status == 200
    except aiohttp.ClientError:
        return False
