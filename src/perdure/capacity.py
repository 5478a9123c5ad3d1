"""Capacity: how many sessions may be driven at once and how many may wait; `Busy` is the refusal of one too many."""

from perdure.core.capacity import Capacity
from perdure.core.errors import Busy

__all__ = ["Busy", "Capacity"]
