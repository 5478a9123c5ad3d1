"""Buffer and Index: many states share one collection, and none sees what another added."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.shared import Buffer, Index
from tests.core.strategies import often


def buffer_of(*items: int) -> Buffer[int]:
    buffer = Buffer[int]()
    for item in items:
        buffer = buffer.add(item)
    return buffer


@often
@given(st.lists(st.tuples(st.integers(0, 30), st.integers()), max_size=30))
def test_a_buffer_is_a_list_that_never_changes(steps: list[tuple[int, int]]) -> None:
    """Each step adds to any of the buffers made so far; plain lists are the model."""
    buffers: list[Buffer[int]] = [Buffer()]
    models: list[list[int]] = [[]]
    for at, item in steps:
        at %= len(buffers)
        buffers.append(buffers[at].add(item))
        models.append([*models[at], item])
    for buffer, model in zip(buffers, models, strict=True):
        assert (list(buffer), len(buffer), buffer[:]) == (model, len(model), model)


@often
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5)), max_size=30))
def test_an_index_is_a_write_once_mapping_that_never_changes(steps: list[tuple[int, int]]) -> None:
    indexes: list[Index[int, int]] = [Index()]
    models: list[dict[int, int]] = [{}]
    for number, (at, key) in enumerate(steps):
        at %= len(indexes)
        indexes.append(indexes[at].add(key, number))
        models.append({key: number, **models[at]})
    for index, model in zip(indexes, models, strict=True):
        assert {key: index.get(key) for key in range(6)} == {key: model.get(key) for key in range(6)}


@often
@given(st.lists(st.integers(), max_size=8), st.integers(-10, 10) | st.none(), st.integers(-10, 10) | st.none())
def test_slices_are_those_of_a_list(items: list[int], start: int | None, stop: int | None) -> None:
    shorter = buffer_of(*items)
    shorter.add(99)
    for step in (None, 1, 2, -1, -2):
        assert shorter[start:stop:step] == items[start:stop:step]


def test_positions_count_from_both_ends_and_end_there() -> None:
    shorter = buffer_of(1, 2)
    shorter.add(3)
    assert (shorter[0], shorter[1], shorter[-1], shorter[-2]) == (1, 2, 2, 1)
    for outside in (2, -3):
        with pytest.raises(IndexError):
            shorter[outside]


def test_adding_to_the_newest_state_copies_nothing() -> None:
    items: list[int] = []
    buffer = Buffer(items)
    for item in range(1_000):
        buffer = buffer.add(item)
    assert len(items) == 1_000
    entries: dict[int, tuple[int, int]] = {}
    index = Index(entries)
    for key in range(1_000):
        index = index.add(key, key)
    assert len(entries) == 1_000


def test_adding_to_an_older_state_leaves_the_newer_one_alone() -> None:
    old = buffer_of(1)
    newer, other = old.add(2), old.add(3)
    assert (list(old), list(newer), list(other)) == ([1], [1, 2], [1, 3])


def test_an_older_index_does_not_know_later_keys() -> None:
    old = Index[str, int]().add("a", 1)
    newer, other = old.add("b", 2), old.add("b", 3)
    assert (old.get("b"), newer.get("b"), other.get("b")) == (None, 2, 3)


def test_a_key_is_written_once() -> None:
    index = Index[str, int]().add("a", 1)
    assert index.add("a", 2) == index
    assert index.add("a", 2).get("a") == 1


def test_keys_can_be_free_again_in_a_copy() -> None:
    index = Index[str, int]().add("a", 1).add("b", 2).add("c", 3)
    freed = index.without(["b", "x"])
    assert [freed.get(key) for key in "abc"] == [1, None, 3]
    assert freed.add("b", 4).get("b") == 4
    assert [index.get(key) for key in "abc"] == [1, 2, 3]


def test_equality_looks_at_what_is_seen() -> None:
    old = buffer_of(1)
    old.add(2)
    assert old == buffer_of(1)
    assert old != buffer_of(2)
    assert old != [1]
    index = Index[str, int]().add("a", 1)
    index.add("b", 2)
    assert index == Index[str, int]().add("a", 1)
    assert index != Index[str, int]().add("a", 2)
    assert index != {"a": 1}


def test_an_iteration_does_not_see_what_is_added_meanwhile() -> None:
    buffer = buffer_of(1, 2)
    seen: list[int] = []
    for item in buffer:
        buffer.add(item)
        seen.append(item)
    assert seen == [1, 2]


def test_they_show_what_they_hold() -> None:
    assert repr(buffer_of(1, 2)) == "Buffer([1, 2])"
    assert repr(Index[str, int]().add("a", 1)) == "Index({'a': 1})"


def test_they_cannot_be_keys() -> None:
    for shared in (Buffer[int](), Index[str, int]()):
        with pytest.raises(TypeError):
            hash(shared)


def test_what_is_derived_is_made_once_and_joined_in_blocks() -> None:
    made: list[int] = []

    def write(item: int) -> str:
        made.append(item)
        return f"{item},"

    buffer: Buffer[int] = Buffer()
    older: list[Buffer[int]] = []
    for number in range(10):
        buffer = buffer.add(number)
        older.append(buffer)
        assert buffer.underived("k") == [number]
        buffer.derive("k", write)
        assert "".join(buffer.joined("k", 4, "".join)) == "".join(f"{n}," for n in range(number + 1))
    assert made == list(range(10)), "once per item"
    assert buffer.joined("k", 4, "".join) == ["0,1,2,3,", "4,5,6,7,", "8,", "9,"]
    assert older[5].joined("k", 4, "".join) == ["0,1,2,3,", "4,", "5,"], "an older state sees what it saw"
    fork = older[5].add(99)
    assert fork.underived("k") == [0, 1, 2, 3, 4, 5, 99], "another future derives for itself"
