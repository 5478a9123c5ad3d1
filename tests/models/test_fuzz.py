"""Whatever bytes come, every reader ends in an answer or a ModelError. `make soak` does this for ten minutes."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from perdure.models.wires.gemini import GeminiWire
from perdure.models.wires.messages import MessagesWire
from tests.models import fuzz_openai
from tests.models.fuzzing import fuzz_wire

SECONDS = float(os.environ.get("PERDURE_SOAK_SECONDS", "30")) / 4
"""For each of the four; what a test run spends on it, or a soak."""

FUZZERS: dict[str, Callable[[], int]] = {
    "openai": lambda: fuzz_openai.run(seconds=SECONDS),
    "openai, quick": lambda: fuzz_openai.fuzz(SECONDS, seed=7, most=10_000_000),
    "anthropic": lambda: fuzz_wire("anthropic", MessagesWire(), MessagesWire(output="tool"), seconds=SECONDS),
    "google": lambda: fuzz_wire("google", GeminiWire(), GeminiWire(output="tool"), seconds=SECONDS),
}


@pytest.mark.slow
@pytest.mark.timeout(SECONDS * 3 + 120)
@pytest.mark.parametrize("name", FUZZERS)
def test_noise_and_spoilt_recordings_end_in_a_defined_way(name: str) -> None:
    assert FUZZERS[name]() > 300
