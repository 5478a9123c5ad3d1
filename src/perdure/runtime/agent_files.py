"""Agents from files: FILE.py:NAME, as a command, a Runtime or a configuration names them; never as data does."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any, cast

from perdure.core.errors import UsageError
from perdure.runtime.agent import Agent


class AgentFiles:
    """Loads each file once. `given` says where it was named, for the sentence if something is wrong."""

    def __init__(self, given: str) -> None:
        self._given = given
        self._modules: dict[Path, object] = {}

    def load(self, where: str) -> Agent[Any]:
        """The agent that FILE.py:NAME names; a UsageError says what is wrong."""
        file, _, name = where.rpartition(":")
        if not file or not name.isidentifier():
            raise UsageError(f"{self._given} {where!r}: write it as FILE.py:NAME, for example agents.py:clerk.")
        path = Path(file)
        if not path.is_file():
            raise UsageError(f"{self._given}: there is no file {file!r}; check the path.")
        module = self._module(path)
        found: object = getattr(module, name, None)
        if not isinstance(found, Agent):
            there = [key for key, value in vars(module).items() if isinstance(value, Agent)]
            hint = f"it has {', '.join(there)}" if there else f"define {name} = Agent(…) at its top level"
            raise UsageError(f"{self._given}: {file} has no Agent named {name!r}; {hint}.")
        return cast(Agent[Any], found)

    def find(self, name: str) -> Agent[Any] | None:
        """An agent of that name in one of the files that were loaded; hand-offs by name find their targets so."""
        values = [value for module in self._modules.values() for value in vars(module).values()]
        agents = [cast(Agent[Any], value) for value in values if isinstance(value, Agent)]
        return next((agent for agent in agents if agent.name == name), None)

    def _module(self, path: Path) -> object:
        known = path.resolve()
        if known not in self._modules:
            self._modules[known] = self._import(path)
        return self._modules[known]

    def _import(self, path: Path) -> object:
        module_name = f"perdure_agents_{path.stem}"
        spec = importlib.util.spec_from_file_location(module_name, path)
        if spec is None or spec.loader is None:
            raise UsageError(f"{self._given}: {path} is no Python file; write it as FILE.py:NAME.")
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        sys.path.insert(0, str(path.parent.resolve()))
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            line = f", line {found}" if (found := _failing_line(error, path)) else ""
            what = " ".join(f"{type(error).__name__}: {error}".split())
            raise UsageError(f"{self._given}: {path} cannot be loaded ({what}{line}); mend it.") from error
        return module


def _failing_line(error: BaseException, path: Path) -> int | None:
    """Where in the file it went wrong, as the innermost frame there tells."""
    found, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path.absolute()):
            found = trace.tb_lineno
        trace = trace.tb_next
    return found
