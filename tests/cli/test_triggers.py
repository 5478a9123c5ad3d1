"""Triggers through the real command: added, listed, paused, resumed, removed, fired by a process that is open."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import TIMEOUT, Command, in_order

AGENT = """
from perdure import Agent
from perdure.testing import ScriptedModel

clerk = Agent(name="clerk")
scripted = Agent(name="clerk", model=ScriptedModel(lambda request: "Done."))
"""

WORKER = """
import asyncio
from agents import scripted
from perdure import Record, Runtime
from perdure.events import RunEnded

async def main():
    async with Runtime("sqlite:data/x.db", agents=[scripted]) as runtime:
        session = await runtime.session("desk")
        async for item in session.stream():
            if isinstance(item, Record) and isinstance(item.event, RunEnded):
                return

asyncio.run(main())
"""

DESK = ("--agent", "agents.py:clerk")


@pytest.fixture
def desk(perdure: Command) -> Command:
    (perdure.folder / "agents.py").write_text(AGENT)
    (perdure.folder / "data").mkdir(exist_ok=True)
    perdure.env["PERDURE_STORE"] = "sqlite:data/x.db"
    return perdure


def test_a_life_of_triggers(desk: Command) -> None:
    daily = ("Write the report of {date}", "--cron", "0 9 * * 1-5", "--tz", "Europe/Berlin")
    said = desk("triggers", "add", "desk", "daily", *daily, *DESK)
    assert said.startswith("desk: daily is set: 0 9 * * 1-5 (Europe/Berlin) · waiting · next ")
    (added,) = desk.objects("triggers", "add", "desk", "often", "Look", "--every", "90", "--missed", "all")
    assert added["session"] == "desk"
    assert (added["trigger"]["trigger"], added["trigger"]["missed"]) == ({"type": "every", "seconds": 90.0}, "all")
    desk("triggers", "add", "desk", "eve", "Be nice", "--at", "2199-12-24 18:00", "--busy", "refuse")
    desk("triggers", "add", "desk", "inbox", "Read {path}", "--files", "in", "--pattern", "*.csv")
    shown = desk("triggers", "list")
    in_order(shown, "desk · often · every 1 min 30 s", "waiting · next", "fired 0 times", "Look")
    in_order(shown, "desk · daily", "desk · eve · at 2199-12-24 18:00 (UTC)", f"files {desk.folder}/in *.csv")
    in_order(shown, "! Not watched: There is no file or folder")
    assert [row["trigger"]["name"] for row in desk.objects("triggers", "list")] == ["often", "daily", "eve", "inbox"]
    assert desk("triggers", "list", "--tenant", "acme") == "There are no triggers.\n"

    assert desk("triggers", "pause", "desk", "daily") == "desk: daily · 0 9 * * 1-5 (Europe/Berlin) · paused\n"
    (resumed,) = desk.objects("triggers", "resume", "desk", "daily")
    assert resumed["trigger"]["next_at"] > 0
    assert desk("triggers", "remove", "desk", "daily") == "desk: daily · removed\n"
    assert desk.objects("triggers", "remove", "desk", "often") == [
        {"session": "desk", "name": "often", "trigger": None}
    ]
    in_order(
        desk("sessions", "show", "desk"),
        "⏲ trigger daily · 0 9 * * 1-5 (Europe/Berlin) · waiting",
        "⏲ trigger daily · 0 9 * * 1-5 (Europe/Berlin) · paused",
        "⏲ trigger daily · removed",
    )
    assert "desk" in desk("sessions", "list")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("add", "desk", "t", "Look"), "exactly one of --every, --cron, --at and --files"),
        (("add", "desk", "t", "Look", "--every", "9", "--at", "2199-01-01"), "exactly one of"),
        (("add", "desk", "t", "Look {nothing}", "--every", "9"), "which nothing fills in"),
        (("add", "desk", "t", "Look", "--every", "0"), "at least 1"),
        (("add", "desk", "t", "Look", "--cron", "99 * * * *"), "bad minute"),
        (("add", "desk", "t", "Look", "--cron", "0 9 * * *", "--tz", "Mars"), "no time zone 'Mars'"),
        (("add", "desk", "t", "Look", "--at", "2001-01-01"), "has passed"),
        (("add", "desk", "t", "Look", "--every", "9", "--missed", "never"), "missed='never'"),
        (("add", "desk", "t", "Look", "--every", "9", "--busy", "wait"), "busy='wait'"),
        (("add", "nobody", "t", "Look", "--every", "9"), "or --agent FILE.py:NAME opens it"),
        (("remove", "desk", "t"), "has no trigger 't'"),
        (("pause", "nobody", "t"), "There is no session 'nobody'"),
    ],
)
def test_what_cannot_be_is_one_sentence(desk: Command, arguments: tuple[str, ...], said: str) -> None:
    desk("triggers", "add", "desk", "other", "Look", "--every", "90", *DESK)
    done = desk.call("triggers", *arguments, code=2)
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_help_has_an_example_for_every_command(desk: Command) -> None:
    assert "Example: perdure triggers add" in " ".join(desk("triggers").split())
    for command in ("list", "add", "pause", "resume", "remove"):
        assert f"Example: perdure triggers {command}" in " ".join(desk("triggers", command, "--help").split())


def test_an_open_process_fires_what_was_added_beside_it(desk: Command) -> None:
    desk("triggers", "add", "desk", "other", "Look", "--every", "9000", *DESK)
    (desk.folder / "worker.py").write_text(WORKER)
    worker = subprocess.Popen([sys.executable, "worker.py"], cwd=desk.folder, env=desk.env, stderr=subprocess.PIPE)
    try:
        desk("triggers", "add", "desk", "soon", "Look {count}", "--every", "1")
        _, errors = worker.communicate(timeout=TIMEOUT)
        assert worker.returncode == 0, errors
    finally:
        worker.kill()
        worker.wait()
    rows = {row["trigger"]["name"]: row["trigger"] for row in desk.objects("triggers", "list")}
    assert rows["soon"]["fired"] >= 1
    assert "▸ Look 1" in desk("sessions", "show", "desk")


def test_the_shell_is_offered_names(desk: Command) -> None:
    desk("triggers", "add", "desk", "daily", "Look", "--every", "90", *DESK)
    env = {
        **desk.env,
        "_PERDURE_COMPLETE": "complete_bash",
        "COMP_WORDS": "perdure triggers pause desk ",
        "COMP_CWORD": "4",
    }
    perdure = Path(sys.executable).parent / "perdure"
    done = subprocess.run([perdure], cwd=desk.folder, env=env, text=True, capture_output=True, timeout=TIMEOUT)
    assert "daily" in done.stdout.split(), json.dumps([done.stdout, done.stderr])
