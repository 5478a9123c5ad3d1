"""Over TLS, as every provider is reached: requests arrive whole, and who is not trusted gets nothing."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from perdure.testing.provider import Response
from tests.models.conftest import Serve

SIZES = (20, 5_000, 200_000, 3_000_000)
"""In one piece, in several records of TLS, and as a file."""

ASK = """
import asyncio, json, sys
from perdure.core.errors import ModelError
from perdure.models.deadlines import Deadlines
from perdure.models.http import HttpClient

async def main(url, sizes):
    client, told = HttpClient(), []
    try:
        for size in sizes:
            exchange = await client.post(url, {"content-type": "text/plain"}, b"x" * size, Deadlines())
            body = b""
            while data := await exchange.read():
                body += data
            told.append(len(body))
    except ModelError as error:
        told.append(f"{error.kind}: {error}")
    await client.close()
    print(json.dumps(told))

asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
"""


Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def join(one: Ends, other: Ends) -> None:
    """What comes from the one goes to the other, until one of them is left."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    both = [asyncio.ensure_future(copy(one[0], other[1])), asyncio.ensure_future(copy(other[0], one[1]))]
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    for _, end in (one, other):
        end.close()
    await asyncio.gather(*both, return_exceptions=True)


@asynccontextmanager
async def in_front_of(address: str, context: ssl.SSLContext) -> AsyncIterator[str]:
    """A TLS server that hands everything on to a plain one."""
    host, _, port = address.removeprefix("http://").partition(":")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await join((reader, writer), await asyncio.open_connection(host, int(port)))

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    async with server:
        yield f"https://localhost:{server.sockets[0].getsockname()[1]}"


@asynccontextmanager
async def proxy_to(address: str, heads: list[bytes]) -> AsyncIterator[str]:
    """A proxy whose every tunnel leads to one server, wherever it was to lead."""
    host, _, port = address.removeprefix("https://").partition(":")

    async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await join((reader, writer), await asyncio.open_connection(host, int(port)))

    server = await asyncio.start_server(tunnel, "127.0.0.1", 0)
    async with server:
        yield f"http://me:word@127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def ask(url: str, trusted: Path, **environment: str) -> list[Any]:
    """From a process of its own, because the certificates that are trusted are read when aiohttp is imported."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", ASK, f"{url}/m", json.dumps(SIZES)),
        env={**os.environ, "SSL_CERT_FILE": str(trusted), **environment},
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await process.communicate()
    return json.loads(said)


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.mark.parametrize("is_trusted", [True, False])
async def test_requests_arrive_whole_at_who_is_trusted(
    is_trusted: bool, authority: trustme.CA, serve: Serve, tmp_path: Path
) -> None:
    provider = await serve(lambda request: Response(b"y" * len(request.body)))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    trusted = authority if is_trusted else trustme.CA()
    trusted.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    async with in_front_of(provider.url, context) as url:
        told = await ask(url, tmp_path / "ca.pem")
    assert [len(request.body) for request in provider.requests] == (list(SIZES) if is_trusted else [])
    if is_trusted:
        assert told == list(SIZES)
    else:
        assert told == [
            f"connect: The certificate of {url.removeprefix('https://')} is not trusted (unable to get local issuer"
            " certificate); name the one to trust in SSL_CERT_FILE."
        ]


async def test_a_tunnel_through_a_proxy_is_used_for_many_requests(
    authority: trustme.CA, serve: Serve, tmp_path: Path
) -> None:
    provider = await serve(lambda request: Response(b"y" * len(request.body)))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("provider.test").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    heads: list[bytes] = []
    async with in_front_of(provider.url, context) as url, proxy_to(url, heads) as proxy:
        told = await ask("https://provider.test", tmp_path / "ca.pem", https_proxy=proxy, no_proxy="")
    assert told == list(SIZES)
    (head,) = heads
    assert head.startswith(b"CONNECT provider.test:443 HTTP/1.1\r\n")
    assert b"Basic bWU6d29yZA==" in head
    assert not any("proxy-authorization" in request.headers for request in provider.requests)
