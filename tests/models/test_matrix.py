"""The provider failure matrix: every fault, on every wire format, in the first turn, in a tool turn and after a resume.

Each cell has one defined outcome. In none of them does a tool run from half an answer, a key appear in the log, or
the log break a law.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import pytest

from perdure import Agent, ModelError, RunResult, Runtime, Session, models, tool
from perdure.core.codec import encode_event
from perdure.core.messages import JSON, Text, ToolCall, Usage, UserMessage
from perdure.core.transcript import unpaired
from perdure.events import CallEnded, CallStarted, ModelResponded, Noted
from perdure.models.deadlines import Deadlines
from perdure.ports import Model, ModelRequest, ModelResponse
from perdure.stores.memory import MemoryStore
from perdure.testing import ManualClock
from perdure.testing.provider import (
    Provider,
    Response,
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
from perdure.testing.provider_streams import (
    FORMATS,
    Format,
    error_body,
    error_event,
    events_of,
    stream_of,
    too_long_body,
)
from tests.runtime.scenes import check_log, crashing, events, turned

KEY = "sk-canary-4711-do-not-show"
USAGE = Usage(input=50, output=7)
SOON = 0.25
"""A deadline that a test waits for; all others are far away."""

one_bomb = cache(gzip_bomb)
"""The same for all: packing it takes longer than all else in its tests."""

Situation = Literal["first turn", "tool turn", "after a resume"]
SITUATIONS: tuple[Situation, ...] = ("first turn", "tool turn", "after a resume")

GOOD = ModelResponse((Text("All is well."),), "end", USAGE)
LOOK = ModelResponse((ToolCall(0, "look", '{"what":"first"}', "id_1"),), "calls", USAGE)
TEXT = ModelResponse((Text("A rather long answer in many pieces."),), "end", USAGE)
CALLS = ModelResponse((Text("I pay."), ToolCall(0, "pay", '{"cents":990,"to":"somebody"}', "id_2")), "calls", USAGE)


@dataclass(frozen=True)
class Row:
    """A fault: what the provider sends until it is well again, and what has to come of it."""

    faults: Callable[[Format], Sequence[Response]]
    reason: str = "completed"
    kind: str = ""
    attempts: tuple[str, ...] = ()
    """The kinds of the attempts that the log notes."""
    deadlines: Deadlines = field(default_factory=lambda: Deadlines(first_byte=30, idle=30, total=60))
    look: Callable[[RunResult[Any], list[Any], Provider], None] | None = None
    formats: tuple[Format, ...] = FORMATS


def answer(format: Format, response: ModelResponse, *events: bytes) -> Response:
    return Response(stream_of(format, response, chunk=8) + b"".join(events))


def before_the_end(format: Format, response: ModelResponse) -> list[bytes]:
    """The events of a stream without those that say that it is complete."""
    return events_of(format, response)[: {"openai": -3, "openai-responses": -1, "anthropic": -2, "google": -1}[format]]


def half_call(format: Format) -> bytes:
    """A stream that has begun to write the arguments of a call. Gemini's come whole, so there it has only words."""
    told = before_the_end(format, CALLS)
    if format == "google":
        return told[0]
    marks = [at for at, event in enumerate(told) if b"990" in event or b"cents" in event]
    return b"".join(told[: marks[0] + 1])


def failing(code: int, times: int = 1, **options: Any) -> Callable[[Format], Sequence[Response]]:
    return lambda format: [status(code, error_body(format, code), **options)] * times


def waited(least: float) -> Callable[[RunResult[Any], list[Any], Provider], None]:
    def look(_: RunResult[Any], log: list[Any], __: Provider) -> None:
        waits = [event.data["wait"] for event in log if isinstance(event, Noted) and event.kind == "model_attempt"]
        assert least <= waits[0] <= 60
        assert sum(isinstance(event, ModelResponded) and bool(event.message.text) for event in log) == 1

    return look


def told(text: str) -> Callable[[RunResult[Any], list[Any], Provider], None]:
    """The model was told this about its call, in a result."""

    def look(_: RunResult[Any], log: list[Any], provider: Provider) -> None:
        assert any(isinstance(e, CallEnded) and e.outcome == "error" and text in e.parts[0].text for e in log), log
        assert text in json.dumps(json.loads(provider.requests[-1].body), ensure_ascii=False)

    return look


def estimated(result: RunResult[Any], log: list[Any], _: Provider) -> None:
    assert result.usage.estimated
    assert 0 < result.usage.total < 10_000


def noted(result: RunResult[Any], log: list[Any], _: Provider) -> None:
    assert any(isinstance(event, Noted) and event.kind == "model_notes" for event in log), "what was odd is in the log"


