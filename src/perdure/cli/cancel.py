"""perdure cancel: end a session's open run from any terminal."""

from __future__ import annotations

from typing import Annotated

import typer

from perdure.cli.terminal import JsonOption, StoreOption, TenantOption, run_async


def cancel(
    session: Annotated[str, typer.Argument(help="The session's id.", show_default=False)],
    store: StoreOption = None,
    tenant: TenantOption = "",
    json: JsonOption = False,
) -> None:
    """End the open run by force: within 5 seconds, whatever its tools do.

    Example: `perdure cancel order-7`
    """
    from perdure.cli.remote import end_run

    run_async(end_run("cancel", session, store, tenant, json=json))
