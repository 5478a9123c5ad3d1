"""Growing collections that many states share: a buffer and how much of it each state sees.

Rule 1: what a state sees never changes. Rule 2: adding to the newest state is O(1); adding to an older one copies.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")
U = TypeVar("U")
K = TypeVar("K", bound=Hashable)


class Buffer(Sequence[T]):
    """An append-only list of which a state sees the first `length` items."""

    __slots__ = ("_derived", "_items", "_length")

    def __init__(self, items: list[T] | None = None, length: int | None = None) -> None:
        self._items: list[T] = [] if items is None else items
        self._length = len(self._items) if length is None else length
        self._derived: dict[object, list[Any]] = {}

    def add(self, item: T) -> Buffer[T]:
        items, derived = self._items, self._derived
        if len(items) != self._length:
            items, derived = items[: self._length], {}
        items.append(item)
        grown = Buffer(items, self._length + 1)
        grown._derived = derived
        return grown

    def derive(self, key: Hashable, function: Callable[[T], U]) -> list[U]:
        """What the function makes of each item, made once per item and key; longer than the buffer if others went on.

        The function must be pure: the same key always means the same function.
        """
        made = self._derived.setdefault(key, [])
        for index in range(len(made), self._length):
            made.append(function(self._items[index]))
        return made

    def joined(self, key: Hashable, size: int, join: Callable[[list[Any]], Any]) -> list[Any]:
        """What was derived under this key, the older part of it in blocks of `size` items that were joined once."""
        made = self._derived[key]
        blocks = self._derived.setdefault((key, size), [])
        whole = self._length // size
        for number in range(len(blocks), whole):
            blocks.append(join(made[number * size : (number + 1) * size]))
        return [*blocks[:whole], *made[whole * size : self._length]]

    def kept(self, key: Hashable, basis: tuple[object, ...], make: Callable[[], U]) -> U:
        """What was made last under this key, as long as the basis that it was made of stays the same."""
        last = self._derived.get(key)
        if last is None or last[0] != basis:
            last = self._derived[key] = [basis, make()]
        return last[1]

    def underived(self, key: Hashable) -> list[T]:
        """The items for which nothing was derived under this key yet."""
        return self._items[len(self._derived.get(key, ())) : self._length]

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            start, stop, step = index.indices(self._length)
            if step < 0:
                # Its bounds may be -1, which a list would count from its own end.
                return [self._items[at] for at in range(start, stop, step)]
            return self._items[start:stop:step]
        if not -self._length <= index < self._length:
            raise IndexError(index)
        return self._items[index if index >= 0 else self._length + index]

    def __iter__(self) -> Iterator[T]:
        items = self._items
        return (items[index] for index in range(self._length))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Buffer):
            return NotImplemented
        return self[:] == other[:]

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return f"Buffer({self[:]!r})"


class Index(Generic[K, T]):
    """A write-once mapping of which a state sees the first `length` entries."""

    __slots__ = ("_entries", "_length")

    def __init__(self, entries: dict[K, tuple[int, T]] | None = None, length: int = 0) -> None:
        self._entries: dict[K, tuple[int, T]] = {} if entries is None else entries
        self._length = length

    def add(self, key: K, value: T) -> Index[K, T]:
        entries = self._entries
        if len(entries) != self._length:
            entries = {k: entry for k, entry in entries.items() if entry[0] < self._length}
        if key in entries:
            return Index(entries, self._length)
        entries[key] = (self._length, value)
        return Index(entries, self._length + 1)

    def get(self, key: K) -> T | None:
        entry = self._entries.get(key)
        return entry[1] if entry is not None and entry[0] < self._length else None

    def without(self, keys: Collection[K]) -> Index[K, T]:
        """A copy in which these keys are free again."""
        kept = [(k, value) for k, value in self._seen().items() if k not in keys]
        return Index({k: (at, value) for at, (k, value) in enumerate(kept)}, len(kept))

    def _seen(self) -> dict[K, T]:
        return {k: value for k, (at, value) in self._entries.items() if at < self._length}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Index):
            return NotImplemented
        return self._seen() == other._seen()

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return f"Index({self._seen()!r})"
