"""What a terminal shows: lines with a hanging indent, and below them what is going on right now.

Rule: a line once printed stays; only the part below the last line is redrawn.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.segment import Segment
from rich.text import Text

from perdure.cli.words import Styled, show_seconds, visible

if TYPE_CHECKING:
    from rich.live import Live

FENCE = re.compile(r" {0,3}(```+|~~~+)")
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
FLASH = 0.25
"""What takes less than this is over before anybody could read that it goes on."""

LEAST_WIDTH = 20
MOST_ROWS = 5


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


class Canvas:
    """A Screen for a person. NO_COLOR and the width are respected by rich."""

    def __init__(self, *, margin: int = 0, stderr: bool = False) -> None:
        self.margin = margin
        self._console = Console(stderr=stderr, highlight=False)
        self._text = ""
        self._printed = 0
        self._under_way: dict[str, tuple[float, str]] = {}
        self._live: Live | None = None

    @property
    def width(self) -> int:
        return max(LEAST_WIDTH, self._console.width - self.margin - 2)

    @property
    def is_terminal(self) -> bool:
        return True

    def line(self, mark: str, text: str, style: str = "", *, mark_style: str = "", margin: str = "") -> None:
        body = Text(visible(text), style)
        left = max(self.margin, cell_len(margin))
        room = max(LEAST_WIDTH, self._console.width - left - 2)
        for number, part in enumerate(body.wrap(self._console, room)):
            # The margin's style must not become the whole line's.
            head = Text().append(set_cell_size(margin if number == 0 else "", left), "dim")
            head.append(f"{mark} " if number == 0 else "  ", mark_style or style)
            head.append_text(part).rstrip()
            self._console.print(head, soft_wrap=True)

    def say(self, *words: Styled) -> None:
        self._console.print(Text.assemble(*words))

    def answer(self, text: str) -> None:
        for number, block in enumerate(split_blocks(text)):
            if number:
                self._console.print()
            self._console.print(Trimmed(self._markdown(block)), end="")

    def stream(self, text: str) -> None:
        """Whole blocks are printed, the unfinished one is shown below."""
        self._text += text
        self._go_live()
        *whole, last = split_blocks(self._text[self._printed :]) or [""]
        if whole:
            self._print_streamed(len(self._text) - len(last))

    def settle(self, text: str) -> None:
        printed, self._text = self._text[: self._printed], text
        if not text.startswith(printed):
            self._printed = 0
        if text[self._printed :].strip():
            self._print_streamed(len(text))
        self.discard()

    def discard(self) -> None:
        self._text, self._printed = "", 0

    def begin(self, what: str, text: str) -> None:
        since = self._under_way[what][0] if what in self._under_way else time.monotonic()
        self._under_way = {**self._under_way, what: (since, text)}
        self._go_live()

    def end(self, what: str) -> None:
        self._under_way = {key: value for key, value in self._under_way.items() if key != what}

    def pause(self) -> None:
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
        if self._live is None and not self._console.is_dumb_terminal:
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
        going_on = [(since, text) for since, text in self._under_way.values() if now - since > FLASH]
        for since, text in going_on[-MOST_ROWS:]:
            age = f" · {show_seconds(now - since)}" if now - since >= 1 else ""
            row = Text(f"{SPINNER[int(now * 10) % len(SPINNER)]} {visible(text)}{age}", "dim", no_wrap=True)
            row.truncate(self._console.width - 1, overflow="ellipsis")
            rows.append(row)
        if len(going_on) > MOST_ROWS:
            rows.append(Text(f"… and {len(going_on) - MOST_ROWS:,} more", "dim"))
        return Group(*rows)

    def _markdown(self, text: str) -> RenderableType:
        from perdure.cli.markdown import LeftMarkdown

        return Padding(LeftMarkdown(visible(text)), (0, 0, 0, self.margin + 2 if self.margin else 0))


def split_blocks(text: str) -> list[str]:
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
