"""Sessions as JSON lines: out of one store, into another.

Rule 1: a record's payload leaves and comes back byte for byte. Rule 2: all is checked before anything is written, and
then all records are one append. Rule 3: what a newer version wrote is refused.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from secrets import token_hex
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from perdure.core.codec import decode_event, digest_of, encode_event, encode_json
from perdure.core.errors import Conflict, NotFound, PerdureError, StoreError, UsageError
from perdure.core.events import CallEnded, Event, SessionOpened
from perdure.core.fold import fold
from perdure.core.state import SessionState
from perdure.core.upcast import UPCASTS
from perdure.ports import Clock, Entry, Opening, Record, Store
from perdure.runtime.log import SessionLog
from perdure.runtime.subagents import labels_of

FORMAT = 1
CAME_ALONG = "It was imported with its session; resume it if it shall go on here."
T = TypeVar("T")

_ARTIFACT = re.compile(rb'"artifact":"([0-9a-f]{32})"')
_DIGEST = re.compile(rb"\b[0-9a-f]{32}\b")


class Header(msgspec.Struct, frozen=True):
    """The first line: what this is, who wrote it, and whose records follow."""

    perdure: int
    version: str
    uid: str
    id: str
    tenant: str
    agent: str
    title: str
    metadata: dict[str, str]
    records: int
    artifacts: int


class Line(msgspec.Struct, frozen=True):
    """One record."""

    seq: int
    at: float
    run: int
    digest: str
    payload: msgspec.Raw


class ArtifactLine(msgspec.Struct, frozen=True):
    artifact: str
    data: str


class Exported(msgspec.Struct, frozen=True):
    """A session as it was read from lines, checked."""

    header: Header
    entries: tuple[Entry, ...]
    events: tuple[Event, ...]
    artifacts: dict[str, bytes]

    @property
    def records(self) -> list[Record]:
        """The records as a store would hand them out."""
        numbered = enumerate(zip(self.entries, self.events, strict=True), 1)
        return [Record(self.header.uid, seq, entry.at, entry.run, event) for seq, (entry, event) in numbered]


async def take_out(store: Store, uid: str) -> Exported:
    """A session as it is in a store; of a fork, its whole past."""
    records = await store.read(uid)
    state = fold([record.event for record in records])
    artifacts = await _load_artifacts(store, uid, records)
    header = Header(
        FORMAT,
        _version(),
        uid,
        state.id,
        state.tenant,
        state.agent,
        state.title,
        state.metadata,
        len(records),
        len(artifacts),
    )
    entries = tuple(Entry(record.at, record.run, encode_event(record.event)) for record in records)
    return Exported(header, entries, tuple(record.event for record in records), artifacts)


async def export_lines(store: Store, uid: str) -> AsyncIterator[bytes]:
    """The lines of a session, each with its line feed."""
    exported = await take_out(store, uid)
    yield encode_json(exported.header) + b"\n"
    for seq, entry in enumerate(exported.entries, 1):
        yield encode_json(_line(seq, entry.at, entry.run, entry.payload)) + b"\n"
    for digest, data in exported.artifacts.items():
        yield encode_json(ArtifactLine(digest, b64encode(data).decode())) + b"\n"


def read_lines(lines: Iterable[bytes]) -> Exported:
    """A session from its lines, or a StoreError that says what is wrong with them."""
    numbered = enumerate((line for line in lines if line.strip()), 1)
    _, first = next(numbered, (0, b""))
    header = _read_header(first)
    entries: list[Entry] = []
    events: list[Event] = []
    artifacts: dict[str, bytes] = {}
    for number, text in numbered:
        if len(entries) < header.records:
            entry, event = _read_record(text, number, len(entries) + 1)
            entries.append(entry)
            events.append(event)
        else:
            digest, data = _read_artifact(text, number)
            artifacts[digest] = data
    if (len(entries), len(artifacts)) != (header.records, header.artifacts):
        raise StoreError("The export is cut short: records or artifacts are missing at its end; export it again.")
    if not events or not isinstance(events[0], SessionOpened):
        raise StoreError("The export does not begin with the opening of a session; export it again.")
    return Exported(header, tuple(entries), tuple(events), artifacts)


async def import_exported(store: Store, clock: Clock, exported: Exported, id: str | None, tenant: str | None) -> str:
    """The uid of the session that these records are now: the same one, or a new one under another name."""
    if id is not None or tenant is not None:
        exported = _renamed(exported, id, tenant)
    state = fold(list(exported.events))
    uid = exported.header.uid
    if state.uid != uid:
        raise StoreError("The export names another session than its records do; export it again.")
    opening = Opening(state.tenant, state.id, state.metadata, epoch=state.epoch)
    paused = _paused(exported, state)
    try:
        await SessionLog(uid, store, clock).adopt(paused.entries, fold(list(paused.events)), opening)
    except Conflict:
        if not (await _is_there(store, paused) or await _is_there(store, exported)):
            raise Conflict(f"There is a session {state.id!r} already; import it under another id.") from None
    for digest, data in exported.artifacts.items():
        await store.save_artifact(uid, digest, data)
    return uid


async def _is_there(store: Store, exported: Exported) -> bool:
    """Whether an earlier import got as far as this: then only artifacts may be missing."""
    try:
        return await store.read(exported.header.uid) == exported.records
    except PerdureError:
        return False


def _paused(exported: Exported, state: SessionState) -> Exported:
    """The same with its triggers paused: where it comes from they may still be at work."""
    live = [known for known in state.triggers.values() if not known.is_paused]
    if not live:
        return exported
    events = [replace(known, is_paused=True, next_at=None, error=CAME_ALONG) for known in live]
    at, run = exported.entries[-1].at, state.run.run if state.run else 0
    entries = [Entry(at, run, encode_event(event)) for event in events]
    return Exported(exported.header, (*exported.entries, *entries), (*exported.events, *events), exported.artifacts)


def _renamed(exported: Exported, id: str | None, tenant: str | None) -> Exported:
    """The same records under a new uid: only the latest opening differs, which says whose they are."""
    at, opened = next((at, e) for at, e in reversed(list(enumerate(exported.events))) if isinstance(e, SessionOpened))
    uid = token_hex(10)
    is_child = opened.origin is not None and bool(opened.origin.agents)
    opened = replace(
        opened,
        uid=uid,
        id=opened.id if id is None else id,
        tenant=opened.tenant if tenant is None else tenant,
        # A copy of a sub-agent's session is nobody's child.
        metadata=labels_of(opened.metadata),
        origin=None if is_child else opened.origin,
    )
    entry = replace(exported.entries[at], payload=encode_event(opened))
    return Exported(
        replace(exported.header, uid=uid, id=opened.id, tenant=opened.tenant),
        (*exported.entries[:at], entry, *exported.entries[at + 1 :]),
        (*exported.events[:at], opened, *exported.events[at + 1 :]),
        exported.artifacts,
    )


async def _load_artifacts(store: Store, uid: str, records: list[Record]) -> dict[str, bytes]:
    """The artifacts that the records name, in the order in which they do; some may have been lost."""
    found: dict[str, bytes] = {}
    for record in records:
        for digest in artifacts_named(record.event):
            if digest not in found:
                with suppress(NotFound):
                    found[digest] = await store.load_artifact(uid, digest)
    return found


def artifacts_named(event: Event) -> list[str]:
    payload = encode_event(event)
    # A result that was too long names what it left out in its words, for the model.
    is_spilled = isinstance(event, CallEnded) and event.spilled
    return [digest.decode() for digest in (_DIGEST if is_spilled else _ARTIFACT).findall(payload)]


def _line(seq: int, at: float, run: int, payload: bytes) -> Line:
    return Line(seq, at, run, digest_of(payload), msgspec.Raw(payload))


def _read_header(text: bytes) -> Header:
    try:
        header = msgspec.json.decode(text, type=Header)
    except (ValueError, RecursionError):
        raise UsageError("This is no export of a session; make one with perdure sessions export.") from None
    if header.perdure > FORMAT:
        raise StoreError(
            f"The export has format {header.perdure}, written by Perdure {header.version}; upgrade to read it."
        )
    return header


def _read_record(text: bytes, number: int, seq: int) -> tuple[Entry, Event]:
    line = _decode(text, Line, number)
    payload = bytes(line.payload)
    if line.seq != seq:
        raise StoreError(f"Line {number} of the export has record {line.seq} where {seq} belongs; export it again.")
    if line.digest != digest_of(payload):
        raise StoreError(f"Line {number} of the export was changed or damaged; export it again.")
    event = decode_event(payload)
    if encode_event(event) != payload and msgspec.json.decode(payload).get("type") not in UPCASTS:
        raise StoreError(
            f"Line {number} of the export holds more than this version of Perdure can read; upgrade to read it."
        )
    return Entry(line.at, line.run, payload), event


def _read_artifact(text: bytes, number: int) -> tuple[str, bytes]:
    line = _decode(text, ArtifactLine, number)
    try:
        data = b64decode(line.data, validate=True)
    except ValueError:
        data = b""
    if digest_of(data) != line.artifact:
        raise StoreError(f"Line {number} of the export was changed or damaged; export it again.")
    return line.artifact, data


def _decode(text: bytes, kind: type[T], number: int) -> T:
    try:
        return msgspec.json.decode(text, type=kind)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"Line {number} of the export cannot be read ({error}); export it again.") from None


def _version() -> str:
    try:
        return version("perdure")
    except PackageNotFoundError:
        return ""
