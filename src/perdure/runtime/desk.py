"""Where one session's actions are performed: the session's log, its agent's binding and the process around them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from perdure.core.commands import Command
from perdure.core.deltas import Delta
from perdure.core.errors import TooNew
from perdure.core.events import Event
from perdure.core.state import SessionState
from perdure.runtime.agent import Binding
from perdure.runtime.context import ToolContext
from perdure.runtime.log import SessionLog
from perdure.runtime.media import clean_text
from perdure.runtime.moments import Here, Place
from perdure.runtime.per_run import Made
from perdure.runtime.shared_state import SharedState
from perdure.runtime.waste import Waste
from perdure.runtime.wishes import Shelf
from perdure.runtime.world import World


class Desk:
    """`note` puts a fact on its way to the log, `request` a command; `contexts` are those of running tools, by call.

    `broken_off` are the slots of work that was told to end. `waste` is what the latest model call has cost as long as
    nothing of it is kept: attempts that came to nothing, an answer that is looked at; `aside` the same of a compaction.
    `asked_again` counts, by call, how often its gates had to be. The `binding` is the one that is `bound`, with the
    tools that were `made` for the run. `shown` says of tools with a condition whether the model sees them in a turn.
    `above` are the agents of a child's ancestors, whose policies hold as well. `sign_at` is when work under way last
    gave a sign of life. `too_new`: another session has to hear of this one, and only newer workers can read that.
    """

    def __init__(
        self,
        log: SessionLog,
        binding: Binding,
        world: World,
        note: Callable[[Event], None],
        request: Callable[[Command], None],
        epoch: int,
        shared: SharedState | None = None,
    ) -> None:
        self.log = log
        self.bound = self.binding = binding
        self.made = Made()
        self.shown: tuple[int, dict[str, bool]] = (0, {})
        self.world = world
        self.note = note
        self.request = request
        self.epoch = epoch
        self.shared = shared
        self.shelf = shelf_of(log, world, shared)
        self.hooks = binding.parts.hooks
        self.layers = (*world.middleware, *binding.agent.middleware)
        self.above = (world.post.policies_above(log.state) or ()) if world.post and log.state.origin else ()
        self.sign_at = 0.0
        self.too_new: TooNew | None = None
        self.waste = Waste()
        self.aside = Waste()
        self.broken_off: set[int] = set()
        self.asked_again: Counter[int] = Counter()
        self.contexts: dict[int, ToolContext[Any, Any]] = {}
        self._data: dict[str, Any] = {}
        self._place: Place | None = None

    def check_errands(self) -> None:
        """Raises what keeps this process from running them."""
        if self.too_new is not None:
            raise self.too_new

    def here(self, run: int | None = None, state: SessionState | None = None) -> Here:
        """Where the moments that hooks see take place: in this run, or in the one that is open now.

        `state` is what is about to be committed, where that is newer than what is.
        """
        if state is None or state.seq <= self.log.state.seq:
            state = self.log.state
        if self._place is None:
            self._place = Place(state.id, state.tenant, self.world.deps, state.data, self.shelf)
        if run is None:
            run = state.run.run if state.run else state.runs
        return Here(self._place, state, run)

    def publish(self, delta: Delta) -> None:
        self.sign_at = self.world.clock.monotonic()
        if self.log.feed.watched:
            self.log.feed.show(self.log.state.seq, delta)

    def data(self, tool: str) -> Any:
        """The session's data in the type that a tool asks for; a ValueError says what no longer fits."""
        codec = self.binding.data.get(tool)
        if codec is None:
            return self.log.state.data
        if tool not in self._data:
            self._data[tool] = codec.decode(self.log.state.data)
        return self._data[tool]


def shelf_of(log: SessionLog, world: World, shared: SharedState | None) -> Shelf:
    """Where this session's state keys are found."""
    scratch = world.scratch.setdefault(log.state.tenant, {})
    return Shelf(log.scratch, shared.state if shared is not None else None, scratch)


def describe(error: BaseException) -> str:
    """An exception in one line, for the log and the model."""
    name = type(error).__name__
    try:
        text = " ".join(str(error).split())
    except Exception:  # noqa: BLE001 - the words of user code's exceptions are user code
        text = ""
    return clean_text(f"{name}: {text}"[:2000] if text else name)
