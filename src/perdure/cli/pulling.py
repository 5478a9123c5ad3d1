"""What `perdure model` does: a pull with its progress, a list, a removal."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager

from perdure.cli.choice import has_local_extra
from perdure.cli.screen import open_screen
from perdure.cli.terminal import FAILED, fail, print_json
from perdure.core.errors import ModelError, UsageError
from perdure.models.pull import Progress, pull
from perdure.models.weights import CATALOGUE, Weights, known, path_of, remove

STEP = 10
"""Percent between two lines of progress in a pipe."""


def pull_model(name: str, *, json: bool) -> None:
    weights = known(name)
    path = path_of(weights)
    was_here = path.is_file()
    if not was_here:
        try:
            with _progress(weights) as progress:
                pull(weights, progress)
        except ModelError as error:
            fail(str(error), FAILED)
    if json:
        print_json({"model": name, "path": str(path), "size": weights.size, "pulled": not was_here})
        return
    extra = "" if has_local_extra() else "pip install 'perdure[local]' && "
    print(f"{name} is here{' already' if was_here else ''}: {path}")
    print(f'Try it: {extra}perdure run -m local:{name} "Say hello."')


def list_models(*, json: bool) -> None:
    screen = open_screen()
    for weights in CATALOGUE.values():
        path = path_of(weights)
        is_here = path.is_file()
        if json:
            print_json(
                {
                    "model": weights.name,
                    "here": is_here,
                    "size": weights.size,
                    "path": str(path) if is_here else None,
                    "about": weights.about,
                }
            )
            continue
        state = "here" if is_here else "not here"
        mark, style = ("✓", "green") if is_here else ("·", "dim")
        screen.line(mark, f"{weights.name:20} {show_size(weights):>8}  {state:8}  {weights.about}", mark_style=style)
    if not json:
        screen.line(" ", "A GGUF file of your own: --model local:PATH/TO/FILE.gguf", "dim")


def remove_model(name: str, *, json: bool) -> None:
    try:
        was_here = remove(known(name))
    except ModelError as error:
        fail(str(error), FAILED)
    if not was_here:
        raise UsageError(f"The model {name} is not here; `perdure model list` shows which are.")
    if json:
        print_json({"removed": name})
    else:
        print(f"{name} is removed.")


def show_size(weights: Weights) -> str:
    return f"{weights.size / 1e6:,.0f} MB"


@contextmanager
def _progress(weights: Weights) -> Generator[Progress]:
    """A bar for a person, a line now and then for a pipe; on stderr, so that --json stays alone."""
    if sys.stderr.isatty() or os.environ.get("FORCE_COLOR"):
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(weights.name, total=weights.size)
            yield lambda done, total: bar.update(task, completed=done, total=total)
        return
    shown = -STEP

    def tell(done: int, total: int) -> None:
        nonlocal shown
        percent = done * 100 // max(1, total)
        if percent >= shown + STEP or percent == 100 > shown:
            shown = percent
            print(
                f"{weights.name}: {done / 1e6:,.0f} of {total / 1e6:,.0f} MB ({percent} %)", file=sys.stderr, flush=True
            )

    yield tell
