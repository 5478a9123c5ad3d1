"""Time travel in one session: the state at any record, tags, a new title, and the conversation going back.

Rule 1: the log only grows: going back is a fact too. Rule 2: a session goes back to a point where every call has its
result, and only while it has no work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from perdure.core.accept import accept
from perdure.core.commands import ChangeSettings, Command, CutHistory, ImportHistory
from perdure.core.errors import Conflict, NotFound, UsageError
from perdure.core.events import Event, HistoryCut, HistoryImported, Noted
from perdure.core.fold import evolve, fold
from perdure.core.messages import JSON, AssistantMessage, Media, Message, ToolMessage
from perdure.core.repair import parted, repair
from perdure.core.state import SessionState, new_state
from perdure.ports import Record
from perdure.runtime.foreign import Reader
from perdure.runtime.given import given_text
from perdure.runtime.host import Host
from perdure.runtime.log import SessionLog, as_kept

TAG = "tag"
TRIES = 20

Point = int | str
"""A record's seq, or the name of a tag."""


async def read_tags(host: Host, log: SessionLog) -> dict[str, int]:
    """Where each tag stands now; the same name again has moved it."""
    return tags_of(await host.world.store.read(log.uid))


def tags_of(records: Iterable[Record]) -> dict[str, int]:
    found: dict[str, int] = {}
    for record in records:
        match record.event:
            case Noted(kind="tag", data={"name": str(name), "seq": int(seq)}):
                found[name] = seq
            case _:
                pass
    return found


async def add_tag(host: Host, log: SessionLog, name: str, at: Point | None) -> int:
    """The seq that carries the name from now on."""
    name = given_text(name, "A tag")
    if not name.strip() or name.isdecimal():
        raise UsageError(f"The tag {name!r} is refused; take a name that is not empty and no number.")
    seq = None if at is None else await find_point(host, log, at)

    def note(state: SessionState) -> tuple[Event, ...]:
        return (Noted(TAG, {"name": name, "seq": seq or state.seq}),)

    (noted,) = await _propose(log, note)
    assert isinstance(noted, Noted)
    return noted.data["seq"]


async def find_point(host: Host, log: SessionLog, at: Point) -> int:
    """The seq of a point; NotFound or UsageError if there is none."""
    if isinstance(at, str) and not at.isdecimal():
        tags = await read_tags(host, log)
        if at not in tags:
            known = ", ".join(tags) or "none"
            raise NotFound(f"Session {log.state.id!r} has no tag {at!r}; its tags are: {known}.")
        return tags[at]
    await log.refresh()
    seq = int(at) if len(str(at)) < 20 else 0
    if not 1 <= seq <= log.state.seq:
        raise UsageError(f"Session {log.state.id!r} has records 1 to {log.state.seq}; there is no record {at}.")
    return seq


async def state_at(host: Host, log: SessionLog, at: Point) -> SessionState:
    """What the log meant at that record."""
    seq = await find_point(host, log, at)
    records = await host.world.store.read(log.uid, limit=seq)
    return fold([record.event for record in records])


async def rewind(host: Host, log: SessionLog, at: Point, by: str) -> int:
    """Goes back to that point, or to the last one before it where every call has its result; says which it was."""
    seq = await find_point(host, log, at)
    for _ in range(TRIES):
        await log.refresh()
        head = log.state.seq
        past = whole_at(await host.world.store.read(log.uid, limit=seq))
        keep, rest = parted(log.state.history, past.history)
        cut = HistoryCut(past.seq, keep, rest, past.values, by, past.ledger)
        if await _cut(host, log, CutHistory(cut, head)):
            return past.seq
    raise Conflict("The session changes faster than it could go back; try again.")


async def clear(host: Host, log: SessionLog, by: str) -> None:
    """The model reads nothing of the past any more; the log is whole."""
    for _ in range(TRIES):
        await log.refresh()
        if await _cut(host, log, CutHistory(HistoryCut(0, by=by), log.state.seq)):
            return
    raise Conflict("The session changes faster than it could be cleared; try again.")


async def rename(log: SessionLog, title: str) -> None:
    """What people call the session from now on; its model stays as it is."""
    title = given_text(title, "A title")
    await _propose(log, lambda state: accept(state, ChangeSettings(state.model, state.settings, title)))


async def set_priority(log: SessionLog, priority: int) -> None:
    """What comes first where there is no room for all; everything else stays as it is."""
    await _propose(log, lambda state: accept(state, ChangeSettings(state.model, state.settings, priority=priority)))


async def set_agent(log: SessionLog, agent: str) -> None:
    """Whose the session is from now on; its model and its title stay as they are."""
    await _propose(log, lambda state: accept(state, ChangeSettings(state.model, state.settings, agent=agent)))


async def import_history(host: Host, log: SessionLog, messages: Sequence[JSON], source: str) -> tuple[str, ...]:
    """Appends a conversation from elsewhere, repaired once; the repairs that were made."""
    reader = Reader()
    reader.read(messages)
    if not reader.messages:
        raise UsageError("The history is empty; pass the messages of a conversation.")
    for digest in _artifacts(reader.messages):
        try:
            await host.world.store.load_artifact(log.uid, digest)
        except NotFound:
            raise UsageError(f"The history names the artifact {digest!r}, which this session does not have.") from None

    def imported(state: SessionState) -> Command:
        mended = repair(reader.messages, state.calls, reader.places)
        return ImportHistory(HistoryImported(mended.messages, (*reader.notes, *mended.repairs), source))

    events = await _propose(log, lambda state: accept(state, imported(state)))
    return next(event.repairs for event in events if isinstance(event, HistoryImported))


def whole_at(records: Iterable[Record]) -> SessionState:
    """The last state of these records in which every call has its result."""
    state = whole = new_state()
    for record in records:
        state = evolve(state, record.event)
        last = state.history[-1] if len(state.history) else None
        if not (isinstance(last, AssistantMessage) and last.calls):
            whole = state
    return whole


async def _cut(host: Host, log: SessionLog, command: CutHistory) -> bool:
    """False if the session has moved on meanwhile: then the cut has to be worked out again."""
    try:
        await host.request(log, command)
    except Conflict:
        return False
    return True


async def _propose(log: SessionLog, decide: Callable[[SessionState], Iterable[Event]]) -> tuple[Event, ...]:
    """Appends what follows from the newest state, whoever else writes meanwhile."""
    for _ in range(TRIES):
        await log.refresh()
        try:
            return await log.propose(lambda state: [as_kept(event) for event in decide(state)])
        except Conflict:
            continue
    raise Conflict("The session changes faster than this could be written; try again.")


def _artifacts(messages: Iterable[Message]) -> list[str]:
    parts = [
        part
        for message in messages
        for part in (
            [part for result in message.results for part in result.parts]
            if isinstance(message, ToolMessage)
            else message.parts
        )
    ]
    return [part.artifact for part in parts if isinstance(part, Media)]
