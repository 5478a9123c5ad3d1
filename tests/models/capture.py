"""A loopback server that keeps what a client sends and answers with recorded bytes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec

from perdure.core.messages import JSON


class Captured(msgspec.Struct):
    url: str
    path: str = ""
    headers: dict[str, str] = {}
    body: JSON = None


@asynccontextmanager
async def capturing(answer: bytes) -> AsyncGenerator[Captured]:
    """Serves on a free port; `url` says where, the rest is the last request."""
    captured = Captured("")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        captured.path = head[0].split(" ")[1]
        captured.headers = {
            name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)
        }
        captured.body = json.loads(await reader.readexactly(int(captured.headers["content-length"])))
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n"
            + f"content-length: {len(answer)}\r\n\r\n".encode()
            + answer
        )
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        captured.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield captured
