"""perdure sessions: list, show, tree, records, audit, compact, fork, delete, and what travels in time."""

from __future__ import annotations

from typing import Annotated

import typer

from perdure.cli import replay, travel
from perdure.cli.agents import AgentOption, ModelOption
from perdure.cli.complete import SessionArgument, tag_names
from perdure.cli.terminal import JsonOption, StoreOption, TenantFilter, TenantOption, run_async

app = typer.Typer(
    help="List, show, audit, compact, fork, rewind, compare, export and delete sessions; trees of sub-agents.",
    epilog="Example: perdure sessions show order-7",
)

AtOption = Annotated[
    str | None,
    typer.Option(help="A record's number, or a tag.", show_default=False, autocompletion=tag_names),
]


@app.callback(invoke_without_command=True)
def options(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


@app.command("list")
def list_(
    store: StoreOption = None,
    tenant: TenantFilter = None,
    agent: Annotated[str | None, typer.Option(help="Only this agent's.", show_default=False)] = None,
    status: Annotated[str | None, typer.Option(help="Only idle, running or waiting ones.", show_default=False)] = None,
    limit: Annotated[int, typer.Option(help="How many at most.", min=1)] = 50,
    children: Annotated[bool, typer.Option("--children", help="Those of sub-agents too.")] = False,
    json: JsonOption = False,
) -> None:
    """List sessions, newest first.

    Example: perdure sessions list --status waiting
    """
    from perdure.cli.listing import list_sessions

    run_async(list_sessions(store, tenant, agent, status, limit, children=children, json=json))


@app.command()
def tree(id: SessionArgument, store: StoreOption = None, tenant: TenantOption = "", json: JsonOption = False) -> None:
    """Show a session and those of its sub-agents.

    Each with its agent, what it waits for, its turns, and what it has used, its own sub-agents included.

    Example: perdure sessions tree order-7
    """
    from perdure.cli.forest import print_tree

    run_async(print_tree(id, store, tenant, json=json))


@app.command()
def show(
    id: SessionArgument,
    at: AtOption = None,
    store: StoreOption = None,
    tenant: TenantOption = "",
    json: JsonOption = False,
) -> None:
    """Show what happened, as a timeline.

    Every turn with its tokens and cost, every call with its outcome, waits, crashes and what followed them. With --at,
    as it was then.

    Example: perdure sessions show order-7
    """
    from perdure.cli.listing import show_session

    run_async(show_session(id, at, store, tenant, json=json))


@app.command()
def records(
    id: SessionArgument,
    after: Annotated[int, typer.Option(help="Only records after this one.", min=0)] = 0,
    store: StoreOption = None,
    tenant: TenantOption = "",
    json: JsonOption = False,
) -> None:
    """Print the raw log, one record a line.

    Example: perdure sessions records order-7 --json
    """
    from perdure.cli.listing import print_records

    run_async(print_records(id, after, store, tenant, json=json))


@app.command()
def audit(id: SessionArgument, store: StoreOption = None, tenant: TenantOption = "", json: JsonOption = False) -> None:
    """Show each transition of each call, as a table.

    Proposed, checked by which rule, asked, decided by whom and why, started, replayed after a crash, ended.

    Example: perdure sessions audit order-7
    """
    from perdure.cli.audit import audit_session

    run_async(audit_session(id, store, tenant, json=json))


@app.command()
def compact(
    id: SessionArgument,
    agent: AgentOption = None,
    model: ModelOption = None,
    store: StoreOption = None,
    tenant: TenantOption = "",
    json: JsonOption = False,
) -> None:
    """Make what the model reads of a session shorter; the log stays whole.

    Older messages give way to a summary, which the agent's model writes. Decisions and paths stay word for word.

    Example: perdure sessions compact order-7 --agent agents.py:clerk
    """
    from perdure.cli.compacting import compact_session
    from perdure.cli.driving import Given

    raise typer.Exit(run_async(compact_session(id, Given(agent, model, store, tenant, None, json))))


@app.command()
def fork(
    id: SessionArgument,
    at: AtOption = None,
    name: Annotated[str | None, typer.Option("--id", help="The fork's id.", show_default=False)] = None,
    store: StoreOption = None,
    tenant: TenantOption = "",
    json: JsonOption = False,
) -> None:
    """Give a session's past another future; nothing is run again.

    Example: perdure sessions fork order-7 --at 12 --id order-7b
    """
    run_async(_fork(id, at, name, store, tenant, json))


async def _fork(id: str, at: str | None, name: str | None, store: str | None, tenant: str, json: bool) -> None:
    from perdure.cli.remote import beside, find
    from perdure.cli.terminal import print_json
    from perdure.core.errors import Conflict

    async with beside(store) as runtime:
        session = await find(runtime, id, store, tenant)
        try:
            is_number = at is not None and at.removeprefix("-").isdecimal() and len(at) < 20
            forked = await session.fork(at=int(at) if at and is_number else at, id=name)
        except Conflict:
            raise Conflict(f"There is a session {name!r} already; take another --id.") from None
        if json:
            print_json({"session": forked.id, "uid": forked.uid, "of": session.id})
        else:
            print(forked.id)


for command in (travel.rewind, travel.tag, travel.rename, replay.compare, travel.export):
    app.command()(command)
app.command("import")(travel.import_)
app.command("set-agent")(travel.set_agent)
app.command()(replay.golden)


@app.command()
def delete(
    id: SessionArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    store: StoreOption = None,
    tenant: TenantOption = "",
    json: JsonOption = False,
) -> None:
    """Forget a session and what belongs to it alone; the sessions of its sub-agents go with it.

    On a terminal it asks first.

    Example: perdure sessions delete order-7 --yes
    """
    raise typer.Exit(run_async(_delete(id, yes, store, tenant, json)))


async def _delete(id: str, yes: bool, store: str | None, tenant: str, json: bool) -> int:
    from perdure.cli.answers import is_interactive
    from perdure.cli.family import rows_below
    from perdure.cli.remote import beside, find
    from perdure.cli.terminal import FAILED, OK, patience, print_json
    from perdure.cli.words import count, visible

    async with beside(store) as runtime:
        session = await find(runtime, id, store, tenant)
        below = [row.id for row in await rows_below(runtime, session)]
        family = f" and {count(len(below), 'session')} of its sub-agents" if below else ""
        if not yes and not json and is_interactive():
            what = f"Delete {id!r} with its {count(session.state.seq, 'record')}{family}?"
            if not typer.confirm(what):
                return FAILED
        async with patience(f"deleting {id} …"):
            await session.delete()
        left = [row.id for row in await rows_below(runtime, session)]
    gone = [child for child in below if child not in left]
    if json:
        print_json({"deleted": id, "children": gone} if below else {"deleted": id})
        return OK
    family = f" and {count(len(gone), 'session')} of its sub-agents" if gone else ""
    print(f"{id}{family} {'are' if gone else 'is'} deleted.")
    if left:
        print(f"Still at work, and by themselves from now on: {', '.join(map(visible, left))}.")
    return OK
