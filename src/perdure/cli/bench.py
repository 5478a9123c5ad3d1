"""perdure bench: this machine's figures."""

from __future__ import annotations

from typing import Annotated

import typer

from perdure.cli.terminal import JsonOption, run_async


def bench(
    turns: Annotated[int, typer.Option(help="Turns per measurement.", min=1)] = 300,
    json: JsonOption = False,
) -> None:
    """Measure the CPU a turn costs on this machine.

    In memory, on SQLite alone, and on SQLite with 100 sessions at once; a turn is one model answer and one tool call.

    Example: perdure bench --turns 100
    """
    run_async(_bench(turns, json))


async def _bench(turns: int, json: bool) -> None:
    import tempfile
    from pathlib import Path

    from perdure.cli.measure import cpu_per_turn
    from perdure.cli.terminal import patience, print_json

    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="perdure-bench-") as folder:
        for name, url, sessions, each in (
            ("memory", "memory:", 1, turns),
            ("sqlite, alone", f"sqlite:{Path(folder) / 'alone.db'}", 1, turns),
            ("sqlite, 100 sessions", f"sqlite:{Path(folder) / 'many.db'}", 100, max(5, turns // 20)),
        ):
            async with patience(f"measuring {name} …"):
                figures[name] = await cpu_per_turn(url, sessions, each) * 1e3
    if json:
        print_json({name: round(value, 4) for name, value in figures.items()})
        return
    for name, value in figures.items():
        print(f"{name:20}  {value:6.3f} ms CPU a turn  {1000 / value:7,.0f} turns per CPU second")
