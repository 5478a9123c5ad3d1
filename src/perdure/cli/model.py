"""perdure model: pull, list, remove the weights of models that run on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from perdure.cli.complete import model_names
from perdure.cli.terminal import JsonOption, run_sync

app = typer.Typer(
    help="Get, list and remove models that run on this machine.",
    epilog="Example: perdure model pull smollm2",
)

NameArgument = Annotated[
    str,
    typer.Argument(metavar="NAME", help="A model that list shows.", show_default=False, autocompletion=model_names),
]


@app.callback(invoke_without_command=True)
def options(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


@app.command()
def pull(name: NameArgument, json: JsonOption = False) -> None:
    """Download a model; from then on it answers offline.

    A pull that was interrupted goes on. Models lie in PERDURE_MODELS, or in the user's cache folder.

    Example: perdure model pull smollm2
    """
    from perdure.cli.pulling import pull_model

    run_sync(lambda: pull_model(name.removeprefix("local:"), json=json))


@app.command("list")
def list_(json: JsonOption = False) -> None:
    """List the models there are, and which of them are here.

    Example: perdure model list
    """
    from perdure.cli.pulling import list_models

    run_sync(lambda: list_models(json=json))


@app.command()
def remove(name: NameArgument, json: JsonOption = False) -> None:
    """Delete a model's file from this machine.

    Example: perdure model remove smollm2
    """
    from perdure.cli.pulling import remove_model

    run_sync(lambda: remove_model(name.removeprefix("local:"), json=json))