def lost(result: RunResult[Any], log: list[Any], provider: Provider) -> None:
    """A connection of an earlier turn may be closed for any reason; then one more is tried without a word."""
    kinds = [event.data["kind"] for event in log if isinstance(event, Noted) and event.kind == "model_attempt"]
    has_earlier = provider.requests[0].body != provider.requests[1].body
    assert kinds == ([] if has_earlier else ["connect"])


def paired(result: RunResult[Any], log: list[Any], provider: Provider) -> None:
    """Both calls ran, once each, and their ids on the wire are different."""
    ended = [event.call for event in log if isinstance(event, CallEnded)]
    assert len(ended) == len(set(ended)) >= 2
    sent = provider.requests[-1].body.decode()
    last = ended[-2:]
    assert all(sent.count(f"c{call:08d}") == 2 for call in last), "one call and one result of each id"


def with_usage(format: Format, usage: Usage | None) -> list[Response]:
    stream = stream_of(format, ModelResponse(GOOD.parts, "end", usage))
    if usage is None and format == "anthropic":
        return [Response(b"".join(_without_usage(event) for event in events_of(format, GOOD)))]
    return [Response(stream)]


def _without_usage(event: bytes) -> bytes:
    """Anthropic's stream says nothing of its usage."""
    name, data = event.strip().split(b"\n")
    fields: dict[str, JSON] = json.loads(data[6:])
    fields.pop("usage", None)
    fields.get("message", {}).pop("usage", None)
    return name + b"\ndata: " + json.dumps(fields).encode() + b"\n\n"


def odd_bytes(format: Format) -> bytes:
    """A good stream with a BOM, CRLF, comments, and events of kinds that nobody knows."""
    unknown = b'event: future\r\ndata: {"type":"some.future.kind","choices":[],"x":{"y":1}}\r\n\r\n'
    stream = stream_of(format, GOOD).replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
    return b"\xef\xbb\xbf: a comment\r\n\r\n" + unknown + stream


