"""What a person sees, at 80 and at 160 columns: real processes in a terminal, rendered by a terminal emulator.

The captures are kept in the test's folder (pytest --basetemp), to be looked at.
"""

from __future__ import annotations

import pytest

from perdure.cli.canvas import SPINNER
from tests.cli.command import Command, agent, in_order
from tests.cli.emulator import Open, Terminal

WIDTHS = pytest.mark.parametrize("columns", [80, 160])
CTRL_C, CTRL_D, ESCAPE = "\x03", "\x04", "\x1b"
MENU = "[a]pprove · always for this [t]ool · [d]eny · [e]dit · [l]ater >"


def flat(shown: str) -> str:
    """Without line breaks, which depend on the width."""
    return " ".join(shown.split())


@WIDTHS
def test_demo(terminal: Open, columns: int) -> None:
    screen = terminal("demo", columns=columns)
    shown = screen.until("Press Enter to approve the shipment.")
    in_order(
        flat(shown),
        "Its model is scripted",
        "1 The agent works (process ",
        "◆ session order-7 · agent clerk",
        "✓ reserve(",
        "2 SIGKILL hits process ",
        "3 A new process finds the log (process ",
        "↻ the process died; picked up by another one (epoch 2)",
        '↻ charge(cents=990, order="7") again, attempt 2, same key',
        '‖ in doubt · mail(to="ann@example.org")',
        "nobody guesses",
        "▹ answered · mail(",
        "‖ approval · ship(",
    )
    assert "▹ approved" not in shown, "it waits for the key"
    screen.type("\r")
    assert screen.end() == 0
    shown = screen.text()
    in_order(shown, "▹ approved · ship(", "Order 7 is billed", "● completed · 4 turns", "4  The ledger")
    assert shown.count("✓ once  ") == 4
    in_order(shown, "\nNothing was done twice, nothing was lost.\n35 records tell all of it. Next: perdure run --help,")


@WIDTHS
def test_run_with_an_approval(terminal: Open, columns: int) -> None:
    screen = terminal("run", "Bill order 7", *agent("clerk"), "--session", "order-7", columns=columns)
    shown = screen.until(MENU)
    in_order(
        shown,
        "▸ Bill order 7",
        "I will charge order 7.",
        '✓ charge(cents=990, order="7") → charged 990 cents',
        "‖ approval · mail(",
        "  mail\n",
        '    text  "Dear Ann, your order is billed, and it is on its way to you."',
        '    to    "ann@example.org"',
    )
    assert "thinking" not in shown, "nothing is left of what was going on"
    screen.type("x\r")
    screen.until("Type one of a, t, d, e, l, then Enter.")
    screen.type("a\r")
    assert screen.end() == 0
    shown = screen.text()
    in_order(
        shown,
        "▹ approved · mail(",
        "a tool prints",
        "→ sent",
        "\nDone\n\nOrder 7 is billed:\n\n 1 charged\n 2 mailed\n\n def total(cents: int) -> float:",
        "\n\nAll is well.\n● completed · 3 turns · 45 tokens · $0.0045",
    )


@WIDTHS
def test_chat(terminal: Open, columns: int) -> None:
    screen = terminal("chat", *agent("clerk"), "--session", "order-7", columns=columns)
    screen.until("◆ session order-7 · agent clerk", "order-7 · clerk · 0 tokens · /help")
    screen.type(f"Bill{ESCAPE}\rorder 7\r")
    screen.until("> Bill\n  order 7", MENU)
    screen.type("d\r")
    screen.until("why (may be empty) >")
    screen.type("not today\r")
    shown = screen.until("● completed · 3 turns", "order-7 · clerk · 45 tokens · $0.0045 · /help")
    in_order(shown, "▹ denied · mail(", ": not today", "⊘ mail(", "All is well.")
    assert "▸" not in shown, "what was typed stands there already"
    screen.type("/h")
    screen.until("/history  what the model reads")
    screen.type("elp\r")
    screen.until("/pending   answer what waits for a decision", "/quit      leave; the session stays")
    screen.type("thanks\r")
    screen.until("You are welcome.", "● completed · 1 turn")
    screen.type(f"half a line{CTRL_C}")
    screen.wait_for(lambda shown: shown.count("\n>") >= 5, "an empty prompt")
    screen.type(CTRL_D)
    assert screen.end() == 0

    again = terminal("chat", *agent("clerk"), "--session", "order-7", columns=columns)
    again.until("2 runs so far, /show shows them", "order-7 · clerk · 60 tokens")
    again.type(f"{ESCAPE}[A")
    again.until("> thanks")
    again.type(CTRL_C)
    again.type("/quit\r")
    assert again.end() == 0


