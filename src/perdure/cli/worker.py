"""perdure worker and perdure workers: drive the sessions of a shared store, and see who does."""

from __future__ import annotations

from typing import Annotated

import typer

from perdure.cli.agents import ModelOption
from perdure.cli.terminal import JsonOption, StoreOption, run_async


def worker(
    agents: Annotated[
        list[str] | None,
        typer.Option("--agents", "-a", help="An agent's code, as FILE.py:NAME; once for each.", show_default=False),
    ] = None,
    store: StoreOption = None,
    engine: Annotated[
        str, typer.Option(help="Who decides which worker drives what: local, dbos, temporal://… or restate://…")
    ] = "local",
    model: ModelOption = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            help="How many sessions at once; with dbos and temporal, of each queue.", min=1, show_default="no limit"
        ),
    ] = None,
    queues: Annotated[
        list[str] | None,
        typer.Option(help="Serve only this agent, or tools of this queue; once for each.", show_default="all"),
    ] = None,
    per_tenant: Annotated[
        int | None,
        typer.Option(help="At most so many sessions of a tenant, over all workers.", min=0, show_default=False),
    ] = None,
    per_agent: Annotated[
        int | None,
        typer.Option(help="At most so many sessions of an agent, over all workers.", min=0, show_default=False),
    ] = None,
    grace: Annotated[float, typer.Option(help="Seconds that calls in flight get when it ends.", min=0)] = 10.0,
    json: JsonOption = False,
) -> None:
    """Drive the sessions of a store, until it is told to end.

    Any number of workers on any machines share a PostgreSQL store; other processes only send and follow. SIGTERM and
    Ctrl-C drain: no new turn is taken, calls in flight get their grace, the rest is left to other workers. A worker
    that dies is noticed, and its sessions are driven elsewhere.

    Example: perdure worker --store postgresql://db/agents --engine dbos -a agents.py:clerk --concurrency 50
    """
    from perdure.cli.working import Station, work
    from perdure.core.capacity import Capacity

    served = tuple(queues) if queues else None
    capacity = Capacity(per_tenant, per_agent)
    station = Station(tuple(agents or ()), store, engine, model, concurrency, served, grace, capacity)
    run_async(work(station, json=json))


def workers(store: StoreOption = None, json: JsonOption = False) -> None:
    """List the processes that drive sessions of a store, with what they hold.

    Example: perdure workers --store postgresql://db/agents
    """
    from perdure.cli.working import list_workers

    run_async(list_workers(store, json=json))
