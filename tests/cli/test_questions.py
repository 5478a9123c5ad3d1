"""Pauses that want more than a yes: questions, results from elsewhere, prepared calls, operations."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Runtime
from perdure.cli.answers import read_result
from perdure.cli.attend import attend
from perdure.cli.questions import forms_of, questions_of, read_answer, read_answers, read_fitting
from perdure.cli.views import JsonView
from perdure.core.errors import UsageError
from perdure.core.views import Pending
from perdure.runtime.questions import Question, response_schema, show_questions
from perdure.runtime.results import Decision
from tests.cli.agents import sizes
from tests.cli.command import TIMEOUT, Command, agent, in_order
from tests.cli.emulator import Open
from tests.cli.test_commands import until

SIZE = Question("Which size?", ("small", "large"))
NUMBERS = Question("How many?", ("2", "1", "4"))
EXTRAS = Question("Which extras?", ("bell", "light, red", "rack"), multiple=True)
COLOUR = Question("Which colour?", ("red",), free_text=True)
NOTE = Question("Anything else?", optional=True)


@pytest.mark.parametrize(
    ("question", "text", "answer"),
    [
        (SIZE, "2", "large"),
        (SIZE, " small ", "small"),
        (SIZE, "LARGE", "large"),
        (NUMBERS, "1", "1"),
        (NUMBERS, "3", "4"),
        (EXTRAS, "1, 3", ["bell", "rack"]),
        (EXTRAS, "rack,1,bell", ["rack", "bell"]),
        (EXTRAS, "light, red", ["light, red"]),
        (COLOUR, "1", "red"),
        (COLOUR, "2", "2"),
        (COLOUR, "deep blue", "deep blue"),
        (NOTE, "42", "42"),
        (NOTE, "  ", None),
    ],
)
def test_what_is_typed_is_an_option_or_words(question: Question, text: str, answer: Any) -> None:
    assert read_answer(question, text) == answer


@pytest.mark.parametrize(
    ("question", "text", "reason"),
    [
        (SIZE, "3", "'3' is none of the options; type a number."),
        (SIZE, "0", "'0' is none of the options; type a number."),
        (SIZE, "9" * 5000, "is none of the options"),
        (SIZE, "", "The question needs an answer; type a number."),
        (EXTRAS, "1, 9", "'9' is none of the options; type numbers, with commas between them."),
    ],
)
def test_what_is_none_of_them_is_told(question: Question, text: str, reason: str) -> None:
    with pytest.raises(UsageError) as error:
        read_answer(question, text)
    assert reason in str(error.value)


def test_an_answer_has_to_fit_what_was_asked() -> None:
    forms = forms_of(response_schema([SIZE, EXTRAS]), [SIZE, EXTRAS])
    assert read_fitting(EXTRAS, forms[1], "1") == ["bell"]
    with pytest.raises(UsageError, match=r"The answer does not fit \(the value: it needs at least 1 items\); type num"):
        read_fitting(EXTRAS, forms[1], ",")
    assert forms_of({"type": "boolean"}, [SIZE]) == forms_of(None, [SIZE]) == [True]


@pytest.mark.parametrize(
    ("questions", "text", "answers"),
    [
        ([SIZE], "2", ["large"]),
        ([SIZE], '["small"]', ["small"]),
        ([SIZE], "[2]", ["large"]),
        ([EXTRAS], "1,3", [["bell", "rack"]]),
        ([EXTRAS], '["bell", 3]', [["bell", "rack"]]),
        ([EXTRAS], '[["bell"]]', [["bell"]]),
        ([NOTE], "null", [None]),
        ([NOTE], "{}", ["{}"]),
        ([SIZE, EXTRAS, NOTE], '[1, ["bell", 3], null]', ["small", ["bell", "rack"], None]),
        ([SIZE, COLOUR], '["huge", true]', ["huge", True]),
    ],
)
def test_answers_on_the_command_line(questions: list[Question], text: str, answers: Any) -> None:
    assert read_answers(questions, text) == answers


def test_several_questions_need_a_list_with_an_answer_for_each() -> None:
    with pytest.raises(UsageError, match="There are 2 questions; give the answers as one JSON list"):
        read_answers([SIZE, NOTE], "small")
    with pytest.raises(UsageError, match="Of 2 questions 1 are answered"):
        read_answers([SIZE, NOTE], '["small"]')


def test_questions_come_in_the_order_of_their_answers() -> None:
    first, second = {"question": "One?"}, {"question": "Two?", "options": ["a"]}
    shown = show_questions([Question("One?"), Question("Two?", ("a",))])

    def pending(arguments: Any, kind: Any = "question") -> Pending:
        return Pending("u-1-1", kind, "s", 1, "t", arguments, shown)

    in_any_order = pending({"b": second, "a": first, "n": 7, "d": {"options": []}})
    assert [question.question for question in questions_of(in_any_order)] == ["One?", "Two?"]
    assert questions_of(pending({"a": [first]}, "approval")) == []
    assert questions_of(pending("no object")) == []


def test_a_result_is_json_or_text_whichever_fits() -> None:
    assert read_result("42", None) == 42
    assert read_result("42", {"type": "string"}) == "42"
    assert read_result('{"grams": 7}', {"type": "object"}) == {"grams": 7}
    with pytest.raises(UsageError, match=r"The result does not fit \(the value: it has to be of type object\)"):
        read_result("heavy", {"type": "object"})


# From another process


def test_questions_are_answered_from_another_process(perdure: Command) -> None:
    shown = perdure("run", "go", *agent("shop"), "--session", "s", code=3)
    in_order(shown, "‖ question · ask_user · 1. Which size? (small / large) / 2. Which extras?")
    (item,) = perdure.objects("pending")
    assert f"perdure decide {item['id']} answer '[…, …, …, …]'   (or deny)" in shown
    in_order(
        perdure("pending"),
        "‖ question · ask_user · session s\n",
        "1/4  Which size? [a number]\n      1. small\n      2. large\n",
        "2/4  Which extras? [numbers, with commas between them]",
        "3/4  Which colour? [a number, or other words]\n      1. red\n",
        "4/4  Anything else? [your answer, may be skipped]",
    )
    for wrong, reason in (
        ("small", "There are 4 questions;"),
        ('["small"]', "Of 4 questions 1 are answered;"),
        ('["huge", ["bell"], "red", null]', "The answer does not fit ([0]: it has to be one of 'small', 'large')"),
    ):
        said = perdure.call("decide", item["id"], "answer", wrong, code=2).stderr
        assert said.startswith(f"perdure: {reason}")
        assert perdure.objects("pending") == [item]
    perdure("decide", item["id"], "answer", '[2, ["bell", "rack"], "blue", null]')
    shown = perdure("resume", "s", *agent("shop"))
    in_order(shown, "▹ answered · ask_user by ", 'Told: ["large",["bell","rack"],"blue",null]', "● completed")


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("sizes", "large", '["large"]'),
        ("sizes", "1", '["small"]'),
        ("extras", "1,3", '[["bell","rack"]]'),
        ("notes", "7 of them", '["7 of them"]'),
        ("confirmer", "true", "true"),
        ("scales", '{"grams": 7}', '{"grams":7}'),
        ("picker", "42", "42"),
    ],
)
def test_one_answer_is_plain_text(perdure: Command, name: str, value: str, told: str) -> None:
    perdure("run", "go", *agent(name), "--session", "s", code=3)
    (item,) = perdure.objects("pending")
    perdure("decide", item["id"], "answer", value)
    assert f"Told: {told}" in perdure("resume", "s", *agent(name))


def test_pending_says_what_each_kind_waits_for(perdure: Command) -> None:
    for name in ("scales", "picker"):
        perdure("run", "go", *agent(name), "--session", name, code=3)
    shown = perdure("pending")
    in_order(shown, "‖ frontend · pick · session picker", "the client that declared it", 'title  "Pick"', " answer ")
    in_order(shown, "‖ external · weigh · session scales", "somebody carries it out", 'parcel  "p1"', " answer ")
    (item,) = (item for item in perdure.objects("pending") if item["session"] == "scales")
    said = perdure.call("decide", item["id"], "answer", "heavy", code=2).stderr
    assert said.startswith("perdure: The answer does not fit (the value: it has to be of type object)")


# At the terminal


def test_questions_are_answered_at_the_terminal(perdure: Command, terminal: Open) -> None:
    screen = terminal("run", "go", *agent("shop"), "--session", "s")
    shown = screen.until("a number >")
    in_order(shown, "/decline answers none of it", "1/4  Which size?\n    1. small\n    2. large\n  a number >")
    assert "2/4" not in shown, "one after the other"
    screen.type("3\r")
    screen.until("'3' is none of the options; type a number.")
    screen.type("2\r")
    screen.until("2/4  Which extras?", "numbers, with commas between them >")
    screen.type("1, rack\r")
    screen.until("3/4  Which colour?", "a number, or other words >")
    screen.type("deep blue\r")
    screen.until("4/4  Anything else?", "your answer (Enter skips it) >")
    screen.type("\r")
    assert screen.end() == 0
    in_order(screen.text(), "▹ answered · ask_user by ", 'Told: ["large",["bell","rack"],"deep blue",null]')
    decided = [r["event"] for r in perdure.objects("sessions", "records", "s") if r["event"]["type"] == "CallDecided"]
    assert [event["value"] for event in decided] == [["large", ["bell", "rack"], "deep blue", None]]


def test_questions_are_declined_or_left_for_later(perdure: Command, terminal: Open) -> None:
    screen = terminal("chat", *agent("shop"), "--session", "s")
    screen.until("◆ session s")
    screen.type("go\r")
    screen.until("a number >")
    screen.type("1\r")
    screen.until("2/4")
    screen.type("/later\r")
    screen.until("● waiting for 1 decision")
    assert len(perdure.objects("pending")) == 1, "half of the answers are none"
    screen.type("/pending\r")
    screen.wait_for(lambda shown: shown.count("1/4") == 2, "the first question again")
    screen.type("/decline\r")
    screen.until("why (may be empty) >")
    screen.type("no idea\r")
    shown = screen.until("● completed")
    in_order(shown, "▹ denied · ask_user by ", ": no idea", "The call was denied")
    screen.type("/quit\r")
    assert screen.end() == 0


def test_another_terminal_answers_while_the_question_is_open(perdure: Command, terminal: Open) -> None:
    screen = terminal("run", "go", *agent("sizes"), "--session", "s")
    screen.until("a number >")
    (item,) = perdure.objects("pending")
    perdure("decide", item["id"], "answer", "small", "--by", "ops")
    assert screen.end() == 0
    in_order(screen.text(), "▹ answered · ask_user by ops", 'Told: ["small"]', "● completed")


async def test_what_the_log_refuses_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the answer could not be checked before it was sent."""
    said: list[str] = []
    given = [["huge"], ["large"]]

    async def answer(pending: Pending, call: object, asker: str) -> Decision:
        return Decision("answer", value=given.pop(0))

    async with Runtime("memory:", agents=[sizes]) as runtime:
        session = await runtime.open(sizes)
        view = JsonView()
        monkeypatch.setattr(view, "show", lambda item: None)
        monkeypatch.setattr(view, "finish", lambda session, result: None)
        monkeypatch.setattr(view, "say", said.append)
        assert await attend(runtime, session, await session.start("go"), view, answer) == 0
    assert said == ["The answer does not fit ([0]: it has to be one of 'small', 'large'); answer again."]


