"""Every example runs offline as it stands, says what it promises, and does nothing twice when it is run again."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from perdure import Runtime
from perdure.ports import SessionRow

EXAMPLES = Path(__file__).parent.parent / "examples"
TIMEOUT = 100
SAID = {
    "supervisor": "Most was spent on wages: 5400 euros.\n3 workers, 120 tokens in all\n",
    "pipeline": "Rain is water that falls nearly everywhere, and without it nothing grows.\n",
    "debate": "The judge is against it: Tests can be had without a rewrite.\n",
    "router": "  shipping: Your parcel is at the depot; it comes tomorrow.\n",
    "map_items": "30 bad\n30 good\n",
}
SESSIONS = {"supervisor": 4, "pipeline": 3, "debate": 3, "router": 2, "map_items": 60}
OPTIONS = {"map_items": ["--items", "60"]}
LONGEST = 70


def start(example: str, folder: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", EXAMPLES / f"{example}.py", *options],
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def run(example: str, folder: Path, *options: str) -> str:
    process = start(example, folder, *options)
    said, errors = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, errors) == (0, ""), errors
    return said


async def rows(store: Path) -> dict[str, SessionRow]:
    async with Runtime(f"sqlite:{store}", engine=None) as runtime:
        return {row.id: row async for row in runtime.sessions(children=True)}


async def heads(folder: Path, example: str) -> dict[str, int]:
    """How many records each session has."""
    return {id: row.head for id, row in (await rows(folder / f"{example}.db")).items()}


def test_every_example_is_here_and_short() -> None:
    pages = {page.stem: page.read_text() for page in EXAMPLES.glob("*.py")}
    assert pages.keys() >= SAID.keys()
    assert {name: len(text.splitlines()) for name, text in pages.items() if len(text.splitlines()) > LONGEST} == {}
    guide = "".join(page.read_text() for page in (EXAMPLES.parent / "docs").glob("*.md"))
    assert [name for name in pages if f"examples/{name}.py" not in guide] == [], "each has its line in the docs"


@pytest.mark.parametrize("example", SAID)
async def test_an_example_runs_twice_and_works_once(example: str, tmp_path: Path) -> None:
    options = OPTIONS.get(example, [])
    assert run(example, tmp_path, *options).endswith(SAID[example])
    before = await heads(tmp_path, example)
    assert len(before) == SESSIONS[example]
    assert run(example, tmp_path, *options).endswith(SAID[example])
    assert await heads(tmp_path, example) == before, "not one record is new"


async def test_the_supervisor_shows_what_its_workers_find(tmp_path: Path) -> None:
    said = run("supervisor", tmp_path)
    for number, found in enumerate(("1200 euros", "5400 euros", "310 euros"), 1):
        assert f"  worker {number} found {found}\n" in said
    again = run("supervisor", tmp_path)
    assert sorted(again.splitlines()) == sorted(said.splitlines()), "the log tells it once more, and nobody works again"


async def test_a_map_that_is_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    store = tmp_path / "map_items.db"
    killed = start("map_items", tmp_path, "--items", "400", "--at-once", "10")
    deadline = time.monotonic() + TIMEOUT
    while not store.exists() or len(await rows(store)) < 40:
        assert time.monotonic() < deadline, "it did not begin in time"
        assert killed.poll() is None, "it was over before it could be killed"
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate(timeout=TIMEOUT)
    before = await rows(store)
    done = {id: row.head for id, row in before.items() if row.status == "idle" and row.head > 1}
    assert 0 < len(done) < 400
    assert run("map_items", tmp_path, "--items", "400", "--at-once", "10") == "200 bad\n200 good\n"
    after = await rows(store)
    assert len(after) == 400
    assert {id: after[id].head for id in done} == done, "what was finished was left alone"
    assert {row.status for row in after.values()} == {"idle"}


def test_a_map_has_a_bar_on_a_terminal_only(tmp_path: Path) -> None:
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, EXAMPLES / "map_items.py", "--items", "20"],
        cwd=tmp_path, env={**os.environ, "TERM": "xterm"}, text=True, stdout=subprocess.PIPE, stderr=slave,
    )  # fmt: skip
    os.close(slave)
    said, _ = process.communicate(timeout=TIMEOUT)
    shown = os.read(master, 1_000_000).decode()
    os.close(master)
    assert said == "10 bad\n10 good\n"
    assert "grading" in shown
    assert "100%" in shown
