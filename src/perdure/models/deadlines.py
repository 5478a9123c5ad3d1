"""How long an answer may take, phase by phase."""

from __future__ import annotations

import msgspec

from perdure.core.errors import UsageError


class Deadlines(msgspec.Struct, frozen=True):
    """Seconds: until connected, from the start to the first byte, between two reads, and for the whole answer."""

    connect: float = 10.0
    first_byte: float = 120.0
    idle: float = 60.0
    total: float = 600.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value: object = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise UsageError(f"Deadlines({name}={value!r}): give seconds, more than 0.")
