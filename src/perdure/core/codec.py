"""The one codec: canonical JSON bytes out, plain data in. Nothing that is read can name code.

Every store sees the same bytes, so hostile values meet the same answer everywhere: lone surrogates become U+FFFD, NaN
and infinities become null, repeated keys keep the last; what cannot be written at all is a UsageError.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from hashlib import blake2b
from typing import cast

import msgspec

from perdure.core.errors import StoreError, TooNew, UsageError
from perdure.core.events import Event
from perdure.core.messages import JSON
from perdure.core.upcast import upcast

MAX_NESTING = 256
"""Far below what the interpreter's stack allows, so that what one process wrote another can read."""

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
_NOT_A_BRACKET = bytes(byte for byte in range(256) if byte not in b"[]{}")
_encode = msgspec.json.Encoder(order="deterministic").encode
_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def encode_json(value: object) -> bytes:
    """Canonical bytes: sorted keys, no white space, UTF-8."""
    try:
        try:
            return _encode(value)
        except UnicodeEncodeError:
            return _encode(_scrub(msgspec.to_builtins(value)))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UsageError(f"A value cannot be written as JSON ({error}); pass plain data.") from None


def decode_json(data: bytes | str) -> JSON:
    """Any JSON text; a ValueError says what is wrong with it."""
    try:
        raw = data if isinstance(data, bytes) else data.encode()
        if _is_nested_deeper(raw, MAX_NESTING):
            raise ValueError(f"the JSON is nested deeper than {MAX_NESTING} levels")
        return msgspec.json.decode(raw)
    except UnicodeEncodeError:
        raise ValueError("the JSON holds a lone surrogate") from None


encode_event: Callable[[Event], bytes] = encode_json


def decode_event(data: bytes) -> Event:
    """The event of a payload, brought up to date; what a newer version wrote is refused."""
    try:
        return _decoder.decode(data)
    except (ValueError, RecursionError, UsageError) as error:
        said = f"A record cannot be read ({error}); a newer version of Perdure may have written it: upgrade."
        try:
            payload = decode_json(data)
        except ValueError:
            raise StoreError(said) from None
        try:
            return msgspec.convert(upcast(payload), Event)
        except (ValueError, UsageError):
            raise (TooNew(said) if isinstance(payload, dict) else StoreError(said)) from None


def canonical(arguments: str) -> bytes:
    """The same bytes for the same arguments, however they are written; a ValueError if they are no JSON."""
    return encode_json(decode_json(arguments or "{}"))


def digest_of(*parts: bytes | str) -> str:
    """128 bits over the parts, each with its length, as hex."""
    hasher = blake2b(digest_size=16)
    for part in parts:
        data = part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
        hasher.update(b"%d:%b" % (len(data), data))
    return hasher.hexdigest()


def _is_nested_deeper(data: bytes, limit: int) -> bool:
    if data.count(b"[") + data.count(b"{") <= limit:
        return False
    depth = 0
    for bracket in _STRING.sub(b"", data).translate(None, _NOT_A_BRACKET):
        depth += 1 if bracket in b"[{" else -1
        if depth > limit:
            return True
    return False


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
