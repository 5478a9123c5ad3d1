"""State keys, and what a call or a hook wants beside its result: keys changed, the run ended, another next turn.

Rule: nothing of it counts before the outcome is committed, and all of it is committed with it.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any, Generic, Literal, TypeVar, cast, get_args

import msgspec

from perdure.core.errors import UsageError
from perdure.core.messages import JSON
from perdure.core.specs import NextTurn
from perdure.core.state import SessionState
from perdure.runtime.directives import (
    Emit,
    Schedule,
    Scheduled,
    Send,
    Sending,
    StartChild,
    Stop,
    StopChild,
    emitted,
    schedule,
    sending,
)
from perdure.runtime.plain import to_plain
from perdure.runtime.schema import Codec, codec_of

T = TypeVar("T")
Scope = Literal["run", "session", "shared"]
MISSING = object()


class Prepared(msgspec.Struct, frozen=True):
    """What a listen function has so far; `ready` ends the listening. The revision tells one snapshot from the next."""

    snapshot: JSON
    revision: str = ""
    ready: bool = False
    valid_until: float | None = None


class StateKey(Generic[T]):
    """A typed value that tools and hooks keep: for the run, for the session, or shared by a tenant's sessions.

    Without a reducer it is exclusive: of two calls of one turn that touch it, the later one is an error. With one, the
    value that is set is folded into the one that is there. Not `persistent`, it is never in the log: this process alone
    has it, as it is, for as long as it holds the session.
    """

    def __init__(
        self,
        name: str,
        type: type[T],
        *,
        scope: Scope = "session",
        default: T | None = None,
        reducer: Callable[[T, T], T] | None = None,
        persistent: bool = True,
    ) -> None:
        if scope not in get_args(Scope):
            raise UsageError(f"StateKey({name!r}, scope={scope!r}): take 'run', 'session' or 'shared'.")
        self.name = f"{scope}/{name}"
        self.scope: Scope = scope
        self.default = default
        self.reducer = reducer
        self.persistent = persistent
        self.codec: Codec | None = codec_of(type) if persistent else None

    def read(self, state: SessionState) -> T:
        """The committed value, or the default; of a shared key in the tenant's shared state."""
        value = self.find(state)
        return self.unset() if value is MISSING else self.decoded(value)

    def unset(self) -> T:
        """The default, for this reader alone: a list that is changed in place must not be everybody's default."""
        return cast(T, deepcopy(self.default) if self.persistent else self.default)

    def find(self, state: SessionState) -> Any:
        """The committed value as plain data, or MISSING."""
        name = self.name.partition("/")[2]
        values = state.values if self.scope != "run" else state.run.values if state.run else {}
        return values.get(name, MISSING)

    def decoded(self, value: Any) -> T:
        return value if self.codec is None else self.codec.decode(value)

    def folded(self, now: Any, change: T) -> T:
        """The change, folded into what is there now (plain, or MISSING)."""
        if self.reducer is None:
            return change
        return self.reducer(self.unset() if now is MISSING else self.decoded(now), change)


class Shelf:
    """Where the values of state keys are found; `shared` gives the state of the tenant's shared keys."""

    __slots__ = ("_scratch", "_shared", "_shared_scratch")

    def __init__(
        self,
        scratch: dict[str, tuple[int, Any]] | None = None,
        shared: Callable[[], SessionState] | None = None,
        shared_scratch: dict[str, tuple[int, Any]] | None = None,
    ) -> None:
        self._scratch = {} if scratch is None else scratch
        self._shared_scratch = {} if shared_scratch is None else shared_scratch
        self._shared = shared

    def find(self, key: StateKey[Any], state: SessionState) -> Any:
        """What the key holds now, as it is kept, or MISSING."""
        if not key.persistent:
            run, value = self._box(key).get(key.name, (0, MISSING))
            return MISSING if key.scope == "run" and run != _run(state) else value
        if key.scope == "shared":
            if self._shared is None:
                raise UsageError(f"The key {key.name} is shared: declare it, with Agent(plugins=[Plugin(keys=[…])]).")
            return key.find(self._shared())
        return key.find(state)

    def keep(self, key: StateKey[Any], value: Any, state: SessionState) -> None:
        """Keeps a value that is not persistent."""
        self._box(key)[key.name] = (_run(state), value)

    def _box(self, key: StateKey[Any]) -> dict[str, tuple[int, Any]]:
        return self._shared_scratch if key.scope == "shared" else self._scratch


