"""What every command shares: where the store is, how output looks, how errors end, and which exit code means what."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer

from perdure.core.errors import PerdureError

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")

OK, FAILED, WRONG_USE, WAITING = 0, 1, 2, 3

StoreOption = Annotated[
    str | None,
    typer.Option("--store", help="Where sessions live: sqlite:PATH.", envvar="PERDURE_STORE", show_default=False),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object a line, for programs.")]
TenantOption = Annotated[str, typer.Option("--tenant", help="Whose session it is.", show_default=False)]


def data_folder() -> Path:
    """Perdure's folder in the user's data folder, made on first use."""
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Application Support"
    else:
        base = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    folder = base / "perdure"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def default_store() -> str:
    return f"sqlite:{data_folder() / 'perdure.db'}"


def store_url(given: str | None, *, must_exist: bool = False) -> str:
    """The store to use; commands that only look refuse to make an empty one."""
    url = given or default_store()
    if must_exist and url.startswith("sqlite:") and not Path(url.removeprefix("sqlite:")).exists():
        fail(f"There is no store at {url.removeprefix('sqlite:')}; run something first, or name one with --store.")
    return url


def console(*, stderr: bool = False) -> Console:
    """Colour only where a person reads; NO_COLOR, pipes and narrow terminals are respected by rich."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=False)


def fail(message: str, code: int = WRONG_USE) -> NoReturn:
    """One sentence on stderr, and out."""
    print(f"perdure: {message}", file=sys.stderr)
    raise typer.Exit(code)


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Runs a command's coroutine; what Perdure raises on purpose is for people, not a traceback."""
    try:
        return asyncio.run(work)
    except PerdureError as error:
        if os.environ.get("PERDURE_DEBUG"):
            raise
        fail(str(error))


def print_json(value: object) -> None:
    from perdure.core.codec import encode_json

    sys.stdout.write(encode_json(value).decode() + "\n")
    sys.stdout.flush()
