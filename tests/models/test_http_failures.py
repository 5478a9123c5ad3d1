"""Every way in which an exchange fails ends in its class of ModelError, in time, and in nothing else."""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from perdure.core.deltas import TextDelta
from perdure.core.errors import ModelError, UsageError
from perdure.models import http, http_request
from perdure.models.http import Deadlines, HttpClient, retry_after_of
from perdure.testing.network import no_network
from perdure.testing.provider import (
    Provider,
    Response,
    Script,
    bytewise,
    cut,
    encoded,
    garbage,
    gzip_bomb,
    redirect,
    refused,
    refusing_url,
    silent,
    stalled,
    status,
    unfinished,
)
from tests.models.http_tiny import SHORT, answer_of, asking, failure_of, tiny, told

Serve = Callable[[Script], Awaitable[Provider]]

STREAM = b"".join(told("one", "two"))
BIG = b"data: " + b"x" * 10 * 1024 * 1024 + b"\n\n"
HALF = encoded(told(*"abcdefghij")[0] * 9, "gzip").pieces

FAULTS = {
    "reset at once": (refused(), "connect"),
    "closed at once": (Response(head=False, then="close"), "connect"),
    "silent": (silent(), "first_byte"),
    "head and silence": (stalled(STREAM, 0), "first_byte"),
    "stall": (stalled(STREAM, 12), "idle"),
    "clean cut": (cut(STREAM, 12), "cut"),
    "reset": (cut(STREAM, 12, by="reset"), "cut"),
    "unfinished": (unfinished(STREAM, 12), "cut"),
    "unfinished without a byte": (unfinished(STREAM, 0), "connect"),
    "short of its length": (Response(STREAM, framing="length", after=5, then="close"), "cut"),
    "not HTTP": (garbage(), "cut"),
    "not a stream": (Response(b"<html>Sign in</html>"), "cut"),
    "empty": (Response(b""), "cut"),
    "error in the stream": (Response([told("one")[0], b"data: !broken\n\n"]), "in_band"),
    "not UTF-8": (Response(b"data: \xff\xfe\n\ndata: .\n\n"), "cut"),
    "line of 10 MB": (Response([BIG[at : at + 65536] for at in range(0, len(BIG), 65536)]), "cut"),
    "bomb": (gzip_bomb(), "cut"),
    "false gzip": (Response(STREAM, headers={"content-encoding": "gzip"}), "cut"),
    "half a gzip": (Response(HALF, headers={"content-encoding": "gzip"}, after=30), "cut"),
    "unknown encoding": (encoded(STREAM, "br"), "cut"),
    "redirect": (redirect("http://elsewhere.invalid/"), "not_found"),
    "server": (status(500, b"oops"), "server"),
    "limit": (status(429, b"slow"), "rate_limited"),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_has_its_class_and_the_next_request_works(fault: str, serve: Serve, client: HttpClient) -> None:
    response, kind = FAULTS[fault]
    provider = await serve([response, Response(told("fine"))])
    deadlines = SHORT if kind in ("first_byte", "idle") else Deadlines()
    started = time.monotonic()
    error = await failure_of(tiny(provider.url, client=client, deadlines=deadlines))
    assert error.kind == kind
    assert deadlines is not SHORT or time.monotonic() - started < 1.2
    assert str(error).endswith((".", "oops", "slow", "broken"))
    assert error.__context__ is None
    assert (await answer_of(tiny(provider.url, client=client))).parts[0].text == "fine"  # pyright: ignore[reportAttributeAccessIssue]


async def test_nobody_listens(client: HttpClient) -> None:
    error = await failure_of(tiny(refusing_url(), client=client))
    assert error.kind == "connect"
    assert "Connection refused; see that it is running, and that base_url is right." in str(error)


async def test_a_connection_that_is_never_made_has_a_deadline(client: HttpClient) -> None:
    with socket.socket() as full:
        # A queue of no length and one who waits in it: the next one is not even let in.
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        deadlines = Deadlines(connect=0.2, first_byte=3, idle=3, total=3)
        error = await failure_of(tiny(f"http://127.0.0.1:{full.getsockname()[1]}", client=client, deadlines=deadlines))
        for one in waiting:
            one.close()
    assert error.kind == "connect"
    assert "0.2 s" in str(error)


async def test_the_time_for_a_connection_is_not_rounded_up(
    serve: Serve, client: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, timers = asyncio.get_running_loop(), list[float]()
    call_at, began = loop.call_at, loop.time()

    def counted(when: float, *rest: object) -> asyncio.TimerHandle:
        timers.append(when)
        return call_at(when, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "call_at", counted)
    provider = await serve([Response(told("fine"))])
    await answer_of(tiny(provider.url, client=client, deadlines=Deadlines(connect=10.5, first_byte=60.0)))
    connecting = [when for when in timers if began + 10.5 <= when < began + 20.0]
    # Whole seconds would be what the client below makes of it.
    assert connecting
    assert all(when % 1 for when in connecting)


async def test_there_may_be_no_deadline_at_all(serve: Serve, client: HttpClient) -> None:
    provider = await serve([Response(told("fine"))])
    never = float("inf")
    deadlines = Deadlines(connect=never, first_byte=never, idle=never, total=never)
    assert await answer_of(tiny(provider.url, client=client, deadlines=deadlines))


@pytest.mark.parametrize("code", [errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.EPIPE])
async def test_the_system_s_own_errors_are_no_deadline_of_ours(
    code: int, serve: Serve, client: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(self: http_request.Request, connection: object) -> None:
        raise OSError(code, "told by the system")

    provider = await serve([])
    monkeypatch.setattr(http_request.Request, "send", fail)
    error = await failure_of(tiny(provider.url, client=client))
    assert error.kind == "connect"
    assert "was lost before the answer began" in str(error)


async def test_a_name_that_nobody_knows(client: HttpClient) -> None:
    deadlines = Deadlines(connect=5, first_byte=5)
    assert (await failure_of(tiny("http://nowhere.invalid", client=client, deadlines=deadlines))).kind == "connect"


@pytest.mark.parametrize("url", ["", "nonsense", "ftp://host", "http://", "http://[", "http://a:b:c", "\udc80"])
async def test_an_address_that_is_none(url: str, client: HttpClient) -> None:
    assert (await failure_of(tiny(url, client=client))).kind == "not_found"


async def test_a_plain_port_is_no_tls(serve: Serve, client: HttpClient) -> None:
    provider = await serve([])
    model = tiny(provider.url.replace("http", "https"), client=client, deadlines=SHORT)
    assert (await failure_of(model)).kind == "connect"


async def test_nobody_waits_behind_a_request_that_was_not_read(client: HttpClient) -> None:
    """A server that answers before it has read, and reads on never, without a word that it will close."""
    connections, is_over = 0, asyncio.Event()

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        for size in (10_000, 100):
            await reader.read(size)
            writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 3\r\n\r\nbig")
        await is_over.wait()
        writer.transport.abort()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def ask(size: int) -> bytes:
        exchange = await client.post(url, {}, b"x" * size, Deadlines(first_byte=5))
        return await exchange.read_error()

    assert await ask(1) == b"big"
    (line,) = client._lines.values()  # pyright: ignore[reportPrivateUsage]
    ((kept,),) = line._connector._conns.values()  # pyright: ignore[reportPrivateUsage]
    kept[0].transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    assert [await ask(http.LARGE_BODY), await ask(1)] == [b"big", b"big"]
    assert connections == 2
    is_over.set()
    server.close()


async def test_another_protocol_is_no_answer_and_its_connection_is_closed(serve: Serve, client: HttpClient) -> None:
    upgrade = b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
    provider = await serve([Response(upgrade, framing="close", head=False, then="stall"), Response(told("fine"))])
    exchange = await client.post(provider.url, {}, b"{}", Deadlines())
    assert exchange.status == 101
    exchange.close()
    await provider.wait_until_left()
    await answer_of(tiny(provider.url, client=client))


async def test_what_came_before_a_reset_is_told(serve: Serve, client: HttpClient) -> None:
    """Words and the reset may be read in one go; the words count nevertheless."""
    for response in (cut(STREAM, 11, by="reset"), unfinished(STREAM, 11)):
        provider = await serve([response])
        shown: list[object] = []
        with pytest.raises(ModelError, match="broke off"):
            async for item in tiny(provider.url, client=client).stream(asking()):
                shown.append(item)
        assert shown == [TextDelta("one")]


async def test_what_came_while_the_consumer_was_busy_is_told_before_the_cut(serve: Serve, client: HttpClient) -> None:
    pieces: list[bytes | float] = [told("one")[0], 0.1, told("two")[0]]
    for by in ("reset", "close"):
        provider = await serve([Response(pieces, then=by)])
        shown: list[object] = []
        with pytest.raises(ModelError, match="broke off"):
            async for item in tiny(provider.url, client=client).stream(asking()):
                shown.append(item)
                await provider.wait_until_left()
                await asyncio.sleep(0.05)
        assert shown == [TextDelta("one"), TextDelta("two")]


async def test_the_whole_answer_has_a_deadline_too(serve: Serve, client: HttpClient) -> None:
    drip: list[bytes | float] = [b": still here\n\n", 0.05] * 40
    provider = await serve([Response(drip), silent()])
    for kind in ("idle", "first_byte"):
        deadlines = Deadlines(connect=0.2, first_byte=0.6, idle=0.2, total=0.3)
        error = await failure_of(tiny(provider.url, client=client, deadlines=deadlines))
        assert error.kind == kind
        assert "0.3 s in total" in str(error)


async def test_any_byte_keeps_a_stream_alive(serve: Serve, client: HttpClient) -> None:
    drip: list[bytes | float] = [b": still here\n\n", 0.2] * 4
    provider = await serve([Response([*drip, *told("late")])])
    deadlines = Deadlines(first_byte=5, idle=0.6)
    assert (await answer_of(tiny(provider.url, client=client, deadlines=deadlines))).stop == "end"


async def test_a_slow_consumer_is_no_silence(serve: Serve, client: HttpClient) -> None:
    provider = await serve([Response(told("a", "b"))])
    deadlines = Deadlines(first_byte=5, idle=0.4, total=20)
    async for _ in tiny(provider.url, client=client, deadlines=deadlines).stream(asking()):
        await asyncio.sleep(0.45)


async def test_an_answer_has_a_size_limit(serve: Serve, client: HttpClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_ANSWER", 100_000)
    provider = await serve([Response([b":" * 10_000] * 11)])
    error = await failure_of(tiny(provider.url, client=client))
    assert (error.kind, "larger" in str(error)) == ("cut", True)


async def test_a_bomb_is_unpacked_in_small_pieces(serve: Serve, client: HttpClient) -> None:
    provider = await serve([gzip_bomb()])
    exchange = await client.post(provider.url, {}, b"", Deadlines())
    assert len(await exchange.read()) <= http.READ
    exchange.close()


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "raw"])
async def test_packed_answers_are_read_all_the_same(encoding: str, serve: Serve, client: HttpClient) -> None:
    import zlib

    body = b"".join(told(*["word" * 50] * 2000))
    packer = zlib.compressobj(9, wbits={"gzip": 31, "deflate": 15, "raw": -15}[encoding])
    packed = packer.compress(body) + packer.flush()
    pieces = [packed[at : at + 7] for at in range(0, len(packed), 7)]
    name = "gzip" if encoding == "gzip" else "deflate"
    provider = await serve([Response(pieces, headers={"content-encoding": name})])
    (text,) = (await answer_of(tiny(provider.url, client=client))).parts
    assert len(text.text) == 400_000  # pyright: ignore[reportAttributeAccessIssue]
    assert provider.requests[0].headers["accept-encoding"] == "identity"


@pytest.mark.parametrize(
    "response",
    [
        bytewise(b"".join(told("one", "two"))),
        Response(b"\xef\xbb\xbf" + STREAM.replace(b"\n", b"\r\n")),
        Response([STREAM, *told("three")]),
        Response(STREAM, framing="length"),
        Response(STREAM, framing="close"),
        Response(STREAM, headers={"content-encoding": "Identity"}),
    ],
)
async def test_oddities_do_no_harm(response: Response, serve: Serve, client: HttpClient) -> None:
    provider = await serve([response])
    (text,) = (await answer_of(tiny(provider.url, client=client))).parts
    assert text.text == "onetwo"  # pyright: ignore[reportAttributeAccessIssue]


async def test_a_server_that_does_not_end_its_answer_costs_a_second_at_most(serve: Serve, client: HttpClient) -> None:
    provider = await serve([Response(STREAM, then="stall"), Response(STREAM)])
    model = tiny(provider.url, client=client, deadlines=Deadlines())
    started = time.monotonic()
    assert (await answer_of(model)).stop == "end"
    assert 0.9 < time.monotonic() - started < 1.9
    await answer_of(model)
    assert provider.connections == 2


async def test_data_after_the_end_is_noted(serve: Serve, client: HttpClient) -> None:
    provider = await serve([Response([STREAM, 0.05, STREAM])])
    assert "more after the end" in (await answer_of(tiny(provider.url, client=client))).notes


async def test_a_redirect_is_not_followed(serve: Serve, client: HttpClient) -> None:
    other = await serve([Response(STREAM)])
    for code in (301, 302, 303, 307, 308):
        provider = await serve([redirect(other.url, code)])
        error = await failure_of(tiny(provider.url, client=client))
        assert "redirects" in str(error)
    assert other.requests == []


async def test_an_error_body_is_read_to_a_limit_and_may_be_missing(serve: Serve, client: HttpClient) -> None:
    provider = await serve(
        [
            Response(b"e" * 200_000, 500),
            Response(b"e" * 10, 500, after=4, then="stall"),
            Response(b"", 500, then="reset"),
        ]
    )
    lengths: list[int] = []
    for _ in range(3):
        exchange = await client.post(provider.url, {}, b"", Deadlines(idle=0.3))
        lengths.append(len(await exchange.read_error()))
        exchange.close()
    assert lengths == [http.MAX_ERROR, 4, 0]


async def test_an_error_that_never_ends_is_not_waited_for(serve: Serve, client: HttpClient) -> None:
    provider = await serve([Response(b"e" * 200_000, 500, then="stall")])
    async with asyncio.timeout(10):
        await failure_of(tiny(provider.url, client=client))


async def test_a_long_error_is_shortened(serve: Serve, client: HttpClient) -> None:
    provider = await serve([Response(b"e" * 200_000, 500)])
    assert len(str(await failure_of(tiny(provider.url, client=client)))) == 2000


async def test_no_network_has_its_say(client: HttpClient) -> None:
    with no_network():
        error = await failure_of(tiny("http://192.0.2.1", client=client))
    assert error.kind == "not_found"
    assert "no_network" in str(error)


async def test_the_header_says_when_to_come_again(serve: Serve, client: HttpClient) -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    headers = {"retry-after-ms": "1500", "retry-after": "9"}
    script = [status(429, retry_after=3), status(429, retry_after=soon), Response(b"", 429, headers), status(429)]
    provider = await serve(script)
    waits = [(await failure_of(tiny(provider.url, client=client))).retry_after for _ in script]
    assert [round(wait or 0) for wait in (waits[0], waits[1])] == [3, 30] or round(waits[1] or 0) == 29
    assert waits[2:] == [1.5, 7.0]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2", 2.0), ("0", 0.0), ("1.5", 1.5), ("-1", None), ("nan", None), ("inf", None), ("soon", None), ("", None),
     ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0), ("Wed, 99 Oct 2015", None)],
)  # fmt: skip
def test_only_times_count_as_times(text: str, seconds: float | None) -> None:
    assert retry_after_of({"retry-after": text}, time.time()) == seconds


@pytest.mark.parametrize("bad", [{"connect": 0}, {"idle": -1}, {"total": float("nan")}, {"first_byte": True}])
def test_deadlines_are_seconds(bad: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="Deadlines"):
        Deadlines(**bad)
