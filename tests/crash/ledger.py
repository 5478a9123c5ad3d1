"""The world outside of the store: what tools did and what callers were told, in files that no kill takes back.

Rule: a line is one write to a file opened for appending. A kill may still cut it, where it crosses a page; what was
not written to its end has not happened.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

T = TypeVar("T")

LEDGER = Path("ledger.jsonl")
ACKS = Path("acks.jsonl")


class Deed(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a tool did: `item` is the business action, the rest is what the runtime told it about the call."""

    what: Literal["start", "effect", "end"]
    tool: str
    item: str
    call: int
    attempt: int
    key: str
    cents: int = 0


class Ack(msgspec.Struct, frozen=True, omit_defaults=True):
    """A command that was acknowledged: the input's key, or a decision's pending id, or the run that is cancelled."""

    what: Literal["input", "decision", "cancel"]
    name: str
    value: str = ""


def write_line(path: Path, line: msgspec.Struct) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        # The line feed before it keeps it apart from a line that was cut.
        os.write(descriptor, b"\n" + msgspec.json.encode(line) + b"\n")
    finally:
        os.close(descriptor)


def read_lines(path: Path, kind: type[T]) -> list[T]:
    if not path.exists():
        return []
    decoder = msgspec.json.Decoder(kind)
    found: list[T] = []
    for line in filter(None, path.read_bytes().split(b"\n")):
        with suppress(msgspec.DecodeError):
            found.append(decoder.decode(line))
    return found
