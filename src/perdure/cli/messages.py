"""perdure messages: what sessions say to each other, and what could not be brought."""

from __future__ import annotations

from typing import Annotated

import typer

from perdure.cli.agents import AgentOption, ModelOption
from perdure.cli.complete import SessionArgument, dead_numbers, session_ids
from perdure.cli.terminal import JsonOption, StoreOption, TenantFilter, TenantOption, run_async

app = typer.Typer(
    help="List, send and replay messages between sessions.",
    epilog="Example: perdure messages list --dead",
)

Sender = Annotated[
    str,
    typer.Argument(metavar="SESSION", help="Whose message it is.", show_default=False, autocompletion=session_ids),
]


@app.callback(invoke_without_command=True)
def options(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


@app.command("list")
def list_(
    session: Annotated[
        str | None,
        typer.Argument(
            metavar="[SESSION]", help="Only what it sent and got.", show_default=False, autocompletion=session_ids
        ),
    ] = None,
    dead: Annotated[bool, typer.Option("--dead", help="Only what could not be brought.")] = False,
    limit: Annotated[int, typer.Option(help="How many at most.", min=1)] = 50,
    store: StoreOption = None,
    tenant: TenantFilter = None,
    json: JsonOption = False,
) -> None:
    """List messages with what became of them, over all sessions or of one.

    Example: perdure messages list --dead
    """
    from perdure.cli.messaging import list_messages

    run_async(list_messages(session, store, tenant, limit, dead=dead, json=json))


@app.command()
def send(
    session: Sender,
    to: Annotated[
        str,
        typer.Argument(
            metavar="TO",
            help='A session\'s id, "parent" or "child NAME".',
            show_default=False,
            autocompletion=session_ids,
        ),
    ],
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What to say.", show_default=False)],
    agent: AgentOption = None,
    model: ModelOption = None,
    store: StoreOption = None,
    tenant: TenantOption = "",
    json: JsonOption = False,
) -> None:
    """Send a message in a session's name; it arrives once, behind those that were sent there before.

    Whoever drives the session brings it. With --agent it is brought here, and the exit code is 1 if it cannot be.

    Example: perdure messages send order-7 order-8 "I am done."
    """
    from perdure.cli.driving import Given
    from perdure.cli.messaging import send_message

    raise typer.Exit(run_async(send_message(session, to, text, Given(agent, model, store, tenant, None, json))))


@app.command()
def replay(
    session: SessionArgument,
    number: Annotated[
        int, typer.Argument(metavar="NUMBER", help="The message's.", show_default=False, autocompletion=dead_numbers)
    ],
    agent: AgentOption = None,
    model: ModelOption = None,
    store: StoreOption = None,
    tenant: TenantOption = "",
    json: JsonOption = False,
) -> None:
    """Send once more what could not be brought; it still arrives once.

    Whoever drives the session brings it. With --agent it is brought here, and the exit code is 1 if it cannot be.

    Example: perdure messages replay order-7 3
    """
    from perdure.cli.driving import Given
    from perdure.cli.messaging import replay_message

    raise typer.Exit(run_async(replay_message(session, number, Given(agent, model, store, tenant, None, json))))
