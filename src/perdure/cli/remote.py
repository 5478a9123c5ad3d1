"""Commands to a session that another process may be driving: they are recorded, and somebody acts on them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Literal

from perdure.cli.answers import who
from perdure.cli.terminal import print_json, store_url
from perdure.runtime.session import Session
from perdure.wiring import Runtime


@asynccontextmanager
async def beside(store: str | None) -> AsyncGenerator[Runtime]:
    """A runtime that sends, decides and looks, and never drives."""
    async with Runtime(store_url(store, must_exist=True), engine=None) as runtime:
        yield runtime


async def end_run(verb: Literal["stop", "cancel"], id: str, store: str | None, tenant: str, *, json: bool) -> None:
    async with beside(store) as runtime:
        session = await runtime.session(id, tenant=tenant)
        await (session.stop(by=who()) if verb == "stop" else session.cancel(by=who()))
        await tell(runtime, session, f"{verb} is recorded", json=json)


async def tell(runtime: Runtime, session: Session[Any], what: str, *, json: bool) -> None:
    """Says what was recorded, and who will act on it."""
    driver = await runtime.driver_of(session)
    if json:
        print_json({"session": session.id, "recorded": what, "driver": driver})
    elif driver:
        print(f"{session.id}: {what}; the process that drives it acts on it now.")
    else:
        print(f"{session.id}: {what}; nobody drives it now: perdure resume {session.id} --agent … picks it up.")

