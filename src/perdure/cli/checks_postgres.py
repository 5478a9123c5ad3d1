"""What the doctor finds about a PostgreSQL server and those who work on its sessions."""

from __future__ import annotations

from perdure.cli.findings import Finding
from perdure.cli.words import count
from perdure.core.errors import PerdureError
from perdure.stores.postgres import PostgresStore
from perdure.stores.postgres_health import Health, examine

SLOW = 0.05
"""Seconds: a commit that takes longer makes every turn slow."""
NEARLY_FULL = 0.9


async def check_postgres(store: PostgresStore) -> list[Finding]:
    try:
        health = await examine(store)
    except PerdureError as error:
        return [Finding("wrong", f"PostgreSQL cannot be looked at: {error}")]
    text = f"PostgreSQL {health.server}, schema {store.schema!r} at version {health.schema_version}"
    taken = health.commit_seconds
    level = "ok" if taken < SLOW else "note"
    todo = "" if taken < SLOW else "Look for the way to the server and for its disk: every turn waits for two commits."
    workers = await store.workers()
    return [
        Finding("ok", text),
        _listening(health),
        *_settings(health),
        Finding(level, f"a commit takes {taken * 1e3:.1f} ms", todo),
        Finding("ok", f"{count(len(workers), 'worker')} living, {_hold(sum(w.sessions for w in workers))}"),
    ]


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
