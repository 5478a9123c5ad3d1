"""per_run: an item of an agent's tools that stands for those which a function makes for each run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from perdure.core.errors import UsageError
from perdure.core.specs import ToolSpec
from perdure.runtime.context import ToolContext
from perdure.runtime.tools import Tool

Items: TypeAlias = Sequence[Tool[..., Any] | Callable[..., Any]]
Maker: TypeAlias = Callable[[ToolContext[Any, Any]], Items | Awaitable[Items]]


class PerRun(msgspec.Struct, frozen=True, eq=False):
    """What makes the tools of a run, when it starts."""

    function: Maker

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)


class Made(msgspec.Struct, frozen=True):
    """The tools that were made for run number `run`; with an `error` there are none."""

    run: int = 0
    tools: tuple[ToolSpec, ...] = ()
    error: str = ""


def per_run(function: Maker) -> PerRun:
    """Tools that depend on the session: `tools=[lookup, per_run(tools_of_customer)]`.

    The function takes the ToolContext and returns a list of tools; it may be async. It is called when a run starts, and
    again by whoever picks the run up.
    """
    if not callable(function):
        raise UsageError(f"per_run({function!r}): give a function of the ToolContext that returns a list of tools.")
    return PerRun(function)
