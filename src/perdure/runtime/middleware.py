"""Middleware: one signature around every action that is performed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from perdure.core.actions import Action
from perdure.core.events import Event

Perform: TypeAlias = Callable[[Action], Awaitable[Event]]
Middleware: TypeAlias = Callable[[Action, Perform], Awaitable[Event]]


def compose(middleware: Sequence[Middleware], perform: Perform) -> Perform:
    """The first one given is the outermost."""
    for layer in reversed(middleware):
        perform = _wrap(layer, perform)
    return perform


def _wrap(layer: Middleware, inner: Perform) -> Perform:
    def perform(action: Action) -> Awaitable[Event]:
        return layer(action, inner)

    return perform
