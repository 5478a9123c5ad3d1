"""CompactHistory: the older part of the view gives way to a summary, and nothing that matters is lost or paid twice."""

from __future__ import annotations

from perdure.core.actions import CompactHistory
from perdure.core.events import HistoryCompacted
from perdure.core.window import find_range, ledger_of
from perdure.runtime.desk import Desk


async def compact_history(desk: Desk, action: CompactHistory) -> HistoryCompacted:
    state = desk.log.state
    window = desk.binding.spec.window
    found = find_range(state.history, window.keep_first, window.keep_last)
    if found is None:
        return HistoryCompacted(state.view, action.cause, error="there is nothing to leave out")
    ledger = ledger_of(state, state.history[found.start : found.stop])
    return HistoryCompacted(state.view, action.cause, found.start, found.stop, ledger=ledger)
