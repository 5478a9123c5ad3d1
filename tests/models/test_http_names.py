"""Constructors and strings: what they name, where they go, and that they load nothing before they are called."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from perdure import models
from perdure.core.errors import UsageError
from perdure.core.messages import Text, Usage
from perdure.models.deadlines import Deadlines
from perdure.models.http import HttpClient
from perdure.ports import ModelResponse
from perdure.testing.provider import Provider, Response, Script
from perdure.testing.provider_streams import Format, stream_of
from tests.models.http_tiny import answer_of, asking, failure_of

Serve = Callable[[Script], Awaitable[Provider]]
CONSTRUCTORS: dict[Format, Callable[..., Any]] = {
    "openai": models.openai,
    "openai-responses": models.openai_responses,
    "anthropic": models.anthropic,
    "google": models.google,
}
PATHS: dict[Format, str] = {
    "openai": "/chat/completions",
    "openai-responses": "/responses",
    "anthropic": "/v1/messages",
    "google": "/v1beta/models/m:streamGenerateContent?alt=sse",
}
KEYS: dict[Format, tuple[str, str, str]] = {
    "openai": ("OPENAI_API_KEY", "authorization", "Bearer the-key"),
    "openai-responses": ("OPENAI_API_KEY", "authorization", "Bearer the-key"),
    "anthropic": ("ANTHROPIC_API_KEY", "x-api-key", "the-key"),
    "google": ("GEMINI_API_KEY", "x-goog-api-key", "the-key"),
}
URLS: dict[Format, str] = {
    "openai": "OPENAI_BASE_URL",
    "openai-responses": "OPENAI_BASE_URL",
    "anthropic": "ANTHROPIC_BASE_URL",
    "google": "GOOGLE_GEMINI_BASE_URL",
}


@pytest.fixture(autouse=True)
def empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GOOGLE_API_KEY", "OPENAI_COMPATIBLE_API_KEY", *(key for key, _, _ in KEYS.values()), *URLS.values()):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("format", CONSTRUCTORS)
async def test_key_and_address_come_from_the_environment(
    format: Format, serve: Serve, client: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable, header, value = KEYS[format]
    provider = await serve(lambda _: Response(stream_of(format, ModelResponse(()))))
    monkeypatch.setenv(URLS[format], provider.url)
    model = CONSTRUCTORS[format]("m", client=client)
    assert model.name == f"{format}:m"
    error = await failure_of(model)
    assert error.kind == "auth"
    assert variable in str(error)
    monkeypatch.setenv(variable, "the-key")
    await answer_of(model)
    (request,) = provider.requests
    assert request.path == PATHS[format]
    assert request.headers[header] == value


@pytest.mark.parametrize("format", CONSTRUCTORS)
async def test_key_and_address_can_be_passed_in(format: Format, serve: Serve, client: HttpClient) -> None:
    provider = await serve(lambda _: Response(stream_of(format, ModelResponse(()))))
    model = CONSTRUCTORS[format]("m", base_url=provider.url, api_key="the-key", client=client, deadlines=Deadlines())
    await answer_of(model)
    assert provider.requests[0].headers[KEYS[format][1]] == KEYS[format][2]
    shown = "openai-compatible" if format == "openai" else format
    assert model.name == f"{shown}:m@{provider.url}"
    again = models.from_string(model.name, client)
    assert again.name == model.name


async def test_a_compatible_server_needs_no_key_and_is_not_shown_openai_s(
    serve: Serve, client: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret-of-openai")
    provider = await serve(lambda _: Response(stream_of("openai", ModelResponse(()))))
    await answer_of(models.from_string(f"openai-compatible:a/b@c:1@{provider.url}/v1", client))  # pyright: ignore
    assert "authorization" not in provider.requests[0].headers
    assert provider.requests[0].path == "/v1/chat/completions"
    monkeypatch.setenv("OPENAI_COMPATIBLE_API_KEY", "own")
    await answer_of(models.openai_compatible("m", base_url=provider.url, client=client))
    assert provider.requests[1].headers["authorization"] == "Bearer own"


def test_no_secret_is_in_a_name() -> None:
    model = models.openai_compatible("m", base_url="https://me:word@host/v1?api-key=x", api_key="k")
    assert model.name == "openai-compatible:m@https://host/v1"
    assert repr(model) == "HttpModel('openai-compatible:m@https://host/v1')"
    assert models.openai("m", base_url="https://api.openai.com/v1/").name == "openai:m"


@pytest.mark.parametrize("name", ["openai", "openai:", "gpt-5", "", "openai-compatible:m", "openai-compatible:@http://a",
                                  "mystery:m", "local:", "local:m@http://a"])  # fmt: skip
def test_other_strings_are_refused_with_the_list(name: str) -> None:
    with pytest.raises(UsageError, match="openai-responses:NAME, anthropic:NAME"):
        models.from_string(name)


def test_a_refused_string_hides_its_password() -> None:
    with pytest.raises(UsageError) as caught:
        models.from_string("mystery:m@https://me:hunter2@host")
    assert "hunter2" not in str(caught.value)


def test_an_option_that_is_none() -> None:
    with pytest.raises(UsageError, match="nonsense"):
        models.openai("m", nonsense=1)


def test_a_price_function_that_fails_does_not_keep_a_model_from_being_prepared() -> None:
    model = models.openai("m", api_key="k", price=lambda usage: 1 / usage.input)
    model.prepare()
    assert model.cost(Usage(4, 0)) == 0.25


class Secret:
    def __repr__(self) -> str:
        return "sk-hidden"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"api_key": Secret()}, "openai: api_key is text, not Secret; pass a str."),
        ({"base_url": 5}, "openai: base_url is text, not int; pass a str."),
        ({"model": None}, "needs a model's name"),
        ({"model": 5}, "openai: model is text, not int; pass a str."),
        ({"deadlines": 5}, "deadlines takes Deadlines(…), not 5"),
        ({"window": "x"}, "window is a number of tokens"),
        ({"price": (1.0,)}, "price=(1.0,): give (in, out)"),
        ({"price": "cheap"}, "price='cheap': give (in, out)"),
    ],
)
def test_options_of_a_wrong_type_are_told(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)) as caught:
        models.openai(**{"model": "m", **options})
    assert "hidden" not in str(caught.value)


async def test_a_list_of_betas_is_sent(serve: Serve, client: HttpClient) -> None:
    provider = await serve([Response(stream_of("anthropic", ModelResponse((Text("ok"),))))])
    await answer_of(models.anthropic("m", base_url=provider.url, api_key="k", betas=["one", "two"], client=client))
    assert provider.requests[0].headers["anthropic-beta"] == "one,two"


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (models.anthropic, {"betas": "one"}, "$.betas"),
        (models.anthropic, {"max_tokens": "many"}, "$.max_tokens"),
        (models.google, {"thinking": "high"}, "$.thinking"),
        (models.openai, {"output": "json"}, "$.output"),
        (models.openai_responses, {"sumary": "auto"}, "sumary"),
    ],
)
def test_options_of_a_wire_are_checked(make: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match="does not take these options") as caught:
        make("m", **options)
    assert words in str(caught.value)


def test_prices_and_windows() -> None:
    usage = Usage(1_000_000, 1_000_000)
    assert models.openai("m", price=(1.0, 2.0)).cost(usage) == 3.0
    assert models.openai("m", price=lambda usage: 7.0).cost(usage) == 7.0
    assert models.openai("no-such-model").cost(usage) is None
    assert (models.openai("gpt-5-mini").cost(usage) or 0) > 0
    assert models.openai("gpt-5-mini").traits.window
    assert models.openai("gpt-5-mini", window=5).traits.window == 5
    assert models.openai_compatible("gpt-5-mini", base_url="http://a").cost(usage) is None


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost", "[::1]:8000"])
def test_a_server_on_this_machine_needs_no_price_list(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "genai_prices.data_snapshot", None)
    model = models.openai_compatible("m", base_url=f"http://{host}/v1")
    assert (model.cost(Usage(1, 1)), model.traits.window) == (None, None)
    with pytest.raises(ImportError):
        models.openai_compatible("m", base_url="https://elsewhere.example/v1").cost(Usage(1, 1))


def test_nothing_is_imported_before_it_is_needed() -> None:
    script = """
