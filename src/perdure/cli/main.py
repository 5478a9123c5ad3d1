"""perdure: the entry point. Commands are light to import; each loads what it needs when it runs."""

from __future__ import annotations

import os
import sys
import traceback
from io import TextIOWrapper
from typing import Annotated

import typer

from perdure.cli import (
    bench,
    cancel,
    chat,
    decide,
    demo,
    doctor,
    inputs,
    messages,
    model,
    pending,
    replay,
    resume,
    run,
    sessions,
    stop,
    store,
    triggers,
    worker,
)
from perdure.cli.terminal import FAILED, OK

app = typer.Typer(
    name="perdure",
    # Plain help: rich's boxes cost a third of the start and are hard to read in a narrow terminal.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Agents that survive anything: kill the process at any instant and go on from exactly there.",
    epilog="Example: perdure demo\n\nExit codes: 0 ok, 1 the run failed, 2 wrong use, 3 waiting for a decision.",
)


@app.callback(invoke_without_command=True)
def options(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error; goes with any command.")
    ] = False,
) -> None:
    if version:
        from importlib.metadata import version as version_of

        typer.echo(f"perdure {version_of('perdure')}")
    elif ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


for command in (demo.demo, run.run, chat.chat, resume.resume, pending.pending, decide.decide, stop.stop, cancel.cancel):
    app.command()(command)
for command in (replay.replay, worker.worker, worker.workers):
    app.command()(command)
app.add_typer(sessions.app, name="sessions")
app.add_typer(inputs.app, name="inputs")
app.add_typer(triggers.app, name="triggers")
app.add_typer(messages.app, name="messages")
app.add_typer(store.app, name="store")
app.add_typer(model.app, name="model")
for command in (doctor.doctor, bench.bench):
    app.command()(command)


def main() -> None:
    """Nothing gets out as a traceback unless --debug asked for it."""
    arguments = sys.argv[1:]
    if "--debug" in arguments:
        os.environ["PERDURE_DEBUG"] = "1"
        arguments.remove("--debug")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    sys.exit(_run(arguments))


def _run(arguments: list[str]) -> int:
    try:
        return app(arguments, prog_name="perdure", standalone_mode=False) or OK
    except typer.TyperException as error:
        context: typer.Context | None = getattr(error, "ctx", None)
        command = context.command_path if context else "perdure"
        print(f"perdure: {error.format_message().rstrip('.')}; see {command} --help.", file=sys.stderr)
        return error.exit_code
    except typer.Abort:
        return FAILED
    except Exception as error:  # noqa: BLE001 - the outermost edge: whatever is left is told in one sentence
        if os.environ.get("PERDURE_DEBUG"):
            traceback.print_exc()
        what = " ".join(f"{type(error).__name__}: {error}".split())
        print(f"perdure: an unexpected error ({what}); --debug shows where.", file=sys.stderr)
        return FAILED
