"""Tools with a condition: whether the model sees one in a turn, and may call it.

Rule: a turn's question is asked once; after a crash it is asked again, by whoever judges the call.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from perdure.core.events import Noted
from perdure.core.state import SessionState
from perdure.runtime.context import ToolContext
from perdure.runtime.desk import Desk, describe
from perdure.runtime.patience import Unanswered, answered


async def is_shown(desk: Desk, state: SessionState, name: str) -> bool:
    """What the tool's condition says in this turn; one that fails hides the tool, and that is noted."""
    tool = desk.binding.tools.get(name)
    if tool is None or tool.when is None:
        return True
    turn, known = desk.shown
    now = state.run.turn if state.run else 0
    if turn != now:
        known = {}
        desk.shown = (now, known)
    if name not in known:
        context: ToolContext[Any, Any] = ToolContext(
            deps=desk.world.deps,
            data=state.data,
            session=state.id,
            tenant=state.tenant,
            run=state.run.run if state.run else 0,
            state=state,
            shelf=desk.shelf,
        )
        try:
            known[name] = bool(await answered(desk.world.clock, partial(tool.when, context)))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - user code
            reason = str(error) if isinstance(error, Unanswered) else describe(error)
            desk.note(Noted("condition_failed", {"tool": name, "detail": reason}))
            known[name] = False
    return known[name]
