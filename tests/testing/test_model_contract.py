"""The model contract: ScriptedModel passes it, and each check catches the model that breaks it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from perdure.core.deltas import TextDelta
from perdure.core.errors import ModelError
from perdure.core.messages import AssistantMessage, Message, Text, Thinking, ToolCall, ToolMessage, Usage, UserMessage
from perdure.core.shared import Buffer
from perdure.ports import Model, ModelRequest, ModelResponse
from perdure.testing import model_contract
from perdure.testing.model_contract import CHECKS, check_model
from perdure.testing.replies import Reply, call
from perdure.testing.scripted import ScriptedModel

HELLO: Message = UserMessage((Text("hi"),))


def conversation(*messages: Message) -> ModelRequest:
    buffer = Buffer[Message]()
    for message in (HELLO, *messages):
        buffer = buffer.add(message)
    return ModelRequest("m", "Be brief.", buffer)


ONE = conversation()
TWO = conversation(AssistantMessage((ToolCall(1, "a", "{}"),)), ToolMessage(()))
THREE = conversation(*([AssistantMessage((Text("x"),)), HELLO] * 2))
MISSING = conversation(*([AssistantMessage((Text("x"),)), HELLO] * 9))
REQUESTS = (ONE, TWO, THREE, MISSING)


def scripted() -> ScriptedModel:
    return ScriptedModel(
        [
            [Thinking("hm"), "I look.", call("look", n=1), call("look", n=2)],
            ModelError.rate_limited(),
            Reply("Hello there", chunk=3, usage=Usage(5, 5, 1, 1, 1)),
            Reply("cut", chunk=1, cut_after=1),
            "Done.",
        ],
        cost=lambda usage: usage.total * 1e-6,
    )


@pytest.mark.parametrize("name", CHECKS)
async def test_a_scripted_model_keeps_the_contract(name: str) -> None:
    await CHECKS[name](scripted, REQUESTS)


async def test_the_report_names_every_check() -> None:
    report = await check_model(scripted, REQUESTS)
    assert report.failed == {}
    assert report.passed == tuple(CHECKS)


Streamer = Callable[[ModelRequest], AsyncIterator[Any]]


class Faulty:
    """A model with one fault."""

    def __init__(self, stream: Streamer, name: str = "faulty", cost: float | None = None) -> None:
        self.name = name
        self._stream = stream
        self._cost = cost

    def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        return self._stream(request)

    def cost(self, usage: Usage) -> float | None:
        return self._cost


def saying(*items: Any) -> Streamer:
    async def stream(request: ModelRequest) -> AsyncIterator[Any]:
        for item in items:
            await asyncio.sleep(0)
            if isinstance(item, Exception):
                raise item
            yield item

    return stream


def faulty(*items: Any) -> Callable[[], Model]:
    return lambda: Faulty(saying(*items))


DONE = ModelResponse((Text("Done."),), "end", Usage(1, 1))
WRITTEN = TextDelta("Done.")


def odd_call(arguments: str, name: str = "a") -> ModelResponse:
    return ModelResponse((ToolCall(0, name, arguments),), "calls")


def mutating() -> Model:
    async def stream(request: ModelRequest) -> AsyncIterator[Any]:
        messages: Any = request.messages
        messages._items.append(HELLO)
        messages._length += 1
        yield WRITTEN
        yield DONE

    return Faulty(stream)


def sharing() -> Model:
    """Keeps the answer that it is writing in one place for all its streams."""
    current: list[str] = []

    async def stream(request: ModelRequest) -> AsyncIterator[Any]:
        current.clear()
        for piece in ("a", "b", "c")[: len(request.messages)]:
            current.append(piece)
            yield TextDelta(piece)
        yield ModelResponse((Text("".join(current)),))

    return Faulty(stream)


def swapping() -> Model:
    """Answers the request that came last."""
    last: list[int] = []

    async def stream(request: ModelRequest) -> AsyncIterator[Any]:
        last[:] = [len(request.messages)]
        await asyncio.sleep(0)
        yield TextDelta("")
        text = str(last[0])
        yield TextDelta(text)
        yield ModelResponse((Text(text),))

    return Faulty(stream)


def clinging() -> Model:
    """Does not let go of a stream that is broken off."""

    async def stream(request: ModelRequest) -> AsyncIterator[Any]:
        is_read = False
        try:
            yield WRITTEN
            yield DONE
            is_read = True
        finally:
            await asyncio.sleep(0 if is_read else 3600)

    return Faulty(stream)


def grumbling() -> Model:
    """Turns a cancellation into an error of its own."""

    async def stream(request: ModelRequest) -> AsyncIterator[Any]:
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            raise ValueError("cancelled") from None
        yield WRITTEN
        yield DONE

    return Faulty(stream)


class Plain:
    """An iterator that nobody can close."""

    def __init__(self) -> None:
        self._items = iter((WRITTEN, DONE))

    def __aiter__(self) -> Plain:
        return self

    async def __anext__(self) -> Any:
        for item in self._items:
            return item
        raise StopAsyncIteration


FAULTS: list[tuple[str, str, Callable[[], Model]]] = [
    ("no name", "name", lambda: Faulty(saying(WRITTEN, DONE), name="")),
    ("no response", "one_response", faulty(WRITTEN)),
    ("nothing at all", "one_response", faulty()),
    ("two responses", "one_response", faulty(WRITTEN, DONE, DONE)),
    ("something after the response", "one_response", faulty(DONE, WRITTEN)),
    ("a foreign item", "one_response", faulty("Done.", DONE)),
    ("another kind of error", "one_response", faulty(WRITTEN, OSError("reset"))),
    ("less shown than said", "text", faulty(TextDelta("Do"), DONE)),
    ("nothing shown", "text", faulty(DONE)),
    ("negative usage", "usage", faulty(WRITTEN, ModelResponse((Text("Done."),), "end", Usage(-1)))),
    ("a negative cost", "usage", lambda: Faulty(saying(WRITTEN, DONE), cost=-0.1)),
    ("half a call", "calls", faulty(odd_call('{"a":'))),
    ("a list of arguments", "calls", faulty(odd_call("[1]"))),
    ("empty arguments", "calls", faulty(odd_call(""))),
    ("a call of nothing", "calls", faulty(odd_call("{}", name=""))),
    ("it cannot be closed", "breaking_off", lambda: Faulty(lambda _: Plain())),
    ("it does not let go", "breaking_off", clinging),
    ("it grumbles", "breaking_off", grumbling),
    ("one text for all streams", "side_by_side", sharing),
    ("the answer to another request", "side_by_side", swapping),
    ("it writes into the request", "messages", mutating),
]


@pytest.mark.parametrize(("check", "make_model"), [row[1:] for row in FAULTS], ids=[row[0] for row in FAULTS])
async def test_a_fault_is_caught(check: str, make_model: Callable[[], Model], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_contract, "PATIENCE", 0.2)
    monkeypatch.setattr(model_contract, "LONGEST_CHECK", 10.0)
    report = await check_model(make_model, (conversation(), conversation(HELLO), conversation(HELLO, HELLO)))
    assert check in report.failed
    assert report.failed[check]


def test_every_check_has_a_fault_that_it_catches() -> None:
    assert {check for _, check, _ in FAULTS} == set(CHECKS)
