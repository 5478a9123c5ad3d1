"""The one HTTP client: sends a request and reads its answer in pieces, each phase with its own deadline.

Invariant: whatever goes wrong is a ModelError, and no exception of the client below is kept in it, for those hold keys.
"""

from __future__ import annotations

import asyncio
import io
import math
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any

from perdure.core.errors import ModelError, UsageError
from perdure.models.deadlines import Deadlines
from perdure.models.http_route import Route, find_route
from perdure.models.phases import Phases
from perdure.models.unpack import Unpacker

if TYPE_CHECKING:
    from aiohttp import ClientResponse, StreamReader

    from perdure.models.http_line import Line

READ = 64 * 1024
MAX_ANSWER = 64 * 1024 * 1024
MAX_ERROR = 64 * 1024
SWITCHED = 101
"""What follows such an answer is not HTTP, so its connection is never given back."""
LARGE_BODY = 512 * 1024
"""From here on aiohttp wants a file, so that it can send in pieces."""


class HttpClient:
    """One line per event loop, opened when it is first used and again after a close.

    `_used` are the addresses that answered last time, so that a connection may be left from then.
    """

    __slots__ = ("_lines", "_routes", "_used")

    def __init__(self) -> None:
        self._lines: dict[asyncio.AbstractEventLoop, Line] = {}
        self._routes: dict[str, Route] = {}
        self._used: set[str] = set()

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, deadlines: Deadlines) -> Exchange:
        """The answer, as soon as its headers are there; the names of those that are sent are lower case."""
        line = self._line()
        clock = Phases(deadlines, line.watch, line.loop)
        route = self._routes.get(url)
        if route is None:
            route = self._routes[url] = find_route(url)
        sent = {**route.headers, **headers}
        answer = await self._send(line, route, sent, body, clock)
        if answer is None:
            answer = await self._send(line, route, sent, body, clock)
        if isinstance(answer, Exchange):
            return answer
        raise answer or ModelError(f"There is no answer from {route.where}.", kind="connect")

    async def _send(
        self, line: Line, route: Route, headers: dict[str, str], body: bytes, clock: Phases
    ) -> Exchange | ModelError | None:
        """None if the connection that an earlier request left was closed: some servers do that without a word.

        An error is returned, not raised: the exception that it comes from holds the key.
        """
        was_used = route.where in self._used
        try:
            with clock:
                data = io.BytesIO(body) if len(body) > LARGE_BODY else body
                response = await line.post(route, headers, data, clock.connect)
            self._used.add(route.where)
            return Exchange(response, clock, route.where)
        except Exception as error:  # noqa: BLE001 - to the caller all of them are one class
            self._used.discard(route.where)
            if was_used and _is_lost(error):
                return None
            return _failure_of(error, route.where, clock)

    def prepare(self) -> None:
        """Imports what the first request needs."""
        import_module("perdure.models.http_line")

    async def close(self) -> None:
        """Closes the connections of the running loop; streams that are under way break off."""
        line = self._lines.pop(asyncio.get_running_loop(), None)
        if line is not None:
            await line.close()

    def _line(self) -> Line:
        loop = asyncio.get_running_loop()
        line = self._lines.get(loop)
        if line is None or line.is_closed:
            from perdure.models.http_line import Line

            line = Line(loop)
            # A loop that has ended can close nothing any more; its line is only forgotten.
            for ended in [known for known in self._lines if known.is_closed()]:
                del self._lines[ended]
            self._lines[loop] = line
        return line


