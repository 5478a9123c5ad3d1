"""perdure demo: the whole story in a few seconds, offline, with a real SIGKILL and a ledger that is checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from perdure.cli.terminal import FAILED, OK, JsonOption, run_async

if TYPE_CHECKING:
    import asyncio
    from pathlib import Path

    from rich.console import Console

    from perdure.cli.timeline import Timeline
    from perdure.core.views import Pending
    from perdure.runtime.session import Session
    from perdure.wiring import Runtime

EXPECTED = ("reserved 7", "charged 7 990 cents", "mailed ann@example.org", "shipped 7")


def demo(json: JsonOption = False) -> None:
    """See an agent killed in the middle of its tools, picked up by a new process, and nothing done twice or lost.

    Example: `perdure demo`
    """
    raise typer.Exit(run_async(_demo(json)))


async def _demo(json: bool) -> int:
    import tempfile
    from pathlib import Path

    from perdure.cli.terminal import console

    with tempfile.TemporaryDirectory(prefix="perdure-demo-") as folder:
        story = Story(Path(folder), console(stderr=json))
        await story.tell()
        return story.verdict(json=json)


class Story:
    """Two processes, one log: this one only watches, decides and checks."""

    def __init__(self, folder: Path, out: Console) -> None:
        from perdure.cli.demo_worker import Ledger
        from perdure.cli.timeline import Timeline

        self._folder = folder
        self._out = out
        self._ledger = Ledger(folder / "ledger.jsonl")
        self._timeline: Timeline = Timeline(out)
        self._records: list[Any] = []

    async def tell(self) -> None:
        from perdure.wiring import Runtime

        self._say("A clerk bills an order. Its model is [bold]scripted[/], so this runs offline; a real one goes in with")
        self._say('[cyan]Agent(model="provider:model")[/]. The log, the tools, the kill and the ledger are real.\n')
        first = await self._start("The first process starts.")
        async with Runtime(f"sqlite:{self._folder / 'demo.db'}", engine=None) as runtime:
            session = await self._session(runtime)
            watching = self._watch(session)
            await self._until_both_are_under_way()
            first.kill()
            await first.wait()
            self._say(f"\n[bold red]SIGKILL[/] to process {first.pid}: charge and mail were under way, reserve was done.\n")
            second = await self._start("A new process starts and finds the log.")
            await self._attend(session)
            await second.wait()
            await session.records()
            await watching

    def verdict(self, *, json: bool) -> int:
        """The ledger has the last word: every effect once, none lost; anything else is loud."""
        from perdure.cli.terminal import print_json
        from perdure.core.events import RunEnded

        counts = {what: sum(1 for line in self._ledger.lines() if line["what"] == what) for what in EXPECTED}
        completed = any(isinstance(r.event, RunEnded) and r.event.reason == "completed" for r in self._records)
        right = completed and all(count == 1 for count in counts.values())
        if json:
            print_json({"ok": right, "completed": completed, "ledger": counts, "records": len(self._records)})
        self._say("\nThe ledger outside, line by line:")
        for what, count in counts.items():
            mark = "[green]✓ once[/]" if count == 1 else f"[bold red]✗ {count} times[/]"
            self._say(f"  {mark}  {what}")
        if right:
            self._say(f"\n[bold green]Nothing was done twice, nothing was lost.[/] {len(self._records)} records tell all of it.")
            self._say("Next: [cyan]perdure run --help[/], and the ten lines in the README.")
            return OK
        self._say("\n[bold red]The demo failed: the ledger is not what it must be.[/] Please report it.")
        return FAILED

    def _say(self, text: str) -> None:
        self._out.print(text)

    async def _start(self, text: str) -> asyncio.subprocess.Process:
        import asyncio
        import sys

        worker = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "perdure.cli.demo_worker", str(self._folder), stdin=asyncio.subprocess.DEVNULL
        )
        self._say(f"[bold]{text}[/] (process {worker.pid})")
        return worker

    async def _session(self, runtime: Runtime) -> Session[Any]:
        import asyncio

        from perdure.cli.demo_worker import SESSION
        from perdure.core.errors import NotFound

        for _ in range(200):
            try:
                return await runtime.session(SESSION)
            except NotFound:
                await asyncio.sleep(0.05)
        raise NotFound("The demo's first process did not open its session; run it again with --debug.")

    def _watch(self, session: Session[Any]) -> asyncio.Task[None]:
        import asyncio

        from perdure.core.events import RunEnded
        from perdure.ports import Record

        async def watch() -> None:
            async for item in session.stream():
                self._timeline.show(item)
                if isinstance(item, Record):
                    self._records.append(item)
                    if isinstance(item.event, RunEnded):
                        return

        return asyncio.ensure_future(watch())

    async def _until_both_are_under_way(self) -> None:
        import asyncio

        for _ in range(400):
            done = {line["what"].split()[0] for line in self._ledger.lines()}
            if {"charged", "mailed"} <= done:
                await asyncio.sleep(0.4)
                return
            await asyncio.sleep(0.05)

    async def _attend(self, session: Session[Any]) -> None:
        """Answers what the run asks until it has ended: by key press, or by itself without a terminal."""
        import asyncio

        from perdure.core.errors import Conflict

        while not any(ended.run == 1 for ended in session.state.ended):
            for pending in await session.pending():
                await asyncio.sleep(0.3)
                answer = await self._answer(pending)
                try:
                    await session.decide(pending.id, **answer)
                except Conflict:
                    continue
            await asyncio.sleep(0.1)

    async def _answer(self, pending: Pending) -> dict[str, Any]:
        import asyncio

        from perdure.cli.answers import is_interactive, who

        if pending.kind == "unknown":
            self._say("\n[magenta]Nobody knows whether the mail went out, so nobody guesses.[/] The ledger shows it did: we answer for it.\n")
            return {"decision": "answer", "value": "sent, says the outbox", "by": who()}
        if is_interactive():
            self._say("\nApprove the shipment? Press [bold]Enter[/].")
            await asyncio.to_thread(input)
        else:
            self._say("\nNo terminal to press a key in: the shipment is approved by itself.\n")
        return {"decision": "approve", "by": who()}