import sys
import perdure, perdure.models
assert not [m for m in sys.modules if m.startswith(("aiohttp", "perdure.models.wires", "perdure.models.http_model"))]
model = perdure.models.anthropic("m", api_key="k")
assert "aiohttp" not in sys.modules and "perdure.models.wires.chat" not in sys.modules
assert "genai_prices" not in sys.modules
model.prepare()
assert "aiohttp" in sys.modules and "genai_prices" in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stderr == ""


@pytest.mark.parametrize("format", CONSTRUCTORS)
async def test_a_key_does_not_go_to_an_address_that_a_string_names(
    format: Format, serve: Serve, client: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A string may come from anywhere; whoever wants a key to travel says so in code."""
    monkeypatch.setenv(KEYS[format][0], "the-key")
    provider = await serve(lambda _: Response(stream_of(format, ModelResponse(()))))
    model = models.from_string(f"{format}:m@{provider.url}", client)
    await answer_of(model)
    assert "the-key" not in str(provider.requests[0].headers)


def test_what_one_server_signed_is_not_shown_to_another() -> None:
    own, one, two = (models.anthropic("m", base_url=url) for url in (None, "http://one/v1", "http://two/v1"))
    assert own.traits.provider == "anthropic"
    assert len({model.traits.provider for model in (own, one, two)}) == 3


def test_what_a_model_can_is_known_by_its_name() -> None:
    assert models.anthropic("claude-sonnet-4-5").traits.continues
    assert not models.anthropic("claude-opus-5").traits.continues
    assert not models.anthropic("claude-sonnet-4-5", continues=False).traits.continues
    assert models.openai_compatible("m", base_url="http://h", continues=True).traits.continues


def test_an_option_that_nobody_knows_is_told() -> None:
    with pytest.raises(UsageError, match="anthropic does not take these options"):
        models.anthropic("m", frob=1)
    with pytest.raises(UsageError, match="base_url"):
        models.openai_compatible("m")


async def test_asking_is_the_same_for_all(client: HttpClient) -> None:
    error = await failure_of(models.google("m", client=client), asking())
    assert "GOOGLE_API_KEY or GEMINI_API_KEY" in str(error)
