"""Plugin: hooks, tools, keys and prompt parts under one name; and an agent together with all its plug-ins.

Rule: names are for one owner: what two of them claim is refused when the agent is bound, and both are named.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from perdure.core.errors import UsageError
from perdure.runtime.context import ToolContext
from perdure.runtime.guardrails import Guardrail
from perdure.runtime.hooks import Hooks, HookSet, gather_hooks
from perdure.runtime.per_run import PerRun
from perdure.runtime.tools import Tool, as_tool, check_names
from perdure.runtime.wishes import StateKey

Words: TypeAlias = str | Callable[[ToolContext[Any, Any]], str | Awaitable[str]]
"""Text, or a function of the ToolContext that gives it for each request."""
ToolItem: TypeAlias = Tool[..., Any] | Callable[..., Any] | PerRun


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """What belongs together. `instructions` stand behind the agent's own, `context` behind the conversation."""

    name: str
    hooks: Sequence[Hooks] = ()
    tools: Sequence[ToolItem] = ()
    keys: Sequence[StateKey[Any]] = ()
    guardrails: Sequence[Guardrail] = ()
    instructions: Words = ""
    context: Sequence[Words] = ()

    def __post_init__(self) -> None:
        if not self.name or not self.name.strip():
            raise UsageError("A plug-in needs a name: Plugin(name='audit', …).")


class Assembled(msgspec.Struct, frozen=True, eq=False):
    """An agent and its plug-ins, taken together.

    `is_worded`: instructions have to be worked out for each request.
    """

    tools: tuple[Tool[..., Any], ...]
    hooks: HookSet
    guardrails: tuple[Guardrail, ...]
    keys: tuple[StateKey[Any], ...]
    instructions: tuple[Words, ...]
    context: tuple[Words, ...]
    is_worded: bool
    makers: tuple[PerRun, ...] = ()

    @property
    def vets_input(self) -> bool:
        return bool(self.hooks.input) or any(guardrail.input for guardrail in self.guardrails)

    @property
    def shares(self) -> bool:
        """Whether sessions of a tenant share something durable."""
        return any(key.scope == "shared" and key.persistent for key in self.keys)


class Own(msgspec.Struct, frozen=True, eq=False):
    """What an agent brings itself; its tools may be other agents."""

    name: str
    tools: Sequence[ToolItem]
    hooks: Sequence[Hooks]
    guardrails: Sequence[Guardrail]
    instructions: Words


def assemble(own: Own, plugins: Sequence[Plugin], hooks: Sequence[Hooks]) -> Assembled:
    """`hooks` are those of the Runtime, which come first."""
    agent = f"agent {own.name!r}"
    for plugin in plugins:
        if not isinstance(plugin, Plugin):  # pyright: ignore[reportUnnecessaryIsInstance] - user code
            raise UsageError(f"{agent[0].upper()}{agent[1:]}: {plugin!r} is no Plugin; write Plugin(name='…', …).")
    _check_once("plug-in", [(plugin.name, agent) for plugin in plugins])
    given = [(item, agent) for item in own.tools]
    given += [(item, f"plug-in {plugin.name!r}") for plugin in plugins for item in plugin.tools]
    tools = [(as_tool(item), owner) for item, owner in given if not isinstance(item, PerRun)]
    check_names([tool for tool, owner in tools if owner == agent])
    _check_once("tool", [(tool.name, owner) for tool, owner in tools])
    keys = [(key, f"plug-in {plugin.name!r}") for plugin in plugins for key in plugin.keys]
    _check_once("state key", [(key.name, owner) for key, owner in keys])
    parts = (own.instructions, *(plugin.instructions for plugin in plugins))
    gathered = gather_hooks([("runtime", hooks), *((p.name, p.hooks) for p in plugins), (own.name, own.hooks)])
    guardrails = (*(guardrail for plugin in plugins for guardrail in plugin.guardrails), *own.guardrails)
    return Assembled(
        tuple(tool for tool, _ in tools),
        gathered,
        guardrails,
        tuple(key for key, _ in keys),
        tuple(part for part in parts if part),
        tuple(part for plugin in plugins for part in plugin.context),
        not all(isinstance(part, str) for part in parts),
        tuple(item for item, _ in given if isinstance(item, PerRun)),
    )


def _check_once(what: str, named: Sequence[tuple[str, str]]) -> None:
    owners: dict[str, str] = {}
    for name, owner in named:
        if name in owners:
            both = owner if owners[name] == owner else f"{owners[name]} and {owner}"
            raise UsageError(f"The {what} {name!r} comes twice, from {both}; give one of them another name.")
        owners[name] = owner
