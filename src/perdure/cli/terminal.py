"""What every command shares: options, exit codes, where the store is, and how output and errors leave."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import typer

from perdure.core.errors import PerdureError, UsageError

T = TypeVar("T")

OK, FAILED, WRONG_USE, WAITING = 0, 1, 2, 3
PATIENCE = 0.5

StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        help="sqlite:PATH or postgresql://…: where sessions live.",
        envvar="PERDURE_STORE",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object a line, for programs.")]
TenantOption = Annotated[str, typer.Option("--tenant", help="Whose session it is.", show_default=False)]
TenantFilter = Annotated[str | None, typer.Option("--tenant", help="Only this tenant's.", show_default=False)]


def data_folder() -> Path:
    """Perdure's folder in the user's data folder, made on first use."""
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Application Support"
    else:
        base = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    folder = base / "perdure"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"The folder {folder} cannot be made ({error.strerror}); name a store with --store sqlite:PATH."
        ) from None
    return folder


def default_store() -> str:
    return f"sqlite:{data_folder() / 'perdure.db'}"


def store_url(given: str | None, *, must_exist: bool = False) -> str:
    """The store to use; commands that only look refuse to make an empty one."""
    url = given or default_store()
    path = url.removeprefix("sqlite:")
    if must_exist and url.startswith("sqlite:") and not os.path.exists(path):
        raise UsageError(f"There is no store at {path}; start with `perdure run`, or name another one with --store.")
    return url


@asynccontextmanager
async def patience(what: str) -> AsyncGenerator[None]:
    """Says what is being waited for, if it takes longer than a moment."""
    from perdure.cli.screen import open_screen

    screen = open_screen(stderr=True)
    timer = asyncio.get_running_loop().call_later(PATIENCE, screen.begin, "wait", what)
    try:
        yield
    finally:
        timer.cancel()
        screen.close()


def fail(message: str, code: int = WRONG_USE) -> NoReturn:
    """One sentence on stderr, and out; --debug shows where it comes from."""
    if os.environ.get("PERDURE_DEBUG"):
        import traceback

        traceback.print_exc()
    print(f"perdure: {message}", file=sys.stderr)
    raise typer.Exit(code)


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Runs a command's coroutine."""
    return run_sync(lambda: asyncio.run(work))


def run_sync(work: Callable[[], T]) -> T:
    """Does a command's work; what Perdure raises on purpose is for people, not a traceback."""
    try:
        done = work()
        sys.stdout.flush()
        return done
    except PerdureError as error:
        fail(str(error))
    except KeyboardInterrupt:
        fail("interrupted.", FAILED)
    except BrokenPipeError:
        abandon_output()
        raise typer.Exit(OK) from None


def abandon_output() -> None:
    """The reader has gone and has what it wanted; what is still buffered would only make noise at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), (sys.__stdout__ or sys.stdout).fileno())


def print_json(value: object) -> None:
    """To the real standard output: what tools print goes elsewhere, or it would stand between the objects."""
    from perdure.core.codec import encode_json

    out = sys.__stdout__ or sys.stdout
    out.write(encode_json(value).decode() + "\n")
    out.flush()
