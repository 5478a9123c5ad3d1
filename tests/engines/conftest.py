"""A PostgreSQL that a test may kill."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgres import Server


@pytest.fixture
def server() -> Iterator[Server]:
    """PostgreSQL's user may have to get into the folder, which it cannot below that of the test."""
    folder = Path(tempfile.mkdtemp(prefix="perdure-"))
    folder.chmod(0o755)
    server = Server(folder / "data")
    yield server
    server.stop()
    shutil.rmtree(folder, ignore_errors=True)
