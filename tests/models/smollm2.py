"""SmolLM2 for tests: pulled once into a folder that every worker and every run of the tests shares."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.core.errors import PerdureError
from perdure.core.messages import Text, UserMessage
from perdure.core.specs import ModelSettings
from perdure.models.pull import pull
from perdure.models.weights import known
from perdure.ports import ModelRequest

FOLDER = Path(tempfile.gettempdir()) / f"perdure-tests-{os.getuid()}"


def smollm2(set_variable: Callable[[str, str], object]) -> Path:
    """Its file, pulled if need be. Workers wait for the one that pulls; without the package the tests are skipped."""
    set_variable("PERDURE_MODELS", os.environ.get("PERDURE_MODELS") or str(FOLDER))
    pytest.importorskip("xllamacpp", reason="NO REAL MODEL: the extra [local] is not installed")
    try:
        return pull(known("smollm2"), lambda done, total: None)
    except PerdureError as error:
        pytest.skip(f"NO REAL MODEL, so nothing was proved against one: {error}")


def question(text: str = "Say hello.", **fields: object) -> ModelRequest:
    settings = fields.pop("settings", ModelSettings(temperature=0.0, max_tokens=16, seed=1))
    messages = (UserMessage((Text(text),)),)
    return ModelRequest("smollm2", "You are a helpful assistant.", messages, settings=settings, **fields)
