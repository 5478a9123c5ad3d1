"""What `perdure store` does: a copy with its progress, a check, a pruning."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import typer

from perdure.cli.screen import open_screen
from perdure.cli.terminal import FAILED, patience, print_json, store_url
from perdure.cli.words import count
from perdure.core.errors import UsageError
from perdure.ports import SessionQuery, SessionRow, Store
from perdure.runtime.clock import SystemClock
from perdure.runtime.session import Session
from perdure.runtime.shared_state import SHARED
from perdure.runtime.subagents import PARENT
from perdure.runtime.transfer import read_lines
from perdure.runtime.upkeep import check_session, copy_sessions, rows_of
from perdure.wiring import Runtime, resolve_store

STEP = 10
"""Percent between two lines of progress in a pipe."""

UNITS = {"d": 86_400, "h": 3_600, "m": 60}


class Old(msgspec.Struct, frozen=True):
    """Which sessions are old: how long nothing was written, in which state, whose."""

    age: str
    status: str
    tenant: str | None

    @property
    def before(self) -> float:
        found = re.fullmatch(r"(\d{1,6})([dhm])", self.age)
        if found is None:
            raise UsageError(f"--older-than {self.age!r} is no age; write 30d, 12h or 45m.")
        return time.time() - int(found[1]) * UNITS[found[2]]

    def fits(self, row: SessionRow) -> bool:
        has_work = row.summary.runnable or row.summary.wake_at is not None
        is_own = row.agent != SHARED and PARENT not in row.metadata
        return is_own and not has_work and row.status == self.status and row.updated_at < self.before


async def copy_store(source: str, target: str, *, json: bool) -> None:
    if source == target:
        raise UsageError("FROM and TO are the same store; name another one to copy into.")
    written = same = wrong = 0
    async with _opened(store_url(source, must_exist=True)) as here, _opened(target) as there:
        rows = await rows_of(here)
        with _progress("copying", len(rows)) as tell:
            async for copied in copy_sessions(here, there, SystemClock(), rows):
                written += copied.wrote
                same += not copied.wrote and not copied.wrong
                wrong += bool(copied.wrong)
                if copied.wrong:
                    _complain(copied.row, copied.wrong, json=json)
                tell()
    if json:
        print_json({"copied": written, "there_already": same, "not_copied": wrong})
    else:
        print(f"{count(written, 'session')} copied and compared; {same} there already; {wrong} not copied.")
    if wrong:
        raise typer.Exit(FAILED)


async def check_store(store: str | None, tenant: str | None, *, json: bool) -> None:
    wrong = 0
    async with _opened(store_url(store, must_exist=True)) as opened:
        rows = await rows_of(opened, tenant)
        with _progress("checking", len(rows)) as tell:
            for row in rows:
                for finding in await check_session(opened, row):
                    wrong += 1
                    _complain(row, finding.wrong, json=json)
                tell()
    if json:
        print_json({"sessions": len(rows), "wrong": wrong})
    else:
        print(f"{count(len(rows), 'session')} checked; {wrong or 'nothing'} wrong.")
    if wrong:
        raise typer.Exit(FAILED)


async def prune_store(
    old: Old, store: str | None, export: str | None, *, no_export: bool, dry_run: bool, json: bool
) -> None:
    if old.status not in ("idle", "waiting"):
        raise UsageError(f"--status {old.status!r}: only what is idle or waiting can be pruned.")
    if not dry_run and (export is None) != no_export:
        raise UsageError("Say where the sessions go before they are deleted: --export FOLDER, or --no-export.")
    _ = old.before
    url = store_url(store, must_exist=True)
    async with patience("looking for old sessions …"), _opened(url) as opened:
        rows = [row for row in await rows_of(opened, old.tenant) if old.fits(row)]
        families = {row.uid: await _family(opened, row) for row in rows}
    async with Runtime(url, engine=None) as runtime:
        for row in rows:
            session = await runtime.session(row.id, tenant=row.tenant)
            if not dry_run:
                if export is not None:
                    for member in families[row.uid]:
                        await _export(await runtime.session(member.id, tenant=member.tenant), Path(export))
                await session.delete()
            if json:
                print_json({"session": row.id, "tenant": row.tenant, "uid": row.uid, "pruned": not dry_run})
            elif dry_run:
                open_screen().line("·", f"{row.id}  {count(row.head, 'record')}")
    if not json:
        print(f"{count(len(rows), 'session')} {'would be ' if dry_run else ''}pruned.")


async def _family(store: Store, row: SessionRow) -> list[SessionRow]:
    """The session and those of its sub-agents, which go with it."""
    members = [row]
    for member in members:
        page = await store.list(SessionQuery(tenant=row.tenant, metadata={PARENT: member.uid}, limit=10_000))
        members += page.rows
    return members


async def _export(session: Session[Any], folder: Path) -> None:
    _write(folder / f"{session.uid}.jsonl", [line async for line in session.export()])


def _write(path: Path, lines: list[bytes]) -> None:
    """A file that is whole: it was read back before its session may go."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.writelines(lines)
        file.flush()
        os.fsync(file.fileno())
    read_lines(path.read_bytes().split(b"\n"))


@asynccontextmanager
async def _opened(url: str) -> AsyncGenerator[Store]:
    store = resolve_store(url)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def _complain(row: SessionRow, wrong: str, *, json: bool) -> None:
    if json:
        print_json({"session": row.id, "tenant": row.tenant, "uid": row.uid, "wrong": wrong})
    else:
        whose = f" of {row.tenant}" if row.tenant else ""
        open_screen().line("✗", f"{row.id}{whose}: {wrong}", mark_style="red")


@contextmanager
def _progress(verb: str, total: int) -> Generator[Callable[[], None]]:
    """A bar for a person, a line now and then for a pipe; on stderr, so that --json stays alone."""
    if sys.stderr.isatty() or os.environ.get("FORCE_COLOR"):
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(verb, total=total)
            yield lambda: bar.advance(task)
        return
    done, shown, began = 0, 0, time.monotonic()

    def tell() -> None:
        nonlocal done, shown
        done += 1
        percent = done * 100 // total
        if percent >= shown + STEP and time.monotonic() - began > 1.0:
            shown = percent
            print(f"{verb}: {done} of {total} sessions ({percent} %)", file=sys.stderr, flush=True)

    yield tell
