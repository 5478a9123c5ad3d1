"""perdure sessions compact: a summary of the older messages, on request, whoever drives the session."""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack, redirect_stdout

from perdure.cli.agents import load_agent
from perdure.cli.answers import who
from perdure.cli.driving import Given, check_agent
from perdure.cli.remote import beside, find
from perdure.cli.terminal import FAILED, OK, patience, print_json, store_url
from perdure.cli.words import show_compaction
from perdure.core.events import HistoryCompacted
from perdure.runtime.agent_files import AgentFiles
from perdure.wiring import Runtime


async def compact_session(id: str, given: Given) -> int:
    async with beside(given.store) as runtime:
        state = (await find(runtime, id, given.store, given.tenant)).state
    check_agent(id, state, given)
    files = AgentFiles("--agent")
    agent = load_agent(given.agent, given.model, files)
    check_agent(id, state, given, agent.name)
    async with AsyncExitStack() as stack:
        if given.json:
            stack.enter_context(redirect_stdout(sys.stderr))
        runtime = await stack.enter_async_context(
            Runtime(store_url(given.store), agents=[agent], engine=None, resolve=files.find)
        )
        session = await find(runtime, id, given.store, given.tenant)
        async with patience(f"compacting {id} …"):
            event = await session.compact(by=who())
    if given.json:
        print_json({"session": id, "compacted": event})
    else:
        print(f"{id}: {_said(event)}.")
    return FAILED if event is not None and event.error else OK


def _said(event: HistoryCompacted | None) -> str:
    return "there is nothing to leave out" if event is None else show_compaction(event)
