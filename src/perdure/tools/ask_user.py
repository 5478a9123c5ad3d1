"""ask_user: the model asks the person, with options, several choices, free text, or the liberty to skip."""

from __future__ import annotations

from typing import Any

from perdure.runtime.questions import Question
from perdure.runtime.tools import Tool, tool


def _ask(questions: list[Question]) -> Any:
    """Ask the person one or more questions and wait for the answers.

    questions: what to ask; give options where the answer is a choice, multiple=true if several may be chosen,
        free_text=true if other words are welcome too, optional=true if the person may skip it
    """


def ask_user(*, name: str = "ask_user", expires: float | None = None) -> Tool[..., Any]:
    """The tool: all questions of a call are answered in one decision, which is checked against what was asked."""
    return tool(_ask, name=name, kind="question", effect="read", expires=expires)
