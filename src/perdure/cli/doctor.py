"""perdure doctor: what is here, what is wrong, and what to do about it."""

from __future__ import annotations

import typer

from perdure.cli.agents import AgentOption
from perdure.cli.terminal import JsonOption, StoreOption, run_async


def doctor(store: StoreOption = None, agent: AgentOption = None, json: JsonOption = False) -> None:
    """Check versions, keys, local models, the store and an agent's tools.

    Every log is read: without gaps, digests right, every call with its result, nobody's work left lying.
    The exit code is 1 if anything is wrong.

    Example: perdure doctor --agent agents.py:clerk
    """
    raise typer.Exit(run_async(_doctor(store, agent, json)))


async def _doctor(store: str | None, agent: str | None, json: bool) -> int:
    from perdure.cli.checks import check_agent, check_keys, check_local, check_store_health, check_versions
    from perdure.cli.screen import open_screen
    from perdure.cli.terminal import FAILED, OK, patience, print_json

    findings = [*check_versions(), *check_keys(), *check_local()]
    async with patience("reading the store …"):
        findings += await check_store_health(store)
    if agent is not None:
        findings += check_agent(agent)
    marks = {"ok": ("✓", "green"), "note": ("•", "yellow"), "wrong": ("✗", "bold red")}
    screen = open_screen()
    for finding in findings:
        if json:
            print_json(finding)
            continue
        mark, style = marks[finding.level]
        screen.line(mark, finding.text, mark_style=style)
        if finding.todo:
            screen.line(" ", finding.todo, "dim")
    return FAILED if any(finding.level == "wrong" for finding in findings) else OK
