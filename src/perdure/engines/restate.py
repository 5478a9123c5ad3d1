"""Restate as the engine: an invocation brings the uid of a session that has work to one of the workers of its queue.

Rule 1: an invocation ends soon after a worker took the session, not when it was driven; who dies is known by the
heartbeats in the store. One that lasted as long as the drive would hide a worker that hangs for a minute, and be
aborted when nothing is said for long. Rule 2: units never fail, and Restate keeps none that it cannot deliver; the
sweep asks again, and what was not brought to anybody for a while is driven by whoever finds it, with or without
Restate. Rule 3: requests come one to a connection, so that workers that share a port, or stand behind a balancer of
connections, share the work.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from string import ascii_letters, digits
from typing import Any
from urllib.parse import parse_qs, quote

import aiohttp
import restate
from aiohttp import web
from restate.serde import JsonSerde

from perdure.core.errors import UsageError
from perdure.ports import Clock, Work
from perdure.runtime.lookout import Lookout, Unavailable
from perdure.runtime.units import Units

App = Callable[
    [dict[str, Any], Callable[[], Awaitable[Any]], Callable[[MutableMapping[str, Any]], Awaitable[None]]], Any
]

UNIT = "drive"
HELD_FOR = 0.5
"""Seconds: so long an invocation stands for others that ask for the same session."""
HUNG_AFTER = timedelta(seconds=1)
RETRIES = restate.InvocationRetryPolicy(
    initial_interval=timedelta(seconds=0.1),
    exponentiation_factor=2.0,
    max_interval=timedelta(seconds=1),
    max_attempts=5,
    on_max_attempts="kill",
)
PATIENCE = 0.7
"""Seconds: what is still found so long after it was asked for is driven by whoever finds it."""
START_PATIENCE = 10.0
TIMEOUT = aiohttp.ClientTimeout(total=5.0)
ASKED_AT_ONCE = 20
ENDS_WITHIN = 1.0
PLAIN = frozenset(f"{ascii_letters}{digits}-_")
OPTIONS = ("admin", "serve", "reach", "prefix")

_logger = logging.getLogger("perdure")


class RestateEngine:
    """`ingress` and `admin` are Restate's addresses; `serve` is where this worker listens, and `reach` the URL under
    which Restate finds it. Workers with the same queues share one; `prefix` keeps two stores apart.
    """

    def __init__(
        self,
        clock: Clock,
        ingress: str = "127.0.0.1:8080",
        *,
        admin: str = "127.0.0.1:9070",
        serve: str = "127.0.0.1:9180",
        reach: str | None = None,
        prefix: str = "perdure",
        concurrency: int | None = None,
        queues: Sequence[str] | None = None,
    ) -> None:
        self.concurrency = concurrency
        self.queues = queues
        self._clock = clock
        self._ingress, self._admin = _url(ingress), _url(admin)
        self._serve = _split(serve)
        if reach is None and self._serve[0] in ("0.0.0.0", "::"):
            raise UsageError(f"serve={serve} is no address that Restate could call; add reach=URL.")
        self._reach = _url(reach or serve)
        if not re.fullmatch("[A-Za-z][A-Za-z0-9_-]*", prefix):
            raise UsageError(f"prefix={prefix!r}: take letters and digits, a letter first.")
        self._prefix = prefix
        self._served: list[str] = []
        self._is_known = False
        self._trouble = ""
        self._units: Units | None = None
        self._client: aiohttp.ClientSession | None = None
        self._door: web.AppRunner | None = None
        self._looking: asyncio.Task[None] | None = None
        self._asked: dict[str, tuple[str, bool]] = {}
        self._asking: asyncio.Task[None] | None = None

    async def start(self, work: Work) -> None:
        served = [queue for queue in work.queues if self.queues is None or queue in self.queues]
        self._served = [self._queue(queue) for queue in served]
        self._units = Units(self._clock, work.drive, self.concurrency, work.priority)
        self._client = aiohttp.ClientSession(timeout=TIMEOUT)
        try:
            await self._open(self._units)
            await self._introduce_at_start()
        except BaseException:
            await self.drain(0.0)
            raise
        begin = partial(self._units.begin_beside, self.concurrency)
        lookout = Lookout(self._clock, work, self._find, self._look_after, begin, patience=PATIENCE)
        self._looking = asyncio.ensure_future(lookout.keep(served))

    def submit(self, session: str, queue: str) -> None:
        """Queues it, here or for others; what is driven here already hears of it at once."""
        if self._units is not None and self._units.is_under_way(session):
            self._units.begin(session)
        else:
            self._put(session, queue, is_found=False)

    def wake(self, session: str, queue: str, at: float) -> None:
        if self._units is not None:
            self._units.begin_at(at, session, partial(self.submit, session, queue))

    def cancel(self, session: str) -> None:
        self._asked.pop(session, None)
        if self._units is not None:
            self._units.cancel(session)

    async def drain(self, grace: float) -> None:
        client, self._client = self._client, None
        if client is None or self._units is None:
            return
        for task in (self._looking, self._asking):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        if self._door is not None:
            for site in list(self._door.sites):
                await site.stop()
        await self._units.drain(grace)
        if self._door is not None:
            await self._door.cleanup()
        await client.close()

    async def _open(self, units: Units) -> None:
        """Listens for invocations; other workers of this machine may listen at the same address."""

        async def unit(_: restate.Context, session: str) -> None:
            await asyncio.wait([units.begin(session)], timeout=HELD_FOR)

        nothing = timedelta(0)
        services: list[restate.Service] = []
        for name in self._served:
            service = restate.Service(
                name,
                inactivity_timeout=HUNG_AFTER,
                abort_timeout=HUNG_AFTER,
                journal_retention=nothing,
                idempotency_retention=nothing,
                invocation_retry_policy=RETRIES,
            )
            service.handler(UNIT, input_serde=JsonSerde[str](), output_serde=JsonSerde[None]())(unit)
            services.append(service)
        app: App = restate.app(services, protocol="request_response")
        await asyncio.to_thread(asyncio.run, _knock(app))
        door = web.Application()
        door.router.add_route("*", "/{path:.*}", partial(_answer, app))
        self._door = web.AppRunner(door, access_log=None, shutdown_timeout=ENDS_WITHIN)
        await self._door.setup()
        host, port = self._serve
        try:
            await web.TCPSite(self._door, host, port, reuse_port=True).start()
        except OSError as error:
            said = f"{error.strerror or error}; name another with serve=HOST:PORT"
            raise UsageError(f"This worker cannot be called by Restate at {host}:{port}: {said}.") from None

    async def _introduce_at_start(self) -> None:
        """Restate may be starting at the same time."""
        deadline = self._clock.monotonic() + START_PATIENCE
        while True:
            try:
                await self._introduce()
                return
            except Unavailable as error:
                if self._clock.monotonic() >= deadline:
                    raise UsageError(f"{error}; start Restate first, or mend the address.") from None
            await asyncio.sleep(0.3)

    async def _introduce(self) -> None:
        """Tells Restate where we are; that it knew somebody there already does no harm to what is under way."""
        told = {"uri": self._reach, "use_http_11": True, "force": True}
        answer = await self._post(f"{self._admin}/deployments", told)
        try:
            known = {service["name"] for service in answer["services"]}
        except (KeyError, TypeError):
            raise Unavailable(f"What answers at {self._admin} is not Restate") from None
        self._is_known = known.issuperset(self._served)
        if not self._is_known:
            raise Unavailable(f"Restate finds workers with other queues at {self._reach}; serve yours elsewhere")

    async def _look_after(self) -> None:
        try:
            if not self._is_known:
                await self._introduce()
        except Unavailable as error:
            self._trouble = str(error)
        if self._trouble:
            _logger.warning("%s; sessions are driven by whoever finds them", self._trouble)
            self._trouble = ""

    def _find(self, session: str, queue: str) -> None:
        """For what the sweep finds: Restate is asked first; a worker that is full leaves it to others."""
        if self._units is not None and not self._units.is_full:
            self._put(session, queue, is_found=True)

    def _put(self, session: str, queue: str, *, is_found: bool) -> None:
        if self._client is None:
            return
        self._asked[session] = queue, is_found
        if self._asking is None or self._asking.done():
            self._asking = asyncio.ensure_future(self._ask())

    async def _ask(self) -> None:
        while self._asked:
            asked = [self._asked.popitem() for _ in range(min(ASKED_AT_ONCE, len(self._asked)))]
            await asyncio.gather(*(self._send(session, *what) for session, what in asked))

    async def _send(self, session: str, queue: str, is_found: bool) -> None:
        """All workers find the same sessions: of those that ask, one counts. Who has news is always heard."""
        headers = {"idempotency-key": quote(session)} if is_found else {}
        try:
            await self._post(f"{self._ingress}/{self._queue(queue)}/{UNIT}/send", session, headers)
        except Unavailable as error:
            self._trouble = str(error)

    async def _post(self, url: str, body: Any, headers: dict[str, str] | None = None) -> Any:
        if self._client is None:
            raise Unavailable("the engine has ended")
        try:
            async with self._client.post(url, json=body, headers=headers) as response:
                if response.status < 400:
                    return await response.json()
                if response.status == 404:
                    self._is_known = False
                said = " ".join((await response.text()).split())[:300]
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise Unavailable(f"Restate does not answer at {url.partition('//')[2].partition('/')[0]}") from error
        raise Unavailable(f"Restate refuses ({response.status}: {said})")

    def _queue(self, queue: str) -> str:
        return f"{self._prefix}.{_name(queue)}"


def restate_engine(address: str, clock: Clock, concurrency: int | None, queues: Sequence[str] | None) -> RestateEngine:
    """`HOST:PORT?admin=HOST:PORT&serve=HOST:PORT&reach=URL&prefix=NAME`, of which everything may be left out."""
    ingress, _, rest = address.partition("?")
    given = {name: values[-1] for name, values in parse_qs(rest).items()}
    if unknown := set(given).difference(OPTIONS):
        raise UsageError(f"restate://…?{unknown.pop()}= is unknown; there are {', '.join(OPTIONS)}.")
    ingress = ingress.rstrip("/") or "127.0.0.1:8080"
    return RestateEngine(clock, ingress, concurrency=concurrency, queues=queues, **given)


def _url(address: str) -> str:
    return (address if "://" in address else f"http://{address}").rstrip("/")


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise UsageError(f"{address!r} is no address to serve at; write HOST:PORT.")
    return host.strip("[]"), int(port)


def _name(text: str) -> str:
    """A name that Restate takes, another one for every text."""
    return "".join(chr(b) if chr(b) in PLAIN else f".{b:02x}" for b in text.encode())


async def _knock(app: App) -> None:
    """At its first request the SDK takes SIGTERM for itself, where it can: so it gets that one in a thread."""

    async def send(_: MutableMapping[str, Any]) -> None: ...

    await app({"type": "http", "path": "/health"}, asyncio.Event().wait, send)


async def _answer(app: App, request: web.Request) -> web.Response:
    """One request for the SDK, which expects a server of the ASGI kind."""
    body = [{"type": "http.request", "body": await request.read(), "more_body": False}]
    status, headers, said = 500, list[tuple[bytes, bytes]](), list[bytes]()

    async def receive() -> Any:
        return body.pop() if body else await asyncio.Event().wait()

    async def send(event: MutableMapping[str, Any]) -> None:
        nonlocal status, headers
        if event["type"] == "http.response.start":
            status, headers = event["status"], list(event["headers"])
        else:
            said.append(event.get("body", b""))

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": request.method,
        "path": request.path,
        "headers": [(name.lower(), value) for name, value in request.raw_headers],
    }
    await app(scope, receive, send)
    response = web.Response(status=status, body=b"".join(said))
    response.headers.extend((name.decode(), value.decode()) for name, value in headers)
    response.force_close()
    return response
