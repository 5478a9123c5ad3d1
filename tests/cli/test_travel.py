"""Time travel through the real command: back, tagged, renamed, compared, exported, imported, replayed, golden."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import TIMEOUT, Command, agent, in_order
from tests.cli.emulator import Open

AGENT = """
from perdure import Agent, Policy, tool

@tool(effect="read")
async def look(what: str) -> str:
    with open("ledger.txt", "a") as file:
        print("look", what, file=file)
    return f"{what} is fine"

clerk = Agent(name="clerk", tools=[look])
strict = Agent(name="clerk", tools=[look], policy=Policy(deny=["look"]))
"""
SCRIPT = [{"text": "I look.", "calls": [{"name": "look", "arguments": {"what": "it"}}]}, "It is fine.", "Welcome."]


@pytest.fixture
def recorded(perdure: Command) -> Command:
    """A session made by `perdure run` with a scripted model, of two runs."""
    (perdure.folder / "agents.py").write_text(AGENT)
    (perdure.folder / "script.json").write_text(json.dumps(SCRIPT))
    for prompt in ("Look at it", "Thanks"):
        perdure("run", prompt, "--agent", "agents.py:clerk", "--model", "scripted:script.json", "--session", "s")
    return perdure


def heads(perdure: Command) -> dict[str, int]:
    return {row["id"]: row["head"] for row in perdure.objects("sessions", "list")}


def first_end(perdure: Command) -> int:
    records = perdure.objects("sessions", "records", "s")
    return next(record["seq"] for record in records if record["event"]["type"] == "RunEnded")


def test_tags_titles_and_going_back(recorded: Command) -> None:
    perdure, end = recorded, first_end(recorded)
    assert perdure("sessions", "tag", "s") == "s has no tags.\n"
    assert perdure("sessions", "tag", "s", "looked", "--at", str(end)) == f"{end:>6} looked\n"
    assert perdure.objects("sessions", "tag", "s") == [{"session": "s", "tags": {"looked": end}}]
    assert perdure("sessions", "rename", "s", "The \x1b[31mlook") == "s is called 'The \\\\x1b[31mlook' now.\n"
    assert perdure.objects("sessions", "rename", "s", "The look")[0]["title"] == "The look"
    assert "The look" in perdure("sessions", "list")
    shown = perdure("sessions", "show", "s")
    in_order(shown, "s · The look · agent clerk", f"⚑ record {end} is tagged looked", "· it is called 'The look' now")

    said = perdure("sessions", "rewind", "s", "looked")
    assert said == f"s: the conversation is as it was at record {end}, with 4 messages.\n"
    (back,) = perdure.objects("sessions", "rewind", "s", str(end - 4))
    assert back["session"] == "s"
    assert back["at"] <= end - 4
    assert f"↶ the conversation is back at record {end}, by" in perdure("sessions", "show", "s")
    assert "no tag 'gone'" in perdure.call("sessions", "rewind", "s", "gone", code=2).stderr
    assert "there is no record 999" in perdure.call("sessions", "rewind", "s", "999", code=2).stderr


def test_the_session_as_it_was(recorded: Command) -> None:
    perdure, end = recorded, first_end(recorded)
    perdure("sessions", "tag", "s", "looked", "--at", str(end))
    for at in (str(end), "looked"):
        shown = perdure("sessions", "show", "s", "--at", at)
        in_order(shown, "s · agent clerk · idle", f"at record {end} of", "▸ Look at it", "● completed")
        assert "Thanks" not in shown
    (then,) = perdure.objects("sessions", "show", "s", "--at", str(end))
    assert (then["at"], len(then["records"]), len(then["history"])) == (end, end, 4)
    assert then["pending"] == []
    open_then = perdure("sessions", "show", "s", "--at", str(end - 3))
    assert "running" in open_then.splitlines()[0]


def test_two_futures_of_one_past(recorded: Command) -> None:
    perdure, end = recorded, first_end(recorded)
    perdure("sessions", "tag", "s", "looked", "--at", str(end))
    assert perdure("sessions", "fork", "s", "--at", "looked", "--id", "t") == "t\n"
    perdure("run", "And now?", "--agent", "agents.py:clerk", "--model", "scripted:script.json", "--session", "t")
    shown = perdure("sessions", "compare", "s", "t")
    in_order(
        shown, f"s and t: they part after record {end}", "s: ", "tokens", "t: ", "< input Thanks", "> input And now?"
    )
    assert "= answer Welcome." in shown
    (found,) = perdure.objects("sessions", "compare", "s", "t")
    assert (found["parted"], found["left"]["id"], found["right"]["id"]) == (end, "s", "t")
    assert {"left": "answer Welcome.", "right": "answer Welcome.", "same": True} in found["rows"]
    assert "There is no session 'u'" in perdure.call("sessions", "compare", "s", "u", code=2).stderr


def test_out_and_in_again(recorded: Command) -> None:
    perdure = recorded
    lines = perdure("sessions", "export", "s")
    assert perdure("sessions", "export", "s", "--output", "s.jsonl").startswith("s is in s.jsonl, ")
    assert (perdure.folder / "s.jsonl").read_text() == lines
    assert json.loads(lines.splitlines()[0])["perdure"] == 1
    other = ("--store", "sqlite:other.db")
    assert perdure("sessions", "import", "s.jsonl", *other) == f"s is here, {heads(perdure)['s']} records.\n"
    assert perdure("sessions", "export", "s", *other) == lines
    (copied,) = perdure.objects("sessions", "import", "-", "--id", "copy", "--tenant", "acme", input=lines)
    assert copied["session"] == "copy"
    perdure("run", "More", "--agent", "agents.py:clerk", "--model", "scripted:script.json", "--session", "s", code=1)
    taken = perdure.call("sessions", "import", "s.jsonl", code=2).stderr
    assert taken == "perdure: There is a session 's' already; take another --id.\n"
    (perdure.folder / "bad.jsonl").write_text(lines.replace("InputAccepted", "InputDreamed"))
    refused = perdure.call("sessions", "import", "bad.jsonl", "--store", "sqlite:third.db", code=2).stderr
    assert "changed or damaged" in refused
    assert perdure("sessions", "list", "--store", "sqlite:third.db") == "There are no sessions that fit.\n"
    assert "cannot be read" in perdure.call("sessions", "import", "nothing.jsonl", code=2).stderr
    assert "cannot be written" in perdure.call("sessions", "export", "s", "-o", "no/s.jsonl", code=2).stderr


def test_a_history_from_elsewhere(recorded: Command) -> None:
    perdure = recorded
    history = [{"role": "user", "content": "Hi"}, {"role": "tool", "tool_call_id": "a", "content": "?"}]
    (perdure.folder / "h.json").write_text(json.dumps(history))
    told = perdure("sessions", "import", "h.json", "--history", "--agent", "agents.py:clerk", "--id", "h")
    assert told == "h has 1 message; 1 repair.\n  message 2: the result of 'a' has no call, and is dropped\n"
    assert "⇥ 1 message imported from h.json · 1 repair" in perdure("sessions", "show", "h")
    (again,) = perdure.objects("sessions", "import", "h.json", "--history", "-a", "agents.py:clerk", "--id", "h")
    assert (again["messages"], len(again["repairs"])) == (2, 1)
    assert "needs an agent" in perdure.call("sessions", "import", "h.json", "--history", code=2).stderr
    (perdure.folder / "h.json").write_text("{}")
    wrong = perdure.call("sessions", "import", "h.json", "--history", "-a", "agents.py:clerk", code=2).stderr
    assert "no JSON list of messages" in wrong
    for text, sentence in (('[{"foo": 1}]', "has no role"), ("[]", "nothing to import")):
        (perdure.folder / "h.json").write_text(text)
        refused = perdure.call(
            "sessions", "import", "h.json", "--history", "-a", "agents.py:clerk", "--id", "none", code=2
        )
        assert sentence in refused.stderr
    assert "none" not in perdure("sessions", "list"), "what is refused leaves no session behind"


def test_replays_show_what_differs(recorded: Command) -> None:
    perdure = recorded
    ledger = perdure.ledger()
    said = perdure("replay", "s", "--agent", "agents.py:clerk")
    assert said == "s: 2 runs, 3 turns replayed, every decision is the same.\n"
    shown = perdure("replay", "s", "--agent", "agents.py:strict", code=1)
    in_order(
        shown,
        "run 1, before its first turn",
        "≠ agent",
        "run 1, turn 1",
        "≠ check look (call 1)",
        "recorded  look: allow",
        "replayed  look: deny",
        "s: 2 runs, 3 turns replayed, 4 differences.",
    )
    *differences, summary = perdure.objects("replay", "s", "--agent", "agents.py:strict", code=1)
    assert summary == {"identical": False, "differences": len(differences), "runs": 2, "turns": 3}
    (perdure.folder / "other.json").write_text(json.dumps([SCRIPT[0], "It is broken.", "Welcome."]))
    shown = perdure("replay", "s", "--agent", "agents.py:clerk", "--model", "scripted:other.json", code=1)
    in_order(shown, "run 1, turn 2", "recorded  answer It is fine.", "replayed  answer It is broken.")
    assert perdure.ledger() == ledger, "no tool was run"
    assert "belongs to the agent 'clerk'" in perdure.call("replay", "s", code=2).stderr


def test_a_session_that_was_approved_is_replayed(perdure: Command) -> None:
    perdure("run", "Bill order 7", *agent("clerk"), "--session", "order-7", code=3)
    assert "every decision is the same" in perdure("replay", "order-7", *agent("clerk")), "as far as it goes"
    (item,) = perdure.objects("pending")
    perdure("decide", item["id"], "approve", "--by", "ops")
    perdure("resume", "order-7", *agent("clerk"))
    ledger = perdure.ledger()
    assert "1 run, 3 turns replayed, every decision is the same" in perdure("replay", "order-7", *agent("clerk"))
    assert perdure.ledger() == ledger


def pytest_in(folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/golden"],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )


def test_a_golden_test_in_one_command(recorded: Command) -> None:
    perdure = recorded
    env: dict[str, Any] = {**perdure.env, "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    said = perdure("sessions", "golden", "s", "--agent", "agents.py:clerk")
    assert said == "tests/golden/test_s.py replays tests/golden/s.jsonl; run it with pytest tests/golden/test_s.py.\n"
    ledger = perdure.ledger()
    done = pytest_in(perdure.folder, env)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
    changed = AGENT.replace("tools=[look])", 'tools=[look], policy=Policy(ask=["look"]))')
    (perdure.folder / "agents.py").write_text(changed)
    done = pytest_in(perdure.folder, env)
    assert done.returncode == 1, done.stdout
    in_order(done.stdout, "AssertionError: s.jsonl: ", "check look (call 1)", "recorded: look: allow", "1 failed")
    assert perdure.ledger() == ledger, "no tool was run"
    refused = perdure.call("sessions", "golden", "s", "--agent", "agents.py:strict", "--out", "g", code=1)
    assert "does not decide as 's' did" in refused.stderr
    assert not (perdure.folder / "g").exists()
    assert "needs the agent's code" in perdure.call("sessions", "golden", "s", code=2).stderr


def test_columns_where_there_is_room(recorded: Command, terminal: Open) -> None:
    perdure, end = recorded, first_end(recorded)
    perdure("sessions", "fork", "s", "--at", str(end), "--id", "t")
    perdure("run", "And now?", "--agent", "agents.py:clerk", "--model", "scripted:script.json", "--session", "t")
    for columns in (120, 60):
        screen = terminal("sessions", "compare", "s", "t", columns=columns)
        assert screen.end() == 0
        rows = screen.text().splitlines()
        is_beside = any("input Thanks" in row and "≠" in row and "input And now?" in row for row in rows)
        assert is_beside == (columns == 120), screen.text()
        assert max(map(len, rows)) <= columns


def test_tags_are_offered_after_tab(recorded: Command) -> None:
    perdure = recorded
    perdure("sessions", "tag", "s", "looked", "--at", "5")
    for words in ("perdure sessions rewind s lo", "perdure sessions show s --at lo"):
        perdure.env |= {"_PERDURE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        assert perdure().split() == ["looked"]
