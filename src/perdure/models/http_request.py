"""What the HTTP client sends: a body of bytes goes out right behind its head.

Before Python 3.12 aiohttp starts a task to write a body, and copies it behind its head; asyncio takes 256 KB from the
kernel for each read of a few hundred bytes, and gives them back. Together that was a tenth of a round with a long
history (benchmarks/rounds.py).
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

from aiohttp import ClientConnectionResetError, ClientRequest, ClientResponse, hdrs
from aiohttp.connector import Connection

READ = 64 * 1024
"""So much is read at a time; small enough to be had without the kernel."""
HAS_EAGER_TASKS = sys.version_info >= (3, 12)


class Request(ClientRequest):
    """A POST of bytes."""

    _rest: bytes = b""

    def update_body_from_data(self, body: Any, _stacklevel: int = 3) -> None:
        if HAS_EAGER_TASKS or not isinstance(body, bytes):
            super().update_body_from_data(body, _stacklevel + 1)
            return
        self._rest = body
        self.headers[hdrs.CONTENT_LENGTH] = str(len(body))

    async def send(self, conn: Connection) -> ClientResponse:
        transport: Any = conn.transport
        # Transports of TLS and of other loops have no such attribute, and buffers of their own.
        with suppress(AttributeError):
            transport.max_size = READ
        response = await super().send(conn)
        if self._rest:
            if transport is None or transport.is_closing():
                raise ClientConnectionResetError("Cannot write to closing transport")
            transport.write(self._rest)
        return response
