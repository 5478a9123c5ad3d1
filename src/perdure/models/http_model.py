"""HttpModel: a wire format over the HTTP client is a Model. Only ModelError comes out of it, and never with a key."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress

from perdure.core.deltas import ModelDelta
from perdure.core.errors import ModelError, ModelErrorKind, NotFound, StoreError
from perdure.core.messages import Usage
from perdure.models.account import Account
from perdure.models.http import Deadlines, Exchange, HttpClient
from perdure.models.prices import Price
from perdure.models.wires.wire import Reader, Wire, media_of, unwritten
from perdure.ports import ModelRequest, ModelResponse, ModelTraits

SETTLE = 1.0
"""Seconds that a server may take to end its answer after its last word, so that the connection can be used again."""
MAX_MESSAGE = 2000

FindWindow = Callable[[], int | None]


class HttpModel:
    """A client that is passed in is shared: whoever shares it closes it."""

    __slots__ = (
        "_account",
        "_client",
        "_deadlines",
        "_find_window",
        "_headers",
        "_key",
        "_model",
        "_owns",
        "_price",
        "_traits",
        "_users",
        "_wire",
        "name",
    )

    def __init__(
        self,
        name: str,
        model: str,
        wire: Wire,
        account: Account,
        *,
        client: HttpClient | None = None,
        deadlines: Deadlines | None = None,
        price: Price | None = None,
        window: FindWindow | None = None,
    ) -> None:
        self.name = name
        self._model = model
        self._wire = wire
        self._account = account
        self._owns = client is None
        self._client = client or HttpClient()
        self._deadlines = deadlines or Deadlines()
        self._price = price
        self._find_window = window
        self._traits: ModelTraits | None = None
        self._users: Counter[asyncio.AbstractEventLoop] = Counter()
        self._key: str | None = None
        self._headers: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"HttpModel({self.name!r})"

    @property
    def traits(self) -> ModelTraits:
        return self._traits or self._find_traits()

    def _find_traits(self) -> ModelTraits:
        quota = self._account.quota(self._model)
        window = self._find_window() if self._find_window else None
        self._traits = ModelTraits(self._wire.name, quota, self._wire.continues, window)
        return self._traits

    def cost(self, usage: Usage) -> float | None:
        return self._price(usage) if self._price else None

    def prepare(self) -> None:
        """Imports the client and looks the price and the window up, which takes a moment."""
        with suppress(RuntimeError):
            self._users[asyncio.get_running_loop()] += 1
        self._client.prepare()
        # A price function is user code: one that fails does not know the price, and is asked again later.
        with suppress(Exception):
            self.cost(Usage())
        _ = self.traits

    async def close(self) -> None:
        """The last user of a loop that leaves closes the loop's connections, unless others share the client."""
        loop = asyncio.get_running_loop()
        self._users[loop] -= 1
        if self._users[loop] <= 0:
            del self._users[loop]
            if self._owns:
                await self._client.close()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelDelta | ModelResponse]:
        exchange = await self._send(request)
        try:
            reader, first = self._wire.from_wire(request), b""
            while not reader.is_done and (data := await exchange.read()):
                first = first or data
                for delta in self._read(reader, data):
                    yield delta
            if reader.is_done and not exchange.is_over:
                await _settle(exchange, reader)
            response = self._finish(reader, exchange, first)
        finally:
            exchange.close()
        yield response

    async def _send(self, request: ModelRequest) -> Exchange:
        """The answer, once it turned out to be one."""
        account = self._account
        key = account.key(self._key)
        if key != self._key:
            # Another key has another quota.
            self._key, self._traits = key, None
            self._headers = {name.lower(): value for name, value in self._wire.headers(key).items()}
        wanted = media_of(unwritten(request.messages, self._wire))
        files = await _load_files(request, wanted) if wanted else {}
        try:
            body = self._wire.to_wire(request, self._model, files)
        except (ValueError, TypeError) as error:
            raise ModelError(
                account.scrub(f"The request cannot be written: {error}."), kind="invalid_request"
            ) from None
        url = self._wire.address(account.base_url, self._model)
        exchange = await self._client.post(url, self._headers, body, self._deadlines)
        if 200 <= exchange.status < 300:
            return exchange
        try:
            raise await self._failure_of(exchange)
        finally:
            exchange.close()

    async def _failure_of(self, exchange: Exchange) -> ModelError:
        status = exchange.status
        if 300 <= status < 400:
            return ModelError(
                f"{exchange.where} redirects to another address, to which the key must not travel; mend base_url.",
                kind="not_found",
            )
        failure = self._wire.read_failure(status, await exchange.read_error())
        asked = exchange.retry_after()
        retry_after = failure.retry_after if asked is None else asked
        return self._scrubbed(failure.message, failure.kind, retry_after)

    def _read(self, reader: Reader, data: bytes) -> Sequence[ModelDelta]:
        try:
            return reader.read(data)
        except ModelError as error:
            failure = error
        raise self._scrubbed(str(failure), failure.kind, failure.retry_after)

    def _finish(self, reader: Reader, exchange: Exchange, first: bytes) -> ModelResponse:
        try:
            return reader.finish()
        except ModelError as error:
            failure = error
        instead = self._read_instead(exchange, first) if failure.kind == "cut" else None
        raise instead or self._scrubbed(str(failure), failure.kind, failure.retry_after)

    def _read_instead(self, exchange: Exchange, body: bytes) -> ModelError | None:
        """What came in the place of a stream: an error that no status told of, or somebody's web page."""
        kind = exchange.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "text/html":
            told = f"{exchange.where} answered with a web page; see that base_url is right."
            return ModelError(told, kind="cut")
        if kind != "application/json" or b'"error"' not in body:
            return None
        # A failure of no class of its own is what a cut is, too.
        failure = self._wire.read_failure(500, body)
        is_known = failure.kind != "server"
        return self._scrubbed(failure.message, failure.kind, failure.retry_after) if is_known else None

    def _scrubbed(self, message: str, kind: ModelErrorKind, retry_after: float | None) -> ModelError:
        # First shortened roughly, for the search costs time, and at last where half a key cannot be left.
        scrubbed = self._account.scrub(message[: 2 * MAX_MESSAGE])[:MAX_MESSAGE]
        return ModelError(scrubbed, kind=kind, retry_after=retry_after)


async def _settle(exchange: Exchange, reader: Reader) -> None:
    """Reads on to the end of a finished answer; how that ends does not matter any more."""
    with suppress(ModelError, TimeoutError):
        async with asyncio.timeout(SETTLE):
            while data := await exchange.read():
                reader.read(data)


async def _load_files(request: ModelRequest, wanted: set[str]) -> dict[str, bytes]:
    """The bytes of the artifacts in messages that were never written before."""
    if request.load is None:
        raise ModelError("The request has images or documents, and nothing to load them with.", kind="invalid_request")
    files: dict[str, bytes] = {}
    for digest in sorted(wanted):
        try:
            files[digest] = await request.load(digest)
        except StoreError as error:
            raise ModelError(f"An image or document cannot be loaded: {error}", retry_after=error.retry_after) from None
        except (NotFound, LookupError, OSError):
            raise ModelError(f"The image or document {digest} is missing.", kind="invalid_request") from None
    return files
