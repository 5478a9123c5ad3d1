"""Language models behind the Model port: wire formats over one HTTP client, and models that run on this machine.

`models.openai("gpt-5-mini", api_key=…)`, and the same for each endpoint here, gives a model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.core.errors import UsageError
from perdure.models.deadlines import Deadlines
from perdure.models.endpoints import Endpoint

if TYPE_CHECKING:
    from perdure.models.http import HttpClient
    from perdure.ports import Model

__all__ = [
    "Deadlines",
    "anthropic",
    "from_string",
    "google",
    "local",
    "openai",
    "openai_compatible",
    "openai_responses",
]

openai = Endpoint(
    "openai",
    "chat",
    "https://api.openai.com/v1",
    "OPENAI_BASE_URL",
    ("OPENAI_API_KEY",),
    elsewhere="openai-compatible",
)
openai_responses = Endpoint(
    "openai-responses", "responses", "https://api.openai.com/v1", "OPENAI_BASE_URL", ("OPENAI_API_KEY",)
)
anthropic = Endpoint("anthropic", "messages", "https://api.anthropic.com", "ANTHROPIC_BASE_URL", ("ANTHROPIC_API_KEY",))
google = Endpoint(
    "google",
    "gemini",
    "https://generativelanguage.googleapis.com",
    "GOOGLE_GEMINI_BASE_URL",
    ("GOOGLE_API_KEY", "GEMINI_API_KEY"),
)
openai_compatible = Endpoint(
    "openai-compatible",
    "chat",
    key_variables=("OPENAI_COMPATIBLE_API_KEY",),
    needs_key=False,
    options={"max_tokens_field": "max_tokens", "takes_top_k": True, "takes_cache_key": False},
)


def local(name: str) -> Model:
    """A model that runs on this machine, in a process of its own: a name of the catalogue, or a GGUF file."""
    from perdure.models.local_model import local as open_local

    return open_local(name)


def from_string(name: str, client: HttpClient | None = None) -> Model:
    """The model that a string like "anthropic:claude-sonnet-4-5" names, over a client that others share."""
    provider, _, rest = name.partition(":")
    model, url = _split_url(rest)
    if provider == "openai-compatible" and model and url:
        return openai_compatible(model, base_url=url, client=client)
    if provider == "local" and model and not url:
        return local(model)
    endpoint = next((known for known in (openai, openai_responses, anthropic, google) if known.name == provider), None)
    if endpoint is None or not model:
        raise UsageError(
            f"Nobody provides the model {_shown(name)!r}; take openai:NAME, openai-responses:NAME, anthropic:NAME, "
            "google:NAME, openai-compatible:NAME@URL, local:NAME or scripted:FILE.json."
        )
    if url:
        endpoint = endpoint.without_key()
    return endpoint(model, base_url=url, client=client)


def _split_url(text: str) -> tuple[str, str | None]:
    """A name may have an @ in it, so only one before a URL counts."""
    at = max(text.rfind("@http://"), text.rfind("@https://"))
    return (text, None) if at < 0 else (text[:at], text[at + 1 :])


def _shown(name: str) -> str:
    from perdure.models.account import shown_url

    model, url = _split_url(name)
    return model if url is None else f"{model}@{shown_url(url)}"
