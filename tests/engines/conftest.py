"""A PostgreSQL that a test may kill."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.postgres import OwnServer


@pytest.fixture
def server() -> Iterator[OwnServer]:
    server = OwnServer()
    yield server
    server.stop()
