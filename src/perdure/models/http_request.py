"""What the HTTP client sends: head and body of a request leave in one write, at once.

aiohttp makes a task to write a body, which runs at once since Python 3.12 only, and copies it behind its head; asyncio
takes 256 KB from the kernel for each read of a few hundred bytes, and gives them back. Together that was a tenth of a
round with a long history (benchmarks/rounds.py).
"""

from __future__ import annotations

from functools import partial
from typing import Any

from aiohttp import ClientConnectionResetError, ClientRequest, ClientResponse, hdrs
from aiohttp.connector import Connection

READ = 64 * 1024
"""So much is read at a time; small enough to be had without the kernel."""
COPIED = 256 * 1024
"""Up to here a second write costs more than a copy."""


class Request(ClientRequest):
    """A POST; where its body is bytes, no task is needed to send it."""

    _rest: bytes = b""

    def update_body_from_data(self, body: Any, _stacklevel: int = 3) -> None:
        if not isinstance(body, bytes):
            super().update_body_from_data(body, _stacklevel + 1)
            return
        self._rest = body
        self.headers[hdrs.CONTENT_LENGTH] = str(len(body))

    async def send(self, conn: Connection) -> ClientResponse:
        protocol: Any = conn.protocol
        transport: Any = conn.transport
        # Transports of TLS and of other loops have no such attribute, and buffers of their own.
        if getattr(transport, "max_size", READ) > READ:
            transport.max_size = READ
        body = self._rest
        if not body or transport is None or protocol.writing_paused:
            if body:
                super().update_body_from_data(body)
            return await super().send(conn)
        protocol.transport = head = _Head(transport)
        try:
            response = await super().send(conn)
        finally:
            protocol.transport = transport
        if transport.is_closing():
            raise ClientConnectionResetError("Cannot write to closing transport")
        if len(body) > COPIED:
            transport.write(head.written)
            transport.write(body)
        else:
            transport.write(head.written + body)
        if transport.get_write_buffer_size():
            # Whoever answers before all was read may never read on: nobody else is to wait behind that.
            conn.add_callback(partial(_give_up_unsent, protocol, transport))
        return response


def _give_up_unsent(protocol: Any, transport: Any) -> None:
    if transport.get_write_buffer_size():
        protocol.force_close()


class _Head:
    """In place of a connection's transport while aiohttp, which does not know of the body, writes the head."""

    __slots__ = ("_transport", "written")

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
