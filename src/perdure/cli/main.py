"""perdure: the entry point. Commands are light to import; each loads what it needs when it runs."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from perdure.cli import bench, cancel, chat, decide, demo, doctor, pending, resume, run, sessions, stop
from perdure.cli.terminal import FAILED, OK

app = typer.Typer(
    name="perdure",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Agents that survive anything: kill the process at any instant and go on from exactly there.",
    epilog="Start with `perdure demo`. Exit codes: 0 ok, 1 the run failed, 2 wrong use, 3 waiting for a decision.",
)


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    if debug:
        os.environ["PERDURE_DEBUG"] = "1"


for command in (demo.demo, run.run, chat.chat, pending.pending, decide.decide, stop.stop, cancel.cancel, resume.resume):
    app.command()(command)
app.add_typer(sessions.app, name="sessions")
for command in (doctor.doctor, bench.bench):
    app.command()(command)


def main() -> None:
    """Nothing gets out as a traceback unless --debug asked for it."""
    try:
        app()
    except BrokenPipeError:
        # The reader has gone; a second error while flushing at exit would only be noise.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(OK)
    except Exception as error:
        if os.environ.get("PERDURE_DEBUG"):
            raise
        print(
            f"perdure: an unexpected error ({type(error).__name__}: {error}); --debug shows where.", file=sys.stderr
        )
        sys.exit(FAILED)
