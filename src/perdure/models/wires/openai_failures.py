"""What errors in OpenAI's shape mean: by code, type and status, never by searching in text. The words are kept short.

Many servers speak this shape, each a little otherwise; a body may also be HTML, or nothing.
"""

from __future__ import annotations

import re
from typing import cast

import msgspec

from perdure.core.codec import decode_json
from perdure.core.errors import ModelError, ModelErrorKind
from perdure.core.messages import JSON
from perdure.models.wires.wire import Failure, kind_of_status

_CODES: dict[ModelErrorKind, str] = {
    "quota_exhausted": "insufficient_quota billing_hard_limit_reached billing_not_active insufficient_balance "
    "insufficient_credits quota_exceeded",
    "rate_limited": "rate_limit_exceeded rate_limit_error rate_limit requests tokens too_many_requests",
    "overloaded": "overloaded overloaded_error engine_overloaded server_overloaded slow_down unavailable_error "
    "service_unavailable service_unavailable_error",
    "server": "server_error internal_server_error internal_error internalservererror api_error vector_store_timeout",
    "auth": "invalid_api_key authentication_error invalid_authentication missing_api_key permission_error "
    "permission_denied permission_denied_error account_deactivated unsupported_country_region_territory unauthorized",
    "not_found": "model_not_found not_found_error notfounderror deploymentnotfound not_found",
    "context_too_long": "context_length_exceeded exceed_context_size_error context_window_exceeded",
    "content_filtered": "content_filter content_policy_violation image_content_policy_violation bio_policy "
    "misalignment_policy_violation invalid_prompt data_inspection_failed",
}
_KINDS: dict[str, ModelErrorKind] = {code: kind for kind, codes in _CODES.items() for code in codes.split()}

_GENERIC = frozenset(("invalid_request_error", "badrequesterror", "bad_request", "invalid_value"))
"""Said of anything, also of a wrong key; so the status counts more."""

# vLLM and OpenRouter have no code for it; these are their messages, whole beginnings only.
_TOO_LONG = re.compile(
    r"This (?:model|endpoint)'s maximum context length is \d+ tokens"
    r"|The decoder prompt \(length \d+\) is longer than the maximum model length"
)

_MOST_WORDS = 300

_SENTENCES: dict[ModelErrorKind, str] = {
    "auth": "The provider refused the key; check it, and what it may do",
    "not_found": "The provider has no such model or address; check the model's name and base_url",
    "rate_limited": "The provider asks for fewer requests; wait and try again",
    "quota_exhausted": "The account at the provider has nothing left; top it up",
    "overloaded": "The provider has too much to do; try again later",
    "context_too_long": "The conversation is longer than the model can read; compact it or take another model",
    "content_filtered": "The provider's filter refused the content; change what is asked",
    "invalid_request": "The provider refused the request; mend what it names",
    "in_band": "The provider reported an error in its answer; try again",
}


class _Error(msgspec.Struct):
    code: str = ""
    type: str = ""
    message: str = ""


def read_failure(status: int, body: bytes) -> Failure:
    """The class of an HTTP answer that is no success."""
    try:
        error = _error_of(decode_json(body))
    except (ValueError, RecursionError):
        error = _Error()
    kind = _specific(error)
    if kind is None or kind == "server":
        # Every failure may have the type server_error or api_error; the status says more.
        kind = kind_of_status(status)
    return Failure(kind, _sentence(kind, str(status), error))


def in_band(value: JSON) -> ModelError:
    """The error that came inside of an answer."""
    error = _error_of(value)
    kind = _specific(error)
    if kind is None and error.code.isdecimal() and 400 <= int(error.code[:4]) < 600:
        kind = kind_of_status(int(error.code[:4]))
    if kind is None:
        kind = "invalid_request" if {error.code.lower(), error.type.lower()} & _GENERIC else "in_band"
    return ModelError(_sentence(kind, "", error), kind=kind)


def _specific(error: _Error) -> ModelErrorKind | None:
    for said in (error.code.lower(), error.type.lower()):
        if said in _KINDS:
            return _KINDS[said]
    return "context_too_long" if _TOO_LONG.match(error.message) else None


def _sentence(kind: ModelErrorKind, status: str, error: _Error) -> str:
    code = error.type if error.code.isdecimal() else error.code or error.type
    said = ", ".join(filter(None, (status, code)))
    text = _SENTENCES.get(kind, "The provider failed; try again later") + (f" ({said[:100]})" if said else "")
    words = " ".join(error.message.split())[:_MOST_WORDS]
    # A refusal of a key may repeat the key.
    return f"{text}." if kind == "auth" or not words else f"{text}: {words}"


def _error_of(value: JSON) -> _Error:
    """Whatever an error looks like: its code, its type and its words."""
    match value:
        case str():
            return _Error(message=value)
        case [first, *_] | {"errors": [first, *_]} | {"error": first} if first:
            return _error_of(first)
        case dict():
            fields = cast(dict[str, JSON], value)
            message = fields.get("message") or fields.get("detail") or fields.get("msg")
            inner = _error_of(message) if isinstance(message, dict | list) else _Error(message=_words(message))
            return _Error(
                _words(fields.get("code")) or inner.code, _words(fields.get("type")) or inner.type, inner.message
            )
        case _:
            return _Error()


def _words(value: JSON) -> str:
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
