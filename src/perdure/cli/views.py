"""How a command shows a run: a timeline for a person, JSON for a program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from perdure.cli.driving import Given
from perdure.cli.remote import how_to_decide
from perdure.cli.screen import open_screen
from perdure.cli.terminal import print_json
from perdure.cli.timeline import Timeline
from perdure.cli.words import count
from perdure.ports import FromChild, Item, Record
from perdure.runtime.results import RunResult
from perdure.runtime.session import Session

MOST_NAMED = 5


class View(Protocol):
    def show(self, item: Item) -> None: ...

    def say(self, text: str) -> None:
        """Something that is not in the log, for a person."""
        ...

    def pause(self) -> None:
        """Lets go of the terminal, so that a question can be asked."""
        ...

    def finish(self, session: Session[Any], result: RunResult[Any]) -> None:
        """The run has ended, or is left waiting."""
        ...

    def leave(self, session: Session[Any], children: list[str]) -> None:
        """The run has ended, and sub-agents that it does not wait for still work."""
        ...

    def close(self) -> None: ...


class PersonView:
    """Lines as things happen; what is left waiting comes with the commands that go on with it."""

    def __init__(
        self, given: Given, *, echo: bool = True, known: int = 0, below: Mapping[str, int] | None = None
    ) -> None:
        self._given = given
        self._screen = open_screen()
        self._timeline = Timeline(self._screen, echo=echo, known=known, below=below)

    def show(self, item: Item) -> None:
        self._timeline.show(item)

    def say(self, text: str) -> None:
        self._screen.line("·", text, "dim")

    def pause(self) -> None:
        self._timeline.pause()

    def finish(self, session: Session[Any], result: RunResult[Any]) -> None:
        self._timeline.close()
        if not result.pending:
            return
        self._screen.line("●", f"waiting for {count(len(result.pending), 'decision')}", "bold yellow")
        for item in result.pending:
            if item.session != session.id:
                self._screen.line(" ", f"{item.tool} of session {item.session}:", "dim")
            self._screen.line(" ", how_to_decide(item, self._given.store))
        self._screen.line(" ", self._given.resume(session.id))

    def leave(self, session: Session[Any], children: list[str]) -> None:
        shown = ", ".join(children[:MOST_NAMED])
        more = f" and {len(children) - MOST_NAMED} more" if len(children) > MOST_NAMED else ""
        self._screen.line("●", f"still at work: {shown}{more}", "bold yellow")
        self._screen.line(" ", self._given.resume(session.id))

    def close(self) -> None:
        self._timeline.close()


class JsonView:
    """One object a line: a record as it is in the log, a delta under its own name, at last the result.

    What a sub-agent does is an `item` in an object that says whose it is.
    """

    def show(self, item: Item) -> None:
        print_json(_plain(item))

    def say(self, text: str) -> None:
        pass

    def pause(self) -> None:
        pass

    def finish(self, session: Session[Any], result: RunResult[Any]) -> None:
        print_json(
            {
                "result": {
                    "session": session.id,
                    "run": result.run,
                    "reason": result.reason,
                    "detail": result.detail,
                    "turns": result.turns,
                    "usage": result.usage,
                    "cost_usd": result.cost_usd,
                    "pending": result.pending,
                }
            }
        )

    def leave(self, session: Session[Any], children: list[str]) -> None:
        print_json({"at_work": children})

    def close(self) -> None:
        pass


def _plain(item: Item) -> object:
    match item:
        case FromChild(session=session, agent=agent, call=call, item=inner):
            return {"session": session, "agent": agent, "call": call, "item": _plain(inner)}
        case Record():
            return item
        case _:
            return {"delta": item}


def view_for(given: Given, *, echo: bool = True, known: int = 0, below: Mapping[str, int] | None = None) -> View:
    return JsonView() if given.json else PersonView(given, echo=echo, known=known, below=below)
