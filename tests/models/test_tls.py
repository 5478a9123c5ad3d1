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


@asynccontextmanager
async def in_front_of(address: str, context: ssl.SSLContext) -> AsyncIterator[str]:
    """A TLS server that hands everything on to a plain one."""
    host, _, port = address.removeprefix("http://").partition(":")

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner, outer = await asyncio.open_connection(host, int(port))
        both = [asyncio.ensure_future(copy(reader, outer)), asyncio.ensure_future(copy(inner, writer))]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for end in (outer, writer):
            end.close()
        await asyncio.gather(*both, return_exceptions=True)

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    async with server:
        yield f"https://localhost:{server.sockets[0].getsockname()[1]}"


async def ask(url: str, trusted: Path) -> list[Any]:
    """From a process of its own, because the certificates that are trusted are read when aiohttp is imported."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", ASK, f"{url}/m", json.dumps(SIZES)),
        env={**os.environ, "SSL_CERT_FILE": str(trusted)},
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
