"""HTTP errors of OpenAI and of servers like it: their class, and what is told of them."""

from __future__ import annotations

import json

import pytest

from perdure.core.messages import JSON
from perdure.models.wires.chat import ChatWire
from perdure.models.wires.responses import ResponsesWire

OPENAI_AUTH = {
    "message": "Incorrect API key provided: sk-secret.",
    "type": "invalid_request_error",
    "code": "invalid_api_key",
}


def error(**fields: JSON) -> JSON:
    return {"error": fields}


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (429, error(message="slow", type="requests", code="rate_limit_exceeded"), "rate_limited"),
        (429, error(message="quota", type="insufficient_quota", code="insufficient_quota"), "quota_exhausted"),
        (429, error(message="billing", code="billing_hard_limit_reached"), "quota_exhausted"),
        (
            402,
            error(message="Insufficient Balance", type="unknown_error", code="invalid_request_error"),
            "quota_exhausted",
        ),
        (401, {"error": OPENAI_AUTH}, "auth"),
        (404, error(message="model 'm' not found, try pulling it first", type="api_error"), "not_found"),
        (400, error(message="no", type="server_error"), "invalid_request"),
        (401, error(message="x", type="authentication_error", code="invalid_request_error"), "auth"),
        (403, {}, "auth"),
        (404, error(code="model_not_found"), "not_found"),
        (404, {"detail": "Not Found"}, "not_found"),
        (400, error(message="x", type="invalid_request_error", code="context_length_exceeded"), "context_too_long"),
        (400, error(code=400, message="too big", type="exceed_context_size_error"), "context_too_long"),
        (
            400,
            {"object": "error", "message": "This model's maximum context length is 8 tokens. However", "code": 400},
            "context_too_long",
        ),
        (400, error(message="I say: This model's maximum context length is 8 tokens"), "invalid_request"),
        (400, error(message="x", type="invalid_request_error", code=None, param="tools"), "invalid_request"),
        (400, error(code="content_filter", innererror={"code": "ResponsibleAIPolicyViolation"}), "content_filtered"),
        (413, {}, "context_too_long"),
        (422, {"detail": [{"loc": ["body"], "msg": "field required", "type": "missing"}]}, "invalid_request"),
        (400, [{"error": {"code": 400, "message": "bad", "status": "INVALID_ARGUMENT"}}], "invalid_request"),
        (408, {}, "server"),
        (409, {}, "server"),
        (500, error(type="server_error"), "server"),
        (502, "bad gateway", "server"),
        (503, error(code=503, message="Loading model", type="unavailable_error"), "overloaded"),
        (529, {}, "overloaded"),
        (418, None, "invalid_request"),
        (500, error(message={"deep": 1}, code=[1], type=7), "server"),
    ],
)
def test_a_failure_is_of_its_class(status: int, body: JSON, kind: str) -> None:
    for wire in (ChatWire(), ResponsesWire()):
        assert wire.read_failure(status, json.dumps(body).encode()).kind == kind


@pytest.mark.parametrize("body", [b"", b"<html><body>Bad gateway</body></html>", b"\xff\xfe", b"[" * 10_000, b"{"])
def test_a_body_that_is_no_json_leaves_the_status(body: bytes) -> None:
    failure = ChatWire().read_failure(503, body)
    assert (failure.kind, failure.message) == ("overloaded", "The provider has too much to do; try again later (503).")


def test_a_refused_key_is_not_repeated() -> None:
    failure = ChatWire().read_failure(401, json.dumps({"error": OPENAI_AUTH}).encode())
    assert "sk-secret" not in failure.message
    assert "invalid_api_key" in failure.message


def test_the_provider_s_words_are_kept_short() -> None:
    failure = ChatWire().read_failure(400, json.dumps(error(message="so\n  many " + "words " * 500)).encode())
    assert "so many words" in failure.message
    assert len(failure.message) < 500
