"""local:NAME: a model that runs on this machine, without a key, as the ordinary Chat format to a process of our own."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import cache
from importlib import import_module
from pathlib import Path

from msgspec.structs import replace

from perdure.core.deltas import ModelDelta
from perdure.core.errors import ModelError
from perdure.core.messages import Usage
from perdure.models.account import Account
from perdure.models.deadlines import Deadlines
from perdure.models.http_model import HttpModel
from perdure.models.local_process import MAX_WINDOW, LocalServer, check_extra
from perdure.models.weights import CATALOGUE, is_file_name, locate
from perdure.models.wires.chat import ChatWire
from perdure.ports import ModelRequest, ModelResponse, ModelTraits

# Small models have no tools of their own, or call them wrongly; a grammar makes every call a valid one.
WIRE = ChatWire(tools="json", max_tokens_field="max_tokens", takes_top_k=True, takes_cache_key=False)

# A long prompt takes minutes on a small machine, and others may be before it.
DEADLINES = Deadlines(first_byte=900.0, idle=120.0, total=3600.0)

MAX_ANSWER = 1024
"""Tokens of an answer, where the settings do not say: small models may repeat themselves until the window is full."""


class LocalModel:
    """All models of this process that have the same weights share one server."""

    def __init__(self, name: str, weights: Path, window: int | None) -> None:
        self._name = name
        self._server = server_of(weights)
        self._users = 0
        # By what is shared: one server answers one request after the other.
        self._traits = ModelTraits(WIRE.name, f"local:{weights}", continues=True, window=window)

    def __repr__(self) -> str:
        return f"LocalModel({self._name!r})"

    @property
    def name(self) -> str:
        return self._name

    @property
    def traits(self) -> ModelTraits:
        return self._traits

    def cost(self, usage: Usage) -> float | None:
        return 0.0

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelDelta | ModelResponse]:
        """Starts the server, if it does not run, or not any more."""
        endpoint = await self._server.endpoint(self)
        account = Account(f"{endpoint.address}/v1", api_key=endpoint.key)
        # With connections of its own: the server closes one after it has streamed, without a word of warning.
        model = HttpModel(self._name, self._name, WIRE, account, deadlines=DEADLINES)
        try:
            async with aclosing(model.stream(fitted(request))) as items:
                async for item in items:
                    yield item
        except ModelError as error:
            if error.kind in ("connect", "cut"):
                await self._server.dying()
            raise
        finally:
            await model.close()

    def prepare(self) -> None:
        """Imports the client; the server waits for the first question, since a fallback may never get one."""
        self._users += 1
        import_module("aiohttp")

    async def close(self) -> None:
        """The last user that leaves ends the server, unless another model has the same weights."""
        self._users = max(0, self._users - 1)
        if not self._users:
            self._server.leave(self)


def local(name: str) -> LocalModel:
    """A model of the catalogue by its name, or a GGUF file by its path."""
    weights = locate(name)
    check_extra()
    known = None if is_file_name(name) else CATALOGUE[name]
    return LocalModel(f"local:{name}", weights, min(known.window, MAX_WINDOW) if known else None)


@cache
def server_of(weights: Path) -> LocalServer:
    return LocalServer(weights)


def fitted(request: ModelRequest) -> ModelRequest:
    """With a limit for the answer; one that goes on from its words is no call, and no grammar fits its middle."""
    if request.settings.max_tokens is None:
        request = replace(request, settings=replace(request.settings, max_tokens=MAX_ANSWER))
    if request.prefix:
        request = replace(request, tools=(), output=None)
    return request
