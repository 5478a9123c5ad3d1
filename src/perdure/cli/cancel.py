"""perdure cancel: end a session's open run from any terminal."""

from __future__ import annotations

from perdure.cli.complete import SessionArgument
from perdure.cli.terminal import JsonOption, StoreOption, TenantOption, run_async


def cancel(
    session: SessionArgument,
    store: StoreOption = None,
    tenant: TenantOption = "",
    json: JsonOption = False,
) -> None:
    """End the open run by force.

    It ends within 5 seconds, whatever its tools do.

    Example: perdure cancel order-7
    """
    from perdure.cli.remote import end_run

    run_async(end_run("cancel", session, store, tenant, json=json))
