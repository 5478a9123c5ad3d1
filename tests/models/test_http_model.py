"""HttpModel as a Model: keys stay hidden, connections are shared, and a stream can be left at any time."""

from __future__ import annotations

import asyncio
import gc
import traceback
from base64 import b64encode
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from perdure.core.deltas import TextDelta
from perdure.core.errors import ModelError, NotFound, StoreError
from perdure.core.messages import Media, Message, Text, Usage, UserMessage
from perdure.core.shared import Buffer
from perdure.models import http_request
from perdure.models.account import Account, shown_url
from perdure.models.deadlines import Deadlines
from perdure.models.http import HttpClient
from perdure.models.http_model import HttpModel
from perdure.models.phases import Phases, Watch
from perdure.ports import Connected, ModelRequest, ModelResponse
from perdure.testing.model_contract import check_model
from perdure.testing.provider import Provider, Request, Response, Script, refused, refusing_url, stalled, status
from tests.models.http_tiny import TinyWire, answer_of, asking, failure_of, tiny, told

Serve = Callable[[Script], Awaitable[Provider]]
CANARY = "sk-proj-Ab1Cd2Ef3Gh4Ij5Kl6Mn7"


def endless(request: Request) -> Response:
    return Response(told("one", "two"))


async def test_the_request_is_what_the_wire_says(serve: Serve, client: HttpClient) -> None:
    provider = await serve(endless)
    await answer_of(tiny(provider.url, client=client), asking("héllo"))
    (request,) = provider.requests
    assert (request.method, request.path, request.body) == ("POST", "/m", "héllo".encode())
    assert request.headers["authorization"] == "Bearer k-1"
    assert request.headers["content-type"] == "application/json"
    assert "cookie" not in request.headers


async def test_the_user_of_an_address_is_sent_unless_there_is_a_key(serve: Serve, client: HttpClient) -> None:
    provider = await serve(endless)
    url = provider.url.replace("http://", "http://me:w%40rd@")
    for account in (Account(url, needs_key=False), Account(url, api_key="k")):
        await answer_of(HttpModel("n", "m", TinyWire(), account, client=client))
    sent = [request.headers["authorization"] for request in provider.requests]
    assert sent == ["Basic bWU6d0ByZA==", "Bearer k"]


async def test_a_large_body_is_sent_whole(serve: Serve, client: HttpClient) -> None:
    provider = await serve(endless)
    await answer_of(tiny(provider.url, client=client), asking("x" * 3_000_000))
    assert len(provider.requests[0].body) == 3_000_000


