"""Answering suspended calls: by a flag, or by a person at the terminal, who sees every argument in full."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, cast

from perdure.cli.words import list_arguments
from perdure.core.codec import decode_json, encode_json
from perdure.core.errors import UsageError
from perdure.core.events import PauseKind
from perdure.core.messages import JSON
from perdure.core.views import Pending
from perdure.runtime.results import Decision

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

Answer = Callable[[Pending], Awaitable[Decision | None]]

LATER = "l"
APPROVAL = {"a": "[a]pprove", "t": "always for this [t]ool", "d": "[d]eny", "e": "[e]dit"}
QUESTION = {"a": "[a]nswer", "d": "[d]ecline"}
MENUS: dict[PauseKind, dict[str, str]] = {
    "approval": APPROVAL,
    "listen": {"a": "[a]pprove", "d": "[d]eny"},
    "unknown": {"h": "it [h]appened", "f": "it [f]ailed", "r": "[r]etry"},
    "question": QUESTION,
    "frontend": QUESTION,
    "external": QUESTION,
}


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

    async def answer(pending: Pending) -> Decision | None:
        if yes is not None and pending.kind == "approval":
            # What is in doubt needs somebody who looks: a flag does not answer it.
            return Decision("approve" if yes else "deny", by=who(), reason="" if yes else "--no")
        return await ask(pending) if is_interactive() and not json else None

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


async def ask(pending: Pending) -> Decision | None:
    """Asks at the terminal until there is an answer that fits; None (also Ctrl-D) leaves the call for later."""
    from prompt_toolkit import PromptSession

    from perdure.cli.screen import open_screen

    menu = MENUS.get(pending.kind, {})
    if not menu:
        return None
    screen = open_screen()
    screen.line(" ", pending.tool, "bold")
    for row in list_arguments(pending.arguments):
        screen.line(" ", f"  {row}", "cyan")
    session: PromptSession[str] = PromptSession(interrupt_exception=Interrupted)
    shown = " · ".join((*menu.values(), "[l]ater"))
    try:
        while True:
            key = (await session.prompt_async(f"  {shown} > ")).strip().lower()[:1]
            if key == LATER:
                return None
            if key in menu and (decision := await _complete(session, pending, key)):
                return decision
            if key not in menu:
                print(f"  Type one of {', '.join((*menu, LATER))}, then Enter.")
    except EOFError:
        return None


async def _complete(session: PromptSession[str], pending: Pending, key: str) -> Decision | None:
    """Asks for what the choice needs: a reason, other arguments, or the result."""
    if key == "a" and MENUS[pending.kind] is not QUESTION:
        return Decision("approve", by=who())
    match key:
        case "t":
            return Decision("approve", by=who(), remember="tool")
        case "r":
            return Decision("retry", by=who())
        case "d" | "f":
            reason = (await session.prompt_async("  why (may be empty) > ")).strip()
            return Decision("deny", by=who(), reason=reason)
        case "e":
            shown = encode_json(pending.arguments).decode()
            try:
                arguments = read_arguments(await session.prompt_async("  arguments > ", default=shown))
            except UsageError as error:
                print(f"  {error}")
                return None
            return Decision("edit", by=who(), arguments=arguments)
        case _:
            value = (await session.prompt_async("  with what result > ")).strip()
            return Decision("answer", by=who(), value=read_value(value))
