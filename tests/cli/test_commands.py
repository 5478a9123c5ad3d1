"""Every command through a real process: what it does, what it prints, how it ends."""

from __future__ import annotations

import asyncio
import json
import re
import resource
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from perdure import Agent, Runtime
from perdure.testing import ScriptedModel
from tests.cli.command import PERDURE, TIMEOUT, Command, agent, in_order

COMMANDS = [
    ("demo",),
    ("run",),
    ("chat",),
    ("resume",),
    ("pending",),
    ("decide",),
    ("stop",),
    ("cancel",),
    ("replay",),
    ("sessions", "list"),
    ("sessions", "show"),
    ("sessions", "tree"),
    ("sessions", "records"),
    ("sessions", "audit"),
    ("sessions", "compact"),
    ("sessions", "fork"),
    ("sessions", "rewind"),
    ("sessions", "tag"),
    ("sessions", "rename"),
    ("sessions", "compare"),
    ("sessions", "export"),
    ("sessions", "import"),
    ("sessions", "golden"),
    ("sessions", "delete"),
    ("inputs", "list"),
    ("inputs", "edit"),
    ("inputs", "retract"),
    ("messages", "list"),
    ("messages", "send"),
    ("messages", "replay"),
    ("store", "copy"),
    ("store", "check"),
    ("store", "prune"),
    ("model", "pull"),
    ("model", "list"),
    ("model", "remove"),
    ("doctor",),
    ("bench",),
]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_has_json_and_an_example(perdure: Command, words: tuple[str, ...]) -> None:
    shown = perdure(*words, "--help")
    assert "--json" in shown
    assert f"Example: perdure {' '.join(words)}" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_help_lists_every_command_and_the_exit_codes(perdure: Command) -> None:
    shown = perdure("--help")
    assert all(f"\n  {words[0]} " in shown for words in COMMANDS)
    assert "0 ok, 1 the run failed, 2 wrong use, 3 waiting" in shown
    assert perdure() == shown
    assert "Example: perdure sessions show" in perdure("sessions")
    assert perdure("--version").startswith("perdure 0.")


