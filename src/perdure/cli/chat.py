"""perdure chat: a conversation, with history, approvals and live progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from perdure.cli.agents import AgentOption, ModelOption
from perdure.cli.run import SessionOption, YesOption
from perdure.cli.terminal import JsonOption, StoreOption, TenantOption, run_async

if TYPE_CHECKING:
    from perdure.cli.driving import Given


def chat(
    agent: AgentOption = None,
    model: ModelOption = None,
    session: SessionOption = None,
    store: StoreOption = None,
    tenant: TenantOption = "",
    yes: YesOption = None,
    json: JsonOption = False,
) -> None:
    """Talk with an agent.

    Leave and come back to the same session at any time; /help lists what can be typed. The exit code is the last run's.

    Example: perdure chat --agent agents.py:clerk --session order-7
    """
    from perdure.cli.driving import Given

    raise typer.Exit(run_async(_chat(session, Given(agent, model, store, tenant, yes, json))))


async def _chat(session: str | None, given: Given) -> int:
    from perdure.cli.conversation import Conversation
    from perdure.cli.driving import driving

    async with driving(given) as here:
        opened = await here.runtime.open(here.agent, id=session, tenant=given.tenant)
        return await Conversation(here, opened, given).talk()
