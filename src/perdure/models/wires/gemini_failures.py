"""Google's errors -> their class: by status and the typed details, by the HTTP status where there is neither."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from perdure.core.errors import ModelErrorKind
from perdure.models.wires.wire import Failure, kind_of_status

_KINDS: Final[dict[str, ModelErrorKind]] = {
    "RESOURCE_EXHAUSTED": "rate_limited",
    "UNAVAILABLE": "overloaded",
    "UNAUTHENTICATED": "auth",
    "PERMISSION_DENIED": "auth",
    # What is not open to this account or country.
    "FAILED_PRECONDITION": "auth",
    "NOT_FOUND": "not_found",
    "INVALID_ARGUMENT": "invalid_request",
    "OUT_OF_RANGE": "invalid_request",
    "UNIMPLEMENTED": "invalid_request",
    "DEADLINE_EXCEEDED": "server",
    "INTERNAL": "server",
    "UNKNOWN": "server",
    "ABORTED": "server",
    "CANCELLED": "server",
    "DATA_LOSS": "server",
}

# Too many tokens have no status of their own; this is the beginning of the message about them.
_TOO_LONG = re.compile(r"The input token count \(?\d+\)? exceeds the maximum number of tokens allowed")

_KEY_REASONS = frozenset(("API_KEY_INVALID", "API_KEY_SERVICE_BLOCKED", "API_KEY_EXPIRED"))

_SAID: Final[dict[ModelErrorKind, str]] = {
    "rate_limited": "Google's rate limit is reached; wait",
    "overloaded": "Google's model is overloaded; try again later",
    "server": "Google failed to answer; try again",
    "in_band": "Google broke its answer off; try again",
    "quota_exhausted": "The Google account's quota for the day is used up; look at its plan",
    "auth": "Google did not accept the API key, or the key may not use this model; check the key",
    "not_found": "Google knows no such model or address; check the model's name",
    "context_too_long": "The conversation is too long for the model; shorten it",
    "invalid_request": "Google refused the request; mend what it names",
}
_MAX_WORDS = 500


class _Violation(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    quota_id: str = ""


class _Metadata(msgspec.Struct, frozen=True, gc=False):
    quota_limit: str = ""


class _Detail(msgspec.Struct, frozen=True, rename="camel"):
    reason: str = ""
    retry_delay: str = ""
    violations: list[_Violation] = []
    metadata: _Metadata | None = None


class ErrorObject(msgspec.Struct, frozen=True):
    """`details` are of many types; each is read by itself, so that an unknown one does no harm."""

    code: int | None = None
    status: str | None = None
    message: str | None = None
    details: list[msgspec.Raw] = []


class _Body(msgspec.Struct, frozen=True):
    error: ErrorObject


_decoder = msgspec.json.Decoder(_Body | list[_Body])
_detail_decoder = msgspec.json.Decoder(_Detail)


def failure_of(error: ErrorObject, otherwise: ModelErrorKind) -> Failure:
    """The class that the error's status and details name, or `otherwise`."""
    words = error.message or ""
    details = [detail for raw in error.details if (detail := _read_detail(raw)) is not None]
    kind = _KINDS.get(error.status or "") or (kind_of_status(error.code) if error.code else otherwise)
    if any(detail.reason in _KEY_REASONS for detail in details):
        kind = "auth"
    elif kind == "rate_limited" and any(_is_daily(detail) for detail in details):
        kind = "quota_exhausted"
    elif kind == "invalid_request" and _TOO_LONG.match(words):
        kind = "context_too_long"
    delays = [seconds for detail in details if (seconds := _seconds_of(detail.retry_delay)) is not None]
    said = _SAID.get(kind, "Google reports an error")
    # What is said about a key may quote it.
    message = f"{said}." if kind == "auth" or not words else f"{said}: {words[:_MAX_WORDS]}"
    return Failure(kind, message, max(delays) if delays and kind != "quota_exhausted" else None)


def read_failure(status: int, body: bytes) -> Failure:
    try:
        found = _decoder.decode(body)
        error = found.error if isinstance(found, _Body) else found[0].error
    except (ValueError, RecursionError, IndexError):
        error = ErrorObject(message=f"HTTP status {status} without a readable error.")
    return failure_of(error, kind_of_status(status))


def _read_detail(raw: msgspec.Raw) -> _Detail | None:
    try:
        return _detail_decoder.decode(raw)
    except (ValueError, RecursionError):
        return None


def _is_daily(detail: _Detail) -> bool:
    limits = [violation.quota_id for violation in detail.violations]
    return any("PerDay" in limit for limit in [*limits, detail.metadata.quota_limit if detail.metadata else ""])


def _seconds_of(duration: str) -> float | None:
    """A protobuf duration: 34.07s."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d+)?)s", duration)
    return float(found[1]) if found else None
