"""perdure pending: what waits for a decision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.cli.terminal import JsonOption, StoreOption, TenantFilter, run_async

if TYPE_CHECKING:
    from perdure.cli.screen import Screen
    from perdure.core.views import Pending
    from perdure.wiring import Runtime


def pending(store: StoreOption = None, tenant: TenantFilter = None, json: JsonOption = False) -> None:
    """List the calls that wait for somebody, over all sessions.

    Of a sub-agent's call it says which session it works for in the end.

    Example: perdure pending --json
    """
    run_async(_pending(store, tenant, json))


async def _pending(store: str | None, tenant: str | None, json: bool) -> None:
    from msgspec import to_builtins

    from perdure.cli.remote import beside, how_to_decide
    from perdure.cli.screen import open_screen
    from perdure.cli.terminal import print_json

    async with beside(store) as runtime:
        items = await runtime.pending(tenant=tenant)
        families = [await _family(runtime, item) for item in items]
    if json:
        for item, family in zip(items, families, strict=True):
            print_json({**to_builtins(item), **family})
        return
    screen = open_screen()
    if not items:
        screen.say("Nothing waits for a decision.")
    for item, family in zip(items, families, strict=True):
        _show(screen, item, family)
        screen.line(" ", how_to_decide(item, store))


async def _family(runtime: Runtime, item: Pending) -> dict[str, str]:
    """Of a sub-agent's call: its agent, and the root session that all of it is for."""
    from perdure.cli.family import is_child, root_of
    from perdure.core.errors import NotFound

    try:
        session = await runtime.session_by_uid(item.id.split("-")[0])
    except NotFound:
        return {}
    root = await root_of(runtime, session)
    return {"agent": session.agent, "root": root.id if root else ""} if is_child(session) else {}


def _show(screen: Screen, item: Pending, family: dict[str, str]) -> None:
    from perdure.cli.questions import how_to_answer, questions_of, show_question
    from perdure.cli.words import list_arguments, name_pause, show_pause, show_until

    until = f" ·{show_until(item.expires_at)}" if item.expires_at is not None else ""
    whose = f" · {family['agent']}, sub-agent of session {family['root'] or '(gone)'}" if family else ""
    screen.line("‖", f"{name_pause(item.kind)} · {item.tool} · session {item.session}{whose}{until}", "bold yellow")
    questions = questions_of(item)
    for number, question in enumerate(questions, 1):
        first, *options = show_question(question, number, len(questions))
        may_skip = ", may be skipped" if question.optional else ""
        for row in (f"{first} [{how_to_answer(question)}{may_skip}]", *options):
            screen.line(" ", f"  {row}", "cyan")
    if not questions:
        screen.line(" ", show_pause(item.kind, item.prompt))
        for row in list_arguments(item.arguments):
            screen.line(" ", f"  {row}", "cyan")
