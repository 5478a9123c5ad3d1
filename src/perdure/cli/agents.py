"""Agents for a command: code comes from --agent FILE:NAME alone, never from the store."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Annotated, Any, cast

import msgspec
import typer

from perdure.cli.choice import chosen_model
from perdure.ports import Model
from perdure.runtime.agent import Agent
from perdure.runtime.agent_files import AgentFiles
from perdure.runtime.handoffs import Handoff
from perdure.runtime.per_run import PerRun
from perdure.runtime.tools import Tool, as_tool
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
    """The agent that --agent names, or a plain assistant without tools; --model comes before an agent's own model.

    Sub-agents keep their own; those without one get the same as the agent itself.
    """
    if where is not None:
        return with_model((files or AgentFiles("--agent")).load(where), model)
    chosen = model or chosen_model()
    return Agent(name=ASSISTANT, instructions="You are a helpful assistant.", model=resolve_model(chosen))


def with_model(agent: Agent[Any], model: str | None) -> Agent[Any]:
    """The agent, and those that it hands over to or gives work to, with the model that was chosen."""
    return _Recast(model or "").agent(agent, is_below=False)


class _Recast:
    """One command's choice of a model, for all agents that come along; circles are followed once."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._resolved: dict[str, Model] = {}
        self._done: dict[int, Agent[Any]] = {}

    def agent(self, agent: Agent[Any], *, is_below: bool) -> Agent[Any]:
        if id(agent) in self._done:
            return self._done[id(agent)]
        chosen = "" if is_below and agent.model else self._model
        chosen = chosen or ("" if agent.model else os.environ.get("PERDURE_MODEL", "") or self._model)
        handoffs: list[Agent[Any] | Handoff | str] = []
        tools: list[Any] = []
        model = self._resolve(chosen) if chosen else agent.model
        changed = self._done[id(agent)] = replace(agent, model=model, handoffs=handoffs, tools=tools)
        handoffs += [self._target(item, is_below=is_below) for item in agent.handoffs]
        tools += [self._tool(item) for item in agent.tools]
        return changed

    def _target(self, item: Any, *, is_below: bool) -> Any:
        target = item.to if isinstance(item, Handoff) else item
        if not isinstance(target, Agent):
            return item
        changed = self.agent(cast("Agent[Any]", target), is_below=is_below)
        return msgspec.structs.replace(item, to=changed) if isinstance(item, Handoff) else changed

    def _tool(self, item: Any) -> Any:
        if isinstance(item, Agent):
            return self.agent(cast("Agent[Any]", item), is_below=True)
        tool = cast("Tool[..., Any]", item) if isinstance(item, Tool) else None
        if tool is None or tool.sub_agent is None:
            return cast(Any, item)
        below = msgspec.structs.replace(tool.sub_agent, agent=self.agent(tool.sub_agent.agent, is_below=True))
        return msgspec.structs.replace(tool, sub_agent=below)

    def _resolve(self, name: str) -> Model:
        if name not in self._resolved:
            self._resolved[name] = resolve_model(name)
        return self._resolved[name]


def family_of(agent: Agent[Any]) -> list[Agent[Any]]:
    """The agent and all those below it, each once."""
    found: list[Agent[Any]] = []
    todo = [agent]
    while todo:
        member = todo.pop(0)
        if not any(member is known for known in found):
            found.append(member)
            tools = [as_tool(item) for item in member.tools if not isinstance(item, PerRun)]
            todo += [tool.sub_agent.agent for tool in tools if tool.sub_agent is not None]
    return found
