"""Errors in the Messages format -> their class: by type and code, by the HTTP status where there is neither."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from perdure.core.errors import ModelErrorKind
from perdure.models.wires.wire import Failure, kind_of_status

_KINDS: Final[dict[str, ModelErrorKind]] = {
    "rate_limit_error": "rate_limited",
    "overloaded_error": "overloaded",
    "api_error": "server",
    "timeout_error": "server",
    "authentication_error": "auth",
    "permission_error": "auth",
    "billing_error": "quota_exhausted",
    "not_found_error": "not_found",
    # Too many bytes, not too many tokens; what helps is the same: to send less of the conversation.
    "request_too_large": "context_too_long",
    # llama.cpp's own.
    "exceed_context_size_error": "context_too_long",
    "invalid_request_error": "invalid_request",
}

_CODES: Final[dict[str, ModelErrorKind]] = {
    "enforced_spend_limit_reached": "quota_exhausted",
    "organization_on_hold": "quota_exhausted",
    "request_body_too_large_after_decoding": "context_too_long",
}

# The API has no code for a prompt that is too long; these are the beginnings of its two messages about it.
_TOO_LONG = re.compile(r"(prompt is too long(: |$)|input length and `max_tokens` exceed context limit: )")

_SAID: Final[dict[ModelErrorKind, str]] = {
    "rate_limited": "The provider's rate limit is reached; wait",
    "overloaded": "The provider is overloaded; try again later",
    "server": "The provider failed to answer; try again",
    "in_band": "The provider broke its answer off; try again",
    "quota_exhausted": "The account has no credit left or is at its spend limit; look at its billing page",
    "auth": "The provider did not accept the API key, or the key may not use this model; check the key",
    "not_found": "The provider knows no such model or address; check the model's name",
    "context_too_long": "The conversation is too long for the model; shorten it",
    "invalid_request": "The provider refused the request; mend what it names",
}
_MAX_WORDS = 500


class ErrorDetails(msgspec.Struct, frozen=True, gc=False):
    error_code: str | None = None


class ErrorObject(msgspec.Struct, frozen=True):
    type: str | None = None
    message: str | None = None
    details: ErrorDetails | None = None


class _Body(msgspec.Struct, frozen=True):
    error: ErrorObject


_decoder = msgspec.json.Decoder(_Body)


def failure_of(error: ErrorObject, otherwise: ModelErrorKind) -> Failure:
    """The class that the error's code or type names, or `otherwise`."""
    code = error.details.error_code if error.details else None
    words = error.message or ""
    kind = _CODES.get(code or "") or _KINDS.get(error.type or "", otherwise)
    if kind == "invalid_request" and _TOO_LONG.match(words):
        kind = "context_too_long"
    said = _SAID.get(kind, "The provider reports an error")
    # What is said about a key may quote it.
    return Failure(kind, f"{said}." if kind == "auth" or not words else f"{said}: {words[:_MAX_WORDS]}")


def read_failure(status: int, body: bytes) -> Failure:
    try:
        error = _decoder.decode(body).error
    except (ValueError, RecursionError):
        error = ErrorObject(message=f"HTTP status {status} without a readable error.")
    if status == 413:
        error = ErrorObject("request_too_large", error.message)
    elif error.type == "api_error" and status < 500:
        # Other servers say that of anything; the status says more.
        error = ErrorObject(None, error.message, error.details)
    return failure_of(error, kind_of_status(status))
