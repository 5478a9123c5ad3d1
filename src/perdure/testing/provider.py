"""Provider: a model provider's server on the loopback that answers as it is told, faults included. Real sockets.

async with Provider([silent(), status(429, retry_after=1), Response(stream)]) as provider:
    model = models.openai("m", base_url=provider.url, api_key="k")
"""

from __future__ import annotations

import asyncio
import gzip
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal, TypeAlias

import msgspec

Piece: TypeAlias = bytes | float
"""What is sent in one write; a number is a pause in seconds."""

Framing = Literal["chunked", "length", "close"]
Then = Literal["end", "stall", "close", "reset"]
REASONS = {200: "OK", 307: "Temporary Redirect", 400: "Bad Request", 429: "Too Many Requests", 500: "Server Error"}


class Request(msgspec.Struct, frozen=True):
    """What a client sent; the names of headers are in small letters."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Response(msgspec.Struct, frozen=True):
    """One answer. Of the body, the first `after` bytes are sent, and `then` comes; without `head` not even a status.

    With framing "chunked" each piece is an HTTP chunk; with "close" the end of the connection is the end of the body.
    """

    pieces: Sequence[Piece] | bytes = b""
    status: int = 200
    headers: dict[str, str] = {}
    framing: Framing = "chunked"
    after: int | None = None
    then: Then = "end"
    head: bool = True


Script: TypeAlias = Sequence[Response] | Callable[[Request], Response]


def refused() -> Response:
    """The connection is reset before anything was said; for a port where nobody listens see `refusing_url`."""
    return Response(head=False, then="reset")


def silent() -> Response:
    """The request is heard and never answered."""
    return Response(head=False, then="stall")


def status(code: int, body: bytes = b"", *, retry_after: float | str | None = None) -> Response:
    headers = {"content-type": "application/json"}
    if retry_after is not None:
        headers["retry-after"] = str(retry_after)
    return Response(body, code, headers, "length")


def stalled(pieces: Sequence[Piece] | bytes, after: int) -> Response:
    """So many bytes of the body, and then silence."""
    return Response(pieces, after=after, then="stall")


def cut(pieces: Sequence[Piece] | bytes, after: int, *, by: Literal["close", "reset"] = "close") -> Response:
    """So many bytes of the body, and then a clean end of the connection that looks like the body's, or a reset."""
    return Response(pieces, framing="close", after=after, then=by)


def unfinished(pieces: Sequence[Piece] | bytes, after: int) -> Response:
    """A chunked body whose last chunk never comes."""
    return Response(pieces, after=after, then="close")


def garbage(data: bytes = b"\x00\x16\x03 this is not HTTP\r\n\r\n") -> Response:
    return Response(data, framing="close", head=False)


def bytewise(body: bytes) -> Response:
    """Every byte in a chunk of its own."""
    return Response([body[at : at + 1] for at in range(len(body))])


def encoded(body: bytes, encoding: str) -> Response:
    """The body under a Content-Encoding, packed if that is gzip and as it is otherwise."""
    packed = gzip.compress(body) if encoding == "gzip" else body
    return Response(packed, headers={"content-encoding": encoding}, framing="length")


def gzip_bomb(megabytes: int = 100) -> Response:
    """A thousandth of what it unpacks to, in comments that a reader of events would skip."""
    return encoded(b":" * 1023 * 1024 * megabytes + b"\n\n", "gzip")


def redirect(url: str, code: int = 307) -> Response:
    return Response(status=code, headers={"location": url}, framing="length")


def refusing_url() -> str:
    """An address on this machine where nobody listens."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{unused.getsockname()[1]}"


class Provider:
    """Answers the n-th request with the n-th response, or as a function of the request; keeps what it was asked."""

    def __init__(self, script: Script = ()) -> None:
        self.script = script
        self.requests: list[Request] = []
        self.connections = 0
        self._ended = 0
        self._someone_left = asyncio.Condition()
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Provider:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=1024)
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    @property
    def url(self) -> str:
        if self._server is None:
            raise RuntimeError("The provider is not open; use `async with Provider(…) as provider:`.")
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def wait_until_left(self, connections: int = 1, *, within: float = 5.0) -> None:
        """Until so many connections have ended; TimeoutError if they do not."""
        async with asyncio.timeout(within), self._someone_left:
            await self._someone_left.wait_for(lambda: self._ended >= connections)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        self.connections += 1
        # Draining then means that all has left.
        writer.transport.set_write_buffer_limits(0)
        try:
            # The client may leave at any moment, which is no fault of the server's.
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while await self._answer(reader, writer):
                    pass
        finally:
            writer.transport.abort()
            self._serving.discard(task)
            async with self._someone_left:
                self._ended += 1
                self._someone_left.notify_all()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection may be used again."""
        request = await _read_request(reader)
        self.requests.append(request)
        response = self._response_to(request)
        if response.head:
            writer.write(_head_of(response))
        await _send_body(response, writer)
        match response.then:
            case "end":
                await writer.drain()
                return response.head and response.framing != "close"
            case "stall":
                await writer.drain()
                await reader.read()
            case "close":
                await writer.drain()
                writer.write_eof()
            case "reset":
                await writer.drain()
                linger = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        return False

    def _response_to(self, request: Request) -> Response:
        if callable(self.script):
            return self.script(request)
        asked = len(self.requests)
        if asked > len(self.script):
            return status(500, b'{"error":{"message":"The script of this provider has no response left."}}')
        return self.script[asked - 1]


async def _read_request(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.rstrip("\r\n").split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if headers.get("transfer-encoding") == "chunked":
        body = b""
        while size := int(await reader.readline(), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readline()
    else:
        body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Request(method, path, headers, body)


def _head_of(response: Response) -> bytes:
    headers = {"content-type": "text/event-stream"} | response.headers
    match response.framing:
        case "chunked":
            headers["transfer-encoding"] = "chunked"
        case "length":
            headers["content-length"] = str(sum(len(piece) for piece in _bytes_of(response)))
        case "close":
            headers["connection"] = "close"
    lines = [f"HTTP/1.1 {response.status} {REASONS.get(response.status, 'Status')}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _bytes_of(response: Response) -> list[bytes]:
    return [piece for piece in _pieces_of(response) if isinstance(piece, bytes)]


def _pieces_of(response: Response) -> Sequence[Piece]:
    return [response.pieces] if isinstance(response.pieces, bytes) else response.pieces


async def _send_body(response: Response, writer: asyncio.StreamWriter) -> None:
    is_chunked = response.framing == "chunked" and response.head
    left = response.after
    for piece in _pieces_of(response):
        if not isinstance(piece, bytes):
            await asyncio.sleep(piece)
            continue
        part = piece if left is None else piece[:left]
        left = None if left is None else left - len(part)
        if part:
            writer.write(b"%x\r\n%s\r\n" % (len(part), part) if is_chunked else part)
            await writer.drain()
        if left == 0:
            break
    if is_chunked and response.then == "end":
        writer.write(b"0\r\n\r\n")
