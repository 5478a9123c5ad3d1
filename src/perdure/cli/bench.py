"""perdure bench: this machine's figures."""

from __future__ import annotations

from typing import Annotated

import typer

from perdure.cli.terminal import JsonOption, run_async


def bench(
    turns: Annotated[int, typer.Option(help="Turns per measurement.")] = 300,
    json: JsonOption = False,
) -> None:
    """Measure CPU per turn on this machine: in memory, on SQLite alone, and with 100 sessions at once.

    Example: `perdure bench`
    """
    run_async(_bench(turns, json))


async def _bench(turns: int, json: bool) -> None:
    import tempfile
    from pathlib import Path

    from perdure.cli.measure import cpu_per_turn
    from perdure.cli.terminal import console, print_json

    out = console(stderr=json)
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder, out.status("measuring …") as status:
        for name, url, sessions, each in (
            ("memory", "memory:", 1, turns),
            ("sqlite, alone", f"sqlite:{Path(folder) / 'alone.db'}", 1, turns),
            ("sqlite, 100 sessions", f"sqlite:{Path(folder) / 'many.db'}", 100, max(5, turns // 20)),
        ):
            status.update(f"measuring {name} …")
            figures[name] = await cpu_per_turn(url, sessions, each) * 1e3
    if json:
        print_json({name: round(value, 4) for name, value in figures.items()})
        return
    for name, value in figures.items():
        out.print(f"{name:22} {value:7.3f} ms CPU a turn, {1000 / value:8,.0f} turns per CPU second")
