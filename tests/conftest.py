"""What tests recorded as figures with `record_property("figure: …", n)`, added up at the end of the report."""

from __future__ import annotations

from collections import Counter

import pytest

PREFIX = "figure: "


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
