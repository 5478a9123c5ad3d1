"""perdure sessions: list, show, records, fork, delete."""

from __future__ import annotations

from typing import Annotated

import typer

from perdure.cli.terminal import JsonOption, StoreOption, TenantOption, run_async

app = typer.Typer(no_args_is_help=True, help="List, show, fork and delete sessions.")

IdArgument = Annotated[str, typer.Argument(help="The session's id.", show_default=False)]


@app.command("list")
def list_(
    store: StoreOption = None,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.", show_default=False)] = None,
    agent: Annotated[str | None, typer.Option(help="Only this agent's.", show_default=False)] = None,
    status: Annotated[str | None, typer.Option(help="idle, running or waiting.", show_default=False)] = None,
    limit: Annotated[int, typer.Option(help="How many at most.")] = 50,
    json: JsonOption = False,
) -> None:
    """List sessions, newest first.

    Example: `perdure sessions list --status waiting`
    """
    run_async(_list(store, tenant, agent, status, limit, json))


async def _list(
    store: str | None, tenant: str | None, agent: str | None, status: str | None, limit: int, json: bool
) -> None:
    from datetime import datetime
    from typing import cast, get_args

    from rich.table import Table

    from perdure.cli.remote import beside
    from perdure.cli.terminal import console, print_json
    from perdure.core.errors import UsageError
    from perdure.core.views import Status

    if status is not None and status not in get_args(Status):
        raise UsageError(f"--status {status}: take one of {', '.join(get_args(Status))}.")
    table = Table("session", "agent", "status", "records", "changed", box=None, pad_edge=False)
    async with beside(store) as runtime:
        count = 0
        async for row in runtime.sessions(tenant=tenant, agent=agent, status=cast(Status, status)):
            if json:
                print_json(row)
            changed = datetime.fromtimestamp(row.updated_at).strftime("%Y-%m-%d %H:%M:%S")
            table.add_row(row.id, row.agent, row.status, str(row.head), changed)
            count += 1
            if count >= limit:
                break
    if not json:
        console().print(table if count else "There are no sessions that fit.")


@app.command()
def show(id: IdArgument, store: StoreOption = None, tenant: TenantOption = "", json: JsonOption = False) -> None:
    """Show what happened, as a timeline: turns, calls, outcomes, waits, crashes, cost.

    Example: `perdure sessions show order-7`
    """
    run_async(_show(id, store, tenant, json))


async def _show(id: str, store: str | None, tenant: str, json: bool) -> None:
    from perdure.cli.remote import beside
    from perdure.cli.terminal import console, print_json
    from perdure.cli.timeline import Timeline

    async with beside(store) as runtime:
        session = await runtime.session(id, tenant=tenant)
        records = await session.records()
        pending = await session.pending()
    if json:
        print_json({"id": session.id, "uid": session.uid, "agent": session.agent, "pending": pending, "records": records})
        return
    out = console()
    timeline = Timeline(out, times=True)
    for record in records:
        timeline.show(record)
    for item in pending:
        out.print(f"waits: perdure decide {item.id} …", style="bold yellow", markup=False)


@app.command()
def records(
    id: IdArgument,
    after: Annotated[int, typer.Option(help="Only records after this seq.")] = 0,
    store: StoreOption = None,
    tenant: TenantOption = "",
    json: JsonOption = False,
) -> None:
    """Print the raw log, one record a line.

    Example: `perdure sessions records order-7 --json`
    """
    run_async(_records(id, after, store, tenant, json))


async def _records(id: str, after: int, store: str | None, tenant: str, json: bool) -> None:
    from perdure.cli.remote import beside
    from perdure.cli.terminal import print_json
    from perdure.core.codec import encode_event

    async with beside(store) as runtime:
        session = await runtime.session(id, tenant=tenant)
        for record in await session.records(after=after):
            if json:
                print_json(record)
            else:
                print(f"{record.seq:>6} {record.run:>3} {encode_event(record.event).decode()}")


@app.command()
def fork(
    id: IdArgument,
    at: Annotated[int | None, typer.Option(help="The last record of the common past.", show_default=False)] = None,
    name: Annotated[str | None, typer.Option("--id", help="The fork's id.", show_default=False)] = None,
    store: StoreOption = None,
    tenant: TenantOption = "",
    json: JsonOption = False,
) -> None:
    """Give a session's past another future; nothing is run again.

    Example: `perdure sessions fork order-7 --at 12 --id order-7b`
    """
    run_async(_fork(id, at, name, store, tenant, json))


async def _fork(
    id: str, at: int | None, name: str | None, store: str | None, tenant: str, json: bool
) -> None:
    from perdure.cli.remote import beside
    from perdure.cli.terminal import print_json

    async with beside(store) as runtime:
        session = await runtime.session(id, tenant=tenant)
        forked = await session.fork(at=at, id=name)
        if json:
            print_json({"session": forked.id, "uid": forked.uid, "of": session.id})
        else:
            print(forked.id)


@app.command()
def delete(
    id: IdArgument,
    store: StoreOption = None,
    tenant: TenantOption = "",
    json: JsonOption = False,
) -> None:
    """Forget a session and what belongs to it alone.

    Example: `perdure sessions delete order-7`
    """
    run_async(_delete(id, store, tenant, json))


async def _delete(id: str, store: str | None, tenant: str, json: bool) -> None:
    from perdure.cli.remote import beside
    from perdure.cli.terminal import print_json

    async with beside(store) as runtime:
        session = await runtime.session(id, tenant=tenant)
        await session.delete()
    if json:
        print_json({"deleted": id})
    else:
        print(f"{id} is deleted.")
