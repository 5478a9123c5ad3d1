"""Answering suspended calls: by a flag, or by a person at the terminal."""

from __future__ import annotations

import getpass
import sys
from typing import Any, cast

from perdure.core.codec import decode_json, encode_json
from perdure.core.errors import UsageError
from perdure.core.messages import JSON
from perdure.core.rules import DECISIONS
from perdure.core.views import Pending
from perdure.runtime.results import Decision

KEYS = {"a": "approve", "y": "approve", "d": "deny", "n": "deny", "e": "edit", "r": "retry", "h": "answer", "l": "later"}


def who() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "terminal"


def by_flag(pending: Pending, *, yes: bool) -> Decision | None:
    """--yes and --no answer approvals only: what is in doubt needs somebody who looks."""
    if pending.kind != "approval":
        return None
    return Decision("approve" if yes else "deny", by=who(), reason="" if yes else "--no")


def is_interactive() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def read_arguments(text: str | None) -> dict[str, Any] | None:
    """Arguments as a person typed them; a UsageError says what is wrong."""
    if text is None:
        return None
    try:
        arguments = decode_json(text)
    except ValueError as error:
        raise UsageError(f"The arguments are no JSON ({error}); write them as '{{\"order\": \"7\"}}'.") from None
    if not isinstance(arguments, dict):
        raise UsageError("The arguments have to be one JSON object.")
    return cast("dict[str, Any]", arguments)


def read_value(text: str | None) -> JSON:
    """JSON where it is some, else the text itself."""
    try:
        return None if text is None else decode_json(text)
    except ValueError:
        return text


async def ask(pending: Pending) -> Decision | None:
    """Asks at the terminal until there is an answer that fits; None leaves the call for later."""
    from prompt_toolkit import PromptSession

    session: PromptSession[str] = PromptSession()
    choices = DECISIONS[pending.kind]
    menu = " · ".join(_menu(choice) for choice in choices)
    while True:
        typed = (await session.prompt_async(f"  {menu} · [l]ater > ")).strip().lower()
        choice = KEYS.get(typed[:1], "")
        if choice == "later":
            return None
        if choice in choices:
            decision = await _complete(session, pending, choice)
            if decision is not None:
                return decision
        else:
            print(f"  Type one of: {', '.join(choices)} or later.")


def _menu(choice: str) -> str:
    names = {
        "approve": "[a]pprove",
        "deny": "[d]eny",
        "edit": "[e]dit",
        "retry": "[r]etry",
        "answer": "it [h]appened",
    }
    return names[choice]


async def _complete(session: Any, pending: Pending, choice: str) -> Decision | None:
    """Asks for what the choice needs: a reason, new arguments, or the result."""
    match choice:
        case "deny":
            reason = (await session.prompt_async("  why (may be empty) > ")).strip()
            return Decision("deny", by=who(), reason=reason)
        case "edit":
            shown = encode_json(pending.arguments).decode()
            try:
                arguments = read_arguments(await session.prompt_async("  arguments > ", default=shown))
            except UsageError as error:
                print(f"  {error}")
                return None
            return Decision("edit", by=who(), arguments=arguments)
        case "answer":
            return Decision("answer", by=who(), value=(await session.prompt_async("  what came of it > ")).strip())
        case "retry":
            return Decision("retry", by=who())
        case _:
            return Decision("approve", by=who())