def test_a_result_is_pasted(terminal: Open) -> None:
    screen = terminal("run", "go", *agent("scales"))
    shown = screen.until("[a]nswer with the result · [d]eny · [l]ater >")
    in_order(shown, "somebody carries it out elsewhere", 'parcel  "p1"', "The result has to fit", '"type":"object"}')
    screen.type("a\r")
    screen.until("with what result (JSON or text) >")
    screen.type("heavy\r")
    screen.until("The result does not fit (the value: it has to be of type object); give one\n  that does.")
    screen.type("a\r")
    screen.wait_for(lambda shown: shown.count("with what result") == 2, "the question again")
    screen.type('\x1b[200~{\n  "grams": 7\n}\x1b[201~')
    screen.type("\r")
    assert screen.end() == 0
    in_order(screen.text(), "▹ answered · weigh(", 'Told: {"grams":7}', "● completed")


def test_a_result_is_text_or_denied(terminal: Open) -> None:
    for keys, then in ((("a\r", "42\r"), "Told: 42"), (("d\r", "not today\r"), ": not today")):
        screen = terminal("run", "go", *agent("picker"))
        screen.until("[a]nswer with the result · [d]eny · [l]ater >", 'title  "Pick"')
        screen.type(keys[0])
        screen.wait_for(lambda shown: "with what result" in shown or "why (may be" in shown, "what is needed")
        screen.type(keys[1])
        assert screen.end() == 0
        in_order(screen.text(), then, "● completed")