class Wishes:
    """Those of one call, or of one hook, until it has ended."""

    __slots__ = ("changes", "directives", "ends", "next", "output", "read", "seen", "shelf", "touched")

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf
        self.touched: dict[str, StateKey[Any]] = {}
        self.seen: dict[str, Any] = {}
        self.read: set[str] = set()
        self.changes: dict[str, Any] = {}
        self.directives: list[Any] = []
        self.ends = False
        self.output: JSON = None
        self.next: NextTurn | None = None

    def get(self, key: StateKey[T], state: SessionState) -> T:
        found = self._touch(key, state)
        self.read.add(key.name)
        if key.name in self.changes:
            return key.folded(found, self.changes[key.name])
        return key.unset() if found is MISSING else key.decoded(found)

    def set(self, key: StateKey[T], value: T, state: SessionState) -> None:
        if key.codec is not None:
            key.codec.encode(value)
        self._touch(key, state)
        known = self.changes.get(key.name)
        self.changes[key.name] = value if known is None or key.reducer is None else key.reducer(known, value)

    def end(self, output: JSON) -> None:
        self.ends, self.output = True, output

    def direct(self, wish: Emit | Schedule | Stop) -> None:
        """Checked now, so that the one who asks hears what is wrong; committed later."""
        match wish:
            case Emit():
                self.directives.append(emitted(wish))
            case Schedule():
                self.directives.append(schedule(wish))
            case Stop():
                self.directives.append(wish)

    def send(self, wish: Send | StartChild | StopChild, state: SessionState) -> None:
        self.directives.append(sending(wish, state))

    @property
    def artifacts(self) -> dict[str, bytes]:
        """What has to be saved before the wishes are committed."""
        carriers = [wish for wish in self.directives if isinstance(wish, Scheduled | Sending)]
        return {digest: data for wish in carriers for digest, data in wish.artifacts.items()}

    @property
    def successor(self) -> str:
        """The agent that is to take over."""
        return self.next.agent if self.next else ""

    @property
    def shares(self) -> bool:
        """Whether keys that all sessions of the tenant share are to be changed, durably."""
        return any(self.touched[name].scope == "shared" and self.touched[name].persistent for name in self.changes)

    def conflict(self, call: int, state: SessionState) -> str:
        """The exclusive key that another call of this turn, or anybody else, has changed meanwhile."""
        for other in state.run.calls if state.run else ():
            for name in other.end.changes if other.end and other.ordinal != call else ():
                key = self.touched.get(name)
                if key is not None and key.reducer is None:
                    return f"{name.partition('/')[2]} was changed by {other.name} (call {other.ordinal}) meanwhile"
        return self.overtaken(state)

    def overtaken(self, state: SessionState) -> str:
        """The exclusive key of this session's own that was changed since it was looked at."""
        for name in self.changes:
            key = self.touched[name]
            is_own = key.persistent and key.scope != "shared"
            if is_own and key.reducer is None and key.find(state) != self.seen[name]:
                return f"{name.partition('/')[2]} was changed meanwhile"
        return ""

    def outdated(self, state: SessionState) -> str:
        """The key of this session's own that was read and has another value by now, or the exclusive one overtaken."""
        for name in self.read:
            key = self.touched[name]
            if key.persistent and key.scope != "shared" and key.find(state) != self.seen[name]:
                return f"{name.partition('/')[2]} was changed meanwhile"
        return self.overtaken(state)

    def settled(self, state: SessionState) -> dict[str, JSON]:
        """The changes of this session's own keys as plain data, folded into what is committed now."""
        return {
            name: to_plain(key.folded(key.find(state), self.changes[name]))
            for name, key in self._changed(persistent=True)
            if key.scope != "shared"
        }

    def settled_shared(self, state: SessionState) -> dict[str, JSON]:
        """The same for shared keys, in the tenant's shared state; a ValueError names a key that was overtaken."""
        settled: dict[str, JSON] = {}
        for name, key in self._changed(persistent=True):
            if key.scope != "shared":
                continue
            now, plain_name = key.find(state), name.partition("/")[2]
            if key.reducer is None and now != self.seen[name]:
                raise ValueError(f"{plain_name} was changed by another session meanwhile")
            settled[f"session/{plain_name}"] = to_plain(key.folded(now, self.changes[name]))
        return settled

    def keep(self, state: SessionState) -> None:
        """Keeps what is not persistent."""
        for name, key in self._changed(persistent=False):
            self.shelf.keep(key, key.folded(self.shelf.find(key, state), self.changes[name]), state)

    def _changed(self, *, persistent: bool) -> list[tuple[str, StateKey[Any]]]:
        return [(name, self.touched[name]) for name in self.changes if self.touched[name].persistent == persistent]

    def _touch(self, key: StateKey[Any], state: SessionState) -> Any:
        found = self.shelf.find(key, state)
        if key.name not in self.touched:
            self.touched[key.name] = key
            self.seen[key.name] = found
        return found


def _run(state: SessionState) -> int:
    return state.run.run if state.run else 0
