"""What every model must do, as checks that any test runner can call.

A model passes if `await check_model(make_model, requests)` reports no failure; a runner with parametrized
tests goes over CHECKS. An answer may always be a ModelError; whatever else is raised breaks the contract.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from typing import TypeAlias, cast

from perdure.core.codec import decode_json, encode_json
from perdure.core.deltas import CallDelta, ModelDelta, PartClosed, TextDelta, ThinkingDelta
from perdure.core.errors import ModelError
from perdure.core.messages import Text, ToolCall, Usage
from perdure.ports import Model, ModelRequest, ModelResponse
from perdure.testing.store_contract import Report

MakeModel: TypeAlias = Callable[[], Model]
"""Gives a new model, which answers as the one before it."""

Item: TypeAlias = ModelDelta | ModelResponse
Items: TypeAlias = list[Item] | ModelError
Stream: TypeAlias = AsyncIterator[Item]
Check: TypeAlias = Callable[[MakeModel, Sequence[ModelRequest]], Awaitable[None]]

LONGEST_CHECK = 60.0
PATIENCE = 5.0
"""Seconds that a stream has to close after it was broken off."""


async def check_name(make_model: MakeModel, requests: Sequence[ModelRequest]) -> None:
    name = cast(object, make_model().name)
    _expect(isinstance(name, str) and name != "", "a model has a name")


async def check_one_response(make_model: MakeModel, requests: Sequence[ModelRequest]) -> None:
    """A stream is deltas and then exactly one response, or it raises a ModelError."""
    for request in requests:
        items = await _collect(make_model().stream(request))
        if isinstance(items, ModelError):
            continue
        _expect(bool(items) and isinstance(items[-1], ModelResponse), "a stream ends with its response")
        pieces = all(isinstance(item, TextDelta | ThinkingDelta | CallDelta | PartClosed) for item in items[:-1])
        _expect(pieces, "before the response come deltas alone")


async def check_text(make_model: MakeModel, requests: Sequence[ModelRequest]) -> None:
    """What was shown is what was said."""
    for request in requests:
        _expect_own_text(await _collect(make_model().stream(request)))


async def check_usage(make_model: MakeModel, requests: Sequence[ModelRequest]) -> None:
    """Counts are whole and not negative, and so is what they cost."""
    for request in requests:
        model = make_model()
        response = _response_of(await _collect(model.stream(request)))
        usage = response.usage if response else None
        if usage is not None:
            counts = (usage.input, usage.output, usage.cached, usage.cache_written, usage.reasoning)
            _expect(all(type(count) is int and count >= 0 for count in counts), "usage is not negative")
        cost = model.cost(usage or Usage())
        _expect(cost is None or cost >= 0, "a cost is unknown or not negative")


async def check_calls(make_model: MakeModel, requests: Sequence[ModelRequest]) -> None:
    """A call has a name and the text of a JSON object; a model that writes anything else is an error."""
    for request in requests:
        response = _response_of(await _collect(make_model().stream(request)))
        for part in response.parts if response else ():
            if isinstance(part, ToolCall):
                _expect(part.name != "", "a call names its tool")
                _expect(_is_object(part.arguments), f"the arguments of {part.name} are a JSON object")


async def check_breaking_off(make_model: MakeModel, requests: Sequence[ModelRequest]) -> None:
    """A stream that is closed or cancelled half-way ends soon and quietly, and the next one works."""
    for request in requests:
        model = make_model()
        async with asyncio.timeout(PATIENCE):
            await _close_early(model.stream(request))
            await _cancel_early(model.stream(request))
        _expect_own_text(await _collect(model.stream(request)))


async def check_side_by_side(make_model: MakeModel, requests: Sequence[ModelRequest]) -> None:
    """Streams of one model that are read in turns do not mix."""
    model = make_model()
    pairs = (*requests, *requests)
    together = await _read_in_turns([model.stream(request) for request in pairs])
    for request, items in zip(pairs, together, strict=True):
        _expect_own_text(items)
        alone, again = [_response_of(await _collect(make_model().stream(request))) for _ in range(2)]
        response = _response_of(items)
        if response and alone and again and alone.parts == again.parts:
            _expect(response.parts == alone.parts, "a stream says beside others what it says alone")


async def check_messages(make_model: MakeModel, requests: Sequence[ModelRequest]) -> None:
    """A request is read, never changed."""
    for request in requests:
        before = [encode_json(message) for message in request.messages]
        await _collect(make_model().stream(request))
        after = [encode_json(message) for message in request.messages]
        _expect(before == after, "the messages of a request stay as they are")


CHECKS: dict[str, Check] = {
    "name": check_name,
    "one_response": check_one_response,
    "text": check_text,
    "usage": check_usage,
    "calls": check_calls,
    "breaking_off": check_breaking_off,
    "side_by_side": check_side_by_side,
    "messages": check_messages,
}


async def check_model(make_model: MakeModel, requests: Sequence[ModelRequest]) -> Report:
    """Runs every check on a new model, with requests that it can answer or has to refuse."""
    passed: list[str] = []
    failed: dict[str, str] = {}
    for name, check in CHECKS.items():
        try:
            async with asyncio.timeout(LONGEST_CHECK):
                await check(make_model, requests)
            passed.append(name)
        except Exception as error:  # noqa: BLE001 - the model under test may raise anything
            failed[name] = f"{type(error).__name__}: {error}"
    return Report(tuple(passed), failed)


def _expect(holds: bool, promise: str) -> None:
    if not holds:
        raise AssertionError(f"broken: {promise}")


async def _collect(stream: Stream) -> Items:
    try:
        return [item async for item in stream]
    except ModelError as error:
        return error


def _response_of(items: Items) -> ModelResponse | None:
    last = items[-1] if isinstance(items, list) and items else None
    return last if isinstance(last, ModelResponse) else None


def _expect_own_text(items: Items) -> None:
    if isinstance(items, ModelError):
        return
    response = _response_of(items)
    said = "".join(part.text for part in response.parts if isinstance(part, Text)) if response else None
    shown = "".join(item.text for item in items if isinstance(item, TextDelta))
    _expect(shown == said, "the text deltas add up to the text of the response")


def _is_object(text: str) -> bool:
    try:
        return isinstance(decode_json(text), dict)
    except ValueError:
        return False


async def _read_in_turns(streams: Sequence[Stream]) -> list[Items]:
    read: list[Items] = [[] for _ in streams]
    unfinished = list(enumerate(streams))
    while unfinished:
        for at, stream in tuple(unfinished):
            items = read[at]
            try:
                item = await anext(stream, None)
            except ModelError as error:
                read[at], item = error, None
            if item is None or isinstance(items, ModelError):
                unfinished.remove((at, stream))
            else:
                items.append(item)
    return read


async def _close_early(stream: Stream) -> None:
    _expect(hasattr(stream, "aclose"), "a stream can be closed")
    async with aclosing(cast(AsyncGenerator[Item], stream)) as open_stream:
        with suppress(ModelError):
            await anext(open_stream, None)


async def _cancel_early(stream: Stream) -> None:
    """Cancels the task that reads, wherever it is; only the cancellation may come out of it."""

    async def read() -> None:
        async for _ in stream:
            await asyncio.sleep(0)

    task = asyncio.create_task(read())
    await asyncio.sleep(0)
    task.cancel()
    (outcome,) = await asyncio.gather(task, return_exceptions=True)
    quiet = outcome is None or isinstance(outcome, asyncio.CancelledError | ModelError)
    _expect(quiet, f"a cancelled stream ends quietly, not with {outcome!r}")
