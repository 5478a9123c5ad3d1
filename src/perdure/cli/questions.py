"""Questions to a person at a terminal: shown with numbered options, answered by number or by words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import msgspec

from perdure.cli.words import visible
from perdure.core.codec import decode_json
from perdure.core.errors import UsageError
from perdure.core.fits import misfit
from perdure.core.messages import JSON
from perdure.core.views import Pending
from perdure.runtime.questions import Question, show_questions


def questions_of(pending: Pending) -> list[Question]:
    """The questions of a suspended call, in the order of their answers; none where one value is the answer."""
    arguments: JSON = pending.arguments
    if pending.kind != "question" or not isinstance(arguments, dict):
        return []
    found: list[Question] = []
    for value in cast("dict[str, JSON]", arguments).values():
        items: list[JSON] = cast("list[JSON]", value) if isinstance(value, list) else [value]
        found += [question for item in items if (question := _question(item))]
    # The answers follow the tool's signature, which the prompt does too; a model may write arguments in any order.
    if show_questions(found) != pending.prompt and all(item.question in pending.prompt for item in found):
        found.sort(key=lambda item: pending.prompt.index(item.question))
    return found


def _question(plain: JSON) -> Question | None:
    try:
        return msgspec.convert(plain, Question)
    except msgspec.ValidationError:
        return None


def show_question(question: Question, number: int = 1, of: int = 1) -> list[str]:
    """A question and its options, one a line."""
    numbered = f"{number}/{of}  {question.question}" if of > 1 else question.question
    return [visible(numbered), *(f"  {at}. {visible(option)}" for at, option in enumerate(question.options, 1))]


def how_to_answer(question: Question) -> str:
    """What may be typed, as a prompt says it."""
    if not question.options:
        return "your answers, with commas between them" if question.multiple else "your answer"
    said = "numbers, with commas between them" if question.multiple else "a number"
    return f"{said}, or other words" if question.free_text else said


def read_answer(question: Question, text: str) -> JSON:
    """The answer that the text stands for; a UsageError says what can be typed instead."""
    text = text.strip()
    if not text:
        if question.optional:
            return None
        raise UsageError(f"The question needs an answer; type {how_to_answer(question)}.")
    if not question.multiple:
        return _choose(question, text)
    whole = _option(question, text)
    if whole is not None:
        return [whole]
    chosen = [_choose(question, piece) for part in text.split(",") if (piece := part.strip())]
    return list(dict.fromkeys(chosen))


def read_answers(questions: Sequence[Question], text: str) -> JSON:
    """All answers of a call as `perdure decide` takes them: a JSON list, or the plain text for a single question."""
    given = _read_list(text)
    if len(questions) == 1:
        (question,) = questions
        if given is None:
            return [None if question.optional and text.strip() == "null" else read_answer(question, text)]
        # The choices of the one question, or the list of answers with that one in it.
        if question.multiple and not (len(given) == 1 and (given[0] is None or isinstance(given[0], list))):
            given = [given]
    if given is None:
        raise UsageError(
            f"There are {len(questions)} questions; give the answers as one JSON list, with null to skip one."
        )
    if len(given) != len(questions):
        raise UsageError(f"Of {len(questions)} questions {len(given)} are answered; give one answer for each.")
    return [_named(question, item) for question, item in zip(questions, given, strict=True)]


def forms_of(response: JSON, questions: Sequence[Question]) -> list[JSON]:
    """The schema of each answer; what cannot be told apart takes anything here and is checked when it is recorded."""
    given: JSON = cast("dict[str, JSON]", response).get("prefixItems") if isinstance(response, dict) else None
    forms = cast("list[JSON]", given) if isinstance(given, list) else []
    return forms if len(forms) == len(questions) else [True] * len(questions)


def read_fitting(question: Question, form: JSON, text: str) -> JSON:
    """The answer, if it fits what was asked; a UsageError says why it does not."""
    value = read_answer(question, text)
    if wrong := misfit(form, value):
        raise UsageError(f"The answer does not fit ({wrong}); type {how_to_answer(question)}.")
    return value


def _choose(question: Question, text: str) -> str:
    option = _option(question, text)
    if option is not None:
        return option
    if question.options and not question.free_text:
        raise UsageError(f"{text!r} is none of the options; type {how_to_answer(question)}.")
    return text


def _option(question: Question, text: str) -> str | None:
    """By its text, which may be a number itself, then by its number, then by its text in any case."""
    options = question.options
    if text in options:
        return text
    # Longer numbers are none of an option, and Python refuses to read very long ones.
    if text.isdecimal() and len(text) < 6 and 0 < int(text) <= len(options):
        return options[int(text) - 1]
    return next((option for option in options if option.casefold() == text.casefold()), None)


def _read_list(text: str) -> list[JSON] | None:
    try:
        value: JSON = decode_json(text)
    except ValueError:
        return None
    return cast("list[JSON]", value) if isinstance(value, list) else None


def _named(question: Question, value: JSON) -> JSON:
    """An answer of a list, with numbers of options as their texts; whether it fits is checked when it is recorded."""
    if isinstance(value, list):
        return [_named(question, item) for item in cast("list[JSON]", value)]
    if isinstance(value, int) and not isinstance(value, bool):
        return _option(question, str(value)) or value
    return value
