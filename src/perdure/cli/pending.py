"""perdure pending: what waits for a decision."""

from __future__ import annotations

from typing import Annotated

import typer

from perdure.cli.terminal import JsonOption, StoreOption, run_async


def pending(
    store: StoreOption = None,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.", show_default=False)] = None,
    json: JsonOption = False,
) -> None:
    """List the calls that wait for somebody, over all sessions.

    Example: `perdure pending`, then `perdure decide ID approve`
    """
    run_async(_pending(store, tenant, json))


async def _pending(store: str | None, tenant: str | None, json: bool) -> None:
    from perdure.cli.remote import beside
    from perdure.cli.terminal import console, print_json
    from perdure.cli.timeline import show_arguments
    from perdure.core.codec import encode_json

    async with beside(store) as runtime:
        items = await runtime.pending(tenant=tenant)
    if json:
        for item in items:
            print_json(item)
        return
    out = console()
    if not items:
        out.print("Nothing waits for a decision.")
    for item in items:
        out.print(f"[bold]{item.id}[/]  [yellow]{item.kind}[/]  session {item.session}")
        out.print(f"    {item.tool}({show_arguments(encode_json(item.arguments).decode())})", markup=False)
        out.print(f"    {item.prompt}", markup=False, style="dim")
