"""Questions to a person: what the model may ask, how it is shown, and what the answers have to fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from perdure.core.messages import JSON, Plain


class Question(Plain, frozen=True):
    """One question; without options the answer is free text."""

    question: str
    options: tuple[str, ...] = ()
    multiple: bool = False
    free_text: bool = False
    optional: bool = False


def questions_in(arguments: dict[str, Any]) -> list[Question]:
    """The questions among a call's arguments."""
    found: list[Question] = []
    for value in arguments.values():
        items: list[object] = cast(list[object], value) if isinstance(value, list | tuple) else [value]
        found += [item for item in items if isinstance(item, Question)]
    return found


def response_schema(questions: Sequence[Question]) -> JSON:
    """A list with one answer for each question; null skips an optional one."""
    forms = [_answer_schema(question) for question in questions]
    return {"type": "array", "prefixItems": forms, "items": False, "minItems": len(forms)}


def _answer_schema(question: Question) -> JSON:
    text: JSON = {"type": "string", "minLength": 1}
    form: JSON = {"enum": list(question.options)} if question.options else text
    if question.options and question.free_text:
        form = {"anyOf": [form, text]}
    if question.multiple:
        form = {"type": "array", "items": form, "minItems": 0 if question.optional else 1, "uniqueItems": True}
    return {"anyOf": [form, {"type": "null"}]} if question.optional else form


def show_questions(questions: Sequence[Question]) -> str:
    """The questions as a person reads them."""
    lines: list[str] = []
    for number, item in enumerate(questions, 1):
        choice = f" ({' / '.join(item.options)})" if item.options else ""
        notes = [
            *(["several may be chosen"] if item.multiple else []),
            *(["other words are welcome"] if item.options and item.free_text else []),
            *(["may be skipped"] if item.optional else []),
        ]
        note = f" [{', '.join(notes)}]" if notes else ""
        lines.append(
            f"{number}. {item.question}{choice}{note}" if len(questions) > 1 else f"{item.question}{choice}{note}"
        )
    return "\n".join(lines)
