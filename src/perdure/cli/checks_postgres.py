"""What the doctor finds about a PostgreSQL server and those who work on its sessions."""

from __future__ import annotations

import time
from secrets import token_hex
from statistics import median

from perdure.cli.findings import Finding
from perdure.cli.words import count
from perdure.core.errors import PerdureError
from perdure.runtime.agent import Agent
from perdure.stores.postgres import PostgresStore
from perdure.stores.postgres_health import Health, examine
from perdure.testing.scripted import ScriptedModel
from perdure.wiring import Runtime

SLOW = 0.05
"""Seconds: an append that takes longer makes every turn slow."""
NEARLY_FULL = 0.9
APPENDS = 5


async def check_postgres(store: PostgresStore) -> list[Finding]:
    try:
        health = await examine(store)
    except PerdureError as error:
        return [Finding("wrong", f"PostgreSQL cannot be looked at: {error}")]
    text = f"PostgreSQL {health.server}, schema {store.schema!r} at version {health.schema_version}"
    findings = [Finding("ok", text), _listening(health), *_settings(health)]
    try:
        taken = await _time_append(store)
    except PerdureError as error:
        return [*findings, Finding("wrong", f"nothing can be appended: {error}")]
    level = "ok" if taken < SLOW else "note"
    todo = "" if taken < SLOW else "Look for the way to the server and for its disk: every turn waits for two commits."
    workers = await store.workers()
    return [
        *findings,
        Finding(level, f"an append takes {taken * 1e3:.1f} ms", todo),
        Finding("ok", f"{count(len(workers), 'worker')} living, {_hold(sum(w.sessions for w in workers))}"),
    ]


async def _time_append(store: PostgresStore) -> float:
    """Seconds of an append, the middle one of a few, in a session of its own that is gone afterwards."""
    agent, taken = Agent(name="perdure-doctor", model=ScriptedModel([])), list[float]()
    async with Runtime(store, engine=None) as runtime:
        session = await runtime.open(agent, id=f"perdure-doctor-{token_hex(8)}")
        try:
            for number in range(APPENDS):
                began = time.perf_counter()
                await session.rename(f"append {number}")
                taken.append(time.perf_counter() - began)
        finally:
            await session.delete()
    return median(taken)


def _hold(sessions: int) -> str:
    return f"with {count(sessions, 'session')} in hand"


def _listening(health: Health) -> Finding:
    if health.listens is None:
        todo = "Give the address past the pooler: …&direct=postgresql://…"
        return Finding("note", "LISTEN is not used, news is looked for again and again", todo)
    if health.listens:
        return Finding("ok", "LISTEN works: news comes by itself")
    todo = (
        "Behind a transaction pooler say so: …?pooled=true, with direct=postgresql://… past it, which can be reached."
    )
    return Finding("wrong", "LISTEN does not work: what is notified is not heard", todo)


def _settings(health: Health) -> list[Finding]:
    findings: list[Finding] = []
    if not health.is_safe:
        todo = "Turn fsync and synchronous_commit on in the server's settings."
        findings.append(Finding("wrong", "a power cut can take back what was acknowledged", todo))
    if health.connections > NEARLY_FULL * health.most_connections:
        used = f"{health.connections} of {health.most_connections} connections are in use"
        findings.append(Finding("note", used, "Raise max_connections, or give workers fewer: …?connections=5"))
    return findings
