"""A line to the servers for one event loop: its connections, and how a request goes out on one of them.

It uses aiohttp's connector, request and response without the session's own work around them: redirects, cookies,
headers and tracing of a session are not wanted here, and were a twentieth of a round (benchmarks/rounds.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import BinaryIO

from aiohttp import (
    ClientOSError,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    ConnectionTimeoutError,
    TCPConnector,
)

from perdure.models.http_request import Request
from perdure.models.http_route import Route
from perdure.models.phases import Watch

KEPT_OPEN = 30.0
"""Seconds for which a connection that nobody uses stays."""


class Line:
    """Open until it is closed; `watch` is for the deadlines of what goes over it."""

    __slots__ = ("_connector", "_session", "_timeouts", "loop", "watch")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.watch = Watch(loop)
        self._connector = TCPConnector(limit=0, keepalive_timeout=KEPT_OPEN)
        # Nothing is sent through it, but requests and answers belong to one, and it closes the connector.
        self._session = ClientSession(connector=self._connector)
        self._timeouts: dict[float, ClientTimeout] = {}

    @property
    def is_closed(self) -> bool:
        return self._session.closed

    async def close(self) -> None:
        self.watch.close()
        await self._session.close()

    async def post(
        self, route: Route, headers: Mapping[str, str], body: bytes | BinaryIO, connect_within: float
    ) -> ClientResponse:
        """The answer, as soon as its head is there; whatever goes wrong before that is raised as by a session."""
        request = Request(
            "POST",
            route.url,
            headers=headers,
            data=body,
            loop=self.loop,
            session=self._session,
            proxy=route.proxy,
            # The connector writes into them, and finds a connection by what they were before.
            proxy_headers=route.proxy_headers and route.proxy_headers.copy(),
        )
        try:
            connection = await self._connector.connect(request, traces=[], timeout=self._timeout(connect_within))
        except TimeoutError as error:
            raise ConnectionTimeoutError from error
        try:
            assert connection.protocol is not None
            connection.protocol.set_response_params(auto_decompress=False, read_until_eof=True)
            response = await request.send(connection)
            try:
                await response.start(connection)
            except BaseException:
                response.close()
                raise
        except BaseException as error:
            connection.close()
            if isinstance(error, OSError) and not isinstance(error, ClientOSError) and error.errno is not None:
                raise ClientOSError(*error.args) from error
            raise
        return response

    def _timeout(self, connect: float) -> ClientTimeout:
        timeout = self._timeouts.get(connect)
        if timeout is None:
            # Without a threshold it would be rounded up to a whole second.
            timeout = ClientTimeout(total=None, connect=connect, sock_connect=connect, ceil_threshold=connect)
            self._timeouts[connect] = timeout
        return timeout
