"""What is left to do when a session's own run has ended: messages to be brought, sub-agents that work by themselves."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from perdure.cli.answers import Answer
from perdure.cli.attend import attend
from perdure.cli.driving import Driving
from perdure.cli.family import at_work_below
from perdure.cli.messaging import until_brought
from perdure.cli.terminal import FAILED, OK, WAITING
from perdure.cli.views import View
from perdure.cli.words import count
from perdure.core.errors import Refused
from perdure.core.views import summarise
from perdure.ports import FromChild, Record
from perdure.runtime.session import Session


async def is_left(here: Driving, session: Session[Any]) -> bool:
    """Whether a session that has nothing to do itself still has something to bring, or work below it."""
    if _is_busy(session):
        return False
    return bool(session.state.outbox or await at_work_below(here.runtime, session))


def _is_busy(session: Session[Any]) -> bool:
    return session.state.run is not None or bool(session.state.queue)


async def see_to_the_rest(here: Driving, session: Session[Any], view: View, answer: Answer) -> int:
    """Brings what is to be brought, follows what works below, and attends the runs that come of it; the exit code."""
    await here.refuse_child(session)
    here.take(session)
    code = await _bring(session, view)
    runs, seq = session.state.runs, session.state.seq
    while not _is_busy(session) and (rows := await at_work_below(here.runtime, session)):
        view.say(f"{count(len(rows), 'sub-agent')} at work: {', '.join(row.id for row in rows[:5])}")
        for row in rows:
            await _follow(await here.runtime.session_by_uid(row.uid), view)
        await session.pending()  # looks again: what they have to say may be there
    if _is_busy(session):
        with suppress(Refused):  # what they said has been heard meanwhile
            return await attend(here.runtime, session, await here.go_on(session), view, answer)
    for record in await session.records(after=seq):
        view.show(record)
    view.close()
    if session.state.runs > runs and session.state.ended[-1].reason != "completed":
        return FAILED
    return WAITING if code == OK and await session.pending() else code


async def _bring(session: Session[Any], view: View) -> int:
    before, seq = len(session.state.dead), session.state.seq
    await until_brought(session)
    for record in await session.records(after=seq):
        view.show(record)
    return FAILED if len(session.state.dead) > before else OK


async def _follow(child: Session[Any], view: View) -> None:
    """Shows what a child does until it has nothing more to do, or waits."""
    if summarise(child.state).status != "running":
        return
    async for item in child.stream():
        view.show(FromChild(child.id, child.agent, 0, item))
        if isinstance(item, Record) and summarise(child.state).status != "running":
            return
