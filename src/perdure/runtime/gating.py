"""What the gates of a call said, until it is committed: it counts for the state that they saw, and for no other.

Rule: where another gate, a tool or a hook has changed meanwhile what a gate has read, the gates are asked again, so
that the calls of one turn are judged one behind the other; who is overtaken again and again is denied.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perdure.core.actions import CheckCall
from perdure.core.events import CallChecked, Event
from perdure.core.fold import fold
from perdure.core.state import SessionState
from perdure.runtime.consult import changed
from perdure.runtime.desk import Desk, describe
from perdure.runtime.directives import Fact, in_turn
from perdure.runtime.flight import Flight
from perdure.runtime.hooks import Hook
from perdure.runtime.wishes import Wishes

MAX_AGAIN = 100
"""How often the gates of one call are asked again."""


def hold_until_committed(desk: Desk, flight: Flight, kept: Sequence[tuple[Hook, Wishes]]) -> None:
    """Has the check of the flight looked at once more when it is committed, if its gates have used the state."""
    if kept and isinstance(flight.action, CheckCall):
        flight.settle = Verdict(desk, flight, kept).settle
        flight.after = []


class Verdict:
    """One call's; `_is_void` once the gates are asked again, for it must not come back when the commit is repeated."""

    __slots__ = ("_after", "_desk", "_is_void", "_kept")

    def __init__(self, desk: Desk, flight: Flight, kept: Sequence[tuple[Hook, Wishes]]) -> None:
        self._desk = desk
        self._after: list[Fact] = flight.after
        self._kept = kept
        self._is_void = False

    def settle(self, event: Event, state: SessionState) -> Iterable[Event]:
        if self._is_void:
            return ()
        if isinstance(event, CallChecked) and event.verdict in ("allow", "ask") and (found := self._outdated(state)):
            hook, wrong = found
            self._desk.asked_again[event.call] += 1
            if self._desk.asked_again[event.call] <= MAX_AGAIN:
                self._is_void = True
                return ()
            reason = f"The hook {hook.name} (tool_gate) judged by a state that did not last: {wrong}."
            event = CallChecked(event.call, "deny", f"hook: {hook.name}", reason)
        return in_turn(state, [event, *self._after])

    def _outdated(self, state: SessionState) -> tuple[Hook, str] | None:
        """The first gate that saw another state than the one it comes behind, and how they differ."""
        for hook, wishes in self._kept:
            try:
                if wrong := wishes.outdated(state):
                    return hook, wrong
                wishes.settled(state)
            except Exception as error:  # noqa: BLE001 - reducers are user code
                return hook, describe(error)
            state = fold(list(changed(wishes, hook.name, state)), state)
        return None
