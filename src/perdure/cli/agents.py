"""Agents for a command: code comes from --agent FILE:NAME alone, never from the store."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from perdure.core.errors import UsageError
from perdure.runtime.agent import Agent

AgentOption = Annotated[
    str | None,
    typer.Option("--agent", "-a", help="The agent's code, as FILE.py:NAME.", show_default=False),
]
ModelOption = Annotated[
    str | None,
    typer.Option("--model", "-m", help="provider:model, or scripted:FILE.json.", envvar="PERDURE_MODEL"),
]

ASSISTANT = "assistant"


def load_agent(where: str | None, model: str | None) -> Agent[Any]:
    """The agent that --agent names, or a plain assistant without tools."""
    if where is not None:
        return _from_file(where)
    if model is None:
        raise UsageError(
            "There is no model to ask.\n"
            "  Give one with --model scripted:FILE.json (or set PERDURE_MODEL),\n"
            "  or give an agent that has one with --agent FILE.py:NAME."
        )
    return Agent(name=ASSISTANT, instructions="You are a helpful assistant.", model=model)


def _from_file(where: str) -> Agent[Any]:
    file, _, name = where.rpartition(":")
    if not file or not name.isidentifier():
        raise UsageError(f"--agent {where!r}: write it as FILE.py:NAME, for example agents.py:clerk.")
    path = Path(file)
    if not path.is_file():
        raise UsageError(f"--agent: there is no file {file!r}; check the path.")
    found: object = getattr(_import(path), name, None)
    if not isinstance(found, Agent):
        raise UsageError(f"--agent: {file} has no Agent named {name!r}; define {name} = Agent(…) at its top level.")
    return cast(Agent[Any], found)


def _import(path: Path) -> object:
    module_name = f"perdure_agents_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"--agent: {path} is no Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UsageError(f"--agent: {path} cannot be loaded: {type(error).__name__}: {error}") from error
    return module
