"""What the doctor's checks come to: what is so and, where something is wrong, what to do."""

from __future__ import annotations

from typing import Literal

import msgspec


class Finding(msgspec.Struct, frozen=True):
    level: Literal["ok", "note", "wrong"]
    text: str
    todo: str = ""