async def test_no_task_is_started_to_send(serve: Serve, client: HttpClient, monkeypatch: pytest.MonkeyPatch) -> None:
    provider, loop = await serve(endless), asyncio.get_running_loop()
    await answer_of(tiny(provider.url, client=client))
    started: list[str] = []
    write = http_request.Request.write_bytes

    def write_in_a_task(request: Any, *options: Any) -> Any:
        # Since Python 3.12 aiohttp makes this task without asking the loop.
        started.append("write_bytes")
        return write(request, *options)

    monkeypatch.setattr(http_request.Request, "write_bytes", write_in_a_task)

    def make(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        started.append(work.__qualname__)
        return asyncio.Task(work, loop=loop, **options)

    for size in (10, 300_000):
        loop.set_task_factory(make)
        exchange = await client.post(f"{provider.url}/m", {}, b"x" * size, Deadlines())
        loop.set_task_factory(None)
        assert await exchange.read()
        exchange.close()
    assert [len(request.body) for request in provider.requests[1:]] == [10, 300_000]
    assert not [name for name in started if "Provider" not in name]


@pytest.mark.parametrize("size", [10, 300_000])
@pytest.mark.parametrize(("trouble", "connections"), [("full", 1), ("closing", 2)])
async def test_a_connection_that_cannot_be_written_to_at_once_loses_nothing(
    trouble: str, connections: int, size: int, serve: Serve, client: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider, send, troubled = await serve(endless), http_request.Request.send, list[str]()

    async def send_in_trouble(request: Any, conn: Any) -> Any:
        if not troubled:
            troubled.append(trouble)
            if trouble == "full":
                conn.protocol.pause_writing()
                asyncio.get_running_loop().call_later(0.02, conn.protocol.resume_writing)
            else:
                conn.transport.close()
        return await send(request, conn)

    await answer_of(tiny(provider.url, client=client))
    monkeypatch.setattr(http_request.Request, "send", send_in_trouble)
    await answer_of(tiny(provider.url, client=client), asking("x" * size))
    assert [len(request.body) for request in provider.requests[1:]] == [size]
    assert provider.connections == connections


async def test_one_request_after_the_other_uses_one_connection(serve: Serve, client: HttpClient) -> None:
    provider = await serve(endless)
    for _ in range(20):
        await answer_of(tiny(provider.url, client=client))
    assert (len(provider.requests), provider.connections) == (20, 1)


async def test_cookies_are_not_kept(serve: Serve, client: HttpClient) -> None:
    provider = await serve(lambda _: Response(told("a"), headers={"set-cookie": "id=1"}))
    for _ in range(2):
        await answer_of(tiny(provider.url, client=client))
    assert "cookie" not in provider.requests[1].headers


async def test_two_hundred_streams_at_once(serve: Serve, client: HttpClient) -> None:
    arrived = asyncio.Event()

    def answer(request: Request) -> Response:
        if len(provider.requests) == 200:
            arrived.set()
        return Response([told("a")[0], 0.3, *told(request.body.decode())])

    provider = await serve(answer)
    model = tiny(provider.url, client=client)
    answers = await asyncio.gather(*(answer_of(model, asking(str(n))) for n in range(200)))
    assert [answer.parts for answer in answers] == [(Text(f"a{n}"),) for n in range(200)]
    assert provider.connections == 200
    assert arrived.is_set()


@pytest.mark.parametrize("shown", [0, 1])
async def test_leaving_a_stream_ends_its_connection_at_once(shown: int, serve: Serve, client: HttpClient) -> None:
    provider = await serve(lambda _: stalled(told("one", "two"), 11 * shown))
    model = tiny(provider.url, client=client)
    stream = model.stream(asking())
    task = asyncio.ensure_future(anext(stream))
    if shown:
        assert await task == TextDelta("one")
        await stream.aclose()
    else:
        while not provider.requests:
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await provider.wait_until_left(within=2.0)


async def test_a_cancelled_reader_is_cancelled_and_nothing_else(serve: Serve, client: HttpClient) -> None:
    provider = await serve(lambda _: stalled(told("one", "two"), 11))
    model = tiny(provider.url, client=client)
    task = asyncio.ensure_future(answer_of(model))
    while not provider.requests:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await provider.wait_until_left(within=2.0)


@pytest.mark.parametrize(("also", "raised"), [(False, TimeoutError), (True, asyncio.CancelledError)])
async def test_who_is_cancelled_when_the_time_is_up_is_cancelled(also: bool, raised: type[BaseException]) -> None:
    loop = asyncio.get_running_loop()
    clock = Phases(Deadlines(connect=1e-9, first_byte=1e-9), Watch(loop), loop)

    async def wait() -> None:
        with clock:
            await loop.create_future()

    task = loop.create_task(wait())
    await asyncio.sleep(0)
    clock.ring()
    if also:
        task.cancel()
    with pytest.raises(raised):
        await task


# Closing


async def test_a_model_closes_its_own_client_and_opens_again(serve: Serve) -> None:
    provider = await serve(endless)
    model = tiny(provider.url)
    for _ in range(2):
        await answer_of(model)
        await model.close()
        await model.close()
    assert provider.connections == 2
    await provider.wait_until_left(2)


async def test_a_shared_client_outlives_a_model(serve: Serve, client: HttpClient) -> None:
    provider = await serve(endless)
    for _ in range(2):
        model = tiny(provider.url, client=client)
        await answer_of(model)
        await model.close()
    assert provider.connections == 1


async def test_a_stream_that_is_under_way_when_the_client_closes_breaks_off(serve: Serve) -> None:
    provider = await serve(lambda _: stalled(told("one", "two"), 11))
    model = tiny(provider.url, deadlines=Deadlines())
    stream = model.stream(asking())
    await anext(stream)
    await model.close()
    with pytest.raises(ModelError) as caught:
        await anext(stream)
    assert caught.value.kind == "cut"


def test_each_loop_has_its_own_connections() -> None:
    client = HttpClient()

    async def ask() -> None:
        async with Provider(endless) as provider:
            await answer_of(tiny(provider.url, client=client))
            await client.close()

    for _ in range(3):
        asyncio.run(ask())


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_loop_that_ended_without_a_close_is_forgotten() -> None:
    client = HttpClient()

    async def ask(*, closes: bool) -> None:
        async with Provider(endless) as provider:
            await answer_of(tiny(provider.url, client=client))
        if closes:
            assert len(client._lines) == 1  # pyright: ignore[reportPrivateUsage]
            await client.close()

    asyncio.run(ask(closes=False))
    asyncio.run(ask(closes=True))
    gc.collect()


# The Model port


async def test_it_keeps_the_contract_of_models(serve: Serve, client: HttpClient) -> None:
    def answer(request: Request) -> Response:
        return status(500, b"no") if request.body == b"fail" else Response(told(*request.body.decode()))

    provider = await serve(answer)
    report = await check_model(lambda: tiny(provider.url, client=client), [asking("abc"), asking("fail"), asking("d")])
    assert report.failed == {}


async def test_it_tells_its_traits() -> None:
    one = HttpModel("n", "m", TinyWire(continues=True), Account("http://a/", api_key="k1"), window=lambda: 5)
    assert isinstance(one, Connected)
    assert one.name == "n"
    assert (one.traits.provider, one.traits.continues, one.traits.window) == ("tiny", True, 5)

    def quota(model: str = "m", url: str = "http://a", key: str = "k1") -> str:
        return HttpModel("other", model, TinyWire(), Account(url, api_key=key)).traits.quota

    assert quota() == one.traits.quota
    assert len({quota(), quota(model="x"), quota(url="http://b"), quota(key="k2")}) == 4


async def test_the_cost_is_the_price_s() -> None:
    assert tiny("http://a").cost(Usage(1, 1)) is None
    assert tiny("http://a", price=lambda usage: usage.total * 0.5).cost(Usage(1, 1)) == 1.0


def with_image(load: Callable[[str], Awaitable[bytes]] | None) -> ModelRequest:
    image = Media("image", "d1", "image/png", 3)
    return ModelRequest("m", "look", Buffer[Message]().add(UserMessage((image,))), load=load)


async def test_artifacts_are_loaded(serve: Serve, client: HttpClient) -> None:
    async def load(digest: str) -> bytes:
        return b"png of " + digest.encode()

    provider = await serve(endless)
    await answer_of(tiny(provider.url, client=client), with_image(load))
    assert provider.requests[0].body == b"look|png of d1"


@pytest.mark.parametrize(
    ("raised", "kind"),
    [(NotFound("gone"), "invalid_request"), (KeyError("d1"), "invalid_request"), (StoreError("busy"), "server")],
)
async def test_a_missing_artifact_is_an_error_of_the_request(raised: Exception, kind: str, client: HttpClient) -> None:
    async def load(digest: str) -> bytes:
        raise raised

    assert (await failure_of(tiny("http://a", client=client), with_image(load))).kind == kind


async def test_nothing_to_load_with(client: HttpClient) -> None:
    assert (await failure_of(tiny("http://a", client=client), with_image(None))).kind == "invalid_request"


async def test_a_request_that_cannot_be_written(client: HttpClient) -> None:
    assert (await failure_of(tiny("http://a", client=client), asking("\ud800"))).kind == "invalid_request"


# Keys


def whole_story(error: BaseException) -> str:
    """All that a log of this error could show."""
    chain = [error, error.__cause__, error.__context__]
    return "".join(traceback.format_exception(error)) + repr([(e, e.args, vars(e)) for e in chain if e is not None])


@pytest.mark.parametrize(
    "response",
    [
        status(401, f'{{"error":"Incorrect API key provided: {CANARY}."}}'.encode()),
        status(401, b"Incorrect API key provided: sk-proj-********************6Mn7. You can find it"),
        status(401, f"Bearer {CANARY[:14]}... is wrong".encode()),
        status(401, f"key={CANARY[4:]}".encode()),
        Response(f"data: !{CANARY} is bad\n\n".encode()),
        refused(),
    ],
)
async def test_the_key_is_in_no_error(response: Response, serve: Serve, client: HttpClient) -> None:
    provider = await serve([response])
    url = provider.url.replace("http://", "http://user:pass-word@") if response.status == 200 else provider.url
    model = tiny(url, key=CANARY, client=client)
    story = whole_story(await failure_of(model)) + repr(model) + model.name + repr(model.traits)
    for length in (8, 4):
        pieces = [CANARY[at : at + length] for at in range(8, len(CANARY) - length + 1)]
        assert not [piece for piece in pieces if piece in story]
    assert "pass-word" not in story


def test_words_that_are_no_key_stay() -> None:
    account = Account("https://user:hunter2secret@host/v1", api_key="sk-1234567890abcdef")
    message = "The model `gpt-5-mini` does not exist; see https://platform.example.com/docs/models-overview for more."
    assert account.scrub(message) == message
    assert account.scrub("sk-other-1234567890 or AIzaSyA1234567890 or hunter2secret") == "[key] or [key] or [key]"
    assert account.scrub("tail 90abcdef") == "tail [key]"
    assert account.scrub("sk-1...def wait...what 1234...cdef") == "[key] wait...what [key]"
    assert Account("http://a", api_key="no").scrub("no, not now") == "[key], not now"
    assert "hunter2" not in repr(account)


def test_what_is_echoed_as_it_was_sent_is_hidden_too() -> None:
    account = Account("https://user:hunter%202secret@host/v1", api_key="k-1234567890abcdef")
    sent = b64encode(b"user:hunter 2secret").decode()
    assert account.scrub(f"Basic {sent} refused") == "Basic [key] refused"
    assert account.scrub("the password hunter 2secret is wrong") == "the password [key] is wrong"
    assert account.scrub(f"got {b64encode(b'k-1234567890abcdef').decode()}") == "got [key]"
    assert "sk-" not in repr(account)
    assert shown_url("https://u:p@host:8/v1/?key=x#y") == "https://host:8/v1"


@pytest.mark.parametrize("key", ["a\nb", "a\r\nX-Other: 1", "schlüssel-\u20ac", "tab\tbed", "nul\0"])
async def test_a_key_that_is_none_is_refused(key: str, client: HttpClient) -> None:
    error = await failure_of(tiny("http://127.0.0.1:1", key=key, client=client))
    assert error.kind == "auth"
    assert key not in whole_story(error)


async def test_keys_come_from_the_environment_when_a_request_leaves(
    serve: Serve, client: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = await serve(endless)
    account = Account("http://default", variables=("FIRST_KEY", "SECOND_KEY"), url_variable="TEST_URL")
    model = HttpModel("n", "m", TinyWire(), account, client=client)
    monkeypatch.delenv("FIRST_KEY", raising=False)
    monkeypatch.delenv("SECOND_KEY", raising=False)
    monkeypatch.setenv("TEST_URL", provider.url + "/")
    error = await failure_of(model)
    assert error.kind == "auth"
    assert "FIRST_KEY or SECOND_KEY" in str(error)
    monkeypatch.setenv("SECOND_KEY", "two\n")
    await answer_of(model)
    monkeypatch.setenv("FIRST_KEY", "one")
    await answer_of(model)
    assert [request.headers["authorization"] for request in provider.requests] == ["Bearer two", "Bearer one"]


# Proxies


@pytest.fixture
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return monkeypatch


async def test_the_environment_s_proxy_is_used(
    serve: Serve, client: HttpClient, no_proxies: pytest.MonkeyPatch
) -> None:
    proxy = await serve(endless)
    no_proxies.setenv("http_proxy", proxy.url.replace("http://", "http://me:word@"))
    assert isinstance(await answer_of(tiny("http://provider.invalid", client=client)), ModelResponse)
    assert proxy.requests[0].path == "http://provider.invalid/m"
    assert proxy.requests[0].headers["proxy-authorization"] == "Basic bWU6d29yZA=="


async def test_a_tunnel_has_its_own_password(serve: Serve, client: HttpClient, no_proxies: pytest.MonkeyPatch) -> None:
    proxy = await serve([status(407), status(407)])
    no_proxies.setenv("https_proxy", proxy.url.replace("http://", "http://me:word@"))
    error = await failure_of(tiny("https://provider.invalid", client=client))
    assert (error.kind, "407" in str(error)) == ("connect", True)
    (request,) = proxy.requests
    assert (request.method, request.path) == ("CONNECT", "provider.invalid:443")
    assert request.headers["proxy-authorization"] == "Basic bWU6d29yZA=="
    assert "authorization" not in request.headers
    assert request.headers["user-agent"] == "perdure"


@pytest.mark.parametrize("user", ["", "me:word@"])
async def test_a_connection_to_a_proxy_is_used_again(
    user: str, serve: Serve, client: HttpClient, no_proxies: pytest.MonkeyPatch
) -> None:
    proxy = await serve(endless)
    no_proxies.setenv("http_proxy", proxy.url.replace("http://", f"http://{user}"))
    for _ in range(3):
        await answer_of(tiny("http://provider.invalid", client=client))
    assert (len(proxy.requests), proxy.connections) == (3, 1)


async def test_some_hosts_are_reached_without_it(
    serve: Serve, client: HttpClient, no_proxies: pytest.MonkeyPatch
) -> None:
    provider, proxy = await serve(endless), await serve(endless)
    no_proxies.setenv("http_proxy", proxy.url)
    no_proxies.setenv("no_proxy", "provider.invalid")
    await answer_of(tiny(provider.url, client=client))
    error = await failure_of(tiny("http://provider.invalid", client=client))
    assert error.kind == "connect"
    assert proxy.requests == []


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_proxy_that_nobody_runs_is_told(
    scheme: str, client: HttpClient, no_proxies: pytest.MonkeyPatch
) -> None:
    no_proxies.setenv(f"{scheme}_proxy", refusing_url())
    error = await failure_of(tiny(f"{scheme}://provider.invalid", client=client))
    assert error.kind == "connect"
    assert str(error).startswith("Cannot connect to the proxy for provider.invalid: Connection refused;")


async def test_a_proxy_that_is_none_is_told(client: HttpClient, no_proxies: pytest.MonkeyPatch) -> None:
    no_proxies.setenv("all_proxy", "socks5://user:hunter2@localhost:1")
    error = await failure_of(tiny("http://provider.invalid", client=client))
    assert error.kind == "not_found"
    assert "HTTP_PROXY" in str(error)
    assert "hunter2" not in whole_story(error)


async def test_netrc_is_not_read(
    serve: Serve, client: HttpClient, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    netrc = f"{tmp_path}/netrc"
    with open(netrc, "w") as file:
        file.write("machine 127.0.0.1 login me password hunter2\n")
    monkeypatch.setenv("NETRC", netrc)
    provider = await serve(endless)
    model = HttpModel("n", "m", TinyWire(), Account(provider.url, needs_key=False), client=client)
    await answer_of(model)
    assert "authorization" not in provider.requests[0].headers


async def test_a_loop_s_connections_are_closed_by_its_own_last_user(serve: Serve) -> None:
    provider = await serve(endless)
    model = tiny(provider.url)
    model.prepare()
    await answer_of(model)

    async def use() -> None:
        model.prepare()
        await answer_of(model)
        await model.close()

    await asyncio.to_thread(asyncio.run, use())
    await provider.wait_until_left(1)
    await answer_of(model)
    assert provider.connections == 2, "this loop's connection is left as it was"
    await model.close()
    await provider.wait_until_left(2)


async def test_connections_are_closed_by_the_last_user_only(serve: Serve) -> None:
    provider = await serve(endless)
    model = tiny(provider.url)
    model.prepare()
    model.prepare()
    await answer_of(model)
    await model.close()
    await answer_of(model)
    assert provider.connections == 1, "another user is left"
    await model.close()
    await answer_of(model)
    assert provider.connections == 2
    await model.close()
