"""ScriptedModel: a model that says what a test wrote down, streamed as a provider would.

Rule 1: what a list answers is a function of the conversation: entry n belongs to the request that holds n
answers already, so a run that is killed and picked up by a new process gets the answers it would have got.
Rule 2: errors and cut streams leave no answer behind (except for whole calls, which are kept); each comes once in a
process, before the next answer.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TypeAlias, cast

import msgspec

from perdure.core.deltas import ModelDelta, PartClosed
from perdure.core.errors import ModelError, ModelErrorKind, UsageError
from perdure.core.messages import JSON, AssistantMessage, Message, StopReason, ToolCall, Usage
from perdure.ports import Clock, ModelRequest, ModelResponse, ModelTraits
from perdure.runtime.clock import SystemClock, sleep
from perdure.testing.replies import Answer, Reply, Stream, call, prepare

Script: TypeAlias = Sequence[Answer] | Callable[[ModelRequest], Answer | Awaitable[Answer]]

DEFAULT_USAGE = Usage(input=10, output=5)
MAX_CONVERSATIONS = 10_000


class UnusedAnswers(UsageError, AssertionError):
    """The script holds answers that nobody asked for."""


class _Count(msgspec.Struct, gc=False):
    """How many answers a conversation holds up to `last`, which is its message number `length`."""

    first: Message
    last: Message
    length: int
    answers: int


class ScriptedModel:
    """One entry per model answer, or a function of the request.

    `requests` keeps what was sent; `finish` and the end of a `with` block fail if entries are left over.
    """

    def __init__(
        self,
        script: Script,
        *,
        name: str = "scripted",
        cost: Callable[[Usage], float | None] | None = None,
        usage: Usage | None = DEFAULT_USAGE,
        clock: Clock | None = None,
        traits: ModelTraits | None = None,
    ) -> None:
        self.name = name
        self.traits = traits or ModelTraits()
        self.requests: list[ModelRequest] = []
        self._cost = cost
        self._usage = usage
        self._clock = clock or SystemClock()
        self._counts: dict[int, _Count] = {}
        self._function = script if callable(script) else None
        self._entries = () if callable(script) else _read_entries(script)
        self._streams = tuple(prepare(entry, usage) for entry in self._entries)
        self._starts = _find_starts(self._streams)
        self._failed: set[int] = set()
        self._reached = 0

    def cost(self, usage: Usage) -> float | None:
        """What a script says costs nothing, unless the test has a price."""
        return self._cost(usage) if self._cost else 0.0

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta | ModelResponse]:
        self.requests.append(request)
        chosen = await self._ask(request) if self._function else self._look_up(request)
        if chosen.delay:
            await sleep(self._clock, chosen.delay)
        stall = chosen.stall
        for piece in chosen.pieces:
            yield piece
            if stall:
                await sleep(self._clock, stall)
                stall = 0.0
        if stall:
            await sleep(self._clock, stall)
        end = chosen.end
        if isinstance(end, Exception):
            # The same object may be raised again: its traceback must not grow.
            raise end.with_traceback(None)
        yield end

    @property
    def unused(self) -> tuple[Answer, ...]:
        """The entries behind the furthest one that was given."""
        return self._entries[self._reached :]

    def finish(self) -> None:
        """Fails if the script holds more than was asked for."""
        if left := len(self.unused):
            some = "1 answer" if left == 1 else f"{left} answers"
            raise UnusedAnswers(f"The script has {some} left of {len(self._entries)}; ask for them or drop them.")

    def assert_exhausted(self) -> None:
        self.finish()

    def __enter__(self) -> ScriptedModel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish()

    async def _ask(self, request: ModelRequest) -> Stream:
        assert self._function is not None
        answer = self._function(request)
        if inspect.isawaitable(answer):
            answer = await answer
        return prepare(answer, self._usage)

    def _look_up(self, request: ModelRequest) -> Stream:
        """The first entry behind the answers of this conversation that has not failed yet."""
        given = self._count_answers(request.messages)
        at = self._starts[given] if given < len(self._starts) else len(self._streams)
        while at in self._failed:
            at += 1
        if at >= len(self._streams):
            held = len(self._starts) - 1
            raise ModelError(
                f"The script has no more answers ({given} given, {held} written); add an entry.",
                kind="invalid_request",
            )
        chosen = self._streams[at]
        if isinstance(chosen.end, Exception):
            self._failed.add(at)
        self._reached = max(self._reached, at + 1)
        return chosen

    def _count_answers(self, messages: Sequence[Message]) -> int:
        """Counts the new tail only: a conversation is known by its first and its last counted message."""
        length = len(messages)
        if not length:
            return 0
        first = messages[0]
        known = self._counts.get(id(first))
        if known is None or not _goes_on(messages, known):
            if len(self._counts) >= MAX_CONVERSATIONS:
                del self._counts[next(iter(self._counts))]
            known = self._counts[id(first)] = _Count(first, first, 1, int(type(first) is AssistantMessage))
        for message in messages[known.length :]:
            if type(message) is AssistantMessage:
                known.answers += 1
        known.last, known.length = messages[length - 1], length
        return known.answers


def _goes_on(messages: Sequence[Message], known: _Count) -> bool:
    if known.length > len(messages) or messages[0] is not known.first:
        return False
    return messages[known.length - 1] is known.last


def _read_entries(script: object) -> tuple[Answer, ...]:
    if isinstance(script, str) or not isinstance(script, Sequence):
        raise UsageError(f"A script is a list of answers or a function, not {type(script).__name__}.")
    return tuple(cast(Sequence[Answer], script))


def _find_starts(streams: tuple[Stream, ...]) -> tuple[int, ...]:
    """Where to look for the answer after 0, 1, 2 … answers: right behind the last of them."""
    return (0, *(at + 1 for at, stream in enumerate(streams) if _leaves_answer(stream)))


def _leaves_answer(stream: Stream) -> bool:
    """A stream that is cut behind a whole call is kept as the answer of its turn."""
    closed = (piece.part for piece in stream.pieces if isinstance(piece, PartClosed))
    return not isinstance(stream.end, Exception) or any(isinstance(part, ToolCall) for part in closed)


class _WrittenCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    arguments: dict[str, JSON] = {}


class _WrittenAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of a script file; `error` stands alone."""

    text: str = ""
    calls: tuple[_WrittenCall, ...] = ()
    error: ModelErrorKind | None = None
    message: str = ""
    retry_after: float | None = None
    usage: Usage | None = None
    stop: StopReason | None = None
    chunk: int | None = None
    delay: float = 0.0
    stall: float = 0.0
    cut_after: int | None = None


