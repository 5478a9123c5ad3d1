"""perdure doctor: what is here, what is wrong, and what to do about it."""

from __future__ import annotations

import typer

from perdure.cli.agents import AgentOption
from perdure.cli.terminal import FAILED, OK, JsonOption, StoreOption, run_async


def doctor(store: StoreOption = None, agent: AgentOption = None, json: JsonOption = False) -> None:
    """Check versions, the store's health and an agent's tools.

    Example: `perdure doctor --agent agents.py:clerk`
    """
    raise typer.Exit(run_async(_doctor(store, agent, json)))


async def _doctor(store: str | None, agent: str | None, json: bool) -> int:
    from perdure.cli.checks import check_agent, check_keys, check_store_health, check_versions
    from perdure.cli.terminal import console, print_json

    out = console(stderr=json)
    findings = [*check_versions(), *check_keys()]
    with out.status("reading the store …"):
        findings += await check_store_health(store)
    if agent is not None:
        findings += check_agent(agent)
    marks = {"ok": "[green]✓[/]", "note": "[yellow]•[/]", "wrong": "[bold red]✗[/]"}
    for finding in findings:
        if json:
            print_json(finding)
        else:
            out.print(f"{marks[finding.level]} {finding.text}")
            if finding.todo:
                out.print(f"    {finding.todo}", style="dim", markup=False)
    return FAILED if any(finding.level == "wrong" for finding in findings) else OK
