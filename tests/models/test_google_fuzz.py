"""The Gemini reader against spoilt streams, for a moment."""

from __future__ import annotations

from tests.models.fuzz_google import run


def test_any_bytes_end_in_a_response_or_a_model_error() -> None:
    assert run(max_examples=300) >= 600
