"""perdure resume: go on with a session, wherever it stands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from perdure.cli.agents import AgentOption, ModelOption
from perdure.cli.complete import SessionArgument
from perdure.cli.run import YesOption
from perdure.cli.terminal import JsonOption, StoreOption, TenantOption, run_async

if TYPE_CHECKING:
    from perdure.cli.driving import Given

REPLAYED = 30
"""So many records of the past are shown again; `sessions show` has them all."""


def resume(
    session: SessionArgument,
    agent: AgentOption = None,
    model: ModelOption = None,
    store: StoreOption = None,
    tenant: TenantOption = "",
    yes: YesOption = None,
    json: JsonOption = False,
) -> None:
    """Go on with a session.

    Picks up an open run after a crash or a decision, or continues the last one after a limit, a stop or a failure.

    Example: perdure resume order-7 --agent agents.py:clerk
    """
    from perdure.cli.driving import Given

    raise typer.Exit(run_async(_resume(session, Given(agent, model, store, tenant, yes, json))))


async def _resume(session: str, given: Given) -> int:
    from perdure.cli.afterwards import is_left, see_to_the_rest
    from perdure.cli.answers import answers_for
    from perdure.cli.attend import attend
    from perdure.cli.driving import check_agent, driving
    from perdure.cli.family import heads_below
    from perdure.cli.remote import beside, find
    from perdure.cli.views import view_for
    from perdure.cli.words import shell

    async with beside(given.store) as runtime:
        state = (await find(runtime, session, given.store, given.tenant)).state
    check_agent(session, state, given)
    async with driving(given) as here:
        check_agent(session, state, given, here.agent.name)
        opened = await here.runtime.session(session, tenant=given.tenant)
        known = max(0, opened.state.seq - REPLAYED)
        view = view_for(given, known=known, below=await heads_below(here.runtime, opened, REPLAYED))
        if known:
            view.say(f"{known:,} records came before; {shell('sessions', 'show', session, store=given.store)} has them")
        if await is_left(here, opened):
            return await see_to_the_rest(here, opened, view, answers_for(given.yes, given.json))
        started = await here.go_on(opened)
        return await attend(here.runtime, opened, started, view, answers_for(given.yes, given.json))
