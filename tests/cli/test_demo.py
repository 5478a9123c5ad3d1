"""`perdure demo`: the story is true, and a ledger that is not what it must be fails it loudly."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.cli.demo_story import EXPECTED
from tests.cli.command import TIMEOUT, Command, in_order

ROOT = Path(__file__).parents[2]


def start_and_plant(perdure: Command, plant: Callable[[list[str]], list[str]]) -> subprocess.Popen[str]:
    """The real demo, whose ledger is changed from outside as soon as the first process has written its part."""
    perdure.env["TMPDIR"] = str(perdure.folder)
    started = perdure.start("demo", "--json")
    deadline = time.monotonic() + TIMEOUT
    while len(lines := _ledger(perdure)) < 3:
        assert time.monotonic() < deadline
        assert started.poll() is None
        time.sleep(0.01)
    (ledger,) = perdure.folder.glob("perdure-demo-*/ledger.jsonl")
    ledger.write_text("\n".join(plant(lines)) + "\n")
    return started


def _ledger(perdure: Command) -> list[str]:
    return [
        line for path in perdure.folder.glob("perdure-demo-*/ledger.jsonl") for line in path.read_text().splitlines()
    ]


def test_it_tells_the_story_without_a_terminal(perdure: Command) -> None:
    """The core part of `make demo`, in a folder of its own; offline, and in a few seconds."""
    perdure.env["TMPDIR"] = str(perdure.folder)
    started = time.monotonic()
    shown = perdure("demo")
    assert time.monotonic() - started < 60
    in_order(
        shown,
        "Its model is scripted",
        "1  The agent works",
        "2  SIGKILL",
        "3  A new process",
        "‖ in doubt · mail(",
        "There is no terminal to press a key in",
        "▹ approved · ship(",
        "4  The ledger",
        *(f"✓ once  {what}" for what in EXPECTED),
        "Nothing was done twice, nothing was lost.",
    )
    assert "[/" not in shown, "markup is for terminals"
    assert not list(perdure.folder.glob("perdure-demo-*")), "it cleans up"


def test_it_speaks_json(perdure: Command) -> None:
    (said,) = perdure.objects("demo")
    assert (said["ok"], said["problems"]) == (True, [])
    assert sorted(said["ledger"]) == sorted(EXPECTED)


@pytest.mark.parametrize(
    ("plant", "problem"),
    [
        (lambda lines: [*lines, lines[0]], "the ledger has 'reserved 7' 2 times instead of once"),
        (lambda lines: lines[1:], "the ledger has 'reserved 7' never instead of once"),
        (
            lambda lines: [*lines, lines[0].replace("reserved 7", "reserved 8")],
            "the ledger has 'reserved 8' once instead of never",
        ),
    ],
    ids=["doubled", "missing", "unexpected"],
)
def test_it_fails_loudly(perdure: Command, plant: Callable[[list[str]], list[str]], problem: str) -> None:
    started = start_and_plant(perdure, plant)
    shown, story = started.communicate(timeout=TIMEOUT)
    assert started.returncode == 1
    assert json.loads(shown)["problems"] == [problem]
    in_order(story, "✗ ", "The demo failed.", problem)
    assert "Nothing was done twice" not in story


def test_interrupted_it_leaves_no_process_behind(perdure: Command) -> None:
    started = start_and_plant(perdure, lambda lines: lines)
    workers = {json.loads(line)["process"] for line in _ledger(perdure)}
    started.send_signal(signal.SIGINT)
    _, said = started.communicate(timeout=TIMEOUT)
    assert started.returncode == 1
    assert "Traceback" not in said
    for worker in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(worker, 0)


def test_make_demo_runs_it() -> None:
    make = ["make", "--no-print-directory", "-n", "demo"]
    recipe = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert recipe.splitlines()[-1] == ".venv/bin/perdure demo"
