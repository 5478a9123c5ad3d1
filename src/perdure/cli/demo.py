"""perdure demo: the whole story in a few seconds, offline, with a real SIGKILL and a ledger that is checked."""

from __future__ import annotations

import typer

from perdure.cli.terminal import JsonOption, run_async


def demo(json: JsonOption = False) -> None:
    """See an agent killed and nothing done twice or lost.

    A real SIGKILL hits it in the middle of its tools, a new process picks the session up, an approval is asked and
    given, and a ledger kept outside of the store is checked. It needs no network and no key.

    Example: perdure demo
    """
    raise typer.Exit(run_async(_demo(json)))


async def _demo(json: bool) -> int:
    import tempfile
    from pathlib import Path

    from perdure.cli.demo_story import Story
    from perdure.cli.screen import open_screen

    with tempfile.TemporaryDirectory(prefix="perdure-demo-") as folder:
        story = Story(Path(folder), open_screen(margin=2, stderr=json), by_itself=json)
        return await story.tell(json=json)
