"""Replays for the command line: the session's record against the code that --agent names, and golden tests of it."""

from __future__ import annotations

import os
import re
import sys
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import Any

from perdure.cli.agents import ASSISTANT, load_agent
from perdure.cli.remote import beside, find
from perdure.cli.screen import Screen, open_screen
from perdure.cli.terminal import FAILED, OK, patience, print_json
from perdure.cli.travel import write_file
from perdure.cli.words import count, visible
from perdure.core.errors import UsageError
from perdure.core.state import SessionState
from perdure.runtime.agent import Agent
from perdure.runtime.transfer import read_lines
from perdure.testing.replay import Difference, Replayed, replay, show_place
from perdure.wiring import resolve_model

TEST = '''\
"""The session {id!r}, replayed: the agent has to decide as it did then. No tool runs, no model is asked."""

import importlib.util
import sys
from pathlib import Path

from perdure.testing import check_replay

HERE = Path(__file__).parent
AGENTS = (HERE / {file!r}).resolve()


def load_agent():
    sys.path.insert(0, str(AGENTS.parent))
    spec = importlib.util.spec_from_file_location("golden_" + AGENTS.stem, AGENTS)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.{name}


def test_{slug}():
    check_replay(HERE / {record!r}, load_agent())
'''


async def replay_session(
    id: str, where: str | None, model: str | None, store: str | None, tenant: str, *, json: bool
) -> int:
    with ExitStack() as stack:
        if json:
            stack.enter_context(redirect_stdout(sys.stderr))
        lines, state = await _read(id, store, tenant)
        exported, agent = read_lines(lines), _agent(where, state)
        asked = resolve_model(model) if model is not None else None
        async with patience(f"replaying {id} …"):
            done = await replay(exported.records, agent, model=asked, artifacts=exported.artifacts)
    if json:
        for item in done.differences:
            print_json(item)
        print_json(
            {"identical": done.identical, "differences": len(done.differences), "runs": done.runs, "turns": done.turns}
        )
    else:
        _show(id, done)
    return OK if done.identical else FAILED


async def write_golden(id: str, where: str | None, out: str, store: str | None, tenant: str, *, json: bool) -> int:
    if where is None:
        raise UsageError("A golden test needs the agent's code; give it with --agent FILE.py:NAME.")
    with ExitStack() as stack:
        if json:
            stack.enter_context(redirect_stdout(sys.stderr))
        lines, state = await _read(id, store, tenant)
        exported, agent = read_lines(lines), _agent(where, state)
        done = await replay(exported.records, agent, artifacts=exported.artifacts)
    if not done.identical:
        _show(id, done)
        print(f"perdure: {where} does not decide as {id!r} did, so there is nothing to hold it to.", file=sys.stderr)
        return FAILED
    record, test = _write_test(id, where, Path(out), lines)
    if json:
        print_json({"session": id, "record": str(record), "test": str(test)})
    else:
        print(f"{test} replays {record}; run it with pytest {test}.")
    return OK


def _write_test(id: str, where: str, folder: Path, lines: list[bytes]) -> tuple[Path, Path]:
    slug = re.sub(r"\W+", "_", id, flags=re.ASCII).strip("_").lower() or "session"
    file, _, name = where.rpartition(":")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = error.strerror
        raise UsageError(f"The folder {folder} cannot be made ({why}); name another one with --out.") from None
    record, test = folder / f"{slug}.jsonl", folder / f"test_{slug}.py"
    relative = Path(os.path.relpath(file, folder)).as_posix()
    write_file(record, b"".join(lines))
    write_file(test, TEST.format(id=id, file=relative, name=name, slug=slug, record=record.name).encode())
    return record, test


async def _read(id: str, store: str | None, tenant: str) -> tuple[list[bytes], SessionState]:
    async with beside(store) as runtime:
        session = await find(runtime, id, store, tenant)
        async with patience(f"reading {id} …"):
            return [line async for line in session.export()], session.state


def _agent(where: str | None, state: SessionState) -> Agent[Any]:
    if where is not None:
        return load_agent(where, None)
    if state.agent != ASSISTANT:
        raise UsageError(
            f"Session {state.id!r} belongs to the agent {state.agent!r}; give it with --agent FILE.py:NAME."
        )
    spec = state.spec
    return Agent(name=ASSISTANT, instructions=spec.instructions if spec else "", model=spec.model if spec else "")


def _show(id: str, done: Replayed) -> None:
    screen = open_screen()
    place = (-1, -1)
    for item in done.differences:
        if (item.run, item.turn) != place:
            place = (item.run, item.turn)
            screen.say((show_place(item), "bold"))
        _show_difference(screen, item)
    played = f"{count(done.runs, 'run')}, {count(done.turns, 'turn')} replayed"
    if done.identical:
        screen.say((f"{visible(id)}: {played}, every decision is the same.", "green"))
    else:
        screen.say((f"{visible(id)}: {played}, {count(len(done.differences), 'difference')}.", "red"))


def _show_difference(screen: Screen, item: Difference) -> None:
    screen.line("≠", item.what, "yellow")
    screen.line(" ", f"recorded  {item.recorded or '-'}")
    screen.line(" ", f"replayed  {item.replayed or '-'}")
