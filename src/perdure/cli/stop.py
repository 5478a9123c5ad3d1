"""perdure stop: end a session's open run from any terminal."""

from __future__ import annotations

from perdure.cli.complete import SessionArgument
from perdure.cli.terminal import JsonOption, StoreOption, TenantOption, run_async


def stop(
    session: SessionArgument,
    store: StoreOption = None,
    tenant: TenantOption = "",
    json: JsonOption = False,
) -> None:
    """End the open run gracefully.

    Tools under way finish; no new turn is taken.

    Example: perdure stop order-7
    """
    from perdure.cli.remote import end_run

    run_async(end_run("stop", session, store, tenant, json=json))
