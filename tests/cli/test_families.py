"""Sub-agents and messages at the command line: shown while they work, asked for from the root, listed and ended."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from perdure.cli.canvas import SPINNER
from tests.cli.command import TIMEOUT, Command, in_order
from tests.cli.emulator import Open
from tests.cli.test_screens import CTRL_C, MENU, flat

FAMILIES = str(Path(__file__).parent / "families.py")
POSTMAN = "boss.secretary-1.postman-1"


def agent(name: str) -> tuple[str, str]:
    return ("--agent", f"{FAMILIES}:{name}")


@pytest.fixture(autouse=True)
def importable(perdure: Command) -> None:
    root = str(Path(__file__).parent.parent.parent)
    perdure.env["PYTHONPATH"] = f"{root}:{perdure.env.get('PYTHONPATH', '')}"


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def tree(perdure: Command, session: str) -> dict[str, Any]:
    return {row["session"]: row for row in perdure.objects("sessions", "tree", session)}


def test_what_sub_agents_do_is_shown_below_their_calls(perdure: Command) -> None:
    shown = perdure("run", "go", *agent("lead"), "--session", "root")
    for call, topic in (("1", "cats"), ("2", "dogs")):
        in_order(
            shown,
            f'\n⇢ researcher(input="{topic}") · researcher works on it in session root.researcher-{call}',
            f"\n  researcher {call} “ I will look.",
            f'\n  researcher {call} ✓ lookup(topic="{topic}") → {topic}: all there is to know',
            f"\n  researcher {call} ● completed · 2 turns · 30 tokens · $0.0030",
            f'\n✓ researcher(input="{topic}") → Of {topic} I know all. · 30 tokens · $0.0030',
            "Cats and dogs.",
            "● completed · 2 turns · 90 tokens · $0.0090",
        )
    assert "▸ cats" not in shown, "what it was told stands in the call"


def test_child_items_are_objects_of_their_own(perdure: Command) -> None:
    items = perdure.objects("run", "go", *agent("chief"), "--session", "boss", "--yes")
    below = [item for item in items if "item" in item]
    assert {(item["session"], item["agent"], item["call"]) for item in below} == {("boss.secretary-1", "secretary", 1)}
    records = [item["item"] for item in below if "event" in item["item"]]
    numbers = [record["seq"] for record in records]
    assert (numbers[0], numbers) == (2, sorted(set(numbers))), "every record of its run, in order"
    deeper = [item["item"] for item in below if "item" in item["item"]]
    assert {(item["session"], item["agent"], item["call"]) for item in deeper} == {(POSTMAN, "postman", 1)}
    kinds = [item["item"]["event"]["type"] for item in deeper if "event" in item["item"]]
    assert (kinds[0], kinds[-1]) == ("InputAccepted", "RunEnded")
    assert any("delta" in item["item"] for item in deeper)
    assert items[-1]["result"]["usage"] == {"input": 60, "output": 30}, "all of the tree"


def test_a_grandchild_is_decided_and_resumed_from_the_root(perdure: Command) -> None:
    shown = perdure("run", "go", *agent("chief"), "--session", "boss", code=3)
    in_order(
        shown,
        "\n  secretary 1 ⇢ postman(",
        "\n    postman 1.1 ‖ approval · mail(",
        f"● waiting for 1 decision\n  mail of session {POSTMAN}:\n  perdure decide ",
        "perdure resume boss --agent",
    )
    (item,) = perdure.objects("pending")
    assert (item["session"], item["agent"], item["root"]) == (POSTMAN, "postman", "boss")
    assert f"session {POSTMAN} · postman, sub-agent of session boss" in perdure("pending")
    assert f"‖ session {POSTMAN}: perdure decide {item['id']} approve" in perdure("sessions", "show", "boss")

    refused = perdure.call("resume", POSTMAN, *agent("postman"), code=2).stderr
    assert refused == (
        f"perdure: Session {POSTMAN!r} is a sub-agent's; go on with the one that it works for: "
        "perdure resume boss --agent FILE.py:NAME\n"
    )
    assert "is a sub-agent's" in perdure.call("run", "x", *agent("postman"), "-s", POSTMAN, code=2).stderr

    said = perdure("decide", item["id"], "approve")
    assert f"{POSTMAN}: approve is recorded; nobody drives the session now: perdure resume boss --agent" in said
    in_order(perdure("resume", "boss", *agent("chief")), "postman 1.1 ▹ approved", "All is arranged.", "● completed")
    assert perdure.ledger() == ["mail ann@example.org 30"]


@pytest.mark.parametrize("columns", [80, 160])
def test_the_terminal_asks_for_a_descendant(perdure: Command, terminal: Open, columns: int) -> None:
    screen = terminal("run", "go", *agent("chief"), "--session", "boss", columns=columns)
    shown = screen.until(MENU)
    in_order(
        shown,
        "  secretary 1 ⇢ postman(",
        "    postman 1.1 ‖ approval · mail(",
        f"▸ postman asks, in session {POSTMAN}\n",
        '    text  "Dear friend, this is a letter."',
        '    to    "ann@example.org"',
    )
    if columns == 80:
        assert re.search(r"\n {16}  \S", shown), "what goes on in a second line stands below its own beginning"
    screen.type("e\r")
    screen.until('arguments > {"text":')
    screen.type('\x15{"to": "bob@example.org", "text": "Hi"}\r')
    assert screen.end() == 0
    assert perdure.ledger() == ["mail bob@example.org 2"]
    in_order(flat(screen.text()), "postman 1.1 ▹ approved with other arguments", "All is arranged.", "● completed")


def test_another_terminal_decides_for_a_descendant(perdure: Command, terminal: Open) -> None:
    screen = terminal("run", "go", *agent("chief"), "--session", "boss")
    screen.until(MENU)
    (item,) = perdure.objects("pending")
    perdure("decide", item["id"], "deny", "--by", "ops", "--reason", "no")
    assert screen.end() == 0
    shown = flat(screen.text())
    in_order(shown, MENU, "postman 1.1 ▹ denied · mail(", "by ops", "● completed")
    assert shown.count(MENU) == 1, "it is asked once"


def test_ctrl_c_at_a_descendants_question_stops_the_whole_tree(perdure: Command, terminal: Open) -> None:
    screen = terminal("run", "go", *agent("chief"), "--session", "boss")
    screen.until(MENU)
    screen.type(CTRL_C)
    assert screen.end() == 1
    in_order(flat(screen.text()), "■ stop requested by Ctrl-C", "postman 1.1 ● stopped", "● stopped · by Ctrl-C")
    assert {row["status"] for row in tree(perdure, "boss").values()} == {"idle"}


def test_ctrl_c_ends_children_at_work(perdure: Command, terminal: Open) -> None:
    screen = terminal("run", "go", *agent("night"), "--session", "n")
    screen.until("sleeper 1 · wait(seconds=30)")
    for said in ("■ stop requested by Ctrl-C", "■ cancel requested by Ctrl-C"):
        screen.type(CTRL_C)
        screen.until(said)
    assert screen.end() == 1
    in_order(flat(screen.text()), "sleeper 1 ? wait(seconds=30) → unknown", "sleeper 1 ● cancelled", "● cancelled")
    assert [row["last"] for row in tree(perdure, "n").values()] == ["cancelled", "cancelled"]


def test_a_chat_shows_and_asks_for_a_descendant_once(perdure: Command, terminal: Open) -> None:
    screen = terminal("chat", *agent("chief"), "--session", "boss")
    screen.until("/help")
    screen.type("go\r")
    screen.until(MENU)
    screen.type("l\r")
    screen.until("● waiting for 1 decision")
    screen.type("/tree\r")
    screen.until(f"└ ● {POSTMAN} · agent postman · waiting")
    screen.type("/pending\r")
    shown = screen.wait_for(lambda shown: shown.count(MENU) == 2, "the question again")
    assert shown.count("‖ approval · mail(") == 1, "what was shown is not shown again"
    screen.type("a\r")
    screen.until("All is arranged.", "● completed")
    screen.type("/quit\r")
    assert screen.end() == 0
    assert perdure.ledger() == ["mail ann@example.org 30"]


def test_children_that_a_dead_process_left_go_on_with_their_root(perdure: Command) -> None:
    killed = perdure.start("run", "go", *agent("night"), "--session", "n")
    until(lambda: perdure.ledger() == ["wait"])
    killed.kill()
    killed.communicate()
    assert tree(perdure, "n")["n.sleeper-1"]["status"] == "running"
    assert "Go on with it: perdure resume n --agent FILE.py:NAME" in perdure("doctor")
    again = perdure.start("resume", "n", *agent("night"))
    until(lambda: perdure.ledger() == ["wait", "wait"])
    perdure("cancel", "n")
    shown, _ = again.communicate(timeout=TIMEOUT)
    in_order(shown, "sleeper 1 ↻ the process died; picked up by another one", "sleeper 1 ↻ wait(seconds=30) again")
    assert again.returncode == 1


def test_the_tree_tells_who_waits_for_what_and_what_it_cost(perdure: Command) -> None:
    perdure("run", "go", *agent("chief"), "--session", "boss", code=3)
    assert perdure("sessions", "tree", "boss").splitlines() == [
        "● boss · agent chief · waiting · waits for boss.secretary-1 · 1 turn · 45 tokens · $0.0045",
        f"└ ● boss.secretary-1 · agent secretary · waiting · waits for {POSTMAN} · 1 turn · 30 tokens · $0.0030",
        f"  └ ● {POSTMAN} · agent postman · waiting · waits for approval of mail · 1 turn · 15 tokens · $0.0015",
    ]
    perdure("run", "go", *agent("lead"), "--session", "root")
    assert perdure("sessions", "tree", "root").splitlines() == [
        "● root · agent lead · completed · 2 turns · 90 tokens · $0.0090",
        "├ ● root.researcher-1 · agent researcher · completed · 2 turns · 30 tokens · $0.0030",
        "└ ● root.researcher-2 · agent researcher · completed · 2 turns · 30 tokens · $0.0030",
    ]
    rows = tree(perdure, "boss.secretary-1")
    assert [(row["depth"], row["parent"]) for row in rows.values()] == [(0, ""), (1, "boss.secretary-1")]
    assert rows[POSTMAN]["pending"][0]["tool"] == "mail"


def test_sessions_of_sub_agents_are_listed_when_asked_for(perdure: Command) -> None:
    perdure("run", "go", *agent("lead"), "--session", "root")
    assert [row["id"] for row in perdure.objects("sessions", "list")] == ["root"]
    every = {"root", "root.researcher-1", "root.researcher-2"}
    assert {row["id"] for row in perdure.objects("sessions", "list", "--children")} == every


def test_children_are_deleted_with_their_root(perdure: Command, terminal: Open) -> None:
    perdure("run", "go", *agent("lead"), "--session", "root")
    perdure("run", "go", *agent("chief"), "--session", "boss", code=3)
    screen = terminal("sessions", "delete", "root")
    screen.until("records and 2 sessions of its sub-agents? [y/N]:")
    screen.type("n\r")
    assert screen.end() == 1
    assert perdure("sessions", "delete", "root") == "root and 2 sessions of its sub-agents are deleted.\n"
    (said,) = perdure.objects("sessions", "delete", "boss")
    assert said == {"deleted": "boss", "children": ["boss.secretary-1", POSTMAN]}
    assert perdure.objects("sessions", "list", "--children") == [], "also of those that wait, and nobody drives"
    assert perdure("pending") == "Nothing waits for a decision.\n"


def test_the_past_of_a_family_is_told(perdure: Command) -> None:
    perdure("run", "go", *agent("lead"), "--session", "root")
    in_order(
        perdure("sessions", "show", "root"),
        '· researcher(input="cats") may use 50 turns, $0.4993',
        "⇢ researcher(",
        '✓ researcher(input="cats") → Of cats I know all. · 30 tokens · $0.0030',
        "● completed · 2 turns · 90 tokens · $0.0090",
    )
    in_order(
        perdure("sessions", "show", "root.researcher-1"),
        "◆ session root.researcher-1 · agent researcher · sub-agent of lead, for call 1",
        "▸ cats · by session root",
        "● completed",
        "· the news of the end of input 1 is there",
    )
    in_order(
        perdure("sessions", "audit", "root"),
        "started      idempotent, attempt 1, session ",
        "may use 50 turns, $0.4993",
        "handed on    researcher works on it in session root.researcher-1",
        "ended        ok: Of cats I know all. · 30 tokens · $0.0030",
    )
    (ended, _) = (row for row in perdure.objects("sessions", "audit", "root") if row["what"] == "ended")
    assert ended["spent"] == {"usage": {"input": 20, "output": 10}, "cost_usd": 0.003, "calls": 1}
    (told,) = (
        record["event"] for record in perdure.objects("sessions", "records", "root.researcher-1")
        if record["event"]["type"] == "InputAccepted"
    )  # fmt: skip
    assert (told["by"], told["reply"]["call"]) == ("session root", 1)


def test_dead_letters_are_told_listed_and_replayed(perdure: Command) -> None:
    shown = perdure("run", "go", *agent("writer"), "--session", "w")
    in_order(shown, "✉ message 1 to session nobody: Are you there?", "✗ message 1 could not be brought: There is no")
    in_order(perdure("sessions", "show", "w"), "✉ message 1 to session nobody", "✗ message 1 could not be brought")
    rows = perdure.objects("sessions", "audit", "w")
    assert [row["what"] for row in rows if row["tool"] == "message 1"] == ["sent", "dead"]

    (dead,) = perdure.objects("messages", "list", "--dead")
    assert (dead["session"], dead["number"], dead["became"]) == ("w", 1, "dead")
    assert "Send it again: perdure messages replay w 1" in perdure("messages", "list")
    assert perdure.objects("messages", "list", "w") == [dead]
    refused = perdure.call("messages", "replay", "w", "2", code=2).stderr
    assert refused == (
        "perdure: Session 'w' has no dead letter 2; perdure messages list w --dead shows which there are.\n"
    )

    said = perdure("messages", "replay", "w", "1", *agent("writer"), code=1)
    assert said.startswith("w: message 1 could not be brought: There is no session 'nobody'")
    perdure("run", "go", *agent("researcher"), "--session", "nobody")
    assert "message 1 is recorded; nobody drives the session now" in perdure("messages", "replay", "w", "1")
    assert [row["became"] for row in perdure.objects("messages", "list", "w")] == ["on its way"]
    assert "· message 1 is there" not in perdure("resume", "w", *agent("writer")), (
        "only what went wrong is worth a line"
    )
    assert [row["became"] for row in perdure.objects("messages", "list")] == ["delivered"]
    assert perdure.objects("messages", "list", "--dead") == []
    assert "There are no messages that fit." in perdure("messages", "list", "--dead")
    (got,) = perdure.objects("messages", "list", "nobody")
    assert (got["became"], got["other"]) == ("received", "session w")
    assert "▸ [message of writer, session w] Are you there?" in perdure("sessions", "show", "nobody")


def test_a_message_is_sent_in_a_sessions_name(perdure: Command) -> None:
    for name in ("w", "x"):
        perdure("run", "go", *agent("writer"), "--session", name)
    assert perdure("messages", "send", "w", "x", "Good day.", *agent("writer")) == "w: message 2 is delivered.\n"
    (said,) = perdure.objects("messages", "send", "w", "y", "And you?", *agent("writer"), code=1)
    assert (said["message"], said["became"]) == (3, "dead")
    (row,) = (row for row in perdure.objects("sessions", "list") if row["id"] == "x")
    assert row["status"] == "running", "whoever drives it takes it up; nobody else's work is done by the way"
    refused = perdure.call("messages", "send", "w", "parent", "Hello", code=2).stderr
    assert refused == "perdure: Session 'w' has no parent; send the message to a session by its id.\n"
    assert "There is no session 'z'" in perdure.call("messages", "send", "z", "w", "Hello", code=2).stderr
    (got,) = (row for row in perdure.objects("messages", "list", "x") if row["became"] == "received")
    assert got["text"] == "[message of writer, session w] Good day."


def test_tab_offers_children_and_dead_letters(perdure: Command) -> None:
    perdure("run", "go", *agent("lead"), "--session", "root")
    perdure("run", "go", *agent("writer"), "--session", "w")

    def offered(line: str) -> list[str]:
        perdure.env |= {"_PERDURE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
        return perdure.call().stdout.split()

    assert offered("perdure sessions show ro") == ["root"]
    assert set(offered("perdure sessions show root.")) == {"root.researcher-1", "root.researcher-2"}
    assert offered("perdure messages replay w ") == ["1"]


def test_the_doctor_looks_into_sub_agents(perdure: Command) -> None:
    perdure("run", "go", *agent("lead"), "--session", "root")
    shown = perdure("doctor", *agent("boss"))
    assert "agent boss: 1 tool, sub-agents: vague" in shown
    assert "tools without a declared effect: undeclared (of vague)" in shown
    assert "agents without a model: vague" in shown
    assert "agent lead: 1 tool, sub-agents: researcher" in perdure("doctor", *agent("lead"))


def test_a_model_is_given_to_sub_agents_that_have_none(perdure: Command) -> None:
    (perdure.folder / "script.json").write_text('["From the script."]')
    assert "Agent 'vague' has no model" in perdure.call("run", "hello", *agent("boss"), code=2).stderr
    perdure.env["PERDURE_MODEL"] = "scripted:script.json"
    assert "\nok\n" in perdure("run", "hello", *agent("boss")), "an agent's own model comes first"
    assert "From the script." in perdure("run", "hello", *agent("boss"), "--model", "scripted:script.json")


def test_nothing_is_done_twice_when_the_tree_is_run_again(perdure: Command) -> None:
    for _ in range(2):
        perdure("run", "go", *agent("lead"), "--session", "root", "--key", "k")
    assert sorted(perdure.ledger()) == ["lookup cats", "lookup dogs"]
    with closing(sqlite3.connect(next(perdure.folder.rglob("perdure.db")))) as database:
        assert database.execute("pragma integrity_check").fetchone() == ("ok",)


def test_sub_agents_that_nobody_waits_for_are_told_of_and_seen_to(perdure: Command) -> None:
    perdure.env["SCOUT_SECONDS"] = "2"
    killed = perdure.start("run", "go", *agent("camp"), "--session", "c")
    assert killed.stdout is not None
    said = next(line for line in killed.stdout if "still at work" in line)
    assert said == "● still at work: c.ranger\n"
    until(lambda: perdure.ledger() == ["wait"])
    killed.kill()
    killed.communicate()
    in_order(
        perdure("resume", "c", *agent("camp")),
        "· 1 sub-agent at work: c.ranger\n",
        "  scout ↻ wait(seconds=2.0) again",
        "  scout “ All is quiet.\n",
        "▸ [scout in session c.ranger has ended] All is quiet. · by session c.ranger",
        "Heard: All is quiet.",
    )
    assert {row["last"] for row in tree(perdure, "c").values()} == {"completed"}
    assert "has nothing to resume" in perdure.call("resume", "c", *agent("camp"), code=2).stderr


def test_of_many_at_work_a_few_are_shown_and_the_rest_is_counted(perdure: Command, terminal: Open) -> None:
    screen = terminal("run", "go", *agent("ward"), "--session", "w", columns=160)
    shown = screen.until("… and 3 more", " · wait(seconds=30) · 1.")
    rows = [row for row in shown.splitlines() if row and row[0] in SPINNER]
    every = {f"sleeper {number}" for number in range(1, 9)}
    assert len(rows) == 5
    assert len({row[2:].split(" · ")[0] for row in rows} & every) == 5
    perdure("cancel", "w")
    assert screen.end() == 1
    assert "more" not in screen.text()
    assert screen.text().count("● cancelled") == 9


def test_a_family_is_replayed_and_compared(perdure: Command) -> None:
    """A replay starts no sub-agent: what each of them answered is in the record of the one that asked."""
    perdure("run", "go", *agent("lead"), "--session", "root")
    said = perdure("replay", "root", *agent("lead"))
    assert "1 run, 2 turns replayed" in said
    assert "≠" not in said
    assert len(perdure.ledger()) == 2
    perdure("run", "go", *agent("lead"), "--session", "twin")
    assert "≠" not in perdure("sessions", "compare", "root", "twin")


def test_a_copy_of_a_sub_agents_session_is_nobodys_child(perdure: Command) -> None:
    perdure("run", "go", *agent("lead"), "--session", "root")
    (perdure.folder / "child.jsonl").write_text(perdure("sessions", "export", "root.researcher-1"))
    perdure("sessions", "import", "child.jsonl", "--id", "copy")
    assert {row["id"] for row in perdure.objects("sessions", "list")} == {"root", "copy"}
    assert len(tree(perdure, "root")) == 3
    assert "● completed" in perdure("run", "cats", *agent("researcher"), "--session", "copy")
