"""Artifacts on PostgreSQL: in the database up to a size, beyond that in a folder or an S3-compatible store.

Rule 1: an artifact is whole where it lies before its row says so. Rule 2: what lies elsewhere is removed there only
when no row names it; whoever deletes next removes what somebody before could not.
"""

from __future__ import annotations

from contextlib import suppress
from secrets import token_hex

from perdure.core.errors import NotFound, StoreError
from perdure.stores import terms
from perdure.stores.places import Places
from perdure.stores.postgres_link import Link
from perdure.stores.postgres_names import key

CHAIN = (
    "WITH RECURSIVE chain (depth, no, uid, head, base, base_seq) AS ("
    " SELECT 0, no, uid, head, base, base_seq FROM @schema.sessions WHERE uid_key = $1 AND NOT deleted"
    " UNION ALL SELECT depth + 1, s.no, s.uid, s.head, s.base, s.base_seq"
    " FROM chain JOIN @schema.sessions s ON s.no = chain.base)"
)
"""A session and those whose records are its past, nearest first."""

_SAVE = (
    "WITH s AS (SELECT no FROM @schema.sessions WHERE uid_key = $1 AND NOT deleted),"
    " saved AS (INSERT INTO @schema.artifacts (no, digest, data, place) SELECT no, $2, $3, $4 FROM s"
    " ON CONFLICT DO NOTHING RETURNING no)"
    " SELECT CASE WHEN saved.no IS NULL THEN (SELECT a.place FROM @schema.artifacts a WHERE a.no = s.no"
    " AND a.digest = $2) ELSE $4 END AS place FROM s LEFT JOIN saved USING (no)"
)
_LOAD = (
    f"{CHAIN} SELECT data, place FROM chain JOIN @schema.artifacts USING (no) WHERE digest = $2 ORDER BY depth LIMIT 1"
)


class Artifacts:
    def __init__(self, link: Link, places: Places | None, inside: int) -> None:
        self._link = link
        self._places = places
        self._inside = inside

    async def save(self, session: str, digest: str, data: bytes) -> None:
        place = None
        if self._places is not None and len(data) > self._inside:
            place = f"{self._link.schema}/{key(session).hex()}/{key(digest).hex()}-{token_hex(4)}"
            await self._places.put(place, data)
        kept = data if place is None else None
        sql = self._link.sql(_SAVE)
        row = await self._link.ask(lambda connection: connection.fetchrow(sql, key(session), key(digest), kept, place))
        if place is not None and self._places is not None and (row is None or row["place"] != place):
            with suppress(StoreError):  # it is there already, or has no session
                await self._places.remove(place)
        if row is None:
            raise terms.unknown(session)

    async def load(self, session: str, digest: str) -> bytes:
        sql = self._link.sql(_LOAD)
        row = await self._link.ask(lambda connection: connection.fetchrow(sql, key(session), key(digest)))
        if row is None:
            raise terms.unknown_artifact(session, digest)
        if row["place"] is None:
            return row["data"]
        if self._places is None:
            raise StoreError(f"The artifact {digest!r} lies outside of the database; open the store with artifacts=….")
        try:
            return await self._places.get(row["place"])
        except NotFound:
            raise terms.unknown_artifact(session, digest) from None

    async def remove_gone(self) -> None:
        """Removes what no row names any more; what cannot be removed now is left to the next one."""
        if self._places is None:
            return
        with suppress(StoreError):
            look = self._link.sql("SELECT place FROM @schema.gone LIMIT 1000")
            rows = await self._link.ask(lambda connection: connection.fetch(look))
            places = [row["place"] for row in rows]
            for place in places:
                await self._places.remove(place)
            if places:
                sql = self._link.sql("DELETE FROM @schema.gone WHERE place = ANY($1)")
                await self._link.ask(lambda connection: connection.execute(sql, places))
