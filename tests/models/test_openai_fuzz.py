"""Whatever bytes come, the readers of OpenAI's formats end in an answer or a ModelError."""

from __future__ import annotations

from tests.models.fuzz_openai import fuzz, run


def test_noise_and_spoilt_recordings_end_in_a_defined_way() -> None:
    assert run(max_examples=200) >= 200


def test_many_quick_mutations_end_in_a_defined_way() -> None:
    assert fuzz(2.0, seed=7, most=8000) > 0