def scripted_from_json(path: str | Path) -> ScriptedModel:
    """The script of a JSON file: a list of texts, {"text", "calls"} and {"error", "retry_after"}."""
    try:
        written = msgspec.json.decode(Path(path).read_bytes(), type=list[str | _WrittenAnswer])
    except OSError as error:
        raise UsageError(f"The script {path} cannot be read ({error.strerror}); name a JSON file.") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"The script {path} is not a JSON list of answers: {error}.") from None
    for number, entry in enumerate(written, 1):
        if isinstance(entry, _WrittenAnswer) and not (entry.text or entry.calls or entry.error):
            raise UsageError(f"The script {path} says nothing in entry {number}; give text, calls or error.")
    return ScriptedModel([_read_written(entry) for entry in written], name=f"scripted:{path}")


def _read_written(entry: str | _WrittenAnswer) -> Answer:
    if isinstance(entry, str):
        return entry
    if entry.error is not None:
        return ModelError(entry.message or entry.error, kind=entry.error, retry_after=entry.retry_after)
    calls = (call(written.name, **written.arguments) for written in entry.calls)
    return Reply(
        *((entry.text,) if entry.text else ()),
        *calls,
        chunk=entry.chunk,
        usage=entry.usage,
        stop=entry.stop,
        delay=entry.delay,
        stall=entry.stall,
        cut_after=entry.cut_after,
    )
