"""What every store must do, as checks that any test runner can call.

A store passes if `await check_store(make_store)` reports no failure; a runner of parametrized tests goes over
CHECKS.
"""

from __future__ import annotations

import msgspec

from perdure.testing import store_log_checks as logs
from perdure.testing import store_session_checks as sessions
from perdure.testing import store_work_checks as work
from perdure.testing.store_samples import Beside, Check, MakeStore

CHECKS: dict[str, Check] = {
    "order": logs.check_order,
    "conflict": logs.check_conflict,
    "stale_epoch": logs.check_stale_epoch,
    "concurrent_appenders": logs.check_concurrent_appenders,
    "follow": logs.check_follow,
    "watch_tells_the_head": logs.check_watch_tells_the_head,
    "hostile_payloads": logs.check_hostile_payloads,
    "hostile_values": logs.check_hostile_values,
    "closed": logs.check_closed,
    "row": sessions.check_row,
    "claim_and_release": sessions.check_claim_and_release,
    "heirs": sessions.check_heirs,
    "runnable": sessions.check_runnable,
    "queues": work.check_queues,
    "priorities": work.check_priorities,
    "caps": work.check_caps,
    "fair_lists": work.check_fair_lists,
    "waiting": work.check_waiting,
    "list": sessions.check_list,
    "triggers": sessions.check_triggers,
    "hostile_names": sessions.check_hostile_names,
    "delete": sessions.check_delete,
    "forks": sessions.check_forks,
    "artifacts": sessions.check_artifacts,
    "drafts": sessions.check_drafts,
}


class Report(msgspec.Struct, frozen=True):
    """Which checks held, and what the others said."""

    passed: tuple[str, ...]
    failed: dict[str, str]


async def check_store(make_store: MakeStore, beside: Beside = None) -> Report:
    """Runs every check on a new store; `beside` opens a second object on the same data, where that can be."""
    passed: list[str] = []
    failed: dict[str, str] = {}
    for name, check in CHECKS.items():
        try:
            await check(make_store, beside)
            passed.append(name)
        except Exception as error:  # noqa: BLE001 - the store under test may raise anything
            failed[name] = f"{type(error).__name__}: {error}"
    return Report(tuple(passed), failed)
