"""The writes beside the facts, each inside the writer's transaction: ownership, deletion, artifacts, drafts.

Rule: a write that is refused has changed nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perdure.core.capacity import Capacity
from perdure.ports import Claim
from perdure.stores import terms
from perdure.stores.sqlite_file import Connection
from perdure.stores.sqlite_owners import Owners
from perdure.stores.sqlite_work import shares_of

Write = Callable[[Connection], object]


def claim(
    connection: Connection, owners: Owners, session: str, owner: str, force: bool, capacity: Capacity | None
) -> Claim | None:
    no, head, epoch, present, tenant, agent = _row(connection, session, "no, head, epoch, owner, tenant, agent")
    living = present == owner or owners.is_living(present)
    if not force and present != owner and living:
        return None
    if capacity is not None and not shares_of(connection, owners, capacity, but=no).admits(tenant, agent):
        return None
    connection.execute("UPDATE sessions SET epoch = ?, owner = ? WHERE no = ?", (epoch + 1, owner, no))
    return Claim(epoch + 1, head, None if living else present)


def release(connection: Connection, session: str, epoch: int, head: int) -> bool:
    no, present_head, present_epoch = _row(connection, session, "no, head, epoch")
    if present_epoch != epoch:
        raise terms.stale(session)
    if present_head != head:
        return False
    connection.execute("UPDATE sessions SET owner = NULL WHERE no = ?", (no,))
    return True


def join(_: Connection, owners: Owners, owner: str, about: bytes) -> None:
    owners.join(owner, about)


def leave(connection: Connection, owners: Owners, owner: str) -> None:
    connection.execute("UPDATE sessions SET owner = NULL WHERE owner = ?", (owner,))
    owners.leave(owner)


def delete(connection: Connection, owners: Owners, session: str) -> None:
    no, owner, metadata = _row(connection, session, "no, owner, metadata")
    if owners.is_living(owner):
        raise terms.driven(session)
    connection.executemany(
        "DELETE FROM metadata WHERE key = ? AND value = ? AND no = ?",
        [(key, value, no) for key, value in terms.decode_metadata(metadata).items()],
    )
    connection.execute("DELETE FROM drafts WHERE no = ?", (no,))
    connection.execute(
        "UPDATE sessions SET deleted = 1, owner = NULL, wake = NULL, pending = NULL, triggers = NULL, watches = NULL"
        " WHERE no = ?",
        (no,),
    )
    _purge(connection, no)


def _purge(connection: Connection, no: int) -> None:
    """Forgets what no fork reads any more, and so on down the bases that were only kept for this one."""
    while True:
        needed = connection.execute("SELECT max(base_seq) FROM sessions WHERE base = ?", (no,)).get
        connection.execute("DELETE FROM records WHERE no = ? AND seq > ?", (no, -1 if needed is None else needed))
        if needed is not None:
            return
        connection.execute("DELETE FROM artifacts WHERE no = ?", (no,))
        base = connection.execute("DELETE FROM sessions WHERE no = ? RETURNING base", (no,)).get
        if base is None or not connection.execute("SELECT deleted FROM sessions WHERE no = ?", (base,)).get:
            return
        no = base


def save_artifact(connection: Connection, session: str, digest: str, data: bytes) -> None:
    (no,) = _row(connection, session, "no")
    connection.execute("INSERT OR IGNORE INTO artifacts (no, digest, data) VALUES (?, ?, ?)", (no, digest, data))


def append_draft(connection: Connection, session: str, chunk: bytes, epoch: int) -> None:
    no, present = _row(connection, session, "no, epoch")
    if present != epoch:
        raise terms.stale(session)
    connection.execute("INSERT INTO drafts (no, chunk) VALUES (?, ?)", (no, chunk))


def _row(connection: Connection, session: str, columns: str) -> tuple[Any, ...]:
    rows = connection.execute(f"SELECT {columns} FROM sessions WHERE uid = ? AND deleted = 0", (session,)).fetchall()
    if not rows:
        raise terms.unknown(session)
    return rows[0]
