"""Any event of the closed union, made from its type: a new kind or field need not be named here."""

from __future__ import annotations

import types
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from perdure.core.events import Event
from perdure.core.specs import Limits

often = settings(
    max_examples=120,
    deadline=None,
    derandomize=True,
    database=None,
    # A busy machine makes slow examples, not wrong ones.
    suppress_health_check=[HealthCheck.too_slow],
)

KINDS: tuple[type[Event], ...] = get_args(Event)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SMALL = st.integers(0, 4)
"""Few numbers, so that events made at random speak of the same runs, calls and inputs."""
ODD = st.sampled_from((-1, -7, 10**6, 2**64, 10**400))
"""Numbers that make no sense, as a broken or hostile part may write them."""
NUMBER = SMALL | SMALL | SMALL | ODD
JSON_VALUE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)

_known: dict[Any, st.SearchStrategy[Any]] = {
    int: NUMBER,
    str: TEXT,
    bool: st.booleans(),
    float: st.floats(0, 1e6),
    type(None): st.none(),
    Any: JSON_VALUE,
    "limit": st.none() | SMALL,
    dict[str, str]: st.dictionaries(TEXT, TEXT, max_size=2),
    dict[str, Any]: st.dictionaries(TEXT, JSON_VALUE, max_size=2),
}


def values(kind: Any) -> st.SearchStrategy[Any]:
    """A strategy for any type that a fact may hold."""
    if kind not in _known:
        _known[kind] = _build(kind)
    return _known[kind]


def _build(kind: Any) -> st.SearchStrategy[Any]:
    origin, args = get_origin(kind), get_args(kind)
    if origin is Literal:
        return st.sampled_from(args)
    if origin in (Union, types.UnionType):
        return st.one_of([values(arg) for arg in args])
    if origin is tuple:
        return st.lists(values(args[0]), max_size=3).map(tuple)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = get_type_hints(kind)
        if kind is Limits:
            # Limits below 0 cannot be made, so they cannot be read either.
            hints = {name: "limit" if hint == int | None else hint for name, hint in hints.items()}
        fields = {field.name: values(hints[field.name]) for field in msgspec.structs.fields(kind)}
        return st.builds(kind, **fields)
    raise TypeError(f"no strategy for {kind}")


EVENT: st.SearchStrategy[Event] = st.one_of([values(kind) for kind in KINDS])
EVENTS = st.lists(EVENT, max_size=12)