class Exchange:
    """An answer under way: read it to its end, or close it, which ends the connection."""

    __slots__ = ("_clock", "_content", "_failure", "_response", "_size", "_unpacker", "headers", "status", "where")

    def __init__(self, response: ClientResponse, clock: Phases, where: str) -> None:
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        self.where = where
        self._response = response
        self._content: StreamReader = response.content
        self._clock = clock
        self._failure: ModelError | None = None
        self._size = 0
        self._unpacker: Unpacker | None = None
        if packed := response.headers.get("Content-Encoding"):
            self._expect(packed.strip().lower())

    def _expect(self, encoding: str) -> None:
        if encoding in Unpacker.ENCODINGS:
            self._unpacker = Unpacker(encoding, READ)
        elif encoding not in ("", "identity"):
            self._failure = ModelError(f"{self.where} answered in an encoding that nobody asked for.", kind="cut")

    async def read(self) -> bytes:
        """The next bytes of the body, decompressed, at most READ of them; nothing at its end."""
        if self._unpacker is None:
            data = await self._receive()
        else:
            data = await self._unpack(self._unpacker)
        self._size += len(data)
        if self._size > MAX_ANSWER:
            raise ModelError(f"The answer of {self.where} is larger than {MAX_ANSWER >> 20} MB.", kind="cut")
        return data

    async def read_error(self) -> bytes:
        """The beginning of an error's body, or as much of it as came."""
        body = b""
        # The status has been said; that its explanation is missing is no other failure.
        with suppress(ModelError):
            while len(body) < MAX_ERROR and (data := await self.read()):
                body += data
        return body[:MAX_ERROR]

    @property
    def is_over(self) -> bool:
        """All has been read: another read would give nothing, at once."""
        return self._unpacker is None and self._failure is None and self._content.at_eof()

    def retry_after(self) -> float | None:
        """Seconds that the provider asks to wait."""
        return retry_after_of(self.headers, time.time())

    def close(self) -> None:
        """Ends the connection at once, unless all was read: then it has been given back."""
        if not self._content.at_eof() or self.status == SWITCHED:
            self._response.close()

    async def _receive(self) -> bytes:
        if self._failure is not None:
            raise self._failure
        content = self._content
        try:
            data = content.read_nowait(READ)
            if not data and not content.at_eof():
                with self._clock:
                    data = await content.read(READ)
        except Exception as error:  # noqa: BLE001 - to the caller all of them are one class
            data = _unread(content)
            self._clock.has_begun |= bool(data)
            self._failure = _failure_of(error, self.where, self._clock)
        if self._failure is not None and not data:
            raise self._failure
        self._clock.has_begun |= bool(data)
        return data

    async def _unpack(self, unpacker: Unpacker) -> bytes:
        while not (data := unpacker.take()):
            packed = await self._receive()
            if not packed:
                unpacker.finish()
                break
            unpacker.put(packed)
        return data


def retry_after_of(headers: Mapping[str, str], now: float) -> float | None:
    """Retry-After as milliseconds, seconds or a date; None for anything that is no such thing."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    text = headers.get("retry-after")
    seconds = _number(text)
    if seconds is not None or text is None:
        return seconds
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now)
    except (ValueError, OverflowError):
        return None


def _number(text: str | None) -> float | None:
    try:
        number = float(text) if text is not None else None
    except ValueError:
        return None
    return number if number is not None and math.isfinite(number) and number >= 0 else None


def _is_lost(error: Exception) -> bool:
    import aiohttp

    return isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError | ConnectionError)


def _failure_of(error: Exception, where: str, clock: Phases) -> ModelError:
    """The class of whatever the client raised, in words that hold nothing of the request."""
    import aiohttp

    match error:
        case ModelError():
            return error
        case UsageError():
            # no_network() has its say; trying again would not help.
            return ModelError(str(error), kind="not_found")
        case aiohttp.ConnectionTimeoutError():
            return ModelError(f"No connection to {where} within {clock.connect:g} s.", kind="connect")
        case aiohttp.ClientConnectorCertificateError(certificate_error=reason):
            why = getattr(reason, "verify_message", "") or type(reason).__name__
            told = f"The certificate of {where} is not trusted ({why}); name the one to trust in SSL_CERT_FILE."
            return ModelError(told, kind="connect")
        case aiohttp.ClientProxyConnectionError(os_error=reason):
            told = f"Cannot connect to the proxy for {where}: {_words_of(reason)}; look at HTTPS_PROXY and HTTP_PROXY."
            return ModelError(told, kind="connect")
        case aiohttp.ClientConnectorError(os_error=reason):
            told = (
                f"Cannot connect to {where}: {_words_of(reason)}; see that it is running, and that base_url is right."
            )
            return ModelError(told, kind="connect")
        case aiohttp.ClientHttpProxyError(status=status):
            return ModelError(f"The proxy refused a connection to {where} with {status}.", kind="connect")
        case TimeoutError():
            return clock.late(where)
        case aiohttp.InvalidURL() | aiohttp.NonHttpUrlClientError():
            return ModelError("The base_url is no HTTP address; take one like https://host/v1.", kind="not_found")
        case aiohttp.ClientResponseError():
            return ModelError(f"{where} answered with something that is not HTTP.", kind="cut")
        case aiohttp.ClientError() | OSError() if clock.has_begun:
            return ModelError(f"The connection to {where} broke off in the middle of the answer.", kind="cut")
        case aiohttp.ClientError() | OSError():
            return ModelError(f"The connection to {where} was lost before the answer began.", kind="connect")
        case ValueError():
            return ModelError(f"The request to {where} cannot be sent; look at base_url and key.", kind="not_found")
        case _:
            kind = "cut" if clock.has_begun else "connect"
            return ModelError(f"The exchange with {where} failed with {type(error).__name__}.", kind=kind)


def _words_of(reason: OSError) -> str:
    """The words of the system; asyncio's own repeat the address."""
    code = reason.errno or 0
    return os.strerror(code) if code > 0 else reason.strerror or type(reason).__name__


def _unread(content: StreamReader) -> bytes:
    """What came before the connection broke and was not read yet: aiohttp shows the error first, and then nothing."""
    read: Any = getattr(content, "_read_nowait", None)
    return read(-1) if read is not None else b""
