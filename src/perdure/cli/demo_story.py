"""The demo's story: two processes, one log. This one starts them, kills the first, decides, and checks the ledger.

Rule: the ledger has the last word. Anything in it twice, anything missing and anything unexpected fails the demo.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from pathlib import Path
from time import monotonic
from typing import Any

from perdure.cli.answers import Interrupted, is_interactive, who
from perdure.cli.demo_worker import SESSION, Ledger
from perdure.cli.screen import Screen
from perdure.cli.terminal import FAILED, OK, print_json
from perdure.cli.timeline import Timeline
from perdure.core.errors import Conflict, NotFound
from perdure.core.events import CallStarted, CallSuspended, RunEnded, RunResumed
from perdure.core.views import Pending
from perdure.ports import FromChild, Record
from perdure.runtime.session import Session
from perdure.wiring import Runtime

EXPECTED = ("reserved 7", "charged 7 990 cents", "mailed ann@example.org", "shipped 7")
INTRODUCTION = (
    "A clerk bills an order. Its model is ",
    ("scripted", "bold"),
    ", so this runs offline; a real one goes in with ",
    ("Agent(model=…)", "cyan"),
    ". The log, the tools, the SIGKILL and the ledger are real.",
)
PATIENCE = 45.0
MOMENT = 0.6
"""Long enough that a person sees what is under way before it is killed."""


class Broken(Exception):
    """The story cannot go on as it has to."""


class Story:
    """Tells it on the screen; `by_itself` presses the keys too."""

    def __init__(self, folder: Path, screen: Screen, *, by_itself: bool) -> None:
        self._folder = folder
        self._screen = screen
        self._timeline = Timeline(screen)
        self._by_itself = by_itself or not is_interactive()
        self._ledger = Ledger(folder / "ledger.jsonl")
        self._records: list[Record] = []
        self._workers: list[asyncio.subprocess.Process] = []
        self._deadline = monotonic() + PATIENCE

    async def tell(self, *, json: bool) -> int:
        problems: list[str] = []
        try:
            await self._play()
        except Broken as error:
            problems.append(str(error))
        except Interrupted:
            problems.append("it was interrupted")
        finally:
            self._screen.close()
            await self._end_workers()
        problems += self._check_log() + self._check_ledger()
        self._show_verdict(problems)
        if json:
            ledger = [line["what"] for line in self._ledger.lines()]
            print_json({"ok": not problems, "problems": problems, "ledger": ledger, "records": len(self._records)})
        return FAILED if problems else OK

    async def _play(self) -> None:
        self._screen.say(*INTRODUCTION)
        first = await self._start("1  The agent works")
        async with Runtime(f"sqlite:{self._folder / 'demo.db'}", engine=None) as runtime:
            session = await self._session(runtime)
            watching = asyncio.ensure_future(self._watch(session))
            try:
                await self._kill(first)
                second = await self._start("3  A new process finds the log")
                await self._attend(session, watching)
                await second.wait()
                await watching
            finally:
                watching.cancel()

    async def _kill(self, worker: asyncio.subprocess.Process) -> None:
        await self._until_two_calls_are_under_way()
        worker.kill()
        await worker.wait()
        self._screen.close()
        self._head(f"2  SIGKILL hits process {worker.pid}", "bold red")
        self._note("charge and mail were under way, reserve was done, and nobody had time to say goodbye.")

    async def _start(self, title: str) -> asyncio.subprocess.Process:
        """In a session of its own, so that Ctrl-C here reaches this process alone."""
        with (self._folder / "worker.err").open("ab") as errors:
            worker = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "perdure.cli.demo_worker", str(self._folder)),
                stdin=asyncio.subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )
        self._workers.append(worker)
        self._head(f"{title} (process {worker.pid})")
        return worker

    async def _end_workers(self) -> None:
        for worker in self._workers:
            if worker.returncode is None:
                worker.kill()
                await worker.wait()

    async def _session(self, runtime: Runtime) -> Session[Any]:
        while True:
            try:
                return await runtime.session(SESSION)
            except NotFound:
                await self._moment("the first process did not open its session")

    async def _watch(self, session: Session[Any]) -> None:
        async for item in session.stream():
            if isinstance(item, FromChild):
                continue
            self._timeline.show(item)
            if isinstance(item, Record):
                self._records.append(item)
                if isinstance(item.event, RunEnded):
                    return

    async def _until_two_calls_are_under_way(self) -> None:
        while not {"charged", "mailed"} <= {line["what"].split()[0] for line in self._ledger.lines()}:
            await self._moment("the first process did not get to its tools")
        await asyncio.sleep(MOMENT)

    async def _attend(self, session: Session[Any], watching: asyncio.Task[None]) -> None:
        """Answers what the run asks until it has ended."""
        while not len(session.state.ended):
            for pending in await session.pending():
                # What is asked shall be on the screen before it is answered.
                while not watching.done() and not self._has_shown(pending):
                    await self._moment("what the run asks did not reach the screen")
                answer = await self._answer(pending)
                try:
                    await session.decide(pending.id, by=who(), **answer)
                except Conflict:
                    continue
            await self._moment("the second process did not finish the run")

    def _has_shown(self, pending: Pending) -> bool:
        return any(isinstance(r.event, CallSuspended) and r.event.call == pending.call for r in self._records)

    async def _answer(self, pending: Pending) -> dict[str, Any]:
        if pending.kind == "unknown":
            self._note("Did the mail go out? The log cannot know, so nothing is repeated and nobody guesses.")
            if any(line["what"].startswith("mailed") for line in self._ledger.lines()):
                self._note("The ledger shows that it did: we answer for it.")
                return {"decision": "answer", "value": "sent, says the ledger"}
            return {"decision": "retry"}
        if self._by_itself:
            self._note("There is no terminal to press a key in, so the shipment is approved by itself.")
        else:
            self._screen.pause()
            await _press_enter("  Press Enter to approve the shipment. ")
        return {"decision": "approve"}

    async def _moment(self, otherwise: str) -> None:
        """Waits a little, unless it has been too long or the process that has to act is gone."""
        worker = self._workers[-1]
        if worker.returncode is not None and worker.returncode != 0:
            errors = (self._folder / "worker.err").read_text().strip().splitlines()
            raise Broken(f"{otherwise}: process {worker.pid} ended ({errors[-1] if errors else worker.returncode})")
        if monotonic() > self._deadline:
            raise Broken(f"{otherwise} in {PATIENCE:.0f} s")
        await asyncio.sleep(0.05)

    def _check_log(self) -> list[str]:
        """What the story claims has to be in the log."""
        events = [record.event for record in self._records]
        claims = {
            "the run completed": any(isinstance(e, RunEnded) and e.reason == "completed" for e in events),
            "a new process picked it up": any(isinstance(e, RunResumed) for e in events),
            "charge ran again": any(isinstance(e, CallStarted) and e.attempt == 2 for e in events),
            "mail was in doubt": any(isinstance(e, CallSuspended) and e.kind == "unknown" for e in events),
            "an approval was asked": any(isinstance(e, CallSuspended) and e.kind == "approval" for e in events),
        }
        return [f"the log does not show that {claim}" for claim, is_true in claims.items() if not is_true]

    def _check_ledger(self) -> list[str]:
        """Every effect once, none lost, none that nobody asked for."""
        counts = Counter(line["what"] for line in self._ledger.lines())
        self._head("4  The ledger, kept outside of the store, has the last word")
        problems: list[str] = []
        for what in (*EXPECTED, *(counts.keys() - set(EXPECTED))):
            right, found = int(what in EXPECTED), counts[what]
            if found == right:
                self._screen.line("✓", f"once  {what}", mark_style="green")
            else:
                times = {0: "never", 1: "once"}.get(found, f"{found} times")
                self._screen.line("✗", f"{times}  {what}", "bold red")
                problems.append(f"the ledger has {what!r} {times} instead of {'once' if right else 'never'}")
        return problems

    def _show_verdict(self, problems: list[str]) -> None:
        self._screen.say("")
        if problems:
            self._screen.say(("The demo failed.", "bold red"))
            for problem in problems:
                self._screen.line("✗", problem, "red")
            return
        self._screen.say(("Nothing was done twice, nothing was lost.", "bold green"))
        told = f"{len(self._records)} records tell all of it. Next: "
        self._screen.say(told, ("perdure run --help", "cyan"), ", and README.md.")

    def _head(self, text: str, style: str = "bold") -> None:
        self._screen.say("\n", (text, style))

    def _note(self, text: str) -> None:
        self._screen.line(" ", text, "magenta")


async def _press_enter(prompt: str) -> None:
    from prompt_toolkit import PromptSession

    session: PromptSession[str] = PromptSession(interrupt_exception=Interrupted)
    try:
        await session.prompt_async(prompt)
    except EOFError:
        return
