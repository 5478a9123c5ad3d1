"""What waits for a session, through the real command: listed, edited, retracted, and shown with the session."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from perdure import Agent, Runtime
from perdure.core.commands import SendInput
from perdure.core.messages import Text
from perdure.testing import ScriptedModel
from tests.cli.command import Command, in_order

AGENT = """
from perdure import Agent

clerk = Agent(name="clerk")
"""
WITH = ("--agent", "agents.py:clerk", "--model", "scripted:script.json")


@pytest.fixture
def waiting(perdure: Command) -> Command:
    """A session of one run, and inputs that a process which never drives has sent."""

    async def send(path: Path) -> None:
        agent = Agent(name="clerk", model=ScriptedModel([]))
        async with Runtime(f"sqlite:{path}", agents=[agent], engine=None) as runtime:
            session = await runtime.session("s")
            await session.start("two")
            await session.send("thr\x1bee", key="k3")
            later = SendInput((Text("four"),), at=4_000_000_000.0, by="remind (call 1)")
            await session._host.request(session._log, later)

    (perdure.folder / "agents.py").write_text(AGENT)
    (perdure.folder / "script.json").write_text(json.dumps(["One.", "Two."]))
    perdure("run", "one", *WITH, "--session", "s")
    asyncio.run(send(perdure.folder / "data" / "perdure" / "perdure.db"))
    return perdure


def test_what_waits_is_listed_edited_and_retracted(waiting: Command) -> None:
    perdure = waiting
    in_order(
        perdure("inputs", "list", "s"),
        "▸ input 2 · queue · two",
        "▸ input 3 · join · key k3 · thr\\x1bee",
        "▸ input 4 · queue · not before 2096-10-",
        "by remind (call 1) · four",
    )
    listed = perdure.objects("inputs", "list", "s")
    assert [(item["number"], item["busy"], item["parts"][0]["text"]) for item in listed] == [
        (2, "queue", "two"),
        (3, "join", "thr\x1bee"),
        (4, "queue", "four"),
    ]
    assert perdure("inputs", "edit", "s", "2", "zwei") == "s: input 2 is edited.\n"
    assert perdure.objects("inputs", "edit", "s", "2", "deux")[0] == {"session": "s", "input": 2, "recorded": "edited"}
    assert perdure("inputs", "retract", "s", "3") == "s: input 3 is retracted.\n"
    (told,) = perdure.objects("inputs", "retract", "s", "4")
    assert told["recorded"] == "retracted"
    again = perdure.call("inputs", "retract", "s", "4", code=2).stderr
    assert again == "perdure: Input 4 was retracted already; send it again if it is wanted.\n"
    empty = perdure.call("inputs", "edit", "s", "2", " ", code=2).stderr
    assert empty.count("\n") == 1
    perdure("resume", "s", *WITH)
    assert perdure("inputs", "list", "s") == "Nothing waits for s.\n"
    assert perdure.objects("inputs", "list", "s") == []
    in_order(
        perdure("sessions", "show", "s"),
        "s · agent clerk · idle",
        "2 runs · 2 turns · 30 tokens",
        "last run: completed · 1 turn · 15 tokens",
        "▸ two",
        "· input 2 was edited by",
        ": deux",
        "⊘ input 3 was retracted by",
        "Two.",
    )


def test_a_session_is_shown_with_what_waits(waiting: Command) -> None:
    perdure = waiting
    shown = perdure("sessions", "show", "s")
    in_order(shown, "▸ waits: input 2 · queue · two", "▸ waits: input 3", "▸ waits: input 4", "nobody drives it")
    (session,) = perdure.objects("sessions", "show", "s")
    assert [item["number"] for item in session["inputs"]] == [2, 3, 4]
    assert (session["turns"], session["last"]["run"], session["last"]["output"]) == (1, 1, "One.")


def test_the_shell_completes_the_numbers_of_what_waits(waiting: Command) -> None:
    words = "perdure inputs retract s "
    waiting.env |= {"_PERDURE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    assert waiting().split() == ["2", "3", "4"]