def test_who_approves_sees_what_was_prepared(perdure: Command, terminal: Open) -> None:
    screen = terminal("run", "go", *agent("banker"), "--session", "s")
    shown = screen.until("[a]pprove")
    in_order(
        shown,
        '◇ prepared, revision r2 · transfer(to="ann") · {"cents":990,"fee":"10 cents"}',
        "‖ approval · transfer(",
        '  to  "ann"',
        "  prepared, revision r2\n",
        '    cents  990\n    fee    "10 cents"\n',
    )
    screen.type("a\r")
    assert screen.end() == 0
    assert perdure.ledger() == ["transfer ann 990"]
    assert 'prepared, revision r2: {"cents":990,"fee":"10 cents"}' in perdure("sessions", "audit", "s")


def test_a_question_behind_an_approval_still_says_what_is_asked(perdure: Command) -> None:
    perdure("run", "go", *agent("careful"), "--session", "s", code=3)
    (approval,) = perdure.objects("pending")
    assert approval["kind"] == "approval"
    perdure("decide", approval["id"], "approve")
    shown = perdure("resume", "s", *agent("careful"), code=3)
    in_order(shown, "▹ approved · ask_user(", "‖ question · ask_user(", "Which size?")
    in_order(perdure("pending"), "‖ question · ask_user", "Which size? [a number]", "2. large")


