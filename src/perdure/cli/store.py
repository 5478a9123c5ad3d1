"""perdure store: copy, check, prune."""

from __future__ import annotations

from typing import Annotated

import typer

from perdure.cli.terminal import JsonOption, StoreOption, TenantFilter, run_async

app = typer.Typer(
    help="Copy, check and prune whole stores.",
    epilog="Example: perdure store copy sqlite:perdure.db postgresql://…",
)


@app.callback(invoke_without_command=True)
def options(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


@app.command()
def copy(
    source: Annotated[str, typer.Argument(metavar="FROM", help="The store to read.", show_default=False)],
    target: Annotated[str, typer.Argument(metavar="TO", help="The store to write.", show_default=False)],
    json: JsonOption = False,
) -> None:
    """Copy all sessions into another store.

    Each is read back and compared by digest. What is driven is left out and told: stop what drives it, and copy once
    more. A copy that was interrupted goes on; what is there already is only compared.

    Example: perdure store copy sqlite:perdure.db postgresql://db/agents
    """
    from perdure.cli.storing import copy_store

    run_async(copy_store(source, target, json=json))


@app.command()
def check(store: StoreOption = None, tenant: TenantFilter = None, json: JsonOption = False) -> None:
    """Look for damage: gaps, digests, calls without outcomes, epochs.

    Exit code 1 if anything is wrong.

    Example: perdure store check --store sqlite:perdure.db
    """
    from perdure.cli.storing import check_store

    run_async(check_store(store, tenant, json=json))


@app.command()
def prune(
    older: Annotated[str, typer.Option("--older-than", help="30d, 12h or 45m since the last record.")],
    status: Annotated[str, typer.Option("--status", help="idle, or waiting.")] = "idle",
    export: Annotated[
        str | None, typer.Option("--export", help="Write each into this folder first.", show_default=False)
    ] = None,
    no_export: Annotated[bool, typer.Option("--no-export", help="Keep nothing of them.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say which.")] = False,
    store: StoreOption = None,
    tenant: TenantFilter = None,
    json: JsonOption = False,
) -> None:
    """Delete old sessions, with their sub-agents' sessions.

    Each is exported first, and its file read back; sessions import brings it back. What has work to do, or a time to
    wake, stays.

    Example: perdure store prune --older-than 30d --export old/
    """
    from perdure.cli.storing import Old, prune_store

    run_async(prune_store(Old(older, status, tenant), store, export, no_export=no_export, dry_run=dry_run, json=json))
