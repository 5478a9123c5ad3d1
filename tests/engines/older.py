"""Yesterday's version: `python -m tests.engines.older worker …` knows one kind of fact less."""

from __future__ import annotations

from typing import Union, get_args

import msgspec

from perdure import wiring
from perdure.cli.main import main
from perdure.core import codec
from perdure.core.events import Event, SettingsChanged

VERSION = "0.0.1"


def forget() -> None:
    kinds = tuple(kind for kind in get_args(Event) if kind is not SettingsChanged)
    known = Union[kinds]  # noqa: UP007 - made of a tuple
    codec._decoder = msgspec.json.Decoder(known)
    codec.Event = known  # type: ignore[misc, assignment]
    wiring.version = lambda name: VERSION


if __name__ == "__main__":
    forget()
    main()
