"""Which tests `make check` leaves out, and what tests recorded as figures with `record_property("figure: …", n)`."""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.memory import roomy_folder
from tests.postgres import OwnServer, start_postgres

# pytest's own name for the folder in which tmp_path lies.
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(roomy_folder()))

PREFIX = "figure: "
SLOW_FILES = ("test_docs.py", "test_sqlite_processes.py", "test_user_sweep.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that start whole processes again and again are for `make test`."""
    for item in items:
        if item.path.parent.name == "cli" or item.path.name in SLOW_FILES:
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Thousands of tests are objects that live to the end: the collector need not look at them again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def postgres() -> str:
    """The address of a PostgreSQL server; all workers of a test run share one."""
    return start_postgres(os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid())))


@pytest.fixture
def server() -> Iterator[OwnServer]:
    """A PostgreSQL that one test may crash."""
    own = OwnServer()
    yield own
    own.stop()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    figures: Counter[str] = Counter()
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name.startswith(PREFIX):
                figures[name.removeprefix(PREFIX)] += value
    if figures:
        terminalreporter.section("figures")
        for name, value in sorted(figures.items()):
            terminalreporter.line(f"{value:>7,} {name}")
