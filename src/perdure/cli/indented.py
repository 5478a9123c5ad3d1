"""What sub-agents do, on the screen of the session that is watched: indented lines that say whose they are."""

from __future__ import annotations

from perdure.cli.screen import Screen
from perdure.cli.words import Styled, shorten

LONGEST_NAME = 24
LEAST_WIDTH = 20


class Indented:
    """A Screen on another one. Each line begins with the agent and the calls that lead to it, from the root down.

    Rule: many sub-agents share the one terminal, so that an answer is shown in short, and when it is whole.
    """

    def __init__(self, outer: Screen, agent: str, call: int) -> None:
        self.margin = 0
        above = outer.path if isinstance(outer, Indented) else ()
        self.path: tuple[int, ...] = (*above, call)
        self.outer: Screen = outer.outer if isinstance(outer, Indented) else outer
        # A child that no call waits for has a name of its own.
        calls = ".".join(str(number) for number in self.path if number)
        self._label = f"{shorten(agent, LONGEST_NAME)} {calls}".rstrip()
        self._under_way: set[str] = set()

    @property
    def width(self) -> int:
        return max(LEAST_WIDTH, self.outer.width - len(self._margin))

    @property
    def is_terminal(self) -> bool:
        return self.outer.is_terminal

    @property
    def _margin(self) -> str:
        return f"{'  ' * len(self.path)}{self._label} "

    def line(self, mark: str, text: str, style: str = "", *, mark_style: str = "", margin: str = "") -> None:
        self.outer.line(mark, text, style, mark_style=mark_style, margin=f"{self._margin}{margin}")

    def say(self, *words: Styled) -> None:
        self.line(" ", "".join(word if isinstance(word, str) else word[0] for word in words))

    def answer(self, text: str) -> None:
        self.line("“", shorten(text, self.width))

    def stream(self, text: str) -> None:
        pass

    def settle(self, text: str) -> None:
        self.answer(text)

    def discard(self) -> None:
        pass

    def begin(self, what: str, text: str) -> None:
        self._under_way.add(what)
        self.outer.begin(f"{self._label}/{what}", f"{self._label} · {text}")

    def end(self, what: str) -> None:
        self._under_way.discard(what)
        self.outer.end(f"{self._label}/{what}")

    def pause(self) -> None:
        pass

    def close(self) -> None:
        for what in list(self._under_way):
            self.end(what)
