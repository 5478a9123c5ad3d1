"""What `perdure worker` does, and what `perdure workers` shows."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import time
from copy import copy
from typing import Any, cast

import msgspec

from perdure.cli.agents import load_agent
from perdure.cli.remote import beside
from perdure.cli.screen import open_screen
from perdure.cli.terminal import patience, print_json, store_url
from perdure.cli.words import count, visible
from perdure.core.capacity import Capacity
from perdure.core.errors import PerdureError, UsageError
from perdure.ports import Worker
from perdure.runtime.clock import SystemClock
from perdure.stores.addresses import masked
from perdure.wiring import Runtime, resolve_engine, resolve_store

REPORT_EVERY = 10.0
COLUMNS = ("worker", "where", "engine", "version", "sessions", "load", "up", "drives")


class Station(msgspec.Struct, frozen=True):
    """What a worker was told."""

    agents: tuple[str, ...]
    store: str | None
    engine: str
    model: str | None
    concurrency: int | None
    queues: tuple[str, ...] | None
    grace: float
    capacity: Capacity = Capacity()


async def work(station: Station, *, json: bool) -> None:
    agents = [load_agent(where, station.model) for where in station.agents or (None,)]
    url = store_url(station.store)
    store = resolve_store(url)
    engine = resolve_engine(
        station.engine, SystemClock(), store, concurrency=station.concurrency, queues=station.queues
    )
    _log_plainly()
    told = _ear()
    async with patience("opening the store …"):
        opened = Runtime(store, agents=agents, engine=engine, grace=station.grace, capacity=station.capacity)
        runtime = await opened.__aenter__()
    try:
        _check_queues(station, runtime)
        # What was loaded stays for the life of the process, and need not be gone through again and again.
        gc.collect()
        gc.freeze()
        await _say(runtime, "ready", visible(masked(url)), json=json)
        while not told.is_set():
            try:
                await asyncio.wait_for(told.wait(), REPORT_EVERY)
            except TimeoutError:
                await _say(runtime, "working", "", json=json)
        await _say(runtime, "draining", "", json=json)
    finally:
        await runtime.__aexit__(None, None, None)
    if json:
        print_json({"state": "ended"})
    else:
        print("ended; what was left is for other workers.", flush=True)


class Plain(logging.Formatter):
    """One line for a message, its error at the end; --debug shows where that comes from."""

    def format(self, record: logging.LogRecord) -> str:
        if os.environ.get("PERDURE_DEBUG"):
            return super().format(record)
        plain = copy(record)
        plain.exc_info = plain.exc_text = plain.stack_info = None
        error = record.exc_info[1] if record.exc_info else None
        parts = [super().format(plain), *((type(error).__name__, str(error)) if error is not None else ())]
        return " ".join(": ".join(filter(None, parts)).split())


def _log_plainly() -> None:
    shown = logging.StreamHandler()
    shown.setFormatter(Plain("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[shown])
    # The pool tells every connection that it could not make again; the store says what that comes to.
    logging.getLogger("asyncpg").setLevel(logging.CRITICAL)


def _check_queues(station: Station, runtime: Runtime) -> None:
    known = runtime.queues
    for queue in station.queues or ():
        if queue not in known:
            raise UsageError(
                f"--queues {queue}: no agent of that name was given, nor has a tool it; take one of {', '.join(known)}."
            )


def _ear() -> asyncio.Event:
    """Set by the first signal; a second one ends the process as signals do."""
    told = asyncio.Event()
    loop = asyncio.get_running_loop()

    def hear(number: signal.Signals) -> None:
        loop.remove_signal_handler(number)
        told.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, hear, number)
    return told


async def _say(runtime: Runtime, state: str, place: str, *, json: bool) -> None:
    """How the worker is: for programs every few seconds, for people when it changes."""
    if not json and state == "working":
        return
    try:
        me = next((worker for worker in await runtime.workers() if worker.owner == runtime.owner), None)
    except PerdureError as error:
        me, state = None, f"the store does not answer: {error}"
    sessions = me.sessions if me else 0
    if json:
        print_json({"state": state, "worker": runtime.owner, "sessions": sessions, **(me.about if me else {})})
    elif state == "ready" and me:
        drives = _queues(me.about)
        print(f"worker {runtime.owner} drives {drives} of {place} (engine {me.about.get('engine')}).", flush=True)
    else:
        print(f"{state}: {count(sessions, 'session')} in hand.", flush=True)


async def list_workers(store: str | None, *, json: bool) -> None:
    async with beside(store) as runtime:
        found = await runtime.workers()
    if json:
        for worker in found:
            print_json(worker)
        return
    screen = open_screen()
    if not found:
        screen.say("Nobody drives sessions of this store; start one with `perdure worker`.")
        return
    rows = [COLUMNS, *map(_cells, found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    for number, row in enumerate(rows):
        text = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        screen.say((text, "dim" if not number else ""))
    versions = {row[COLUMNS.index("version")] for row in rows[1:]}
    if len(versions) > 1:
        screen.say(f"Workers of {len(versions)} versions: what a newer one has written, older ones leave alone.")


def _cells(worker: Worker) -> tuple[str, ...]:
    about = worker.about
    since, most = about.get("since"), about.get("concurrency")
    up = max(0, int(time.time() - since)) if isinstance(since, int | float) else None
    return (
        visible(worker.owner),
        visible(f"{about.get('host', '?')}:{about.get('pid', '?')}"),
        visible(str(about.get("engine", "?"))),
        visible(str(about.get("version", "?"))),
        str(worker.sessions),
        f"{worker.sessions / most:.0%}" if isinstance(most, int) and most else "-",
        "?" if up is None else f"{up // 3600}:{up // 60 % 60:02}:{up % 60:02}",
        _queues(about),
    )


def _queues(about: dict[str, Any]) -> str:
    """The agents whose sessions it drives."""
    named: Any = about.get("queues") or about.get("agents")
    return visible(", ".join(map(str, cast(list[Any], named)))) if isinstance(named, list) else "?"
