"""perdure replay, sessions golden, sessions compare: what an agent would decide now, and what two futures came to."""

from __future__ import annotations

from typing import Annotated

import typer

from perdure.cli.agents import AgentOption, ModelOption
from perdure.cli.complete import SessionArgument, session_ids
from perdure.cli.terminal import JsonOption, StoreOption, TenantOption, run_async


def replay(
    id: SessionArgument,
    agent: AgentOption = None,
    model: ModelOption = None,
    store: StoreOption = None,
    tenant: TenantOption = "",
    json: JsonOption = False,
) -> None:
    """Run a session's inputs again, against the agent as it is now.

    No tool is run: results come from the record. Without --model the recorded answers are played back; with it, that
    model is asked. Shows what differs, turn by turn; exit code 1 if anything does.

    Example: perdure replay order-7 --agent agents.py:clerk
    """
    from perdure.cli.replaying import replay_session

    raise typer.Exit(run_async(replay_session(id, agent, model, store, tenant, json=json)))


def golden(
    id: SessionArgument,
    agent: AgentOption = None,
    out: Annotated[str, typer.Option(help="The folder for the test and its record.")] = "tests/golden",
    store: StoreOption = None,
    tenant: TenantOption = "",
    json: JsonOption = False,
) -> None:
    """Make a test of a session: the agent has to decide as it did.

    Writes the export and a small pytest file that replays it, without tools and models.

    Example: perdure sessions golden order-7 --agent agents.py:clerk
    """
    from perdure.cli.replaying import write_golden

    raise typer.Exit(run_async(write_golden(id, agent, out, store, tenant, json=json)))


def compare(
    left: SessionArgument,
    right: Annotated[
        str,
        typer.Argument(metavar="OTHER", help="The other one's id.", show_default=False, autocompletion=session_ids),
    ],
    store: StoreOption = None,
    tenant: TenantOption = "",
    json: JsonOption = False,
) -> None:
    """Show where two sessions part, and what each has since.

    Best for forks of one past.

    Example: perdure sessions compare order-7 order-7b
    """
    from perdure.cli.comparing import compare_sessions

    run_async(compare_sessions(left, right, store, tenant, json=json))
