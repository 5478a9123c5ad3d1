"""What `perdure sessions` shows: the list, one session as a timeline, the raw log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any, cast, get_args

from perdure.cli.inputs import show_waiting
from perdure.cli.remote import beside, find, how_to_decide, how_to_resume
from perdure.cli.screen import Screen, open_screen
from perdure.cli.terminal import patience, print_json
from perdure.cli.timeline import MARGIN, Timeline
from perdure.cli.words import count, shell, shorten, show_spent, visible
from perdure.core.codec import encode_event
from perdure.core.errors import UsageError
from perdure.core.state import SessionState
from perdure.core.transcript import transcript
from perdure.core.views import Status, pending_of, summarise
from perdure.ports import Record, SessionRow
from perdure.runtime.inbox import waiting_in
from perdure.runtime.living import turns_of
from perdure.runtime.session import Session
from perdure.wiring import Runtime

PAGE = 500
NARROW = 60
COLUMNS = {"session": 0, "status": 0, "agent": 50, "queue": 60, "records": 60, "changed": 72, "tenant": 72, "title": 72}
"""Each with the width that a terminal needs to show it."""

LONGEST_TITLE = 40
MOST_WAITING = 5

STATUS_STYLES = {"idle": "green", "running": "cyan", "waiting": "bold yellow"}


async def list_sessions(
    store: str | None,
    tenant: str | None,
    agent: str | None,
    status: str | None,
    limit: int,
    *,
    children: bool,
    json: bool,
) -> None:
    if status is not None and status not in get_args(Status):
        raise UsageError(f"--status {status}: take one of {', '.join(get_args(Status))}.")
    rows: list[SessionRow] = []
    async with beside(store) as runtime, patience("reading the sessions …"):
        found = runtime.sessions(tenant=tenant, agent=agent, status=cast(Status, status), children=children)
        async for row in found:
            rows.append(row)
            if len(rows) == limit:
                break
    if json:
        for row in rows:
            print_json(row)
    else:
        _print_rows(rows)


def _print_rows(rows: list[SessionRow]) -> None:
    screen = open_screen()
    if not rows:
        screen.say("There are no sessions that fit.")
        return
    cells = [_cells(row) for row in rows]
    # What does not fit into a narrow terminal is left out from the right.
    shown = [name for name, needs in COLUMNS.items() if screen.width >= needs and any(cell[name] for cell in cells)]
    widths = {name: max(len(name), *(len(cell[name]) for cell in cells)) for name in shown}
    screen.say(("  ".join(f"{name:<{widths[name]}}" for name in shown).rstrip(), "dim"))
    for cell in cells:
        style = STATUS_STYLES.get(cell["status"], "")
        screen.say(*((f"{cell[name]:<{widths[name]}}  ", style if name == "status" else "") for name in shown))


def _cells(row: SessionRow) -> dict[str, str]:
    return {
        "session": visible(row.id),
        "status": row.status,
        "agent": visible(row.agent),
        "queue": visible(row.summary.queue),
        "records": f"{row.head:,}",
        "changed": f"{datetime.fromtimestamp(row.updated_at):%Y-%m-%d %H:%M}",
        "tenant": visible(row.tenant),
        "title": shorten(row.summary.title, LONGEST_TITLE),
    }


async def show_session(id: str, at: str | None, store: str | None, tenant: str, *, json: bool) -> None:
    async with beside(store) as runtime:
        session = await find(runtime, id, store, tenant)
        state = session.state if at is None else await session.state_at(at)
        if json:
            await _print_session(session, state, at)
            return
        screen = open_screen()
        screen.margin = MARGIN if screen.width >= NARROW else 0
        timeline = Timeline(screen, full=True)
        _show_summary(screen, session, state)
        async for record in _pages(session):
            if record.seq > state.seq:
                break
            timeline.show(record)
        timeline.close()
        if at is None:
            await _show_next(runtime, screen, session, store)


async def _print_session(session: Session[Any], state: SessionState, at: str | None) -> None:
    records = await session.records(limit=state.seq)
    about = {"id": session.id, "uid": session.uid, "agent": session.agent, "tenant": session.tenant}
    shown = {**about, "title": state.title, "turns": turns_of(state), "last": state.ended[-1] if state.ended else None}
    shown |= {"pending": pending_of(state), "inputs": waiting_in(state), "records": records}
    if at is not None:
        values = {**state.values, **(state.run.values if state.run else {})}
        shown |= {"at": state.seq, "history": transcript(state)[:], "values": values}
    print_json(shown)


def _show_summary(screen: Screen, session: Session[Any], state: SessionState) -> None:
    status = summarise(state).status
    title = f" · {visible(state.title)}" if state.title else ""
    name = (visible(session.id), "bold")
    screen.say(name, f"{title} · agent {visible(session.agent)} · ", (status, STATUS_STYLES[status]))
    spent = [count(state.runs, "run"), count(turns_of(state), "turn"), count(state.usage.total, "token")]
    spent += show_spent(state.cost_usd, is_priced=state.is_priced)
    head = session.state.seq
    records = count(head, "record") if state.seq == head else f"at record {state.seq:,} of {head:,}"
    screen.say((" · ".join([*spent, records, f"uid {session.uid}"]), "dim"))
    if state.runs > 1 and state.ended:
        last = state.ended[-1]
        spent = [count(last.turns, "turn"), count(last.usage.total, "token")]
        spent += show_spent(last.cost_usd, is_priced=last.is_priced)
        screen.say((f"last run: {last.reason} · {' · '.join(spent)}", "dim"))


async def _show_next(runtime: Runtime, screen: Screen, session: Session[Any], store: str | None) -> None:
    """What a person may do now."""
    summary = summarise(session.state)
    driver = await runtime.driver_of(session)
    waiting = waiting_in(session.state)
    for item in waiting[:MOST_WAITING]:
        screen.line("▸", f"waits: {show_waiting(item)}", "cyan")
    if len(waiting) > MOST_WAITING:
        there = shell("inputs", "list", session.id, store=store, tenant=session.tenant)
        screen.line(" ", f"and {len(waiting) - MOST_WAITING:,} more: {there}", "cyan")
    for item in await session.pending():
        of = f"session {item.session}: " if item.session != session.id else ""
        screen.line("‖", f"{of}{how_to_decide(item, store)}", "yellow")
    if driver:
        screen.line("●", "a process drives it now", "cyan")
    elif summary.queue:
        there = shell("worker", agents="FILE.py:NAME", store=store, queues=summary.queue)
        screen.line("●", f"it waits for somebody who serves the queue {visible(summary.queue)}: {there}", "bold yellow")
    elif summary.runnable:
        command = await how_to_resume(runtime, session, store)
        screen.line("●", f"it has work and nobody drives it: {command}", "bold yellow")


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
