"""CPU per model round and per streamed chunk over loopback HTTP, from socket to consumer; the server's not counted.

Run: .venv/bin/python -m benchmarks.rounds
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.http_clients import READ, dechunk
from benchmarks.turns import work
from perdure import Agent, Limits, Runtime, TextDelta, models
from perdure.core.deltas import ModelDelta
from perdure.ports import Model, ModelRequest, ModelResponse

CHUNKS = 20_000
ROUNDS = 420
MARKS = (10, 400)
SPAN = 20
"""A figure for turn 400 is the mean of the rounds from 400 to 420."""


def event(**choice: object) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, **choice}]}).encode() + b"\n\n"


USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":100,"completion_tokens":10}}\n\ndata: [DONE]\n\n'
FUNCTION = {"name": "work", "arguments": '{"text":"some words and %07d"}'}
CALL = {"index": 0, "id": "call_1", "type": "function", "function": FUNCTION}
CALLING = event(delta={"role": "assistant", "tool_calls": [CALL]}) + event(delta={}, finish_reason="tool_calls") + USAGE
WORDS = event(delta={"content": "x" * 39})
assert len(WORDS) == 100, len(WORDS)


async def serve() -> None:
    """Answers like Chat Completions: /calls asks for a tool in every round, /words says much."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    many = WORDS * 500
    numbers = count()
    end = event(delta={}, finish_reason="stop") + USAGE

    def chunk(data: bytes) -> bytes:
        return b"%x\r\n%s\r\n" % (len(data), data)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                request = await reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError):
                break
            size = next(
                int(line[15:]) for line in request.lower().split(b"\r\n") if line.startswith(b"content-length:")
            )
            await reader.readexactly(size)
            path = request.split(b" ", 2)[1]
            if path.startswith(b"/words"):
                writer.write(head)
                for _ in range(CHUNKS // 500):
                    writer.write(chunk(many))
                    await writer.drain()
                writer.write(chunk(end) + b"0\r\n\r\n")
            else:
                # Each call differs, or the runtime would see a model that goes round in circles.
                writer.write(head + chunk(CALLING % next(numbers)) + b"0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=500, limit=1 << 24)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@asynccontextmanager
async def serving() -> AsyncIterator[int]:
    command = (sys.executable, "-m", "benchmarks.rounds", "--serve")
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield int(await process.stdout.readline())
    finally:
        process.kill()
        await process.wait()


def asking(port: int, path: str) -> Model:
    return models.openai_compatible("bench", base_url=f"http://127.0.0.1:{port}/{path}", price=(1, 1))


class Marked:
    """A model that writes down when it is asked; middleware would cost what others do not pay."""

    def __init__(self, model: Model, marks: list[float]) -> None:
        self.name, self.cost, self._model, self._marks = model.name, model.cost, model, marks

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta | ModelResponse]:
        self._marks.append(time.process_time())
        return self._model.stream(request)


async def rounds(url: str, port: int) -> tuple[float, ...]:
    """CPU seconds a round, at each of the marked turns of one run."""
    model = asking(port, "calls")
    marks: list[float] = []
    warm = Agent(name="warm", model=asking(port, "calls"), tools=[work], limits=Limits(turns=50))
    agent = Agent(name="bench", model=Marked(model, marks), tools=[work], limits=Limits(turns=ROUNDS + 1))
    async with Runtime(url, agents=[warm, agent]) as runtime:
        await (await runtime.open(warm)).run("warm up")
        result = await (await runtime.open(agent)).run("go")
        assert result.detail == "turns", result
    await model.close()  # type: ignore[attr-defined]
    return tuple((marks[at + SPAN] - marks[at]) / SPAN for at in MARKS)


async def rounds_by_hand(port: int) -> tuple[float, ...]:
    """The same rounds by the shortest code that does them: no log, no checks, no second session."""
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    history = [b'{"role":"user","content":"go"}']
    marks: list[float] = []
    for _ in range(ROUNDS + 1):
        marks.append(time.process_time())
        body = b'{"model":"bench","stream":true,"messages":[' + b",".join(history) + b"]}"
        head = b"POST /calls HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
        writer.write(head + body)
        await reader.readuntil(b"\r\n\r\n")
        answer = await reader.readexactly(int(await reader.readline(), 16) + len(b"\r\n0\r\n\r\n"))
        first = decode(answer.split(b"\n\n", 1)[0][6:])
        (called,) = first["choices"][0]["delta"]["tool_calls"]
        result = await work(**json.loads(called["function"]["arguments"]))
        history.append(msgspec.json.encode({"role": "assistant", "tool_calls": [called]}))
        history.append(msgspec.json.encode({"role": "tool", "tool_call_id": called["id"], "content": result}))
    writer.close()
    return tuple((marks[at + SPAN] - marks[at]) / SPAN for at in MARKS)


async def crowd(url: str, port: int, sessions: int, turns: int) -> float:
    """Rounds per CPU second with so many sessions at once."""
    agent = Agent(name="bench", model=asking(port, "calls"), tools=[work], limits=Limits(turns=turns))
    async with Runtime(url, agents=[agent]) as runtime:
        opened = [await runtime.open(agent) for _ in range(sessions)]
        await asyncio.gather(*(session.run("warm up", limits=Limits(turns=2)) for session in opened))
        started = time.process_time()
        results = await asyncio.gather(*(session.run("go") for session in opened))
        spent = time.process_time() - started
        assert all(result.detail == "turns" for result in results)
    return sessions * turns / spent


async def chunks(port: int) -> float:
    """CPU seconds a chunk of 100 bytes, from the socket to whoever streams the run."""
    agent = Agent(name="bench", model=asking(port, "words"))
    async with Runtime("memory:", agents=[agent]) as runtime:
        session = await runtime.open(agent)
        run = await session.start("warm up")
        await run
        started = time.process_time()
        run = await session.start("go")
        seen = 0
        async for item in run.stream():
            if isinstance(item, TextDelta):
                seen += 1
        spent = time.process_time() - started
        assert seen == CHUNKS, seen
    return spent / CHUNKS


class Delta(msgspec.Struct):
    content: str = ""


class Choice(msgspec.Struct):
    delta: Delta


class Chunk(msgspec.Struct):
    choices: list[Choice]


async def chunks_by_hand(port: int) -> float:
    """The same stream read, split, decoded and joined by the shortest code that does it."""
    decode = msgspec.json.Decoder(Chunk).decode
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    spent = 0.0
    for _ in range(2):
        started = time.process_time()
        writer.write(b"POST /words HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}")
        await reader.readuntil(b"\r\n\r\n")
        rest, left, words = bytearray(), b"", list[str]()
        is_over = False
        while not is_over:
            rest += await reader.read(READ)
            for chunk in dechunk(rest):
                is_over = is_over or not chunk
                *events, left = (left + chunk).split(b"\n\n")
                for data in events:
                    if data != b"data: [DONE]" and (choices := decode(data[6:]).choices):
                        words.append(choices[0].delta.content)
        assert len("".join(words)) == CHUNKS * 39
        spent = time.process_time() - started
    writer.close()
    return spent / CHUNKS


async def best(measure: Callable[[], Awaitable[float]], times: int = 5) -> float:
    return min([await measure() for _ in range(times)])


async def main() -> None:
    folder = Path(tempfile.mkdtemp(dir=os.environ.get("PERDURE_BENCH_DIR")))
    fresh = (f"sqlite:{folder}/{number}.db" for number in range(1000))
    async with serving() as port:
        floor = await best(lambda: chunks_by_hand(port))
        chunk = await best(lambda: chunks(port))
        print(f"a chunk by hand     {floor * 1e6:7.2f} µs CPU")
        print(
            f"a chunk             {chunk * 1e6:7.2f} µs CPU to the consumer ({chunk / floor:.1f} x; limit 12 µs, 5 x)"
        )
        by_hand = [await rounds_by_hand(port) for _ in range(5)]
        early, late = (min(figures) for figures in zip(*by_hand, strict=True))
        print(f"a round by hand        turn 10: {early * 1e3:.3f}, turn 400: {late * 1e3:.3f} ms CPU")
        for name, make, limit in (("memory", lambda: "memory:", 0.45), ("sqlite, alone", lambda: next(fresh), 1.1)):
            runs = [await rounds(make(), port) for _ in range(5)]
            early, late = (min(figures) for figures in zip(*runs, strict=True))
            print(f"a round, {name:13} turn 10: {early * 1e3:.3f}, turn 400: {late * 1e3:.3f} ms CPU (limit {limit})")
        many = max([await crowd(next(fresh), port, 200, 10) for _ in range(5)])
        print(f"sqlite, 200 at once {many:7.0f} rounds per CPU second (limit 2,000)")


if __name__ == "__main__":
    asyncio.run(serve() if "--serve" in sys.argv else main())
