from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command import Command
from tests.cli.emulator import Open, Terminal


@pytest.fixture
def perdure(tmp_path: Path) -> Command:
    return Command(tmp_path)


@pytest.fixture
def terminal(perdure: Command) -> Iterator[Open]:
    opened: list[Terminal] = []

    def open_terminal(*arguments: str, columns: int = 80) -> Terminal:
        opened.append(Terminal(perdure, *arguments, columns=columns))
        return opened[-1]

    yield open_terminal
    for number, one in enumerate(opened):
        one.kill()
        one.save(perdure.folder / f"capture-{number}.txt")
