"""perdure resume: go on with a session, wherever it stands."""

from __future__ import annotations

from typing import Annotated

import typer

from perdure.cli.agents import AgentOption, ModelOption
from perdure.cli.run import YesOption
from perdure.cli.terminal import JsonOption, StoreOption, TenantOption, run_async


def resume(
    session: Annotated[str, typer.Argument(help="The session's id.", show_default=False)],
    agent: AgentOption = None,
    model: ModelOption = None,
    store: StoreOption = None,
    tenant: TenantOption = "",
    yes: YesOption = None,
    json: JsonOption = False,
) -> None:
    """Pick up an open run after a crash or a decision, or go on after a limit, a stop or a failure.

    Example: `perdure resume order-7 --agent agents.py:clerk`
    """
    raise typer.Exit(run_async(_resume(session, agent, model, store, tenant, yes, json)))


async def _resume(
    session: str,
    agent: str | None,
    model: str | None,
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

    url = store_url(store, must_exist=True)
    chosen = load_agent(agent, model)
    async with Runtime(url, agents=[chosen], model=model if agent else None) as runtime:
        opened = await runtime.session(session, tenant=tenant)
        started = await opened.go_on()
        with shows_for(json) as show:
            return await attend(opened, started, show, answers_for(yes, json))
