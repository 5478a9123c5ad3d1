"""Agents for a command: code comes from --agent FILE:NAME alone, never from the store."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Annotated, Any, cast

import msgspec
import typer

from perdure.cli.choice import chosen_model
from perdure.runtime.agent import Agent
from perdure.runtime.agent_files import AgentFiles
from perdure.runtime.handoffs import Handoff
from perdure.wiring import resolve_model

AgentOption = Annotated[
    str | None,
    typer.Option("--agent", "-a", help="The agent's code, as FILE.py:NAME.", show_default=False),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        help="provider:model, local:NAME or scripted:FILE.json. Where none is named: PERDURE_MODEL, or what is there.",
        show_default=False,
    ),
]

ASSISTANT = "assistant"


def load_agent(where: str | None, model: str | None, files: AgentFiles | None = None) -> Agent[Any]:
    """The agent that --agent names, or a plain assistant without tools; --model comes before an agent's own model."""
    if where is not None:
        return with_model((files or AgentFiles("--agent")).load(where), model)
    chosen = model or chosen_model()
    return Agent(name=ASSISTANT, instructions="You are a helpful assistant.", model=resolve_model(chosen))


def with_model(agent: Agent[Any], model: str | None, known: dict[int, Agent[Any]] | None = None) -> Agent[Any]:
    """The agent, and those that it hands over to, with the model that was chosen; circles are followed once."""
    known = {} if known is None else known
    if id(agent) in known:
        return known[id(agent)]
    chosen = model or ("" if agent.model else os.environ.get("PERDURE_MODEL"))
    handoffs: list[Agent[Any] | Handoff | str] = []
    changed = replace(agent, model=resolve_model(chosen) if chosen else agent.model, handoffs=handoffs)
    known[id(agent)] = changed
    for item in agent.handoffs:
        target = item.to if isinstance(item, Handoff) else item
        if isinstance(target, Agent):
            target = with_model(cast("Agent[Any]", target), model, known)
            item = msgspec.structs.replace(item, to=target) if isinstance(item, Handoff) else target
        handoffs.append(item)
    return changed
