"""A folder in memory for trials, with what is left of those that went wrong."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.testing.sweep import memory_folder


@pytest.fixture
def arena(tmp_path: Path) -> Iterator[Path]:
    """Where trials live. Each removes its own folder if all is well; what is left is evidence, and is kept."""
    with tempfile.TemporaryDirectory(dir=memory_folder(), prefix="perdure-arena-") as folder:
        yield Path(folder)
        for left in Path(folder).iterdir():
            shutil.copytree(left, tmp_path / left.name, ignore=shutil.ignore_patterns("*-owners"))
