"""What every store checks and says in the same way, so that no caller can tell them apart.

Rule 1: whatever `checked` lets through can be written by every store. Rule 2: times are whole microseconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from hashlib import blake2b

import msgspec

from perdure.core.codec import encode_json
from perdure.core.errors import Conflict, NotFound, Refused, StaleEpoch, UsageError
from perdure.core.messages import JSON
from perdure.core.queues import LEVEL
from perdure.core.views import Summary
from perdure.ports import Batch, SessionQuery

_summary_decoder = msgspec.json.Decoder(Summary)
_metadata_decoder = msgspec.json.Decoder(dict[str, str])
_about_decoder = msgspec.json.Decoder(dict[str, JSON])
LEVEL_MICROS = round(LEVEL * 1_000_000)
_FARTHEST = 9e12  # seconds; as microseconds it still fits 64 bits


def checked(batch: Batch) -> None:
    """Refuses what some store could not write, before any of it is written."""
    if not batch.entries:
        raise UsageError(f"The append to session {batch.session!r} is empty; give it at least one entry.")
    check_text(batch.session)
    check_text(batch.summary.agent)
    check_text(batch.summary.queue)
    opening = batch.opening
    if opening is None:
        return
    check_text(opening.tenant)
    check_text(opening.id)
    for key, value in opening.metadata.items():
        check_text(key)
        check_text(value)
    if batch.epoch:
        raise stale(batch.session)
    if opening.base is None and batch.expect:
        raise Conflict(f"Session {batch.session!r} is new, so its first append expects 0, not {batch.expect}.")


def digest(uid: bytes, seq: int, at: int, run: int, payload: bytes) -> bytes:
    """Binds a record to its place, so that swapped rows are noticed as well as damaged ones."""
    return blake2b(b"%d %d %d %d %b%b" % (seq, at, run, len(uid), uid, payload), digest_size=16).digest()


def check_text(text: str) -> None:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise no_text(error) from None


def micros(at: float) -> int:
    if not -_FARTHEST < at < _FARTHEST:
        raise UsageError(f"{at!r} is no time a store can keep; give seconds since 1970.")
    return round(at * 1_000_000)


def times_of(batch: Batch) -> list[int]:
    """When each entry was made, in microseconds; nearly always at the same time."""
    first = batch.entries[0].at
    known = micros(first)
    return [known if entry.at == first else micros(entry.at) for entry in batch.entries]


def tell(watchers: Iterable[Callable[[int], None]], head: int) -> None:
    """In their loop; what one of them raises is told to the loop, and keeps nothing from another or the appender."""
    for notify in tuple(watchers):
        try:
            notify(head)
        except Exception as error:  # noqa: BLE001 - watchers are anybody's
            about = {"message": "A watcher of a store failed.", "exception": error}
            asyncio.get_running_loop().call_exception_handler(about)


def wake_of(summary: Summary) -> int | None:
    """When the session has work, in microseconds: 0 is now, None never."""
    if summary.runnable:
        return 0
    return None if summary.wake_at is None else micros(summary.wake_at)


def encode_summary(summary: Summary) -> bytes:
    return encode_json(summary)


def decode_summary(data: bytes) -> Summary:
    """The summary; of one that a newer version wrote, what can be made of it, so that lists stay whole."""
    try:
        return _summary_decoder.decode(data)
    except msgspec.ValidationError:
        known = _about_decoder.decode(data)
        title = known.get("title")
        return Summary(str(known.get("agent", "")), title=title if isinstance(title, str) else "")


def decode_metadata(data: bytes) -> dict[str, str]:
    return _metadata_decoder.decode(data)


def encode_about(about: dict[str, JSON] | None) -> bytes:
    """What an owner says of itself."""
    return encode_json(about or {})


def decode_about(data: bytes) -> dict[str, JSON]:
    return _about_decoder.decode(data) if data else {}


def encode_cursor(no: int) -> str:
    return f"before-{no:x}"


def decode_cursor(cursor: str) -> int:
    head, _, digits = cursor.partition("-")
    try:
        no = int(digits, 16)
    except ValueError:
        no = -1
    if head != "before" or not 0 <= no < 1 << 63 or cursor != encode_cursor(no):
        raise UsageError(f"{cursor!r} is no cursor of this list; take the one that the last page gave.")
    return no


def check_query(query: SessionQuery) -> None:
    if query.limit < 1:
        raise UsageError(f"A list of {query.limit} sessions makes no page; ask for at least 1.")
    for key, value in query.metadata.items():
        check_text(key)
        check_text(value)
    check_text(query.tenant or "")
    check_text(query.agent or "")


def unknown(session: str) -> NotFound:
    return NotFound(f"There is no session {session!r}; open it first.")


def unknown_artifact(session: str, digest: str) -> NotFound:
    return NotFound(f"Session {session!r} has no artifact {digest!r}; save it first.")


def stale(session: str) -> StaleEpoch:
    return StaleEpoch(f"Another driver has claimed session {session!r}; stop driving it here.")


def moved(session: str, expect: int, head: int) -> Conflict:
    return Conflict(f"Session {session!r} is at {head}, not at {expect}; read what is new and try again.")


def taken(session: str) -> Conflict:
    return Conflict(f"Session {session!r} exists already; open it instead of creating it.")


def id_taken(tenant: str, id: str) -> Conflict:
    where = f" of tenant {tenant!r}" if tenant else ""
    return Conflict(f"There is a session {id!r}{where} already; open it instead of creating it.")


def short_base(base: str, expect: int, head: int) -> Conflict:
    return Conflict(f"Session {base!r} has {head} records, so it cannot be forked at {expect}.")


def driven(session: str) -> Refused:
    return Refused(f"Session {session!r} is being driven; stop it first, then delete it.")


def no_text(error: UnicodeEncodeError) -> UsageError:
    return UsageError(f"{error.object!r} holds a lone surrogate; give text that UTF-8 can write.")


def not_joined(owner: str) -> UsageError:
    return UsageError(f"{owner!r} has not joined the store; join before claiming.")


def not_open() -> UsageError:
    return UsageError("The store is not open; open it first.")


def forked() -> UsageError:
    return UsageError("This Runtime was opened before fork(); open a new one in the child.")
