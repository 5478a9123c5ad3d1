"""perdure chat: a conversation, with history, approvals and live progress."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import typer

from perdure.cli.agents import AgentOption, ModelOption
from perdure.cli.run import SessionOption, YesOption
from perdure.cli.terminal import OK, JsonOption, StoreOption, TenantOption, run_async

if TYPE_CHECKING:
    from perdure.runtime.session import Session
    from perdure.wiring import Runtime

HELP = """\
/help               this
/pending            what waits for a decision
/resume             go on after a limit, a stop or a failure
/fork [SEQ]         go on in a fork of this session
/history            what the model reads
/usage              tokens and cost so far
/session            which session this is
/quit               leave; the session stays
Enter sends, Alt+Enter starts a new line, Ctrl-C stops a run (twice: cancels it), Ctrl-D leaves."""


def chat(
    agent: AgentOption = None,
    model: ModelOption = None,
    session: SessionOption = None,
    store: StoreOption = None,
    tenant: TenantOption = "",
    yes: YesOption = None,
    json: JsonOption = False,
) -> None:
    """Talk with an agent; leave and come back to the same session at any time.

    Example: `perdure chat --agent agents.py:clerk --session order-7`
    """
    raise typer.Exit(run_async(_chat(agent, model, session, store, tenant, yes, json)))


async def _chat(
    agent: str | None,
    model: str | None,
    session: str | None,
    store: str | None,
    tenant: str,
    yes: bool | None,
    json: bool,
) -> int:
    from perdure.cli.agents import load_agent
    from perdure.cli.terminal import store_url
    from perdure.wiring import Runtime

    chosen = load_agent(agent, model)
    url = store_url(store)
    async with Runtime(url, agents=[chosen], model=model if agent else None) as runtime:
        opened = await runtime.open(chosen, id=session, tenant=tenant)
        return await Chat(runtime, opened, yes=yes, json=json).talk()


class Chat:
    """Reads a line, runs it, shows it; slash commands are the session's verbs."""

    def __init__(self, runtime: Runtime, session: Session[Any], *, yes: bool | None, json: bool) -> None:
        from perdure.cli.terminal import console
        from perdure.cli.views import answers_for

        self._runtime = runtime
        self._session = session
        self._json = json
        self._answer = answers_for(yes, json)
        self._out = console()

    async def talk(self) -> int:
        if not self._json:
            self._out.print(f"session [bold]{self._session.id}[/], agent {self._session.agent}; /help for help")
        async for line in self._lines():
            if line in ("/quit", "/exit"):
                break
            if line.startswith("/"):
                await self._command(line)
            elif line:
                await self._attend(await self._session.start(line))
        return OK

    async def _lines(self) -> AsyncIterator[str]:
        """Typed lines with history, or the lines of a pipe."""
        import asyncio
        import sys

        if not sys.stdin.isatty():
            while line := await asyncio.to_thread(sys.stdin.readline):
                yield line.strip()
            return
        from prompt_toolkit import PromptSession
        from prompt_toolkit.history import FileHistory

        from perdure.cli.keys import chat_keys
        from perdure.cli.terminal import data_folder

        prompt: PromptSession[str] = PromptSession(
            history=FileHistory(str(data_folder() / "chat-history")), key_bindings=chat_keys(), multiline=True
        )
        while True:
            try:
                yield (await prompt.prompt_async("› ")).strip()
            except KeyboardInterrupt:
                continue
            except EOFError:
                return

    async def _attend(self, run: Any) -> None:
        from perdure.cli.attend import attend
        from perdure.cli.views import shows_for

        with shows_for(self._json) as show:
            await attend(self._session, run, show, self._answer)

    async def _command(self, line: str) -> None:
        from perdure.core.errors import PerdureError
        from perdure.core.views import pending_of

        verb, _, rest = line[1:].partition(" ")
        session = self._session
        try:
            match verb:
                case "help":
                    self._out.print(HELP, markup=False)
                case "session":
                    self._out.print(f"{session.id} (uid {session.uid}), {session.state.seq} records", markup=False)
                case "pending":
                    for item in pending_of(session.state):
                        self._out.print(f"{item.id}  {item.kind}  {item.tool}", markup=False)
                case "usage":
                    usage, cost = await session.usage(), session.state.cost_usd
                    self._out.print(f"{usage.input} in, {usage.output} out, ${cost:.4f}", markup=False)
                case "history":
                    for message in await session.history():
                        self._out.print(message, markup=False)
                case "resume":
                    await self._attend(await session.go_on())
                case "fork":
                    self._session = await session.fork(at=int(rest) if rest.strip().isdecimal() else None)
                    self._out.print(f"now in {self._session.id}", markup=False)
                case _:
                    self._out.print(f"There is no /{verb}; /help lists what there is.", markup=False)
        except PerdureError as error:
            self._out.print(str(error), style="red", markup=False)
