"""A chat: reads a line, runs it, shows it; slash commands are the session's verbs."""

from __future__ import annotations

from typing import Any

from perdure.cli.answers import answers_for, is_interactive, who
from perdure.cli.attend import attend
from perdure.cli.choice import chosen_model
from perdure.cli.driving import Driving, Given
from perdure.cli.family import heads_below, read_tree
from perdure.cli.forest import show_tree
from perdure.cli.screen import open_screen
from perdure.cli.terminal import OK
from perdure.cli.timeline import MARGIN, Timeline
from perdure.cli.typed import read_lines
from perdure.cli.views import view_for
from perdure.cli.words import count, show_parts, show_spent
from perdure.core.errors import PerdureError, UsageError
from perdure.core.messages import AssistantMessage, Message, ToolMessage, UserMessage
from perdure.core.state import has_due_input
from perdure.runtime.run import Run
from perdure.runtime.session import Session

COMMANDS = {
    "/help": "what can be typed",
    "/pending": "answer what waits for a decision",
    "/stop": "end the run that waits, gracefully",
    "/cancel": "end the run that waits, by force",
    "/resume": "go on after a limit, a stop or a failure",
    "/show": "what happened so far, as a timeline",
    "/history": "what the model reads",
    "/usage": "tokens and cost so far",
    "/tree": "this session and those of its sub-agents",
    "/fork": "[RECORD] go on in a fork of this session",
    "/session": "[ID] which session this is, or go on in another one",
    "/quit": "leave; the session stays",
}
KEYS = "Enter sends, Alt+Enter starts a new line, Ctrl-C stops a run (twice: cancels it), Ctrl-D leaves."


class Conversation:
    def __init__(self, here: Driving, session: Session[Any], given: Given) -> None:
        self._here = here
        self._session = session
        self._given = given
        self._answer = answers_for(given.yes, given.json)
        self._screen = open_screen(stderr=given.json)
        self._code = OK

    async def talk(self) -> int:
        """Until the person leaves; the exit code of the last run."""
        await self._enter()
        async for line in read_lines(COMMANDS, self._toolbar):
            if line in ("/quit", "/exit"):
                break
            try:
                if line.startswith("/"):
                    await self._command(line)
                elif line:
                    await self._attend(await self._here.start(self._session, line), echo=not is_interactive())
            except PerdureError as error:
                self._screen.line("✗", str(error), "red")
        return self._code

    async def _enter(self) -> None:
        """Says where we are, and goes on with what a dead process left open."""
        state = self._session.state
        past = f" · {count(state.runs, 'run')} so far, /show shows them" if state.runs else ""
        if not self._given.json:
            chosen = f" · model {chosen_model()}" if self._given.agent is None and self._given.model is None else ""
            self._screen.line("◆", f"session {self._session.id} · agent {self._session.agent}{chosen}{past}", "bold")
            self._screen.line(" ", f"{KEYS} /help lists the commands." if not past else "/help helps.", "dim")
        if state.run or has_due_input(state):
            self._screen.line("·", "its last run was left open; going on with it", "dim")
            await self._go_on()

    def _toolbar(self) -> str:
        state = self._session.state
        spent = [count(state.usage.total, "token"), *show_spent(state.cost_usd, is_priced=state.is_priced)]
        return f" {' · '.join([self._session.id, self._session.agent, *spent])} · /help "

    async def _go_on(self) -> None:
        """Shows what is new; the past is above, or in /show."""
        known, below = self._session.state.seq, await heads_below(self._here.runtime, self._session)
        await self._attend(await self._here.go_on(self._session), known=known, below=below)

    async def _end(self, verb: str) -> None:
        """Ends the run that was left waiting; without an open one, going on would begin another."""
        known, session = self._session.state.seq, self._session
        if session.state.run is None:
            self._screen.line("·", "there is no open run", "dim")
            return
        below = await heads_below(self._here.runtime, session)
        run = await self._here.go_on(session)
        await (session.stop(by=who()) if verb == "/stop" else session.cancel(by=who()))
        await self._attend(run, known=known, below=below)

    async def _attend(
        self, run: Run[Any], *, echo: bool = True, known: int = 0, below: dict[str, int] | None = None
    ) -> None:
        runtime, session = self._here.runtime, self._session
        view = view_for(self._given, echo=echo, known=known, below=below)
        self._code = await attend(runtime, session, run, view, self._answer)

    async def _command(self, line: str) -> None:
        verb, _, rest = line.partition(" ")
        screen, session = self._screen, self._session
        match verb:
            case "/help":
                for name, meaning in COMMANDS.items():
                    screen.line(" ", f"{name:<10} {meaning}")
                screen.line(" ", KEYS, "dim")
            case "/session" if rest:
                self._session = await self._here.runtime.open(self._here.agent, id=rest, tenant=self._given.tenant)
                await self._enter()
            case "/session":
                screen.line("◆", f"{session.id} · uid {session.uid} · {count(session.state.seq, 'record')}")
            case "/pending":
                if await session.pending():
                    await self._go_on()
                else:
                    screen.line("·", "nothing waits for a decision", "dim")
            case "/usage":
                usage, state = await session.usage(), session.state
                spent = show_spent(state.cost_usd, is_priced=state.is_priced)
                screen.line("·", ", ".join([f"{usage.input:,} in", f"{usage.output:,} out", *spent]))
            case "/history":
                for message in await session.history():
                    self._show_message(message)
            case "/tree":
                show_tree(screen, await read_tree(self._here.runtime, session))
            case "/show":
                await self._show()
            case "/stop" | "/cancel":
                await self._end(verb)
            case "/resume":
                await self._go_on()
            case "/fork":
                await self._fork(rest.strip())
            case _:
                screen.line("✗", f"there is no {verb}; /help lists what there is", "red")

    async def _fork(self, at: str) -> None:
        if at and not at.isdecimal():
            raise UsageError(f"/fork {at}: give the number of a record, as /show shows them.")
        self._session = await self._session.fork(at=int(at) if at else None)
        self._screen.line("◆", f"now in the fork {self._session.id}", "bold")

    async def _show(self) -> None:
        timeline = Timeline(open_screen(margin=MARGIN, stderr=self._given.json), full=True)
        for record in await self._session.records():
            timeline.show(record)
        timeline.close()

    def _show_message(self, message: Message) -> None:
        match message:
            case UserMessage(parts=parts):
                self._screen.line("▸", show_parts(parts), "bold cyan")
            case AssistantMessage(text=text, calls=calls):
                if text:
                    self._screen.answer(text)
                for call in calls:
                    self._screen.line("·", f"calls {call.name}({call.arguments})")
            case ToolMessage(results=results):
                for result in results:
                    self._screen.line("·", f"{result.name} → {result.outcome}: {show_parts(result.parts)}", "dim")
