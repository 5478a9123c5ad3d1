"""CPU of aiohttp and httpx2 per request and per streamed event, beside a hand-written reader; the server's not counted.

Run: .venv/bin/python -m benchmarks.http_clients
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import aiohttp
import httpx2

EVENT = b"data: " + b"x" * 92 + b"\n\n"
EVENTS = 20_000
PER_WRITE = 200
ANSWER = b'{"answer":"' + b"x" * 500 + b'"}'
QUESTION = b'{"question":"' + b"x" * 2000 + b'"}'
READ = 64 * 1024

Ask = Callable[[str], Awaitable[int]]
"""Sends one request to a path and gives the number of events, or of bytes, in what came back."""
OpenClient = Callable[[int], AbstractAsyncContextManager[Ask]]


async def serve() -> None:
    """Any number of requests per connection; /stream sends events, /single each of them in an HTTP chunk of its own."""
    single = b"%x\r\n%s\r\n" % (len(EVENT), EVENT) * PER_WRITE
    joined = b"%x\r\n%s\r\n" % (len(EVENT) * PER_WRITE, EVENT * PER_WRITE)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                request = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                break
            await reader.readexactly(len(QUESTION))
            path = request.split(b" ", 2)[1]
            if path == b"/short":
                writer.write(head + b"content-length: %d\r\n\r\n%s" % (len(ANSWER), ANSWER))
            else:
                writer.write(head + b"transfer-encoding: chunked\r\n\r\n")
                for _ in range(EVENTS // PER_WRITE):
                    writer.write(single if path == b"/single" else joined)
                    await writer.drain()
                writer.write(b"0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=500)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@asynccontextmanager
async def serving() -> AsyncIterator[int]:
    command = (sys.executable, "-m", "benchmarks.http_clients", "--serve")
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield int(await process.stdout.readline())
    finally:
        process.kill()
        await process.wait()


@asynccontextmanager
async def with_aiohttp(port: int) -> AsyncIterator[Ask]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:

        async def ask(path: str) -> int:
            async with session.post(f"http://127.0.0.1:{port}{path}", data=QUESTION) as response:
                if path == "/short":
                    return len(await response.read())
                events, read = 0, response.content.readany
                while data := await read():
                    events += data.count(b"\n\n")
                return events

        yield ask


@asynccontextmanager
async def with_httpx2(port: int) -> AsyncIterator[Ask]:
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx2.AsyncClient(limits=limits, trust_env=False, timeout=60) as client:

        async def ask(path: str) -> int:
            async with client.stream("POST", f"http://127.0.0.1:{port}{path}", content=QUESTION) as response:
                if path == "/short":
                    return len(await response.aread())
                events = 0
                async for data in response.aiter_raw():
                    events += data.count(b"\n\n")
                return events

        yield ask


def dechunk(rest: bytearray) -> Iterator[bytes]:
    """The whole HTTP chunks at the beginning of `rest`, which keeps what is left."""
    start = 0
    while (line := rest.find(b"\r\n", start)) >= 0:
        end = line + 2 + int(rest[start:line], 16)
        if len(rest) < end + 2:
            break
        yield bytes(rest[line + 2 : end])
        start = end + 2
    del rest[:start]


@asynccontextmanager
async def by_hand(port: int) -> AsyncIterator[Ask]:
    idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(path: str) -> int:
        reader, writer = idle.pop() if idle else await asyncio.open_connection("127.0.0.1", port)
        head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(QUESTION)}\r\n\r\n"
        writer.write(head.encode() + QUESTION)
        await reader.readuntil(b"\r\n\r\n")
        count = len(await reader.readexactly(len(ANSWER))) if path == "/short" else await count_events(reader)
        idle.append((reader, writer))
        return count

    yield ask
    for _, writer in idle:
        writer.close()
        await writer.wait_closed()


async def count_events(reader: asyncio.StreamReader) -> int:
    rest, events = bytearray(), 0
    while True:
        rest += await reader.read(READ)
        for chunk in dechunk(rest):
            if not chunk:
                return events
            events += chunk.count(b"\n\n")


async def cpu_per_request(ask: Ask, connections: int, requests: int) -> float:
    """Seconds a request, warm, with so many connections at once."""

    async def repeat(times: int) -> None:
        for _ in range(times):
            assert await ask("/short") == len(ANSWER)

    await asyncio.gather(*(repeat(2) for _ in range(connections)))
    started = time.process_time()
    await asyncio.gather(*(repeat(requests // connections) for _ in range(connections)))
    return (time.process_time() - started) / requests


async def cpu_per_event(ask: Ask, path: str) -> float:
    started = time.process_time()
    assert await ask(path) == EVENTS
    return (time.process_time() - started) / EVENTS


async def measure(open_client: OpenClient, port: int) -> list[float]:
    """Milliseconds a request at 1 and 200 connections, microseconds an event; the middle of three new clients."""
    rounds: list[tuple[float, ...]] = []
    for _ in range(3):
        async with open_client(port) as ask:
            alone = await cpu_per_request(ask, 1, 1000) * 1e3
            events = [await cpu_per_event(ask, path) * 1e6 for path in ("/single", "/stream")]
            rounds.append((alone, await cpu_per_request(ask, 200, 4000) * 1e3, *events))
    return [sorted(values)[1] for values in zip(*rounds, strict=True)]


async def main() -> None:
    figures: dict[str, list[float]] = {}
    async with serving() as port:
        for name, open_client in (("by hand", by_hand), ("aiohttp", with_aiohttp), ("httpx2", with_httpx2)):
            figures[name] = await measure(open_client, port)
    print(f"HTTP client, CPU {'by hand':>13} {'aiohttp':>16} {'httpx2':>16}")
    rows = ("request, 1 connection", "request, 200 at once", "event, in its own chunk", "event, many a chunk")
    for at, row in enumerate(rows):
        unit, floor = ("ms" if at < 2 else "us"), figures["by hand"][at]
        cells = [f"{values[at]:7.3f} {unit} {values[at] / floor:4.1f}x" for values in figures.values()]
        print(f"{row:23} {'  '.join(cells)}")


if __name__ == "__main__":
    asyncio.run(serve() if "--serve" in sys.argv else main())
