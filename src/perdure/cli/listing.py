"""What `perdure sessions` shows: the list, one session as a timeline, the raw log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any, cast, get_args

from rich.table import Table
from rich.text import Text

from perdure.cli.remote import beside, find, how_to_decide
from perdure.cli.screen import Screen
from perdure.cli.terminal import console, patience, print_json
from perdure.cli.timeline import MARGIN, Timeline
from perdure.cli.words import count, shell, show_cost, visible
from perdure.core.codec import encode_event
from perdure.core.errors import UsageError
from perdure.core.views import Status, summarise
from perdure.ports import Record, SessionRow
from perdure.runtime.session import Session
from perdure.wiring import Runtime

PAGE = 500
NARROW = 60
COLUMNS = {"session": 0, "status": 0, "agent": 50, "records": 60, "changed": 72, "tenant": 72}
"""Each with the width that a terminal needs to show it."""

STATUS_STYLES = {"idle": "green", "running": "cyan", "waiting": "bold yellow"}


async def list_sessions(
    store: str | None, tenant: str | None, agent: str | None, status: str | None, limit: int, *, json: bool
) -> None:
    if status is not None and status not in get_args(Status):
        raise UsageError(f"--status {status}: take one of {', '.join(get_args(Status))}.")
    rows: list[SessionRow] = []
    async with beside(store) as runtime, patience("reading the sessions …"):
        async for row in runtime.sessions(tenant=tenant, agent=agent, status=cast(Status, status)):
            rows.append(row)
            if len(rows) == limit:
                break
    if json:
        for row in rows:
            print_json(row)
    else:
        _print_rows(rows)


def _print_rows(rows: list[SessionRow]) -> None:
    out = console()
    if not rows:
        out.print("There are no sessions that fit.")
        return
    cells = [_cells(row) for row in rows]
    # What does not fit into a narrow terminal is left out from the right; ids stay whole as long as they can.
    shown = [name for name, needs in COLUMNS.items() if out.width >= needs and any(cell[name].plain for cell in cells)]
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in shown:
        table.add_column(name, overflow="fold", justify="right" if name == "records" else "left")
    for cell in cells:
        table.add_row(*(cell[name] for name in shown))
    out.print(table)


def _cells(row: SessionRow) -> dict[str, Text]:
    return {
        "session": Text(visible(row.id)),
        "status": Text(row.status, STATUS_STYLES[row.status]),
        "agent": Text(visible(row.agent)),
        "records": Text(f"{row.head:,}"),
        "changed": Text(f"{datetime.fromtimestamp(row.updated_at):%Y-%m-%d %H:%M}"),
        "tenant": Text(visible(row.tenant)),
    }


async def show_session(id: str, store: str | None, tenant: str, *, json: bool) -> None:
    async with beside(store) as runtime:
        session = await find(runtime, id, store, tenant)
        if json:
            records, pending = await session.records(), await session.pending()
            about = {"id": session.id, "uid": session.uid, "agent": session.agent, "tenant": session.tenant}
            print_json({**about, "pending": pending, "records": records})
            return
        out = console()
        screen = Screen(out, margin=MARGIN if out.width >= NARROW else 0)
        timeline = Timeline(screen, full=True)
        _show_summary(screen, session)
        async for record in _pages(session):
            timeline.show(record)
        timeline.close()
        await _show_next(runtime, screen, session, store)


def _show_summary(screen: Screen, session: Session[Any]) -> None:
    state = session.state
    status = summarise(state).status
    screen.say(f"[bold]{_plain(session.id)}[/] · agent {_plain(session.agent)} · [{STATUS_STYLES[status]}]{status}[/]")
    spent = [count(state.runs, "run"), count(state.usage.total, "token")]
    spent += [show_cost(state.cost_usd)] if state.cost_usd else []
    screen.say(" · ".join([*spent, count(state.seq, "record"), f"uid {session.uid}"]), "dim")


async def _show_next(runtime: Runtime, screen: Screen, session: Session[Any], store: str | None) -> None:
    """What a person may do now."""
    summary = summarise(session.state)
    driver = await runtime.driver_of(session)
    resume = shell("resume", session.id, agent="FILE.py:NAME", store=store, tenant=session.tenant)
    for item in summary.pending:
        screen.line("‖", how_to_decide(item, store), "yellow")
    if driver:
        screen.line("●", "a process drives it now", "cyan")
    elif summary.runnable:
        screen.line("●", f"it has work and nobody drives it: {resume}", "bold yellow")


async def print_records(id: str, after: int, store: str | None, tenant: str, *, json: bool) -> None:
    async with beside(store) as runtime:
        session = await find(runtime, id, store, tenant)
        async for record in _pages(session, after):
            if json:
                print_json(record)
            else:
                when = datetime.fromtimestamp(record.at).isoformat(timespec="milliseconds")
                print(f"{record.seq:>6} {when} {record.run:>3} {visible(encode_event(record.event).decode())}")


async def _pages(session: Session[Any], after: int = 0) -> AsyncIterator[Record]:
    while records := await session.records(after=after, limit=PAGE):
        for record in records:
            yield record
        after = records[-1].seq


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(visible(text))
