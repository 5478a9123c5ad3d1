"""A wire format of one line an event, and what tests of the HTTP client do with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from perdure.core.deltas import ModelDelta
from perdure.core.errors import ModelError
from perdure.core.messages import Message, Text, UserMessage
from perdure.core.shared import Buffer
from perdure.models.account import Account
from perdure.models.deadlines import Deadlines
from perdure.models.http_model import HttpModel
from perdure.models.wires.answer import Answer
from perdure.models.wires.sse import EventSplitter
from perdure.models.wires.wire import Failure, Files, media_of
from perdure.ports import ModelRequest, ModelResponse

# Only for what is meant to be late: a busy machine is slow too.
SHORT = Deadlines(connect=0.2, first_byte=0.2, idle=0.2, total=5.0)


class TinyReader:
    """`data: word` is text, `data: !why` an error in the stream, `data: .` the end."""

    def __init__(self) -> None:
        self.answer = Answer()
        self.splitter = EventSplitter()
        self.is_done = False

    def read(self, data: bytes) -> Sequence[ModelDelta]:
        for event in self.splitter.split(data):
            if self.is_done:
                self.answer.notes.append("more after the end")
            elif event == b".":
                self.is_done, self.answer.stop = True, "end"
            elif event.startswith(b"!"):
                raise ModelError(event[1:].decode(), kind="in_band")
            else:
                try:
                    self.answer.add_text(event.decode())
                except UnicodeDecodeError:
                    raise ModelError("The answer is not UTF-8.", kind="cut") from None
        return self.answer.take()

    def finish(self) -> ModelResponse:
        return self.answer.response()


@dataclass(frozen=True)
class TinyWire:
    name: str = "tiny"
    continues: bool = False

    def address(self, base_url: str, model: str) -> str:
        return f"{base_url}/{model}"

    def headers(self, key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {key}"} if key else {}

    def to_wire(self, request: ModelRequest, model: str, files: Files) -> bytes:
        wanted = media_of(request.messages)
        return b"|".join([request.instructions.encode(), *(files[digest] for digest in sorted(wanted))])

    def from_wire(self, request: ModelRequest) -> TinyReader:
        return TinyReader()

    def read_failure(self, status: int, body: bytes) -> Failure:
        return Failure("rate_limited" if status == 429 else "server", f"{status}: {body.decode()}", 7.0)


def told(*words: str) -> list[bytes]:
    return [f"data: {word}\n\n".encode() for word in (*words, ".")]


def tiny(url: str, *, key: str = "k-1", **options: Any) -> HttpModel:
    return HttpModel("tiny:m", "m", TinyWire(), Account(url, api_key=key), **options)


def asking(text: str = "hi", **fields: Any) -> ModelRequest:
    return ModelRequest("tiny:m", text, Buffer[Message]().add(UserMessage((Text(text),))), **fields)


async def answer_of(model: HttpModel, request: ModelRequest | None = None) -> ModelResponse:
    items = [item async for item in model.stream(request or asking())]
    assert isinstance(items[-1], ModelResponse)
    return items[-1]


async def failure_of(model: HttpModel, request: ModelRequest | None = None) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await answer_of(model, request)
    return caught.value
