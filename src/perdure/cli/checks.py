"""The doctor's checks; each finding says what is so and, where something is wrong, what to do."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib.metadata import version

from perdure.cli.agents import family_of, load_agent
from perdure.cli.choice import KEYS, PULL, has_local_extra
from perdure.cli.findings import Finding
from perdure.cli.terminal import store_url
from perdure.cli.words import count, shell, visible
from perdure.core.errors import PerdureError, UsageError
from perdure.core.fold import fold
from perdure.core.transcript import unpaired
from perdure.models.weights import here
from perdure.ports import SessionQuery, SessionRow, Store
from perdure.runtime.per_run import PerRun
from perdure.runtime.subagents import ROOT
from perdure.runtime.tools import as_tool
from perdure.stores.addresses import masked
from perdure.wiring import resolve_store

SAFE_SQLITE = (3, 51, 3)


def check_versions() -> list[Finding]:
    import apsw

    sqlite = apsw.sqlite_lib_version()
    findings = [
        Finding("ok", f"perdure {version('perdure')}, Python {platform.python_version()}, {platform.system()}"),
        Finding("ok", f"msgspec {version('msgspec')}, apsw {version('apsw')}"),
    ]
    if tuple(map(int, sqlite.split(".")[:3])) < SAFE_SQLITE:
        return [
            *findings,
            Finding(
                "wrong", f"SQLite {sqlite} can corrupt a shared WAL file", "Install a newer apsw: pip install -U apsw"
            ),
        ]
    return [*findings, Finding("ok", f"SQLite {sqlite}, bundled with apsw")]


def check_keys() -> list[Finding]:
    found = [name for name in KEYS if os.environ.get(name)]
    if found:
        return [Finding("ok", f"keys found: {', '.join(found)} (values are never shown)")]
    return [Finding("note", "no provider's key in the environment", f"Set one of {', '.join(KEYS)}.")]


def check_local() -> list[Finding]:
    """What local models need: the extra, which has to load, and weights; who has a key may do without."""
    missing = "ok" if any(os.environ.get(name) for name in KEYS) else "note"
    pulled = [f"{weights.name} ({weights.size / 1e6:,.0f} MB)" for weights in here()]
    if pulled:
        models = Finding("ok", f"local models here: {', '.join(pulled)}")
    else:
        models = Finding(missing, "no local model here", f"Get a small one that needs no key: {PULL}")
    if not has_local_extra():
        return [Finding(missing, "local models need an extra", "Install it: pip install 'perdure[local]'"), models]
    return [_check_extra(), models]


def _check_extra() -> Finding:
    """In a process of its own: what fails in native code may end it."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", "import xllamacpp"], capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode == 0:
        return Finding("ok", f"xllamacpp {version('xllamacpp')}, for local models")
    why = (done.stderr.splitlines() or [f"it ended with {done.returncode}"])[-1]
    todo = "Install it again: pip install --force-reinstall xllamacpp"
    if "libgomp" in why:
        todo = "Install the system's package libgomp1."
    return Finding("wrong", f"xllamacpp cannot be loaded ({why})", todo)


async def check_store_health(url: str | None) -> list[Finding]:
    """Reads every log: gapless, digests right, calls paired, and nobody's work left lying."""
    try:
        place = store_url(url, must_exist=True)
    except UsageError as error:
        return [Finding("wrong" if url else "note", str(error))]
    try:
        store = resolve_store(place)
        await store.open()
    except PerdureError as error:
        return [Finding("wrong", f"the store cannot be opened: {error}")]
    try:
        server = await _check_server(store) if place.startswith("postgres") else []
        return [*server, *await _check_sessions(store, visible(masked(place).removeprefix("sqlite:")))]
    finally:
        await store.close()


async def _check_server(store: Store) -> list[Finding]:
    from perdure.cli.checks_postgres import check_postgres
    from perdure.stores.postgres import PostgresStore

    return await check_postgres(store) if isinstance(store, PostgresStore) else []


async def _check_sessions(store: Store, path: str) -> list[Finding]:
    findings: list[Finding] = []
    sessions = records = waiting = 0
    living = set(await store.owners())
    cursor: str | None = None
    while True:
        page = await store.list(SessionQuery(cursor=cursor))
        for row in page.rows:
            sessions += 1
            records += row.head
            waiting += row.status == "waiting"
            findings += await _check_session(store, row, living)
        cursor = page.cursor
        if cursor is None:
            break
    what = (count(sessions, "session"), count(records, "record"), f"{waiting} waiting")
    summary = f"{path}: {', '.join(what)}, {count(len(living), 'process', 'processes')} at work"
    return [Finding("ok" if not findings else "note", summary), *findings]


async def _check_session(store: Store, row: SessionRow, living: set[str]) -> list[Finding]:
    """A store that reads a log checks its digests, and that nothing is missing."""
    try:
        log = await store.read(row.uid)
    except PerdureError as error:
        return [Finding("wrong", f"session {row.id}: {error}", "Restore it from a backup, or delete it.")]
    state = fold([record.event for record in log])
    # The calls of the turn under way have no results yet, and need none.
    under_way = {call.ordinal for call in state.run.calls} if state.run else set[int]()
    broken = [call for call in unpaired(state.history) if call not in under_way]
    if broken:
        return [Finding("wrong", f"session {row.id}: calls {broken} have no result", "Please report it.")]
    if row.summary.runnable and row.owner not in living:
        return [Finding("note", f"session {row.id} has work and nobody drives it", await _how_to_go_on(store, row))]
    return []


async def _how_to_go_on(store: Store, row: SessionRow) -> str:
    """A sub-agent goes on with the session that it works for."""
    root = await store.get(row.metadata[ROOT]) if ROOT in row.metadata else row
    if root is None:
        return f"What it worked for is gone: {shell('sessions', 'delete', row.id, tenant=row.tenant)}"
    return f"Go on with it: {shell('resume', root.id, agent='FILE.py:NAME', tenant=root.tenant)}"


def check_agent(where: str) -> list[Finding]:
    try:
        agents = family_of(load_agent(where, None))
        items = [(agent, item) for agent in agents for item in agent.tools]
        tools = [(agent, as_tool(item)) for agent, item in items if not isinstance(item, PerRun)]
        # Whatever a sub-agent's tools ask for is asked before anything runs, too.
        specs = [(agent, tool, tool.spec) for agent, tool in tools]
    except PerdureError as error:
        return [Finding("wrong", f"agent {where}: {error}")]
    root, *below = agents
    nameless = [agent.name for agent in agents if not agent.model]
    own = [tool for agent, tool in tools if agent is root]
    others = f", sub-agents: {', '.join(agent.name for agent in below)}" if below else ""
    findings = [Finding("ok", f"agent {root.name}: {count(len(own), 'tool')}{others}")]
    if nameless:
        todo = "Give each model='provider:name', or set PERDURE_MODEL, or name one with --model."
        findings.append(Finding("note", f"agents without a model: {', '.join(nameless)}", todo))
    undeclared = [
        spec.name if agent is root else f"{spec.name} (of {agent.name})"
        for agent, tool, spec in specs
        if not tool.declared_effect
    ]
    if undeclared:
        todo = "Say what they do: @tool(effect='read' | 'idempotent' | 'once'); until then they count as once."
        findings.append(Finding("note", f"tools without a declared effect: {', '.join(undeclared)}", todo))
    return findings