def test_an_operation_is_shown_and_found_again(perdure: Command) -> None:
    killed = perdure.start("run", "go", *agent("lab"), "--session", "s")
    until(lambda: "CallAdvanced" in perdure("sessions", "records", "s") if perdure.ledger() else False)
    killed.kill()
    killed.communicate(timeout=TIMEOUT)
    (perdure.folder / "developed").touch()
    shown = perdure("resume", "s", *agent("lab"))
    in_order(
        shown,
        '… develop(film="7") · operation op-7 under way',
        "↻ the process died",
        '↻ develop(film="7") found again: operation op-7 under way',
        '✓ develop(film="7") → op-7 is developed',
    )
    assert perdure.ledger() == ["develop 7"]
    whats = [row["what"] for row in perdure.objects("sessions", "audit", "s")]
    assert whats == ["proposed", "checked", "started", "advanced", "interrupted", "found again", "ended"]


def test_an_approval_that_no_longer_holds_is_taken_back(perdure: Command) -> None:
    """The tool's schema changes while somebody thinks."""
    code = (
        "from perdure import Agent, tool\n"
        "from perdure.testing import ScriptedModel, call\n"
        "@tool(effect='once', ask=True, description='DESCRIPTION')\n"
        "async def pay(cents: int) -> str:\n"
        "    return 'paid'\n"
        "clerk = Agent(name='clerk', tools=[pay], model=ScriptedModel([[call('pay', cents=5)], 'Done.']))\n"
    )
    path = perdure.folder / "changing.py"
    path.write_text(code.replace("DESCRIPTION", "Pay."))
    perdure("run", "go", "--agent", f"{path}:clerk", "--session", "s", code=3)
    (item,) = perdure.objects("pending")
    perdure("decide", item["id"], "approve", "--by", "ops")
    path.write_text(code.replace("DESCRIPTION", "Pay everything."))
    shown = perdure("resume", "s", "--agent", f"{path}:clerk", code=3)
    in_order(
        shown, "▹ approved · pay(cents=5) by ops", "↺ the approval is taken back · pay(cents=5) · What was approved"
    )
    whats = [row["what"] for row in perdure.objects("sessions", "audit", "s")]
    assert whats == ["proposed", "checked", "asked", "decided", "stale", "checked", "asked"]
