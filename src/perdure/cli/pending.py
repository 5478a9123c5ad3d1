"""perdure pending: what waits for a decision."""

from __future__ import annotations

from perdure.cli.terminal import JsonOption, StoreOption, TenantFilter, run_async


def pending(store: StoreOption = None, tenant: TenantFilter = None, json: JsonOption = False) -> None:
    """List the calls that wait for somebody, over all sessions.

    Example: perdure pending --json
    """
    run_async(_pending(store, tenant, json))


async def _pending(store: str | None, tenant: str | None, json: bool) -> None:
    from perdure.cli.remote import beside, how_to_decide
    from perdure.cli.screen import open_screen
    from perdure.cli.terminal import print_json
    from perdure.cli.words import list_arguments

    async with beside(store) as runtime:
        items = await runtime.pending(tenant=tenant)
    if json:
        for item in items:
            print_json(item)
        return
    screen = open_screen()
    if not items:
        screen.say("Nothing waits for a decision.")
    for item in items:
        kind = "in doubt" if item.kind == "unknown" else item.kind
        screen.line("‖", f"{kind} · {item.tool} · session {item.session}", "bold yellow")
        screen.line(" ", item.prompt)
        for row in list_arguments(item.arguments):
            screen.line(" ", f"  {row}", "cyan")
        screen.line(" ", how_to_decide(item, store))
