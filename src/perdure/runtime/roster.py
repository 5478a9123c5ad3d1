"""Roster: the agents that one process knows by name, and those that its resolver finds.

Rule: a name is asked for once at a time, and an agent that was found is kept; nobody is one who may come later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeAlias, cast

from perdure.core.errors import UsageError
from perdure.core.state import SessionState
from perdure.ports import Clock
from perdure.runtime.agent import Agent, Binding
from perdure.runtime.desk import describe
from perdure.runtime.patience import Unanswered, answered

Resolve: TypeAlias = Callable[[str], Agent[Any] | Awaitable[Agent[Any] | None] | None]
"""An agent by its name, or None if there is none."""

_logger = logging.getLogger("perdure")


class Roster:
    """Bindings by name; `bind` adds one."""

    def __init__(self, bind: Callable[[Agent[Any]], Binding], resolve: Resolve | None, clock: Clock) -> None:
        self.bindings: dict[str, Binding] = {}
        self._bind = bind
        self._resolve = resolve
        self._clock = clock
        self._asking: dict[str, asyncio.Task[Binding | UsageError | None]] = {}
        self._complained: set[str] = set()

    @property
    def resolves(self) -> bool:
        return self._resolve is not None

    async def find(self, name: str) -> Binding | None:
        """The agent, if anybody knows it; a resolver that fails is logged once, and knows nobody."""
        found = await self._look(name)
        if isinstance(found, UsageError):
            if name not in self._complained:
                self._complained.add(name)
                _logger.warning("%s", found)
            return None
        return found

    async def need(self, name: str) -> Binding:
        """The same for somebody who has to have it: a UsageError says why there is none."""
        found = await self._look(name)
        if isinstance(found, UsageError):
            raise found
        if found is None:
            raise UsageError(f"The agent {name!r} is not known here; pass it in agents=[…].")
        return found

    async def knows_above(self, state: SessionState) -> bool:
        """Whether the agents above a child, whose policies hold for it, are known here."""
        names = state.origin.agents if state.origin else ()
        return all([await self.find(name) is not None for name in names])

    def close(self) -> None:
        """Nobody waits for the resolver any more."""
        for asking in self._asking.values():
            asking.cancel()

    async def _look(self, name: str) -> Binding | UsageError | None:
        if name in self.bindings or self._resolve is None:
            return self.bindings.get(name)
        asking = self._asking.get(name)
        if asking is None:
            asking = self._asking[name] = asyncio.ensure_future(self._ask(name, self._resolve))
            asking.add_done_callback(lambda _: self._asking.pop(name, None))
        # Who gives up waiting does not keep the others from hearing of it.
        return await asyncio.shield(asking)

    async def _ask(self, name: str, resolve: Resolve) -> Binding | UsageError | None:
        try:
            found: object = await answered(self._clock, partial(resolve, name))
            if found is None:
                return None
            if not isinstance(found, Agent):
                return UsageError(f"The resolver returned {type(found).__name__} for the agent {name!r}, not an Agent.")
            if found.name != name:
                return UsageError(f"The resolver returned the agent {found.name!r} for {name!r}; the names must agree.")
            return self._bind(cast("Agent[Any]", found))
        except UsageError as error:
            return error
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a resolver is user code
            reason = str(error) if isinstance(error, Unanswered) else describe(error)
            return UsageError(f"The resolver failed for the agent {name!r} ({reason}); mend it.")
