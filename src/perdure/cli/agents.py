"""Agents for a command: code comes from --agent FILE:NAME alone, never from the store."""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, cast

import msgspec
import typer

from perdure.cli.choice import chosen_model
from perdure.core.errors import UsageError
from perdure.ports import Model
from perdure.runtime.agent import Agent
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


def load_agent(where: str | None, model: str | None) -> Agent[Any]:
    """The agent that --agent names, or a plain assistant without tools; --model comes before an agent's own model.

    Sub-agents keep their own; those without one get the same as the agent itself.
    """
    if where is not None:
        agent = _from_file(where)
        chosen = model or os.environ.get("PERDURE_MODEL")
        if not chosen or (not model and all(member.model for member in family_of(agent))):
            return agent
        return _with_model(replace(agent, model="") if model else agent, resolve_model(chosen), {})
    chosen = model or chosen_model()
    return Agent(name=ASSISTANT, instructions="You are a helpful assistant.", model=resolve_model(chosen))


def family_of(agent: Agent[Any]) -> list[Agent[Any]]:
    """The agent and all those below it, each once."""
    found: list[Agent[Any]] = []
    todo = [agent]
    while todo:
        member = todo.pop(0)
        if not any(member is known for known in found):
            found.append(member)
            todo += [tool.sub_agent.agent for tool in map(as_tool, member.tools) if tool.sub_agent is not None]
    return found


def _with_model(agent: Agent[Any], model: Model, done: dict[int, Agent[Any]]) -> Agent[Any]:
    """The same agents, with a model for those that have none."""
    if id(agent) not in done:
        tools: list[Any] = []
        for item in agent.tools:
            sub = item.sub_agent if isinstance(item, Tool) else None
            if isinstance(item, Agent):
                tools.append(_with_model(cast(Agent[Any], item), model, done))
            elif sub is not None:
                below = msgspec.structs.replace(sub, agent=_with_model(sub.agent, model, done))
                tools.append(msgspec.structs.replace(cast("Tool[..., Any]", item), sub_agent=below))
            else:
                tools.append(item)
        done[id(agent)] = replace(agent, model=agent.model or model, tools=tools)
    return done[id(agent)]


def _from_file(where: str) -> Agent[Any]:
    file, _, name = where.rpartition(":")
    if not file or not name.isidentifier():
        raise UsageError(f"--agent {where!r}: write it as FILE.py:NAME, for example agents.py:clerk.")
    path = Path(file)
    if not path.is_file():
        raise UsageError(f"--agent: there is no file {file!r}; check the path.")
    module = _import(path)
    found: object = getattr(module, name, None)
    if not isinstance(found, Agent):
        there = [key for key, value in vars(module).items() if isinstance(value, Agent)]
        hint = f"it has {', '.join(there)}" if there else f"define {name} = Agent(…) at its top level"
        raise UsageError(f"--agent: {file} has no Agent named {name!r}; {hint}.")
    return cast(Agent[Any], found)


def _import(path: Path) -> object:
    module_name = f"perdure_agents_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"--agent: {path} is no Python file; write it as FILE.py:NAME.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        line = f", line {found}" if (found := _failing_line(error, path)) else ""
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise UsageError(f"--agent: {path} cannot be loaded ({what}{line}); mend it, or see --debug.") from error
    return module


def _failing_line(error: BaseException, path: Path) -> int | None:
    """Where in the file it went wrong, as the innermost frame there tells."""
    found, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path.absolute()):
            found = trace.tb_lineno
        trace = trace.tb_next
    return found
