"""What a call wants beside its result: state keys changed, the run ended, the next turn another one.

Rule: nothing of it counts before the call's outcome is committed, and all of it is committed with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Literal, TypeVar, cast

import msgspec

from perdure.core.messages import JSON
from perdure.core.specs import NextTurn
from perdure.core.state import SessionState
from perdure.runtime.plain import to_plain
from perdure.runtime.schema import Codec, codec_of

T = TypeVar("T")


class Prepared(msgspec.Struct, frozen=True):
    """What a listen function has so far; `ready` ends the listening. The revision tells one snapshot from the next."""

    snapshot: JSON
    revision: str = ""
    ready: bool = False
    valid_until: float | None = None


class StateKey(Generic[T]):
    """A typed value that tools keep, for the run or for the session.

    Without a reducer it is exclusive: of two calls of one turn that touch it, the later one is an error. With one, the
    value that a call sets is folded into the one that is there.
    """

    def __init__(
        self,
        name: str,
        type: type[T],
        *,
        scope: Literal["run", "session"] = "session",
        default: T | None = None,
        reducer: Callable[[T, T], T] | None = None,
    ) -> None:
        self.name = f"{scope}/{name}"
        self.default = default
        self.reducer = reducer
        self.codec: Codec = codec_of(type)

    def read(self, state: SessionState) -> T:
        """The committed value, or the default."""
        scope, _, name = self.name.partition("/")
        values = state.values if scope == "session" else state.run.values if state.run else {}
        return self.codec.decode(values[name]) if name in values else cast(T, self.default)


class Wishes:
    """Those of one call, until it has ended."""

    __slots__ = ("changes", "ends", "next", "output", "touched")

    def __init__(self) -> None:
        self.touched: dict[str, StateKey[Any]] = {}
        self.changes: dict[str, Any] = {}
        self.ends = False
        self.output: JSON = None
        self.next: NextTurn | None = None

    def get(self, key: StateKey[T], state: SessionState) -> T:
        self.touched[key.name] = key
        if key.name not in self.changes:
            return key.read(state)
        change: T = self.changes[key.name]
        return change if key.reducer is None else key.reducer(key.read(state), change)

    def set(self, key: StateKey[T], value: T) -> None:
        key.codec.encode(value)
        self.touched[key.name] = key
        known = self.changes.get(key.name)
        self.changes[key.name] = value if known is None or key.reducer is None else key.reducer(known, value)

    def end(self, output: JSON) -> None:
        self.ends, self.output = True, output

    def conflict(self, call: int, state: SessionState) -> str:
        """The exclusive key that another call of this turn has changed meanwhile, and which call that was."""
        for other in state.run.calls if state.run else ():
            for name in other.end.changes if other.end and other.ordinal != call else ():
                key = self.touched.get(name)
                if key is not None and key.reducer is None:
                    return f"{name.partition('/')[2]} was changed by {other.name} (call {other.ordinal}) meanwhile"
        return ""

    def settled(self, state: SessionState) -> dict[str, JSON]:
        """The changes as plain data, folded into what is committed now."""
        settled: dict[str, JSON] = {}
        for name, change in self.changes.items():
            key = self.touched[name]
            value = change if key.reducer is None else key.reducer(key.read(state), change)
            settled[name] = to_plain(value)
        return settled
