"""What `perdure messages` does: lists them from the records, puts them on their way and, where asked, brings them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from datetime import datetime
from typing import Any, Literal

import msgspec

from perdure.cli.answers import who
from perdure.cli.driving import Given, check_agent, driving
from perdure.cli.errands import show_address
from perdure.cli.remote import beside, find, tell
from perdure.cli.screen import Screen, open_screen
from perdure.cli.terminal import FAILED, OK, patience, print_json
from perdure.cli.words import shell, shorten, show_parts, visible
from perdure.core.errors import NotFound
from perdure.core.events import InputAccepted, MessageSent, MessageSettled
from perdure.ports import Record
from perdure.runtime.session import Session
from perdure.wiring import Runtime

SESSION = "session "
LONGEST = 300
Became = Literal["on its way", "delivered", "dead", "received"]
STYLES: dict[Became, str] = {"on its way": "cyan", "dead": "red", "received": "dim"}
MARKS: dict[Became, str] = {"on its way": "✉", "delivered": "✓", "dead": "✗", "received": "▸"}


class Row(msgspec.Struct):
    """A message as one session's log has it; of one that came from elsewhere, `number` is the input that it became."""

    session: str
    number: int
    other: str
    became: Became
    at: float
    text: str
    why: str = ""
    by: str = ""
    tenant: str = ""


def read_messages(records: Iterable[Record], session: str) -> list[Row]:
    """What a session sent, with what became of it, and what it got from other sessions, in the order of the log."""
    sent: dict[int, Row] = {}
    got: list[Row] = []
    for record in records:
        match record.event:
            case MessageSent(message=number, to=to, parts=parts, by=by, agent=agent):
                words = show_parts(parts) if parts else "(it is told to end)"
                started = f"{show_address(to)}, agent {agent}" if agent else show_address(to)
                sent[number] = Row(session, number, started, "on its way", record.at, words, by=by)
            case MessageSettled(message=number, dead=dead) if number in sent:
                sent[number].became, sent[number].why = ("dead", dead) if dead else ("delivered", "")
            case InputAccepted(input=number, parts=parts, by=by) if by.startswith(SESSION):
                got.append(Row(session, number, by, "received", record.at, show_parts(parts)))
            case _:
                pass
    return sorted([*sent.values(), *got], key=lambda row: row.at)


async def list_messages(
    id: str | None, store: str | None, tenant: str | None, limit: int, *, dead: bool, json: bool
) -> None:
    rows: list[Row] = []
    async with beside(store) as runtime, patience("reading the sessions …"):
        async for session in _sessions(runtime, id, store, tenant, dead=dead):
            found = read_messages(await session.records(), session.id)
            for row in found:
                row.tenant = session.tenant
            # What one session got another one sent: over all of them, each message is shown once.
            rows += [row for row in found if (row.became == "dead" if dead else id or row.became != "received")]
            if len(rows) >= limit:
                break
    if json:
        for row in rows[:limit]:
            print_json(row)
    else:
        _print(open_screen(), rows[:limit], store)


async def _sessions(
    runtime: Runtime, id: str | None, store: str | None, tenant: str | None, *, dead: bool
) -> AsyncIterator[Session[Any]]:
    if id is not None:
        yield await find(runtime, id, store, tenant or "")
        return
    async for row in runtime.sessions(tenant=tenant, children=True):
        if not dead or row.summary.dead:
            yield await runtime.session_by_uid(row.uid)


def _print(screen: Screen, rows: list[Row], store: str | None) -> None:
    if not rows:
        screen.say("There are no messages that fit.")
    for row in rows:
        when = f"{datetime.fromtimestamp(row.at):%Y-%m-%d %H:%M:%S}"
        way = "from" if row.became == "received" else "to"
        number = "" if row.became == "received" else f" · message {row.number}"
        by = f" · by {row.by}" if row.by else ""
        head = f"{row.session}{number} · {way} {row.other} · {row.became} · {when}{by}"
        screen.line(MARKS[row.became], head, STYLES.get(row.became, ""))
        screen.line(" ", shorten(row.text, LONGEST))
        if row.became == "dead":
            command = shell("messages", "replay", row.session, str(row.number), store=store, tenant=row.tenant)
            screen.line(" ", f"{visible(row.why)} Send it again: {command}", "dim")


async def send_message(id: str, to: str, text: str, given: Given) -> int:
    async def send(session: Session[Any]) -> int:
        return await session.message(to, text, by=who())

    return await _place(id, given, send)


async def replay_message(id: str, number: int, given: Given) -> int:
    async def again(session: Session[Any]) -> int:
        try:
            await session.send_again(number)
        except NotFound:
            there = shell("messages", "list", id, "--dead", store=given.store, tenant=given.tenant)
            raise NotFound(f"Session {id!r} has no dead letter {number}; {there} shows which there are.") from None
        return number

    return await _place(id, given, again)


async def _place(id: str, given: Given, act: Callable[[Session[Any]], Awaitable[int]]) -> int:
    """Puts a message on its way, and brings it if the agent's code is here."""
    async with beside(given.store) as runtime:
        session = await find(runtime, id, given.store, given.tenant)
        if given.agent is None:
            number = await act(session)
            await tell(runtime, session, f"message {number}", given.store, json=given.json)
            return OK
        state = session.state
    async with driving(given) as here:
        check_agent(id, state, given, here.agent.name)
        session = await here.runtime.session(id, tenant=given.tenant)
        await here.refuse_child(session)
        number = await act(session)
        here.take(session)
        async with patience("bringing it …"):
            await until_brought(session, number)
        return _report(session, number, given)


async def until_brought(session: Session[Any], number: int = 0) -> None:
    """Waits until a message (or all of them) has been brought, or cannot be."""

    def is_under_way() -> bool:
        return any(number in (0, sent.message) for sent in session.state.outbox)

    if is_under_way():
        async for _ in session.stream(after=session.state.seq):
            if not is_under_way():
                return


def _report(session: Session[Any], number: int, given: Given) -> int:
    why = next((letter.why for letter in session.state.dead if letter.sent.message == number), "")
    if given.json:
        print_json({"session": session.id, "message": number, "became": "dead" if why else "delivered", "why": why})
    elif why:
        print(f"{session.id}: message {number} could not be brought: {visible(why)}")
    else:
        print(f"{session.id}: message {number} is delivered.")
    return FAILED if why else OK
