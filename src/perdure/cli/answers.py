"""Answering suspended calls: by a flag, or by a person at the terminal, who sees every argument in full."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, cast

from perdure.cli.questions import forms_of, how_to_answer, questions_of, read_fitting, show_question
from perdure.cli.words import list_arguments, show_pause, show_until
from perdure.core.calls import Call
from perdure.core.codec import decode_json, encode_json
from perdure.core.errors import UsageError
from perdure.core.events import PauseKind
from perdure.core.fits import misfit
from perdure.core.messages import JSON
from perdure.core.views import Pending
from perdure.runtime.results import Decision

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

    from perdure.cli.screen import Screen
    from perdure.runtime.questions import Question

Answer = Callable[[Pending, Call | None, str], Awaitable[Decision | None]]
"""Of a suspended call, of what the log has of it (the snapshot, what an answer has to fit), and of who asks."""

LATER = "l"
APPROVAL = {"a": "[a]pprove", "t": "always for this [t]ool", "d": "[d]eny", "e": "[e]dit"}
RESULT = {"a": "[a]nswer with the result", "d": "[d]eny"}
MENUS: dict[PauseKind, dict[str, str]] = {
    "approval": APPROVAL,
    "listen": {"a": "[a]pprove", "d": "[d]eny"},
    "unknown": {"h": "it [h]appened", "f": "it [f]ailed", "r": "[r]etry"},
    "question": {"a": "[a]nswer", "d": "[d]ecline"},
    "frontend": RESULT,
    "external": RESULT,
}
ANSWERED: tuple[PauseKind, ...] = ("question", "frontend", "external")
"""Nobody approves these: the answer is the result."""

SLASH_DECLINE, SLASH_LATER = "/decline", "/later"


class Interrupted(Exception):
    """Ctrl-C was pressed at a question."""


def who() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "terminal"


def is_interactive() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def answers_for(yes: bool | None, json: bool) -> Answer:
    """A flag answers approvals, a person everything; without either, what waits is left for later."""

    async def answer(pending: Pending, call: Call | None, asker: str) -> Decision | None:
        if yes is not None and pending.kind == "approval":
            # What is in doubt needs somebody who looks: a flag does not answer it.
            return Decision("approve" if yes else "deny", by=who(), reason="" if yes else "--no")
        return await ask(pending, call, asker) if is_interactive() and not json else None

    return answer


def read_arguments(text: str | None) -> dict[str, Any] | None:
    """Arguments as a person typed them; a UsageError says what is wrong."""
    if text is None:
        return None
    try:
        arguments = decode_json(text)
    except ValueError as error:
        raise UsageError(f'The arguments are no JSON ({error}); write them as \'{{"order": "7"}}\'.') from None
    if not isinstance(arguments, dict):
        raise UsageError('The arguments have to be one JSON object; write them as \'{"order": "7"}\'.')
    return cast("dict[str, Any]", arguments)


def read_value(text: str | None) -> JSON:
    """JSON where it is some, else the text itself."""
    try:
        return None if text is None else decode_json(text)
    except ValueError:
        return text


def read_result(text: str, schema: JSON) -> JSON:
    """What was typed, as JSON or as text, whichever fits; a UsageError says what does not."""
    value = read_value(text)
    wrong = misfit(schema, value) if schema is not None else ""
    if not wrong:
        return value
    if not misfit(schema, text):
        return text
    raise UsageError(f"The result does not fit ({wrong}); give one that does.")


async def ask(pending: Pending, call: Call | None = None, asker: str = "") -> Decision | None:
    """Asks at the terminal until there is an answer that fits; None (also Ctrl-D) leaves the call for later.

    `asker` says which sub-agent it is for.
    """
    from prompt_toolkit import PromptSession

    from perdure.cli.screen import open_screen

    if pending.kind not in MENUS:
        return None
    screen = open_screen()
    session: PromptSession[str] = PromptSession(interrupt_exception=Interrupted)
    questions = questions_of(pending)
    if asker:
        screen.line("▸", asker, "bold yellow")
    try:
        if questions:
            return await _ask_questions(session, screen, questions, _response(call))
        _show(screen, pending, call)
        return await _ask_menu(session, screen, pending, call)
    except EOFError:
        return None


def _show(screen: Screen, pending: Pending, call: Call | None) -> None:
    """All that a decision is about: every argument, what was prepared, what a result has to fit."""
    screen.line(" ", pending.tool, "bold")
    for row in list_arguments(pending.arguments):
        screen.line(" ", f"  {row}", "cyan")
    if call is not None and (call.snapshot is not None or call.revision):
        revision = f", revision {call.revision}" if call.revision else ""
        screen.line(" ", f"prepared{revision}{show_until(call.valid_until)}", "bold")
        for row in list_arguments(call.snapshot):
            screen.line(" ", f"  {row}", "cyan")
    if pending.kind in ANSWERED:
        if pending.prompt:
            screen.line(" ", show_pause(pending.kind, pending.prompt))
        if (schema := _response(call)) is not None:
            screen.line(" ", f"The result has to fit {encode_json(schema).decode()}", "dim")


def _response(call: Call | None) -> JSON:
    return call.pause.response if call is not None and call.pause is not None else None


async def _ask_questions(
    session: PromptSession[str], screen: Screen, questions: list[Question], response: JSON
) -> Decision | None:
    """One after the other, and all answers in one decision."""
    screen.line(" ", f"{SLASH_DECLINE} answers none of it, {SLASH_LATER} (or Ctrl-D) leaves it for later.", "dim")
    answers: list[JSON] = []
    for number, (question, form) in enumerate(zip(questions, forms_of(response, questions), strict=True), 1):
        for row in show_question(question, number, len(questions)):
            screen.line(" ", row, "cyan")
        skips = " (Enter skips it)" if question.optional else ""
        while len(answers) < number:
            text = (await session.prompt_async(f"  {how_to_answer(question)}{skips} > ")).strip()
            if text == SLASH_LATER:
                return None
            if text == SLASH_DECLINE:
                return await _deny(session)
            try:
                answers.append(read_fitting(question, form, text))
            except UsageError as error:
                screen.line(" ", str(error), "yellow")
    return Decision("answer", by=who(), value=answers)


async def _ask_menu(
    session: PromptSession[str], screen: Screen, pending: Pending, call: Call | None
) -> Decision | None:
    menu = MENUS[pending.kind]
    shown = " · ".join((*menu.values(), "[l]ater"))
    while True:
        key = (await session.prompt_async(f"  {shown} > ")).strip().lower()[:1]
        if key == LATER:
            return None
        if key not in menu:
            screen.line(" ", f"Type one of {', '.join((*menu, LATER))}, then Enter.", "yellow")
            continue
        try:
            return await _complete(session, pending, call, key)
        except UsageError as error:
            screen.line(" ", str(error), "yellow")


async def _complete(session: PromptSession[str], pending: Pending, call: Call | None, key: str) -> Decision:
    """Asks for what the choice needs: a reason, other arguments, or the result."""
    if key == "a" and pending.kind not in ANSWERED:
        return Decision("approve", by=who())
    match key:
        case "t":
            return Decision("approve", by=who(), remember="tool")
        case "r":
            return Decision("retry", by=who())
        case "d" | "f":
            return await _deny(session)
        case "e":
            shown = encode_json(pending.arguments).decode()
            arguments = read_arguments(await session.prompt_async("  arguments > ", default=shown))
            return Decision("edit", by=who(), arguments=arguments)
        case _:
            value = (await session.prompt_async("  with what result (JSON or text) > ")).strip()
            return Decision("answer", by=who(), value=read_result(value, _response(call)))


async def _deny(session: PromptSession[str]) -> Decision:
    reason = (await session.prompt_async("  why (may be empty) > ")).strip()
    return Decision("deny", by=who(), reason=reason)
