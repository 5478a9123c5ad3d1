"""A session and those of its sub-agents, as the command line sees them: who belongs to whom, and what it all cost."""

from __future__ import annotations

from typing import Any

import msgspec

from perdure.core.errors import NotFound
from perdure.core.messages import Usage
from perdure.core.state import RunState, RunSummary, SessionState
from perdure.core.views import Pending, Status, pending_of, summarise
from perdure.ports import SessionRow
from perdure.runtime.family import away
from perdure.runtime.session import Session
from perdure.runtime.subagents import PARENT, ROOT
from perdure.wiring import Runtime


class Member(msgspec.Struct, frozen=True):
    """One session of a tree; `turns`, `usage` and `cost_usd` are over all of its runs.

    `waits_for` are the sessions below that it waits for. Usage and cost have those of its sub-agents in them, also of
    the ones that still work; `cost_usd` is None where a price is not known.
    """

    session: str
    uid: str
    parent: str
    depth: int
    agent: str
    status: Status
    last: str
    runs: int
    turns: int
    usage: Usage
    cost_usd: float | None
    pending: tuple[Pending, ...]
    waits_for: tuple[str, ...]


def is_child(session: Session[Any]) -> bool:
    origin = session.state.origin
    return origin is not None and bool(origin.agents)


async def root_of(runtime: Runtime, session: Session[Any]) -> Session[Any] | None:
    """The first session of its family, perhaps itself; None if that is gone."""
    uid = session.state.metadata.get(ROOT) if is_child(session) else None
    if uid is None:
        return session
    try:
        return await runtime.session_by_uid(uid)
    except NotFound:
        return None


async def rows_below(runtime: Runtime, session: Session[Any]) -> list[SessionRow]:
    """All sessions below one: each behind its parent, and the oldest of siblings first."""
    root = session.state.metadata.get(ROOT, session.uid)
    below: dict[str, list[SessionRow]] = {}
    async for row in runtime.sessions(tenant=session.tenant, metadata={ROOT: root}, children=True):
        below.setdefault(row.metadata[PARENT], []).append(row)
    found: list[SessionRow] = []
    todo = [session.uid]
    while todo:
        children = below.pop(todo.pop(), [])
        todo += [row.uid for row in children]
        found += reversed(children)
    return found


async def at_work_below(runtime: Runtime, session: Session[Any]) -> list[SessionRow]:
    """The sessions below that have something to do; nothing is read where there cannot be any."""
    tools = session.state.spec.tools if session.state.spec else ()
    if not session.state.messages and not any(tool.kind == "agent" for tool in tools):
        return []
    return [row for row in await rows_below(runtime, session) if row.status == "running"]


async def heads_below(runtime: Runtime, session: Session[Any], but: int = 0) -> dict[str, int]:
    """How long the logs below are, but for the last records, by their ids: what has been shown of them."""
    return {row.id: max(0, row.head - but) for row in await rows_below(runtime, session)}


async def read_tree(runtime: Runtime, session: Session[Any]) -> list[Member]:
    """The session and everything below it, each in front of its own children."""
    rows = await rows_below(runtime, session)
    sessions = {session.uid: session} | {row.uid: await runtime.session_by_uid(row.uid) for row in rows}
    states = {uid: member.state for uid, member in sessions.items()}
    below: dict[str, list[str]] = {}
    # Those of one turn are opened at the same time: the calls say which comes first.
    for row in sorted(rows, key=lambda row: _call_of(states[row.uid])):
        below.setdefault(row.metadata[PARENT], []).append(row.uid)
    members: list[Member] = []
    todo = [(session.uid, 0)]
    while todo:
        uid, depth = todo.pop()
        members.append(_member(states, uid, depth))
        todo += [(child, depth + 1) for child in reversed(below.get(uid, []))]
    return members


def _call_of(state: SessionState) -> int:
    return state.origin.call if state.origin else 0


def _member(states: dict[str, SessionState], uid: str, depth: int) -> Member:
    state = states[uid]
    spent = _spent(states, state, state)
    origin = state.origin
    return Member(
        session=state.id,
        uid=uid,
        parent=states[origin.session].id if depth and origin else "",
        depth=depth,
        agent=state.agent,
        status=summarise(state).status,
        last=state.ended[-1].reason if len(state.ended) else "",
        runs=state.runs,
        turns=sum(ended.turns for ended in state.ended[:]) + (state.run.turn if state.run else 0),
        usage=spent.usage,
        cost_usd=spent.cost_usd if spent.is_priced else None,
        pending=pending_of(state),
        waits_for=tuple(states[child].id for child in away(state).values() if child in states),
    )


class _Spent(msgspec.Struct):
    usage: Usage
    cost_usd: float
    is_priced: bool


def _spent(states: dict[str, SessionState], state: SessionState, own: SessionState | RunState | RunSummary) -> _Spent:
    """What counts so far, and what those have used whose end has not been counted yet."""
    spent = _Spent(own.usage, own.cost_usd, own.is_priced)
    for uid in away(state).values():
        child = states.get(uid)
        run = None if child is None else child.run or (child.ended[-1] if len(child.ended) else None)
        if child is not None and run is not None:
            more = _spent(states, child, run)
            spent.usage += more.usage
            spent.cost_usd += more.cost_usd
            spent.is_priced = spent.is_priced and more.is_priced
    return spent
