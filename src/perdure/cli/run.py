"""perdure run: one run, streamed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.agents import AgentOption, ModelOption
from perdure.cli.complete import session_ids
from perdure.cli.terminal import JsonOption, StoreOption, TenantOption, run_async

if TYPE_CHECKING:
    from perdure.cli.driving import Given

YesOption = Annotated[
    bool | None, typer.Option("--yes/--no", help="Approve or deny every approval without asking.", show_default=False)
]
SessionOption = Annotated[
    str | None,
    typer.Option(
        "--session",
        "-s",
        help="The session to go on with, or the name of a new one.",
        show_default=False,
        autocompletion=session_ids,
    ),
]


def run(
    prompt: Annotated[
        str, typer.Argument(metavar="PROMPT", help="What the agent shall do; - reads a pipe.", show_default=False)
    ],
    agent: AgentOption = None,
    model: ModelOption = None,
    session: SessionOption = None,
    key: Annotated[str | None, typer.Option(help="The same key is the same run.", show_default=False)] = None,
    store: StoreOption = None,
    tenant: TenantOption = "",
    yes: YesOption = None,
    json: JsonOption = False,
) -> None:
    """Run one input and show what happens.

    What asks for approval is asked here, or left waiting (exit code 3) where there is no terminal.
    Ctrl-C stops the run gracefully, twice cancels it.

    Example: perdure run "Bill order 7" -a agents.py:clerk -s order-7
    """
    from perdure.cli.driving import Given

    given = Given(agent, model, store, tenant, yes, json)
    raise typer.Exit(run_async(_run(prompt, session, key, given)))


async def _run(prompt: str, session: str | None, key: str | None, given: Given) -> int:
    import sys

    from perdure.cli.answers import answers_for
    from perdure.cli.attend import attend
    from perdure.cli.choice import chosen_model
    from perdure.cli.driving import driving
    from perdure.cli.views import view_for
    from perdure.core.errors import UsageError

    if prompt == "-":
        prompt = sys.stdin.read()
    if not prompt.strip():
        raise UsageError("The prompt is empty; say what the agent shall do.")
    async with driving(given) as here:
        opened = await here.runtime.open(here.agent, id=session, tenant=given.tenant)
        view = view_for(given)
        if session is None:
            view.say(f"session {opened.id}")
        if given.agent is None and given.model is None:
            view.say(f"model {chosen_model()}; name another one with --model")
        started = await here.start(opened, prompt, key)
        return await attend(here.runtime, opened, started, view, answers_for(given.yes, given.json))
