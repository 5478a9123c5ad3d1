"""Where a command writes for people: a pipe gets plain whole lines, a terminal more (see canvas.py).

Rule: what comes from models, tools and users is made safe here, the last place before it is shown.
"""

from __future__ import annotations

import os
import sys
from typing import Protocol

from perdure.cli.words import Styled, visible

PIPE_WIDTH = 1000


class Screen(Protocol):
    """One command's output."""

    margin: int

    @property
    def width(self) -> int:
        """The room for text behind the margin and the mark."""
        ...

    @property
    def is_terminal(self) -> bool: ...

    def line(self, mark: str, text: str, style: str = "", *, mark_style: str = "", margin: str = "") -> None:
        """A mark and a text that, where it does not fit, goes on below its own beginning."""
        ...

    def say(self, *words: Styled) -> None:
        """A paragraph of our own, at the left edge."""
        ...

    def answer(self, text: str) -> None:
        """What a model said: Markdown for a person, the plain text for a pipe."""
        ...

    def stream(self, text: str) -> None:
        """More of an answer that is not complete yet."""
        ...

    def settle(self, text: str) -> None:
        """The answer is complete: shows what of it was not shown yet."""
        ...

    def discard(self) -> None:
        """What was streamed so far does not count."""
        ...

    def begin(self, what: str, text: str) -> None:
        """Something that takes time; it is shown with its age until it ends."""
        ...

    def end(self, what: str) -> None: ...

    def pause(self) -> None:
        """Nothing is redrawn any more, so that a prompt may have the last line."""
        ...

    def close(self) -> None: ...


class PlainScreen:
    """Whole lines and nothing else: no colour, no line breaks of ours, nothing that changes later."""

    def __init__(self, *, margin: int = 0, stderr: bool = False) -> None:
        self.margin = margin
        self._out = sys.stderr if stderr else sys.stdout

    @property
    def width(self) -> int:
        return PIPE_WIDTH

    @property
    def is_terminal(self) -> bool:
        return False

    def line(self, mark: str, text: str, style: str = "", *, mark_style: str = "", margin: str = "") -> None:
        self._print(f"{margin:<{self.margin}}{mark} {visible(text)}")

    def say(self, *words: Styled) -> None:
        self._print("".join(word if isinstance(word, str) else word[0] for word in words))

    def answer(self, text: str) -> None:
        for row in visible(text).splitlines():
            self._print(f"{'':<{self.margin}}{row}")

    def stream(self, text: str) -> None:
        pass

    def settle(self, text: str) -> None:
        self.answer(text)

    def discard(self) -> None:
        pass

    def begin(self, what: str, text: str) -> None:
        pass

    def end(self, what: str) -> None:
        pass

    def pause(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _print(self, row: str) -> None:
        print(row.rstrip(), file=self._out, flush=True)


def open_screen(*, margin: int = 0, stderr: bool = False) -> Screen:
    """rich is loaded for a person only: a third of a command's start."""
    stream = sys.stderr if stderr else sys.stdout
    if not stream.isatty() and not os.environ.get("FORCE_COLOR"):
        return PlainScreen(margin=margin, stderr=stderr)
    from perdure.cli.canvas import Canvas

    return Canvas(margin=margin, stderr=stderr)
