"""perdure run: one run, streamed."""

from __future__ import annotations

from typing import Annotated

import typer

from perdure.cli.agents import AgentOption, ModelOption
from perdure.cli.terminal import JsonOption, StoreOption, TenantOption, run_async

YesOption = Annotated[
    bool | None, typer.Option("--yes/--no", help="Approve or deny every approval without asking.", show_default=False)
]
SessionOption = Annotated[
    str | None, typer.Option("--session", "-s", help="The session to go on with, or to name.", show_default=False)
]


def run(
    prompt: Annotated[str, typer.Argument(help="What the agent shall do.", show_default=False)],
    agent: AgentOption = None,
    model: ModelOption = None,
    session: SessionOption = None,
    key: Annotated[str | None, typer.Option(help="The same key is the same run.", show_default=False)] = None,
    store: StoreOption = None,
    tenant: TenantOption = "",
    yes: YesOption = None,
    json: JsonOption = False,
) -> None:
    """Run one input and stream what happens.

    Example: `perdure run "Bill order 7" --agent agents.py:clerk --session order-7 --key bill`
    """
    raise typer.Exit(run_async(_run(prompt, agent, model, session, key, store, tenant, yes, json)))


async def _run(
    prompt: str,
    agent: str | None,
    model: str | None,
    session: str | None,
    key: str | None,
    store: str | None,
    tenant: str,
    yes: bool | None,
    json: bool,
) -> int:
    from perdure.cli.agents import load_agent
    from perdure.cli.attend import attend
    from perdure.cli.terminal import store_url
    from perdure.cli.views import answers_for, shows_for
    from perdure.wiring import Runtime

    chosen = load_agent(agent, model)
    async with Runtime(store_url(store), agents=[chosen], model=model if agent else None) as runtime:
        opened = await runtime.open(chosen, id=session, tenant=tenant)
        started = await opened.start(prompt, key=key)
        with shows_for(json) as show:
            return await attend(opened, started, show, answers_for(yes, json))
