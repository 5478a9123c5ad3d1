"""The audit: each transition of each call, from the records alone, and as people and programs read it."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.cli.audit import Row, audit
from perdure.core.events import (
    CallAdvanced,
    CallChecked,
    CallDecided,
    CallEnded,
    CallStarted,
    CallSuspended,
    Event,
    ModelResponded,
    RunResumed,
    RunStarted,
)
from perdure.core.messages import AssistantMessage, Text, ToolCall
from perdure.core.outcomes import EXPIRY
from perdure.ports import Record
from tests.cli.command import TIMEOUT, Command, agent, in_order
from tests.cli.emulator import Open
from tests.cli.test_commands import until

PROPOSED = ModelResponded(AssistantMessage((Text("Well."), ToolCall(1, "pay", '{"cents":5}'))))


def rows(*events: Event) -> list[Row]:
    return list(audit(Record("u", seq, 100.0 + seq, 1, event) for seq, event in enumerate(events, 1)))


def last(*events: Event) -> tuple[str, str]:
    row = rows(PROPOSED, *events)[-1]
    assert (row.call, row.tool, row.run) == (1, "pay", 1)
    return row.what, row.detail


def test_what_is_about_no_call_is_left_out() -> None:
    assert rows(RunStarted(1, (1,)), RunResumed(2)) == []
    (row,) = rows(RunStarted(1, (1,)), PROPOSED)
    assert row == Row(
        2, 102.0, 1, 1, "pay", "proposed", "by the model: cents=5", {"by": "the model", "arguments": '{"cents":5}'}
    )


def test_a_fallback_is_named() -> None:
    (row,) = rows(ModelResponded(PROPOSED.message, model="other:m"))
    assert row.detail == "by other:m: cents=5"


ASKED = CallSuspended(1, 1, "approval", "Pay?", expires_at=104.0, default="approve")


@pytest.mark.parametrize(
    ("events", "what", "detail"),
    [
        ([CallChecked(1, "allow")], "checked", "allow (no rule names it)"),
        ([CallChecked(1, "ask", "ask: pay", "It asks.")], "checked", "ask (rule ask: pay)"),
        ([CallChecked(1, "allow", "remembered: pay")], "checked", "allow (rule remembered: pay)"),
        ([CallChecked(1, "deny", "deny: pay", "No.")], "blocked", "deny (rule deny: pay): No."),
        ([CallChecked(1, "invalid", "schema", "Bad.")], "blocked", "invalid (rule schema): Bad."),
        ([CallChecked(1, "stale", "changed", "It changed.")], "stale", "the approval is taken back: It changed."),
        (
            [CallChecked(1, "ask", "ask: pay", snapshot={"total": 7}, revision="r2")],
            "checked",
            'ask (rule ask: pay); prepared, revision r2: {"total":7}',
        ),
        ([CallSuspended(1, 1, "question", "A?\nB?")], "asked", "question: A? / B?"),
        (
            [CallSuspended(1, 1, "external")],
            "asked",
            "external: somebody carries it out elsewhere and hands in the result",
        ),
        ([CallSuspended(1, 1, "unknown", "Did it?")], "in doubt", "Did it?"),
        ([ASKED, CallDecided(1, 1, "deny", by="ann", reason="no")], "decided", "deny by ann: no"),
        ([ASKED, CallDecided(1, 1, "approve")], "decided", "approve by somebody who gave no name"),
        (
            [ASKED, CallDecided(1, 1, "edit", by="ann", arguments='{"cents":4}', remember="tool")],
            "decided",
            'edit to {"cents":4}, remembered (tool) by ann',
        ),
        ([ASKED, CallDecided(1, 1, "answer", by="ann", value=None)], "decided", "answer with null by ann"),
        # Somebody who only calls himself so, before the time has come.
        ([ASKED, CallDecided(1, 1, "approve", by=EXPIRY)], "decided", "approve by expiry"),
        (
            [ASKED, RunStarted(1, ()), CallDecided(1, 1, "approve", by=EXPIRY, reason="nobody decided in time")],
            "expired",
            "approve: nobody decided in time",
        ),
        ([CallStarted(1, "once")], "started", "once, attempt 1"),
        ([CallAdvanced(1, "op-7")], "advanced", "operation op-7 under way"),
        ([CallStarted(1), RunResumed(2)], "interrupted", "the process that ran it died; epoch 2 goes on"),
        (
            [CallStarted(1, "read", key="k"), RunResumed(2), CallStarted(1, "read", 2, "k")],
            "replayed",
            "read, attempt 2, after a crash, same key",
        ),
        (
            [CallStarted(1, "read", key="k"), RunResumed(2), CallStarted(1, "read", 2, "other")],
            "replayed",
            "read, attempt 2, after a crash, another key",
        ),
        (
            [ASKED, CallDecided(1, 1, "approve"), CallStarted(1, "read"), RunResumed(2), CallStarted(1, "read", 2)],
            "replayed",
            "read, attempt 2, after a crash, same key",
        ),
        (
            [
                CallStarted(1),
                RunResumed(2),
                CallSuspended(1, 1, "unknown"),
                CallDecided(1, 1, "retry"),
                CallStarted(1, attempt=2),
            ],
            "started",
            "once, attempt 2, as decided, same key",
        ),
        (
            [CallStarted(1, "resumable"), CallAdvanced(1, "op-7"), RunResumed(2), CallStarted(1, "resumable", 2)],
            "found again",
            "operation op-7, resumable, attempt 2",
        ),
        ([CallEnded(1, "ok", (Text("paid"),))], "ended", "ok: paid"),
        (
            [CallEnded(1, "error", (Text("lost"),), in_doubt=True)],
            "ended",
            "error (it may have taken effect): lost",
        ),
        ([CallEnded(1, "unknown", (Text("Nobody knows."),), in_doubt=True)], "unknown", "Nobody knows."),
    ],
)
def test_every_transition_has_its_words(events: list[Event], what: str, detail: str) -> None:
    assert last(*events) == (what, detail)


def test_until_when_and_what_then() -> None:
    what, detail = last(ASKED)
    assert what == "asked"
    in_order(detail, "approval: Pay? until ", ", then approve")


def test_a_crash_is_told_of_calls_under_way_only() -> None:
    ended = [CallStarted(1), CallEnded(1, "ok")]
    assert [row.what for row in rows(PROPOSED, *ended, RunResumed(2))] == ["proposed", "started", "ended"]
    waiting = [CallSuspended(1, 1, "approval")]
    assert [row.what for row in rows(PROPOSED, *waiting, RunResumed(2), RunResumed(3))] == ["proposed", "asked"]


@pytest.fixture
def audited(perdure: Command) -> Command:
    """Session s: blocked, approved, denied, answered; then a kill with one call replayed and one in doubt."""
    perdure("run", "go", *agent("audited"), "--session", "s", code=3)
    approval, denial, question = perdure.objects("pending")
    perdure("decide", approval["id"], "approve", "--by", "ops", "--reason", "fine")
    perdure("decide", denial["id"], "deny", "--by", "eve", "--reason", "not bob")
    perdure("decide", question["id"], "answer", "2", "--by", "ann")
    killed = perdure.start("resume", "s", *agent("audited"))
    until(lambda: {"wait", "launch"} <= set(perdure.ledger()))
    killed.kill()
    killed.communicate(timeout=TIMEOUT)
    perdure("resume", "s", *agent("audited"), code=3)
    (doubt,) = perdure.objects("pending")
    perdure("decide", doubt["id"], "answer", "launched", "--by", "ann")
    perdure("resume", "s", *agent("audited"))
    return perdure


def test_the_audit_of_a_session(audited: Command, terminal: Open) -> None:
    found: dict[int, list[dict[str, Any]]] = {}
    for row in audited.objects("sessions", "audit", "s"):
        found.setdefault(row["call"], []).append(row)
    assert {call: [row["what"] for row in course] for call, course in found.items()} == {
        1: ["proposed", "blocked", "ended"],
        2: ["proposed", "checked", "asked", "decided", "started", "ended"],
        3: ["proposed", "checked", "asked", "decided", "ended"],
        4: ["proposed", "checked", "asked", "decided", "ended"],
        5: ["proposed", "checked", "started", "interrupted", "replayed", "ended"],
        6: ["proposed", "checked", "started", "interrupted", "in doubt", "decided", "ended"],
    }
    assert (found[1][1]["rule"], found[1][2]["outcome"]) == ("deny: erase", "denied")
    decided = {call: [row for row in course if row["what"] == "decided"] for call, course in found.items()}
    about = ("decision", "by", "reason")
    assert [decided[2][0][name] for name in about] == ["approve", "ops", "fine"]
    assert [decided[3][0][name] for name in about] == ["deny", "eve", "not bob"]
    assert [decided[4][0][name] for name in ("decision", "by", "value")] == ["answer", "ann", ["large"]]
    assert found[4][2]["kind"] == "question"
    assert (found[5][4]["attempt"], found[5][4]["key"]) == (2, found[5][2]["key"])
    records = {record["seq"]: record for record in audited.objects("sessions", "records", "s")}
    for row in (row for course in found.values() for row in course):
        assert (row["at"], row["run"]) == (records[row["seq"]]["at"], records[row["seq"]]["run"])

    table = audited("sessions", "audit", "s")
    in_order(table, "s · 6 calls, 32 transitions\n", "  seq  time      call  tool      what         how\n")
    in_order(
        table,
        "1  erase     blocked      deny (rule deny: erase): The rule 'erase' forbids it.\n",
        "4  ask_user  asked        question: Which size? (small / large)\n",
        "2  mail      decided      approve by ops: fine\n",
        "3  mail      decided      deny by eve: not bob\n",
        '4  ask_user  decided      answer with ["large"] by ann\n',
        "5  wait      interrupted  the process that ran it died; epoch ",
        "5  wait      replayed     idempotent, attempt 2, after a crash, same key\n",
        "6  launch    in doubt     The process died while",
        '6  launch    decided      answer with "launched" by ann\n',
        "6  launch    ended        ok: launched\n",
    )
    for columns, room in ((80, 34), (50, 14)):
        screen = terminal("sessions", "audit", "s", columns=columns)
        assert screen.end() == 0
        shown = screen.text()
        assert ("time" in shown) == (columns == 80)
        # What goes on in a second line stands below its own beginning.
        assert f"\n{' ' * (columns - room)}" in shown


def test_a_session_without_calls(perdure: Command) -> None:
    perdure("run", "hello", *agent("greeter"), "--session", "s")
    assert perdure("sessions", "audit", "s") == "Session s has no calls yet.\n"
    assert perdure("sessions", "audit", "s", "--json") == ""