ROWS: dict[str, Row] = {
    "429 with Retry-After": Row(failing(429, retry_after=2), attempts=("rate_limited",), look=waited(2.0)),
    "429 without": Row(failing(429), attempts=("rate_limited",)),
    "500": Row(failing(500), attempts=("server",)),
    "503": Row(failing(503), attempts=("overloaded",)),
    "529": Row(failing(529), attempts=("overloaded",)),
    "500 for ever": Row(failing(500, 4), "failed", "server", ("server",) * 4),
    "429 for ever": Row(failing(429, 12), "failed", "rate_limited", ("rate_limited",) * 12),
    "400": Row(failing(400), "failed", "invalid_request", ("invalid_request",)),
    "401": Row(failing(401), "failed", "auth", ("auth",)),
    "403": Row(failing(403), "failed", "auth", ("auth",)),
    "404": Row(failing(404), "failed", "not_found", ("not_found",)),
    "context too long": Row(
        lambda format: [status(400, too_long_body(format))], "failed", "context_too_long", ("context_too_long",)
    ),
    "connection lost": Row(lambda _: [refused()], look=lost),
    "not HTTP": Row(lambda _: [garbage()], attempts=("cut",)),
    "silence before the first byte": Row(
        lambda _: [silent()], attempts=("first_byte",), deadlines=Deadlines(first_byte=SOON)
    ),
    "headers and then silence": Row(
        lambda format: [stalled(b"", 0)], attempts=("first_byte",), deadlines=Deadlines(first_byte=SOON)
    ),
    "silence in the middle": Row(
        lambda format: [stalled(stream_of(format, TEXT), len(stream_of(format, TEXT)) // 2)],
        attempts=("idle",),
        deadlines=Deadlines(idle=SOON),
    ),
    "silence in a call": Row(
        lambda format: [stalled(half_call(format), len(half_call(format)))],
        attempts=("idle",),
        deadlines=Deadlines(idle=SOON),
    ),
    "cut cleanly": Row(
        lambda format: [cut(stream_of(format, TEXT), len(stream_of(format, TEXT)) // 2)], attempts=("cut",)
    ),
    "cut by a reset": Row(
        lambda format: [cut(stream_of(format, TEXT), len(stream_of(format, TEXT)) // 2, by="reset")], attempts=("cut",)
    ),
    "cut in a chunk": Row(
        lambda format: [unfinished(stream_of(format, TEXT), len(stream_of(format, TEXT)) // 2)], attempts=("cut",)
    ),
    "cut in a call": Row(
        lambda format: [cut(half_call(format), len(half_call(format)), by="reset")], attempts=("cut",)
    ),
    "no end": Row(lambda format: [Response(b"".join(before_the_end(format, TEXT)))], attempts=("cut",)),
    "an error inside the stream": Row(
        lambda format: [Response(b"".join(before_the_end(format, TEXT)) + error_event(format))],
    ),
    "truncated in a call": Row(
        lambda format: [
            answer(format, ModelResponse((ToolCall(0, "pay", '{"cents":990,"t', "id_2"),), "length", USAGE)),
        ],
        look=told("JSON"),
        formats=("openai", "openai-responses", "anthropic"),
    ),
    "invalid UTF-8": Row(
        lambda format: [Response(stream_of(format, TEXT).replace(b"rather", b"rat\xff\xfeher"))], attempts=("cut",)
    ),
    "bad JSON": Row(
        lambda format: [Response(events_of(format, TEXT)[0] + b'data: {"choices": [{]}\n\n')], attempts=("cut",)
    ),
    "a line of 10 MB": Row(
        lambda format: [Response(b'data: {"x":"' + b"x" * 10_000_000 + b'"}\n\n')], attempts=("cut",)
    ),
    "BOM, CRLF and unknown events": Row(lambda format: [Response(odd_bytes(format))]),
    "one byte at a time": Row(lambda format: [bytewise(stream_of(format, GOOD))]),
    "two calls with one id": Row(
        lambda format: [
            answer(
                format,
                ModelResponse(
                    (
                        ToolCall(0, "look", '{"what":"a"}', "same"),
                        ToolCall(0, "look", '{"what":"b"}', "same"),
                    ),
                    "calls",
                    USAGE,
                ),
            )
        ],
        look=paired,
    ),
    "an id from an earlier turn": Row(
        lambda format: [
            answer(format, LOOK),
            answer(format, ModelResponse((ToolCall(0, "look", '{"what":"again"}', "id_1"),), "calls", USAGE)),
        ],
        look=paired,
    ),
    "an unknown tool": Row(
        lambda format: [answer(format, ModelResponse((ToolCall(0, "fly", "{}", "x"),), "calls", USAGE))],
        look=told("fly"),
    ),
    "arguments that do not fit": Row(
        lambda format: [answer(format, ModelResponse((ToolCall(0, "pay", '{"cents":"many"}', "x"),), "calls", USAGE))],
        look=told("cents"),
    ),
    "arguments that are no object": Row(
        lambda format: [answer(format, ModelResponse((ToolCall(0, "pay", "[1]", "x"),), "calls", USAGE))],
        look=told("object"),
        # Gemini's arguments are an object or the stream is not what was agreed on.
        formats=("openai", "openai-responses", "anthropic"),
    ),
    "nothing, once": Row(lambda format: [answer(format, ModelResponse((), "end", USAGE))]),
    "nothing, again and again": Row(
        lambda format: [answer(format, ModelResponse((), "end", USAGE))] * 2, "failed", "loop guard"
    ),
    "data behind the end": Row(
        lambda format: [answer(format, GOOD, events_of(format, TEXT)[1], stream_of(format, TEXT))], look=noted
    ),
    "no usage": Row(lambda format: with_usage(format, None), look=estimated),
    "absurd usage": Row(lambda format: with_usage(format, Usage(input=10**12, output=-5)), look=estimated),
    "a gzip bomb": Row(lambda _: [one_bomb()], attempts=("cut",)),
    "another encoding": Row(lambda format: [encoded(stream_of(format, GOOD), "br")], attempts=("cut",)),
    "gzip that nobody asked for": Row(lambda format: [encoded(stream_of(format, GOOD), "gzip")]),
    "a redirect": Row(lambda _: [redirect("http://127.0.0.1:9/elsewhere")], "failed", "not_found", ("not_found",)),
}

CELLS = [(name, format) for name, row in ROWS.items() for format in row.formats]


def model_for(format: Format, provider: Provider, deadlines: Deadlines, address: str = "") -> Model:
    make = {
        "openai": models.openai,
        "openai-responses": models.openai_responses,
        "anthropic": models.anthropic,
        "google": models.google,
    }[format]
    return make("m", base_url=address or provider.url, api_key=KEY, deadlines=deadlines, price=(1, 1))


class Ledger:
    """What was really done."""

    def __init__(self) -> None:
        self.paid: list[int] = []
        self.seen: list[str] = []

    def tools(self) -> list[Any]:
        @tool(effect="once")
        async def pay(cents: int, to: str) -> str:
            """Pay somebody."""
            self.paid.append(cents)
            return "paid"

        @tool(effect="read")
        async def look(what: str) -> str:
            """Look at something."""
            self.seen.append(what)
            return f"saw {what}"

        return [pay, look]


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize(("name", "format"), CELLS)
async def test_every_fault_has_its_outcome(name: str, format: Format, situation: Situation) -> None:
    row, ledger, store, clock = ROWS[name], Ledger(), MemoryStore(), ManualClock()
    faults = list(row.faults(format))
    before = {"first turn": [], "tool turn": [answer(format, LOOK)], "after a resume": [silent()]}[situation]
    async with Provider([*before, *faults, answer(format, GOOD)]) as provider:
        agent = Agent(name="clerk", model=model_for(format, provider, row.deadlines), tools=ledger.tools())
        if situation == "after a resume":
            await die_waiting(store, agent, provider)
        async with Runtime(store, agents=[agent], clock=clock) as runtime:
            session = await runtime.open(agent, id="x")
            run = await session.start("Do it.", key="k")
            await turned(clock, lambda: len(session.state.ended) == 1, 2.0)
            result = await run
            await check_outcome(row, result, session, provider)
            assert ledger.paid == [], "no tool runs from half an answer, or with arguments that do not fit"
            if row.reason == "failed":
                assert len(provider.requests) == len(before) + len(faults)


async def die_waiting(store: MemoryStore, agent: Agent[str], provider: Provider) -> None:
    """A process that dies while the model is silent."""
    async with crashing(store, agents=[agent], clock=ManualClock()) as runtime:
        await (await runtime.open(agent, id="x")).start("Do it.", key="k")
        async with asyncio.timeout(20):
            while not provider.requests:
                await asyncio.sleep(0.005)


async def check_outcome(row: Row, result: RunResult[Any], session: Session[Any], provider: Provider) -> None:
    assert result.reason == row.reason, result
    assert result.detail.startswith(row.kind), result
    records = await session.records()
    log = [record.event for record in records]
    notes = [e.data["kind"] for e in log if isinstance(e, Noted) and e.kind == "model_attempt"]
    if row.attempts:
        assert tuple(notes) == row.attempts
    if row.reason == "completed":
        assert result.output == "All is well."
    check_log(records)
    assert unpaired(session.state.history) == []
    started = {e.call for e in log if isinstance(e, CallStarted)}
    assert started <= {e.call for e in log if isinstance(e, CallEnded)}
    assert not any(KEY.encode() in encode_event(event) for event in log), "keys stay out of the log"
    if row.look is not None:
        row.look(result, log, provider)
    assert await events(session, ModelResponded) or row.reason == "failed"


@pytest.mark.parametrize("format", FORMATS)
async def test_whatever_a_tool_returns_the_next_request_can_be_sent(format: Format) -> None:
    """NUL, lone surrogates and a megabyte: what cannot be written is cleaned before it is kept."""

    @tool(effect="read")
    async def look(what: str) -> str:
        """Look at something."""
        return "\x00\ud800" + "x" * 1_000_000

    async with Provider([answer(format, LOOK), answer(format, GOOD)]) as provider:
        agent = Agent(name="clerk", model=model_for(format, provider, Deadlines()), tools=[look])
        async with Runtime("memory:", agents=[agent]) as runtime:
            session = await runtime.open(agent)
            assert (await session.run("Do it.")).output == "All is well."
        assert "\ud800" not in json.loads(provider.requests[1].body).__repr__()
        assert b"x" * 1000 in provider.requests[1].body
        assert len(provider.requests[1].body) < 20_000, "what is long is kept beside the log"


@pytest.mark.parametrize("format", FORMATS)
async def test_no_connection_is_a_failure_after_four_attempts(format: Format) -> None:
    """Nobody listens, there is no such host, and TLS is not what is spoken there."""
    clock = ManualClock()
    async with Provider([garbage()] * 8) as provider:
        addresses = [refusing_url(), "http://nowhere.invalid", provider.url.replace("http:", "https:")]
        for address in addresses:
            model = model_for(format, provider, Deadlines(connect=SOON), address)
            agent = Agent(name="clerk", model=model)
            async with Runtime("memory:", agents=[agent], clock=clock) as runtime:
                session = await runtime.open(agent)
                run = await session.start("Do it.")
                await turned(clock, lambda: len(session.state.ended) == 1, 0.1)  # noqa: B023 - awaited in this round
                result = await run
                assert (result.reason, result.detail.split(":")[0]) == ("failed", "connect"), address
                assert len(await events(session, Noted)) == 4


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("phase", ["first_byte", "idle", "total"])
async def test_nothing_hangs_past_its_deadline(format: Format, phase: str) -> None:
    half = stream_of(format, TEXT)[:200]
    slow = Response([piece for byte in half for piece in (bytes((byte,)), 0.02)], then="stall")
    fault = {"first_byte": silent(), "idle": stalled(half, 150), "total": slow}[phase]
    deadlines = Deadlines(**{"first_byte": 30, "idle": 30, "total": 30, phase: SOON})
    async with Provider([fault]) as provider:
        model = model_for(format, provider, deadlines)
        began = asyncio.get_running_loop().time()
        with pytest.raises(ModelError) as raised:
            async for _ in model.stream(ModelRequest("m", "", (UserMessage((Text("Do it."),)),))):
                pass
        assert asyncio.get_running_loop().time() - began < SOON + 1
        assert raised.value.kind == {"total": "idle"}.get(phase, phase)
        await model.close()  # type: ignore[attr-defined]