def test_help_is_quick(perdure: Command) -> None:
    """CPU and not time, and the best of several: the machine may be busy with other things."""

    def spend() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([PERDURE, "--help"], env=perdure.env, stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(spend() for _ in range(5)) < 0.3


def test_a_run_that_waits_is_decided_and_resumed(perdure: Command) -> None:
    """The whole way without a terminal: run, 3, pending, decide, resume, 0; and each effect happened once."""
    shown = perdure("run", "Bill order 7", *agent("clerk"), "--session", "order-7", code=3)
    assert '✓ charge(cents=990, order="7") → charged 990 cents' in shown
    assert "waiting for 1 decision" in shown

    (item,) = perdure.objects("pending")
    assert (item["kind"], item["tool"], item["session"]) == ("approval", "mail", "order-7")
    assert f"perdure decide {item['id']} approve" in shown
    person = perdure("pending")
    assert item["id"] in person
    assert item["arguments"]["text"] in person, "who decides sees all of it"

    said = perdure("decide", item["id"], "approve", "--by", "ops")
    assert "approve is recorded; nobody drives the session now: perdure resume order-7" in said
    assert perdure("pending") == "Nothing waits for a decision.\n"
    refused = perdure.call("decide", item["id"], "deny", code=2).stderr
    assert refused == f"perdure: {item['id']} was already decided by ops: approve.\n"

    shown = perdure("resume", "order-7", *agent("clerk"))
    # A pipe gets the text as it is.
    in_order(shown, "▹ approved · mail(", "by ops", "# Done", "● completed · 3 turns · 45 tokens · $0.0045")
    assert perdure.ledger() == ["charge 7 990", "mail ann@example.org 60"]


def test_the_same_key_is_the_same_run(perdure: Command) -> None:
    command = ("run", "Bill order 7", *agent("clerk"), "--session", "order-7", "--key", "bill", "--yes")
    assert "● completed" in perdure(*command)
    assert "● completed" in perdure(*command)
    assert perdure.ledger() == ["charge 7 990", "mail ann@example.org 60"]


def test_the_same_key_goes_on_with_what_a_dead_process_left(perdure: Command) -> None:
    command = ("run", "wait", *agent("slow"), "--session", "s", "--key", "k")
    for times in (1, 2):
        killed = perdure.start(*command)
        until(lambda: perdure.ledger().count("wait") == times)  # noqa: B023 - called before times changes
        killed.kill()
        killed.communicate()


def test_a_session_is_compacted(perdure: Command) -> None:
    for words in ("one", "two", "three"):
        perdure("run", words, *agent("talker"), "--session", "long")
    said = perdure("sessions", "compact", "long", *agent("talker"))
    assert re.fullmatch(
        r"long: compacted \(request\): [\d,]+ → \d+ tokens · 4 messages behind a summary · \$0.0015 · scripted\.\n",
        said,
    )
    assert perdure("sessions", "compact", "long", *agent("talker")) == "long: there is nothing to leave out.\n"
    assert perdure.objects("sessions", "compact", "long", *agent("talker")) == [{"session": "long", "compacted": None}]
    in_order(perdure("sessions", "show", "long"), "▸ three", "● completed", "≡ compacted (request): ")
    assert "long" in perdure("sessions", "audit", "long")
    refused = perdure.call("sessions", "compact", "long", code=2).stderr
    assert refused.startswith("perdure: Session 'long' belongs to the agent 'talker'; give its code with --agent")


def test_flags_answer_approvals(perdure: Command) -> None:
    assert "▹ approved" in perdure("run", "Bill", *agent("clerk"), "--yes")
    denied = perdure("run", "Bill", *agent("clerk"), "--no")
    in_order(denied, "▹ denied", "--no")
    assert [line.split()[0] for line in perdure.ledger()] == ["charge", "mail", "charge"]


def test_json_is_one_object_a_line_whatever_tools_print(perdure: Command) -> None:
    items = perdure.objects("run", "Bill", *agent("clerk"), "--session", "order-7", "--yes")
    kinds = [item["event"]["type"] for item in items if "event" in item]
    assert (kinds[0], kinds[-1]) == ("InputAccepted", "RunEnded")
    seqs = [item["seq"] for item in items if "seq" in item]
    assert seqs == sorted(set(seqs)), "in order, and each once"
    assert "".join(item["delta"]["text"] for item in items if "delta" in item and "text" in item["delta"]).count(
        "# Done"
    )
    assert items[-1]["result"]["reason"] == "completed"
    assert items[-1]["result"]["session"] == "order-7"
    waiting = perdure.objects("run", "Bill", *agent("clerk"), code=3)
    assert [item["tool"] for item in waiting[-1]["result"]["pending"]] == ["mail"]


def test_a_prompt_may_come_from_a_pipe(perdure: Command) -> None:
    shown = perdure("run", "-", *agent("greeter"), input="Say\nhello")
    in_order(shown, "▸ Say hello", "**Hello** there.")


def test_a_run_without_session_says_which_one_it_made(perdure: Command) -> None:
    shown = perdure("run", "hello", *agent("greeter"))
    (row,) = perdure.objects("sessions", "list")
    assert f"session {row['id']}" in shown


def test_a_model_on_the_command_line(perdure: Command) -> None:
    (perdure.folder / "script.json").write_text(json.dumps(["From the *script*."]))
    assert "From the *script*." in perdure("run", "hello", "--model", "scripted:script.json")
    assert "From the *script*." in perdure("run", "hello", *agent("greeter"), "--model", "scripted:script.json")
    perdure.env["PERDURE_MODEL"] = "scripted:script.json"
    assert "From the *script*." in perdure("run", "hello")
    assert "**Hello** there." in perdure("run", "hello", *agent("greeter")), "an agent's own model comes first"


def test_a_run_that_fails_ends_with_1(perdure: Command) -> None:
    shown = perdure("run", "hello", *agent("broken"), code=1)
    assert "● failed · auth: no such key" in shown


def test_a_run_goes_on_after_its_limit(perdure: Command) -> None:
    shown = perdure("run", "hello", *agent("limited"), "--session", "s", code=1)
    in_order(shown, "✗ undeclared() → error: it did not work", "● limit · turns")
    assert "● completed" in perdure("resume", "s", *agent("limited"))
    refused = perdure.call("resume", "s", *agent("limited"), code=2).stderr
    assert refused.startswith("perdure: Session 's' has nothing to resume: its last run is completed;")


def test_resume_shows_the_end_of_a_long_past(perdure: Command) -> None:
    perdure("run", "Work", *agent("long"), "--session", "s", code=3)
    shown = perdure("resume", "s", *agent("long"), "--yes")
    in_order(
        shown,
        "records came before; perdure sessions show s has them",
        "pay(job=11)",
        "→ sent",
        "● completed · 14 turns",
    )
    assert "pay(job=1)" not in shown


def test_an_input_that_nobody_began_is_resumed(perdure: Command) -> None:
    """As after a kill between the input's commit and the run's first."""

    async def send() -> None:
        async with Runtime(f"sqlite:{perdure.folder / 'x.db'}", engine=None) as runtime:
            session = await runtime.open(Agent(name="greeter", model=ScriptedModel(["unused"])), id="s")
            await session.start("hello")

    asyncio.run(send())
    shown = perdure("resume", "s", *agent("greeter"), "--store", "sqlite:x.db")
    in_order(shown, "▸ hello", "**Hello** there.", "● completed")


def test_stop_and_cancel_from_another_terminal(perdure: Command) -> None:
    for verb, reason in (("cancel", "cancelled"), ("stop", "stopped")):
        running = perdure.start("run", "wait", *agent("slow"), "--session", verb)
        until(lambda: "wait" in perdure.ledger())
        (perdure.folder / "ledger.txt").unlink()
        said = perdure(verb, verb, "--json")
        assert json.loads(said)["driver"], "it was being driven"
        if verb == "stop":
            # Tools under way finish, and this one takes half a minute.
            perdure("cancel", verb)
            reason = "cancelled"
        shown, _ = running.communicate(timeout=TIMEOUT)
        assert running.returncode == 1
        in_order(shown, f"■ {verb} requested by", f"● {reason}")


def test_a_run_picks_up_no_other_session(perdure: Command) -> None:
    """What a dead process left is gone on with by `resume`, where somebody sees it."""
    killed = perdure.start("run", "wait", *agent("slow"), "--session", "left")
    until(lambda: "wait" in perdure.ledger())
    killed.kill()
    killed.communicate()
    perdure.call("run", "wait", *agent("slow"), "--session", "other", "--model", _script(perdure, ["done"]))
    assert perdure.ledger() == ["wait"]
    assert "it has work and nobody drives it: perdure resume left" in perdure("sessions", "show", "left")
    assert "session left has work and nobody drives it" in perdure("doctor")


def _script(perdure: Command, answers: list[str]) -> str:
    (perdure.folder / "other.json").write_text(json.dumps(answers))
    return "scripted:other.json"


def test_chat_reads_a_pipe(perdure: Command) -> None:
    shown = perdure("chat", *agent("clerk"), "--session", "c", "--yes", input="Bill order 7\n/usage\n/nope\nthanks\n")
    assert "◆ session c · agent clerk" in shown
    assert (
        shown.index("● completed · 3 turns") < shown.index("30 in, 15 out, $0.0045") < shown.index("You are welcome.")
    )
    assert "there is no /nope; /help lists what there is" in shown
    again = perdure("chat", *agent("clerk"), "--session", "c", input="/history\n/session\n/quit\nnever read\n")
    in_order(again, "2 runs so far", "You are welcome.")
    assert "never read" not in again
    waiting = perdure("chat", *agent("clerk"), "--session", "w", code=3, input="Bill order 7\n")
    assert "waiting for 1 decision" in waiting


def test_chat_verbs(perdure: Command) -> None:
    lines = [
        "Bill order 7",
        "/pending",
        "/stop",
        "/show",
        "/fork 3",
        "/session",
        "/session c",
        "/fork x",
        "/resume",
        "/stop",
        "",
    ]
    shown = perdure("chat", *agent("clerk"), "--session", "c", input="\n".join(lines))
    in_order(shown, "■ stop requested by", "● stopped", "○ turn 1 · ", "now in the fork", "◆ session c · agent clerk")
    in_order(shown, "/fork x: give the number of a record", "▸ go on with run 1", "● completed", "no open run")
    assert len(perdure.objects("sessions", "list")) == 2


def test_sessions_from_list_to_delete(perdure: Command) -> None:
    perdure("chat", *agent("greeter"), "--session", "a", input="hello\n/session b\nhello\n")
    perdure("run", "hello", *agent("greeter"), "--session", "c", "--tenant", "acme")
    rows = perdure.objects("sessions", "list", "--limit", "2")
    assert [row["id"] for row in rows] == ["c", "b"]
    fitting = perdure.objects("sessions", "list", "--tenant", "acme", "--status", "idle", "--agent", "greeter")
    assert fitting == rows[:1]
    assert perdure("sessions", "list", "--status", "waiting") == "There are no sessions that fit.\n"
    listed = [row.split() for row in perdure("sessions", "list").splitlines()]
    assert listed[0] == ["session", "status", "agent", "records", "changed", "tenant"]
    assert [row[:4] for row in listed[1:]] == [[id, "idle", "greeter", "7"] for id in "cba"]

    records = perdure.objects("sessions", "records", "a")
    assert [record["seq"] for record in records] == [1, 2, 3, 4, 5, 6, 7]
    (last,) = perdure("sessions", "records", "a", "--after", "6").splitlines()
    assert '"type":"RunEnded"' in last
    (shown,) = perdure.objects("sessions", "show", "a")
    assert shown["records"] == records

    assert perdure("sessions", "fork", "a", "--at", "2", "--id", "f") == "f\n"
    (forked,) = perdure.objects("sessions", "fork", "a")
    assert forked["of"] == "a"
    assert perdure("sessions", "delete", "a") == "a is deleted.\n"
    assert perdure.objects("sessions", "delete", "b") == [{"deleted": "b"}]
    assert "forked at record 2: from here on it is session f" in perdure("sessions", "show", "f"), "it keeps its past"


def test_show_tells_turns_calls_waits_crashes_and_cost(perdure: Command) -> None:
    killed = perdure.start("run", "wait", *agent("slow"), "--session", "s")
    until(lambda: "wait" in perdure.ledger())
    killed.kill()
    killed.communicate()
    resumed = perdure.start("resume", "s", *agent("slow"))
    until(lambda: perdure.ledger().count("wait") == 2)
    perdure("cancel", "s")
    resumed.communicate(timeout=TIMEOUT)
    perdure("resume", "s", *agent("slow"))
    shown = perdure("sessions", "show", "s")
    in_order(
        shown,
        "s · agent slow · idle",
        "2 runs · 2 turns · 30 tokens",
        "▸ wait",
        "○ turn 1 · 10 in, 5 out",
        "↻ the process died; picked up by another one (epoch 2) · under way: wait(seconds=30)",
        "↻ wait(seconds=30) again, attempt 2, same key",
        "■ cancel requested by",
        "? wait(seconds=30) → unknown",
        "● cancelled",
        "▸ go on with run 1",
        "● completed · 1 turn · 15 tokens",
    )


def test_doctor_finds_what_is_wrong(perdure: Command) -> None:
    fresh = perdure("doctor")
    in_order(fresh, "SQLite", "no provider's key", "There is no store at")
    perdure.env["OPENAI_API_KEY"] = "sk-secret"
    perdure("run", "hello", *agent("greeter"), "--session", "s")
    healthy = perdure("doctor", *agent("limited"))
    in_order(healthy, "keys found: OPENAI_API_KEY", "1 session, 7 records, 0 waiting, 0 processes at work")
    in_order(healthy, "tools without a declared effect: undeclared")
    assert "sk-secret" not in healthy
    assert {finding["level"] for finding in perdure.objects("doctor")} == {"ok"}
    perdure("run", "hello", *agent("greeter"), "--session", "t")
    _lose_records(perdure.folder / "data" / "perdure" / "perdure.db")
    sick = perdure("doctor", code=1)
    in_order(sick, "✗ session t: Record 7 of", "Restore it from a backup, or delete it.", "✗ session s: Record 3 of")


def _lose_records(path: Path) -> None:
    """One in the middle, which a reader stumbles over, and one at the end, which nobody misses."""
    connection = apsw.Connection(str(path))
    for name, seq in (("s", 3), ("t", 7)):
        lost = "DELETE FROM records WHERE seq = ? AND no = (SELECT no FROM sessions WHERE id = ?)"
        connection.execute(lost, (seq, name))
        assert connection.changes() == 1
    connection.close()


def test_bench_has_figures(perdure: Command) -> None:
    (figures,) = perdure.objects("bench", "--turns", "5")
    assert set(figures) == {"memory", "sqlite, alone", "sqlite, 100 sessions"}
    assert all(value > 0 for value in figures.values())


def test_the_shell_completes(perdure: Command) -> None:
    perdure("run", "hello", *agent("greeter"), "--session", "order-7")

    def complete(words: str) -> list[str]:
        perdure.env |= {"_PERDURE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        return perdure().split()

    assert complete("perdure se") == ["sessions"]
    assert complete("perdure sessions show ord") == ["order-7"]
    assert complete("perdure inputs re") == ["retract"]
    assert complete("perdure inputs list ord") == ["order-7"]
    assert complete("perdure decide x a") == ["approve", "answer"]
    perdure.env["XDG_DATA_HOME"] = str(perdure.folder / "nowhere")
    assert complete("perdure stop o") == []
    assert not list(perdure.folder.glob("nowhere/**/*.db")), "a Tab makes no store"


def test_completion_can_be_installed(perdure: Command) -> None:
    done = subprocess.run(
        ["bash", "-c", f"{PERDURE} --show-completion; true"],
        env=perdure.env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "complete -o default -F _perdure_completion perdure" in done.stdout
