"""perdure inputs: list, edit, retract what waits for a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.complete import SessionArgument, input_numbers
from perdure.cli.terminal import JsonOption, StoreOption, TenantOption, run_async

if TYPE_CHECKING:
    from perdure.runtime.inbox import Waiting

app = typer.Typer(
    help="List, edit and retract inputs that no run has taken yet.",
    epilog="Example: perdure inputs list order-7",
)

LONGEST = 300

NumberArgument = Annotated[
    int,
    typer.Argument(
        metavar="NUMBER", help="The input's number, as list shows it.", show_default=False, autocompletion=input_numbers
    ),
]


@app.callback(invoke_without_command=True)
def options(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


@app.command("list")
def list_(id: SessionArgument, store: StoreOption = None, tenant: TenantOption = "", json: JsonOption = False) -> None:
    """List the inputs that wait, in the order in which they will be taken.

    Example: perdure inputs list order-7
    """
    run_async(_list(id, store, tenant, json))


async def _list(id: str, store: str | None, tenant: str, json: bool) -> None:
    from perdure.cli.remote import beside, find
    from perdure.cli.screen import open_screen
    from perdure.cli.terminal import print_json
    from perdure.cli.words import visible

    async with beside(store) as runtime:
        session = await find(runtime, id, store, tenant)
        waiting = await session.inputs()
    if json:
        for item in waiting:
            print_json(item)
        return
    screen = open_screen()
    if not waiting:
        screen.say(f"Nothing waits for {visible(session.id)}.")
    for item in waiting:
        screen.line("▸", show_waiting(item))


def show_waiting(item: Waiting) -> str:
    """An input that waits, in one line."""
    from perdure.cli.words import shorten, show_from, show_parts, visible

    words = show_parts(item.parts) if item.continues is None else f"go on with run {item.continues}"
    about = [f"input {item.number}", item.busy]
    about += [show_from(item.at)] if item.at is not None else []
    about += [f"key {visible(item.key)}"] if item.key is not None else []
    about += [f"by {visible(item.by)}"] if item.by else []
    about += [f"blocked: {visible(item.blocked)}"] if item.blocked else []
    return f"{' · '.join(about)} · {shorten(words, LONGEST)}"


@app.command()
def edit(
    id: SessionArgument,
    number: NumberArgument,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The other words.", show_default=False)],
    store: StoreOption = None,
    tenant: TenantOption = "",
    json: JsonOption = False,
) -> None:
    """Give an input that waits other words.

    Guardrails see it again. A key that it was sent with still means the words that it was sent with.

    Example: perdure inputs edit order-7 3 "Bill order 8"
    """
    run_async(_change(id, number, text, store, tenant, json))


@app.command()
def retract(
    id: SessionArgument,
    number: NumberArgument,
    store: StoreOption = None,
    tenant: TenantOption = "",
    json: JsonOption = False,
) -> None:
    """Take back an input that waits: nobody will hear it.

    Its key is free again, and whoever awaits its run is told.

    Example: perdure inputs retract order-7 3
    """
    run_async(_change(id, number, None, store, tenant, json))


async def _change(id: str, number: int, text: str | None, store: str | None, tenant: str, json: bool) -> None:
    from perdure.cli.answers import who
    from perdure.cli.remote import beside, find
    from perdure.cli.terminal import print_json
    from perdure.cli.words import shell, visible
    from perdure.core.errors import NotFound

    async with beside(store) as runtime:
        session = await find(runtime, id, store, tenant)
        try:
            if text is None:
                await session.retract(number, by=who())
            else:
                await session.edit_input(number, text, by=who())
        except NotFound:
            there = shell("inputs", "list", id, store=store, tenant=tenant)
            raise NotFound(f"No input {number} waits for session {id!r}; {there} shows which do.") from None
    done = "retracted" if text is None else "edited"
    if json:
        print_json({"session": session.id, "input": number, "recorded": done})
    else:
        print(f"{visible(session.id)}: input {number} is {done}.")
