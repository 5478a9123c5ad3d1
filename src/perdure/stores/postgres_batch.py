"""A batch as the values that the database's own functions take, and what they answer in our words."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.core.codec import encode_json
from perdure.core.errors import PerdureError
from perdure.ports import Batch
from perdure.stores import terms
from perdure.stores.postgres_names import kept, key


def append_values(batch: Batch, times: Sequence[int]) -> tuple[object, ...]:
    return (*_facts(batch, times, batch.epoch), batch.drops_draft, *_place(batch))


def _facts(batch: Batch, times: Sequence[int], epoch: int | None) -> tuple[object, ...]:
    uid, summary = batch.session.encode(), batch.summary
    numbered = list(enumerate(zip(batch.entries, times, strict=True), batch.expect + 1))
    return (
        key(batch.session),
        kept(batch.session),
        batch.expect,
        epoch,
        list(times),
        [entry.run for entry in batch.entries],
        [terms.digest(uid, seq, at, entry.run, entry.payload) for seq, (entry, at) in numbered],
        [entry.payload for entry in batch.entries],
        kept(summary.agent),
        summary.status,
        terms.wake_of(summary),
        len(summary.pending) or None,
        summary.triggers or None,
        summary.watches or None,
        terms.encode_summary(summary),
    )


def opening_values(batch: Batch, times: Sequence[int]) -> tuple[object, ...]:
    opening = batch.opening
    assert opening is not None
    return (
        *_facts(batch, times, opening.epoch),
        key(opening.tenant, opening.id),
        kept(opening.tenant),
        kept(opening.id),
        encode_json(opening.metadata),
        [key(name, value) for name, value in opening.metadata.items()],
        None if opening.base is None else key(opening.base),
        *_place(batch),
    )


def _place(batch: Batch) -> tuple[object, ...]:
    return (kept(batch.summary.queue) or None, batch.summary.priority)


def refusal(batch: Batch, said: str) -> PerdureError:
    what, _, head = said.partition(" ")
    opening = batch.opening
    match said if opening else what:
        case "stale":
            return terms.stale(batch.session)
        case "moved":
            return terms.moved(batch.session, batch.expect, int(head))
        case "taken":
            return terms.taken(batch.session)
        case "id taken" if opening:
            return terms.id_taken(opening.tenant, opening.id)
        case "no base" if opening:
            return terms.unknown(opening.base or "")
        case short if opening and short.startswith("short"):
            return terms.short_base(opening.base or "", batch.expect, int(head))
        case _:
            return terms.unknown(batch.session)
