"""The one codec: canonical JSON bytes out, plain data in. Nothing that is read can name code.

Every store sees the same bytes, so hostile values meet the same answer everywhere: lone surrogates become U+FFFD, NaN
and infinities become null, repeated keys keep the last; what cannot be written at all is a UsageError.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import cast

import msgspec

from perdure.core.errors import StoreError, TooNew, UsageError
from perdure.core.events import Event
from perdure.core.messages import JSON
from perdure.core.upcast import upcast

MAX_NESTING = 256
"""Far below what the interpreter's stack allows, so that what one process wrote another can read."""
MAX_IN_EVENT = MAX_NESTING + 32
"""A value and what stands around it in an event; Pythons differ in how deep they can go, and share a store."""
MAX_WRITTEN = MAX_NESTING + 64
"""An event and what stands around it in a line or an answer."""

_NOT_A_BRACKET = bytes(byte for byte in range(256) if byte not in b"[]{}")
_encode = msgspec.json.Encoder(order="deterministic").encode
_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def encode_json(value: object, deepest: int = MAX_WRITTEN) -> bytes:
    """Canonical bytes: sorted keys, no white space, UTF-8."""
    try:
        try:
            data = _encode(value)
        except UnicodeEncodeError:
            data = _encode(_scrub(msgspec.to_builtins(value)))
        if len(data) > deepest:
            _refuse_deeper(data, deepest)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UsageError(f"A value cannot be written as JSON ({error}); pass plain data.") from None
    return data


def decode_json(data: bytes | str, deepest: int = MAX_NESTING) -> JSON:
    """Any JSON text; a ValueError says what is wrong with it."""
    try:
        raw = data if isinstance(data, bytes) else data.encode()
        if len(raw) > deepest:
            _refuse_deeper(raw, deepest)
        return msgspec.json.decode(raw)
    except UnicodeEncodeError:
        raise ValueError("the JSON holds a lone surrogate") from None


def encode_event(event: Event) -> bytes:
    return encode_json(event, MAX_IN_EVENT)


def decode_event(data: bytes) -> Event:
    """The event of a payload, brought up to date; what a newer version wrote is refused."""
    try:
        return _decoder.decode(data)
    except (ValueError, RecursionError, UsageError) as error:
        try:
            plain = decode_json(data, MAX_IN_EVENT)
        except (ValueError, UsageError):
            raise StoreError(f"A record is damaged ({error}); restore the store from a backup.") from None
        try:
            return msgspec.convert(upcast(plain), Event)
        except (ValueError, UsageError):
            raise TooNew(
                f"A record cannot be read ({error}); a newer version of Perdure may have written it: upgrade."
            ) from None


def canonical(arguments: str) -> bytes:
    """The same bytes for the same arguments, however they are written; a ValueError if they are no JSON."""
    return encode_json(decode_json(arguments or "{}"))


def digest_of(*parts: bytes | str) -> str:
    """128 bits over the parts, each with its length, as hex."""
    framed = b""
    for part in parts:
        data = part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
        framed += b"%d:%b" % (len(data), data)
    return blake2b(framed, digest_size=16).hexdigest()


def _refuse_deeper(data: bytes, deepest: int) -> None:
    """Ask only where there are more bytes than levels: most values are smaller, and this is asked of all."""
    if data.count(b"[") + data.count(b"{") <= deepest:
        return
    # Without escapes every second quote ends a text; a backslash that is escaped escapes no quote.
    bare = b"".join(data.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])
    depth = 0
    for bracket in bare.translate(None, _NOT_A_BRACKET):
        depth += 1 if bracket in b"[{" else -1
        if depth > deepest:
            raise ValueError(f"the JSON is nested deeper than {deepest} levels")


def _scrub(value: JSON) -> JSON:
    match value:
        case str():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case list() | tuple():
            return [_scrub(item) for item in cast(list[JSON], value)]
        case dict():
            return {_scrub(k): _scrub(v) for k, v in cast(dict[str, JSON], value).items()}
        case _:
            return value
