"""An agent as a tool of another: what the calling model sees, and how the child's session is made.

Rule: a child never has more than its parent: what is left of the budget, the same tenant, every ancestor's policy.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

import msgspec

from perdure.core.codec import digest_of
from perdure.core.errors import UsageError
from perdure.core.events import CallEnded, OrphanPolicy, Spent
from perdure.core.messages import Text
from perdure.core.specs import Limits

ChildKind: TypeAlias = Literal["new", "kept", "named"]

PARENT, ROOT = "perdure.parent", "perdure.root"
"""Metadata of a child's session: the uids of the session that started it and of the first one of all."""


class SubAgent(msgspec.Struct, frozen=True, eq=False):
    """What `agent.as_tool(…)` was given.

    child: each call gets a "new" session (default), all calls one that is "kept", or the model says by name which
    limits: for each call, beside the agent's own and what the parent has left
    orphan: "end" (default) or "finish": what becomes of the child when its parent's run is over
    hooks, tools: the child gets the parent's too
    """

    agent: Any
    child: ChildKind = "new"
    limits: Limits | None = None
    orphan: OrphanPolicy = "end"
    hooks: bool = False
    tools: bool = False

    def __post_init__(self) -> None:
        label = f"{self.agent.name}.as_tool"
        if self.child not in get_args(ChildKind):
            raise UsageError(f"{label}(child={self.child!r}): take 'new', 'kept' or 'named'.")
        if self.orphan not in get_args(OrphanPolicy):
            raise UsageError(f"{label}(orphan={self.orphan!r}): take 'end' or 'finish'.")
        if self.limits is not None and not isinstance(self.limits, Limits):  # pyright: ignore[reportUnnecessaryIsInstance] - user code
            raise UsageError(f"{label}(limits={self.limits!r}): give Limits(…), or None.")
        for name in ("hooks", "tools"):
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"{label}({name}={getattr(self, name)!r}): True gives the child the parent's too.")

    def uid(self, parent: str, tool: str, call: int, name: str) -> str:
        """Where a call's child lives: the same place after a crash, and for a kept one at the next call."""
        if self.child == "new" or (self.child == "named" and not name):
            return digest_of(parent, str(call))[:20]
        return child_uid(parent, name or tool)


def child_uid(parent: str, name: str) -> str:
    """The session of a child that has a name."""
    return digest_of(parent, "child", name)[:20]


def end_deleted(call: int, name: str, spent: Spent | None = None) -> CallEnded:
    """The end of a call whose child's session is gone."""
    text = f"The session of {name} was deleted; it is not known what it has done until then."
    return CallEnded(call, "unknown", (Text(text),), in_doubt=True, spent=spent)


def family_of(parent: str, metadata: dict[str, str]) -> dict[str, str]:
    """A child's metadata: the labels of its parent, and where it belongs."""
    return {**metadata, PARENT: parent, ROOT: metadata.get(ROOT, parent)}


def labels_of(metadata: dict[str, str]) -> dict[str, str]:
    """What the user gave: without where the session belongs."""
    return {key: value for key, value in metadata.items() if key not in (PARENT, ROOT)}


async def ask(input: str) -> str:
    """Hand a piece of work to another agent, which does it by itself and answers once.

    input: the whole task; the agent knows nothing else of this conversation
    """
    raise UsageError("A sub-agent is not called directly; give its tool to an agent.")


async def ask_by_name(input: str, child: str = "") -> str:
    """Hand a piece of work to another agent, which does it by itself and answers once.

    input: the whole task; the agent knows nothing else of this conversation
    child: a name for the agent's memory: the same name goes on where its last task ended; without one it begins anew
    """
    raise UsageError("A sub-agent is not called directly; give its tool to an agent.")
