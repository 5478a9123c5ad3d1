"""The streams that Provider tells are the providers' own: their clients understand them, and so do our formats."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from perdure import models
from perdure.core.errors import ModelErrorKind
from perdure.core.messages import Text, Thinking, ToolCall, Usage
from perdure.models.deadlines import Deadlines
from perdure.models.http import HttpClient
from perdure.models.http_model import HttpModel
from perdure.ports import ModelResponse
from perdure.testing.model_contract import check_model
from perdure.testing.provider import (
    Provider,
    Response,
    Script,
    bytewise,
    cut,
    gzip_bomb,
    redirect,
    refused,
    silent,
    stalled,
    status,
    unfinished,
)
from perdure.testing.provider_streams import (
    FORMATS,
    Format,
    error_body,
    error_event,
    events_of,
    stream_of,
    too_long_body,
)
from tests.models.http_tiny import SHORT, answer_of, asking, failure_of

Serve = Callable[[Script], Awaitable[Provider]]
MAKE: dict[Format, Callable[..., HttpModel]] = {
    "openai": models.openai,
    "openai-responses": models.openai_responses,
    "anthropic": models.anthropic,
    "google": models.google,
}
USAGE = Usage(100, 20, cached=40, reasoning=5)
FULL = ModelResponse(
    (
        Thinking("I think of it.", "c2lnbmF0dXJl"),
        Text("Hello, wörld: I look twice."),
        ToolCall(0, "look", '{"at":"a wall"}', "id_a"),
        ToolCall(0, "look", '{"at":"a door"}', "id_b"),
    ),
    usage=USAGE,
)
PLAIN = ModelResponse((Text("Hello, this is all that I have to say."),), usage=USAGE)


def model_of(format: Format, provider: Provider, client: HttpClient, deadlines: Deadlines | None = None) -> HttpModel:
    return MAKE[format]("m", base_url=provider.url, api_key="k-1", client=client, deadlines=deadlines)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("how", ["events", "whole", "bytes", "crlf", "bom"])
async def test_an_answer_is_read_whole(format: Format, how: str, serve: Serve, client: HttpClient) -> None:
    stream = stream_of(format, FULL)
    responses: dict[str, Response] = {
        "events": Response(events_of(format, FULL)),
        "whole": Response(stream),
        "bytes": bytewise(stream),
        "crlf": Response(stream.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")),
        "bom": Response(b"\xef\xbb\xbf" + stream),
    }
    provider = await serve([responses[how]])
    answer = await answer_of(model_of(format, provider, client))
    said = "".join(part.text for part in answer.parts if isinstance(part, Text))
    thought = "".join(part.text for part in answer.parts if isinstance(part, Thinking))
    calls = [(part.name, part.arguments.replace(" ", "")) for part in answer.parts if isinstance(part, ToolCall)]
    assert said == "Hello, wörld: I look twice."
    assert thought == "I think of it."
    assert calls == [("look", '{"at":"awall"}'), ("look", '{"at":"adoor"}')]
    assert answer.stop in ("calls", "end")
    assert answer.usage is not None
    assert (answer.usage.input, answer.usage.output, answer.usage.cached) == (100, 20, 40)


@pytest.mark.parametrize("format", FORMATS)
async def test_faults_have_their_class_in_every_format(format: Format, serve: Serve, client: HttpClient) -> None:
    stream = stream_of(format, PLAIN)
    first, half = len(events_of(format, PLAIN)[0]), len(stream) // 2
    broken = Response([*events_of(format, PLAIN)[:3], error_event(format)])
    faults: list[tuple[Response, tuple[ModelErrorKind, ...]]] = [
        (refused(), ("connect",)),
        (silent(), ("first_byte",)),
        (stalled(stream, first), ("idle",)),
        (cut(stream, half), ("cut",)),
        (cut(stream, half, by="reset"), ("cut",)),
        (unfinished(stream, half), ("cut",)),
        (Response(b'data: {"nonsense": \n\n'), ("cut",)),
        (Response(b"data: \xff\xfe\n\n"), ("cut",)),
        (Response(b""), ("cut",)),
        (broken, ("in_band", "server", "overloaded")),
        (gzip_bomb(70), ("cut",)),
        (redirect("http://elsewhere.invalid"), ("not_found",)),
        (status(400, error_body(format, 400)), ("invalid_request",)),
        (status(400, too_long_body(format)), ("context_too_long",)),
        (status(401, error_body(format, 401, "wrong key k-1")), ("auth",)),
        (status(403, error_body(format, 403)), ("auth",)),
        (status(404, error_body(format, 404)), ("not_found",)),
        (status(429, error_body(format, 429), retry_after=2), ("rate_limited",)),
        (status(500, error_body(format, 500)), ("server",)),
        (status(503, error_body(format, 503)), ("overloaded", "server")),
        (status(529, error_body(format, 529)), ("overloaded", "server")),
        (status(502, b"<html>Bad gateway</html>"), ("server",)),
    ]
    provider = await serve([response for response, _ in faults])
    for response, kinds in faults:
        started = time.monotonic()
        deadlines = SHORT if kinds[0] in ("first_byte", "idle") else None
        error = await failure_of(model_of(format, provider, client, deadlines))
        assert error.kind in kinds, (response, error.kind, str(error))
        assert deadlines is None or time.monotonic() - started < 1.2
        assert "k-1" not in str(error)
        if response.status == 429:
            assert error.retry_after == 2


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("stop", ["end", "length", "refusal"])
async def test_stop_reasons(format: Format, stop: Any, serve: Serve, client: HttpClient) -> None:
    provider = await serve([Response(stream_of(format, ModelResponse((Text("Well"),), stop)))])
    assert (await answer_of(model_of(format, provider, client))).stop == stop


@pytest.mark.parametrize("format", FORMATS)
async def test_two_ends_are_one(format: Format, serve: Serve, client: HttpClient) -> None:
    events = events_of(format, PLAIN)
    provider = await serve([Response([*events, events[-1]])])
    (text,) = (await answer_of(model_of(format, provider, client))).parts
    assert isinstance(text, Text)
    assert text.text == "Hello, this is all that I have to say."


@pytest.mark.parametrize("format", FORMATS)
async def test_every_format_keeps_the_contract_of_models(format: Format, serve: Serve, client: HttpClient) -> None:
    provider = await serve(lambda request: Response(stream_of(format, PLAIN if b"plain" in request.body else FULL)))
    report = await check_model(lambda: model_of(format, provider, client), [asking("plain"), asking("full")])
    assert report.failed == {}


# The providers' own clients


async def test_openai_s_client_understands_both_streams(serve: Serve) -> None:
    import openai

    provider = await serve([Response(events_of("openai", FULL)), Response(events_of("openai-responses", FULL))])
    async with openai.AsyncOpenAI(base_url=provider.url, api_key="k", max_retries=0) as client:
        async with client.chat.completions.stream(model="m", messages=[{"role": "user", "content": "hi"}]) as chat:
            completion = await chat.get_final_completion()
        message = completion.choices[0].message
        assert message.content == "Hello, wörld: I look twice."
        assert [call.function.arguments for call in message.tool_calls or ()] == ['{"at":"a wall"}', '{"at":"a door"}']
        assert completion.usage is not None
        assert completion.usage.prompt_tokens == 100
        async with client.responses.stream(model="m", input="hi") as events:
            response = await events.get_final_response()
        assert response.output_text == "Hello, wörld: I look twice."
        assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "function_call"]


async def test_anthropic_s_client_understands_its_stream(serve: Serve) -> None:
    import anthropic

    provider = await serve([Response(events_of("anthropic", FULL))])
    async with anthropic.AsyncAnthropic(base_url=provider.url, api_key="k", max_retries=0) as client:
        messages: Any = [{"role": "user", "content": "hi"}]
        async with client.messages.stream(model="m", max_tokens=9, messages=messages) as events:
            message = await events.get_final_message()
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert message.content[3].input == {"at": "a door"}  # pyright: ignore
    assert (message.stop_reason, message.usage.output_tokens) == ("tool_use", 20)


@pytest.mark.filterwarnings("ignore:Inheritance class:DeprecationWarning")
async def test_google_s_client_understands_its_stream(serve: Serve) -> None:
    from google import genai

    provider = await serve([Response(events_of("google", FULL))])
    client = genai.Client(api_key="k", http_options=genai.types.HttpOptions(base_url=provider.url))
    parts: list[Any] = []
    async for chunk in await client.aio.models.generate_content_stream(model="m", contents="hi"):
        parts += chunk.candidates[0].content.parts or []  # pyright: ignore
    await client.aio.aclose()
    client.close()
    assert "".join(part.text or "" for part in parts if not part.thought) == "Hello, wörld: I look twice."
    assert [part.function_call.args for part in parts if part.function_call] == [{"at": "a wall"}, {"at": "a door"}]


@pytest.mark.parametrize("format", FORMATS)
async def test_what_comes_in_the_place_of_a_stream_is_told(format: Format, serve: Serve, client: HttpClient) -> None:
    page = Response(b"<html>Sign in</html>", headers={"content-type": "text/html; charset=utf-8"})
    error = Response(error_body(format, 429), headers={"content-type": "application/json"})
    provider = await serve([page, error])
    model = MAKE[format]("m", base_url=provider.url, api_key="k-123456789", client=client)
    first, second = await failure_of(model), await failure_of(model)
    assert (first.kind, "a web page; see that base_url is right" in str(first)) == ("cut", True)
    assert second.kind == "rate_limited"
