"""What a terminal shows: lines with a hanging indent, and below them what is going on right now.

Rule 1: a line once printed stays; only the part below the last line is redrawn. Rule 2: a pipe gets the lines alone,
whole and without decoration.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.segment import Segment
from rich.text import Text

from perdure.cli.words import show_seconds, visible

if TYPE_CHECKING:
    from rich.live import Live

FENCE = re.compile(r" {0,3}(```+|~~~+)")
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
FLASH = 0.25
"""What takes less than this is over before anybody could read that it goes on."""

LEAST_WIDTH = 20


class QuietConsole(Console):
    """Leaves a closed pipe to the command: rich would end the process with a code of its own."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class Trimmed:
    """Something without the blank lines around it, and of its lines the last `height` ones."""

    def __init__(self, content: RenderableType, height: int = 0) -> None:
        self._content = content
        self._height = height

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self._content, options, pad=False)
        written = [at for at, line in enumerate(lines) if any(part.text.strip() for part in line)]
        for line in lines[written[0] : written[-1] + 1][-self._height :] if written else ():
            yield from line
            yield Segment.line()


class Screen:
    """One command's output."""

    def __init__(self, console: Console, *, margin: int = 0) -> None:
        self._console = console
        self.margin = margin
        self._text = ""
        self._printed = 0
        self._under_way: dict[str, tuple[float, str]] = {}
        self._live: Live | None = None

    @property
    def width(self) -> int:
        return max(LEAST_WIDTH, self._console.width - self.margin - 2)

    @property
    def is_terminal(self) -> bool:
        return self._console.is_terminal

    def line(self, mark: str, text: str, style: str = "", *, mark_style: str = "", margin: str = "") -> None:
        """A mark and a text that, where it does not fit, goes on below its own beginning."""
        body = Text(visible(text), style)
        for number, part in enumerate(body.wrap(self._console, self.width)):
            # The margin's style must not become the whole line's.
            head = Text().append(f"{margin if number == 0 else '':<{self.margin}}", "dim")
            head.append(f"{mark} " if number == 0 else "  ", mark_style or style)
            head.append_text(part).rstrip()
            self._console.print(head, soft_wrap=True)

    def say(self, text: str, style: str = "") -> None:
        """A paragraph of our own, with rich's markup."""
        self._console.print(text, style=style)

    def answer(self, text: str) -> None:
        """What a model said: Markdown for a person, the plain text for a pipe."""
        if self.is_terminal:
            for number, block in enumerate(_split_blocks(text)):
                if number:
                    self._console.print()
                self._console.print(Trimmed(self._markdown(block)), end="")
            return
        indent = " " * self.margin
        for row in visible(text).splitlines():
            self._console.print(f"{indent}{row}".rstrip(), markup=False, soft_wrap=True)

    def stream(self, text: str) -> None:
        """More of an answer: whole blocks are printed, the unfinished one is shown below."""
        self._text += text
        if not self.is_terminal:
            return
        self._go_live()
        *whole, last = _split_blocks(self._text[self._printed :]) or [""]
        if whole:
            self._print_streamed(len(self._text) - len(last))

    def settle(self, text: str) -> None:
        """The answer is complete: prints what of it was not printed yet."""
        printed, self._text = self._text[: self._printed], text
        if not text.startswith(printed):
            self._printed = 0
        if text[self._printed :].strip():
            self._print_streamed(len(text))
        self.discard()

    def discard(self) -> None:
        self._text, self._printed = "", 0

    def begin(self, what: str, text: str) -> None:
        """Something that takes time; it is shown with its age until it ends."""
        since = self._under_way[what][0] if what in self._under_way else time.monotonic()
        self._under_way = {**self._under_way, what: (since, text)}
        self._go_live()

    def end(self, what: str) -> None:
        self._under_way = {key: value for key, value in self._under_way.items() if key != what}

    def pause(self) -> None:
        """Nothing is redrawn any more, so that a prompt may have the last line."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def close(self) -> None:
        self._under_way = {}
        self.discard()
        self.pause()

    def _print_streamed(self, end: int) -> None:
        begin, self._printed = self._printed, end
        if begin:
            self._console.print()
        self.answer(self._text[begin:end])

    def _go_live(self) -> None:
        if self._live is None and self.is_terminal and not self._console.is_dumb_terminal:
            from rich.live import Live

            self._live = Live(
                console=self._console, get_renderable=self._show_now, refresh_per_second=10, transient=True
            )
            self._live.start()

    def _show_now(self) -> RenderableType:
        """Called from the drawing thread: reads each attribute once, and none of them is changed in place."""
        rows: list[RenderableType] = []
        unfinished = self._text[self._printed :]
        if unfinished.strip():
            rows.append(Trimmed(self._markdown(unfinished), max(3, self._console.height - 8)))
        now = time.monotonic()
        for since, text in list(self._under_way.values())[-5:]:
            if now - since > FLASH:
                age = f" · {show_seconds(now - since)}" if now - since >= 1 else ""
                row = Text(f"{SPINNER[int(now * 10) % len(SPINNER)]} {visible(text)}{age}", "dim", no_wrap=True)
                row.truncate(self._console.width - 1, overflow="ellipsis")
                rows.append(row)
        return Group(*rows)

    def _markdown(self, text: str) -> RenderableType:
        from perdure.cli.markdown import LeftMarkdown

        return Padding(LeftMarkdown(visible(text)), (0, 0, 0, self.margin + 2 if self.margin else 0))


def _split_blocks(text: str) -> list[str]:
    """Markdown cut where a new block begins: behind a blank line, at the margin, outside of a code fence."""
    blocks: list[str] = []
    fence, after_blank = "", False
    for row in text.splitlines(keepends=True):
        if not blocks or (after_blank and not fence and row[:1].strip() and blocks[-1].strip()):
            blocks.append("")
        blocks[-1] += row
        marker = FENCE.match(row)
        if marker and (not fence or marker[1].startswith(fence)):
            fence = "" if fence else marker[1]
        after_blank = not row.strip()
    return blocks
