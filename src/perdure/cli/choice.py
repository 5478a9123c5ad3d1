"""Which model a command asks when none was named: what is set, then whose key is there, then what was pulled."""

from __future__ import annotations

import importlib.util
import os

from perdure.core.errors import UsageError
from perdure.models.weights import here

KEYS = {
    "OPENAI_API_KEY": "openai:gpt-5-mini",
    "ANTHROPIC_API_KEY": "anthropic:claude-haiku-5-5",
    "GOOGLE_API_KEY": "google:gemini-3.8-flash",
    "GEMINI_API_KEY": "google:gemini-3.8-flash",
}
"""The variables that hold providers' keys, each with the model that it is good for."""

PULL = "perdure model pull smollm2"


def has_local_extra() -> bool:
    return importlib.util.find_spec("xllamacpp") is not None


def chosen_model() -> str:
    """PERDURE_MODEL, or a small model of the first provider that has a key, or the largest one that was pulled."""
    if named := os.environ.get("PERDURE_MODEL"):
        return named
    for variable, model in KEYS.items():
        if os.environ.get(variable):
            return model
    if pulled := here():
        return f"local:{max(pulled, key=lambda weights: weights.size).name}"
    extra = "" if has_local_extra() else "pip install 'perdure[local]' && "
    raise UsageError(
        "There is no model to ask; set the key of a provider: export OPENAI_API_KEY=… (or ANTHROPIC_, GOOGLE_)\n"
        f"or get a small model that runs here, without a key: {extra}{PULL}\n"
        "or see what Perdure does with a scripted one: perdure demo"
    )