def test_sessions_show(perdure: Command, terminal: Open) -> None:
    prompt = "Bill order 7 and write to Ann that it is billed, in kind words, as if you meant them"
    perdure("chat", *agent("clerk"), "--session", "order-7", "--yes", input=f"{prompt}\nthanks\n")
    for columns in (80, 160):
        shown = _show(terminal("sessions", "show", "order-7", columns=columns))
        in_order(
            shown,
            "order-7 · agent clerk · idle\n2 runs · 4 turns · 60 tokens · $0.0060 · 24 records",
            "last run: completed · 1 turn · 15 tokens · $0.0015",
            " 1 ◆ session order-7 · agent clerk",
            " 2 ▸ Bill order 7 and write to Ann",
            " 6 ○ turn 1 · 10 in, 5 out · $0.0015 · ",
            "                 I will charge order 7.\n",
            " 9 ✓ charge(",
            "11 ○ turn 2 · ",
            "13 ‖ approval · mail(",
            "14 ▹ approved · mail(",
            "16 ✓ mail(",
            "18 ○ turn 3 · ",
            "                 Done\n",
            "19 ● completed · 3 turns · 45 tokens · $0.0045 · ",
            "▸ thanks",
            "● completed · 1 turn · 15 tokens · $0.0015 · ",
        )
        # What goes on in a second line stands below its own beginning.
        assert ("\n                 as if you meant them\n" in shown) == (columns == 80)
    narrow = _show(terminal("sessions", "show", "order-7", columns=40))
    in_order(narrow, "\n▸ Bill order 7 and write", '\n✓ charge(cents=990, order="7") → charged\n  990 cents · ')
    assert _show(terminal("sessions", "list", columns=40)).split() == ["session", "status", "order-7", "idle"]


def test_a_narrow_terminal_cuts_no_word(perdure: Command, terminal: Open) -> None:
    assert flat(_show(terminal("doctor", "--store", "sqlite:x.db", columns=40), code=1)) == flat(
        _show(terminal("doctor", "--store", "sqlite:x.db", columns=160), code=1)
    )


def _show(screen: Terminal, code: int = 0) -> str:
    assert screen.end() == code
    return screen.text()


def test_no_color(perdure: Command, terminal: Open) -> None:
    perdure.env["NO_COLOR"] = "1"
    screen = terminal("run", "hello", *agent("greeter"))
    assert screen.end() == 0
    assert "Hello there." in screen.text()
    assert b"\x1b[3" not in screen.raw.replace(b"\x1b[3m", b""), "italics are no colour"


def test_what_a_model_writes_cannot_move_the_cursor(perdure: Command, terminal: Open) -> None:
    screen = terminal("run", "hello", *agent("nasty"), "--session", "s")
    shown = screen.until(MENU)
    in_order(shown, "▸ hello", "‖ approval · mail(", r'text  "\u202egnp.exe"', r"\u001b[2Jann")
    screen.type("a\r")
    assert screen.end() == 0
    assert r"red \x1b[31m alert \x9b31m" in screen.text()
    assert r"red \x1b[31m alert \x9b31m" in perdure("sessions", "show", "s"), "a pipe may end in a terminal"


def test_progress_is_shown_while_it_lasts(terminal: Open, perdure: Command) -> None:
    screen = terminal("run", "wait", *agent("slow"), "--session", "s")
    shown = screen.wait_for(lambda shown: "wait(seconds=30) · 1." in shown, "a call with its age")
    (row,) = (row for row in shown.splitlines() if row and row[0] in SPINNER)
    assert "wait(seconds=30)" in row, "what has ended is gone"
    perdure("cancel", "s")
    assert screen.end() == 1
    assert "wait(seconds=30) · 1." not in screen.text()


