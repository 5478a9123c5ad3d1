"""How a command shows a run and who answers for it: JSON or a timeline, flags or a person."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager

from perdure.cli.answers import ask, by_flag, is_interactive
from perdure.cli.terminal import console, print_json
from perdure.cli.timeline import Timeline
from perdure.core.deltas import Delta
from perdure.core.views import Pending
from perdure.ports import Record
from perdure.runtime.results import Decision


@contextmanager
def shows_for(json: bool) -> Generator[Callable[[Record | Delta], None]]:
    if json:
        yield _show_json
        return
    timeline = Timeline(console())
    try:
        yield timeline.show
    finally:
        timeline.close()


def answers_for(yes: bool | None, json: bool) -> Callable[[Pending], Awaitable[Decision | None]]:
    """A flag answers approvals, a person everything; without either, what waits is left for later."""

    async def answer(pending: Pending) -> Decision | None:
        if yes is not None and (decision := by_flag(pending, yes=yes)):
            return decision
        return await ask(pending) if is_interactive() and not json else None

    return answer


def _show_json(item: Record | Delta) -> None:
    """One object a line: a record as it is in the log, a delta under its own name."""
    print_json(item if isinstance(item, Record) else {"delta": item})