def test_ctrl_c_stops_then_cancels(terminal: Open) -> None:
    screen = terminal("run", "wait", *agent("slow"))
    screen.until("wait(seconds=30)")
    screen.type(CTRL_C)
    screen.until(
        "stopping when the calls under way have ended; Ctrl-C again cancels them", "■ stop requested by Ctrl-C"
    )
    screen.type(CTRL_C)
    assert screen.end() == 1
    in_order(screen.text(), "■ cancel requested by Ctrl-C", "? wait(seconds=30) → unknown", "● cancelled · by Ctrl-C")


def test_a_third_ctrl_c_leaves_at_once(perdure: Command, terminal: Open) -> None:
    screen = terminal("run", "block", *agent("stubborn"), "--session", "s")
    for hint in ("block(seconds=60)", "■ stop requested by Ctrl-C", "■ cancel requested by Ctrl-C"):
        screen.until(hint)
        screen.type(CTRL_C)
    assert screen.end() == 1
    assert screen.raw.rindex(b"\x1b[?25h") > screen.raw.rindex(b"\x1b[?25l"), "the cursor is back"
    assert "■ cancel requested by Ctrl-C" in perdure("sessions", "show", "s"), "the log keeps it"


def test_ctrl_c_at_the_question_stops_the_run(terminal: Open) -> None:
    screen = terminal("run", "Bill", *agent("clerk"))
    screen.until(MENU)
    screen.type(CTRL_C)
    assert screen.end() == 1
    in_order(screen.text(), "■ stop requested by Ctrl-C", "⊘ mail(", "cancelled", "● stopped")


def test_what_is_left_for_later(terminal: Open) -> None:
    for session, answer in (("s", "l\r"), ("t", CTRL_D)):
        screen = terminal("run", "Bill", *agent("clerk"), "--session", session)
        screen.until(MENU)
        screen.type(answer)
        assert screen.end() == 3
        in_order(screen.text(), "● waiting for 1 decision", "perdure decide ", " approve   (or deny, edit, answer)")
        assert f"perdure resume {session} --agent {agent('clerk')[1]}" in flat(screen.text())


def test_arguments_are_edited_in_place(perdure: Command, terminal: Open) -> None:
    screen = terminal("run", "Bill", *agent("clerk"))
    screen.until(MENU)
    screen.type("e\r")
    screen.until('arguments > {"text":')
    screen.type("\x15nonsense\r")
    screen.until("The arguments are no JSON")
    screen.type("e\r")
    screen.wait_for(lambda shown: shown.count("arguments >") == 2, "the question again")
    screen.type('\x15{"to": "bob@example.org", "text": "Hi"}\r')
    assert screen.end() == 0
    assert perdure.ledger() == ["charge 7 990", "mail bob@example.org 2"]


def test_another_terminal_decides_while_the_question_is_open(perdure: Command, terminal: Open) -> None:
    screen = terminal("run", "Bill", *agent("clerk"), "--session", "s")
    screen.until(MENU)
    (item,) = perdure.objects("pending")
    said = perdure("decide", item["id"], "deny", "--by", "ops", "--reason", "no")
    assert "the process that drives the session acts on it now" in said
    assert screen.end() == 0
    shown = screen.text()
    in_order(shown, f"  {MENU}\n▹ denied · mail(", "by ops", ": no", "⊘ mail(", "All is well.", "● completed")
    assert shown.count(MENU) == 1, "what happened did not disturb the question"


def test_another_terminal_stops_it_while_the_question_is_open(perdure: Command, terminal: Open) -> None:
    screen = terminal("run", "Bill", *agent("clerk"), "--session", "s")
    screen.until(MENU)
    perdure("stop", "s")
    assert screen.end() == 1
    in_order(screen.text(), f"  {MENU}\n■ stop requested by", "● stopped")


def test_deleting_asks_first(perdure: Command, terminal: Open) -> None:
    perdure("run", "hello", *agent("greeter"), "--session", "s")
    screen = terminal("sessions", "delete", "s")
    screen.until("Delete 's' with its 7 records? [y/N]:")
    screen.type("n\r")
    assert screen.end() == 1
    assert [row["id"] for row in perdure.objects("sessions", "list")] == ["s"]
