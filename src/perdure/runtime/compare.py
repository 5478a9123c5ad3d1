"""Two sessions side by side: where they part, and what each has come to since. Best for forks of one past."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Any

from perdure.core.codec import encode_json
from perdure.core.fold import fold
from perdure.core.messages import Plain, Usage
from perdure.ports import Record
from perdure.runtime.session import Session
from perdure.runtime.steps import Step, StepKind, show_step, steps_of

TOLD: frozenset[StepKind] = frozenset(
    ("input", "change", "answer", "failure", "call", "decision", "outcome", "history", "stop", "end")
)
"""What a person wants to see of two futures; the rest follows from it."""


class Side(Plain, frozen=True):
    """One of the two, and what it has since they parted."""

    id: str
    uid: str
    head: int
    steps: tuple[Step, ...]
    usage: Usage
    cost_usd: float | None


class Row(Plain, frozen=True):
    """The same place in both; one of them may have nothing there."""

    left: str = ""
    right: str = ""
    same: bool = False


class Comparison(Plain, frozen=True):
    """`parted` is the last record that both have."""

    parted: int
    left: Side
    right: Side
    rows: tuple[Row, ...]

    @property
    def same(self) -> bool:
        return all(row.same for row in self.rows)


async def compare(left: Session[Any], right: Session[Any]) -> Comparison:
    """Where two sessions part, what each has since, and what each has cost."""
    return compare_records(await left.records(), await right.records())


def compare_records(left: Sequence[Record], right: Sequence[Record]) -> Comparison:
    parted = _parting(left, right)
    one, other = _side(left, parted), _side(right, parted)
    return Comparison(parted, one, other, tuple(_rows(one.steps, other.steps)))


def _parting(left: Sequence[Record], right: Sequence[Record]) -> int:
    """How many records both begin with; of two that are strangers, none."""
    count = 0
    for one, other in zip(left, right, strict=False):
        if (one.at, one.run, one.event) != (other.at, other.run, other.event):
            break
        count += 1
    return count


def _side(records: Sequence[Record], parted: int) -> Side:
    state = fold([record.event for record in records])
    told = [step for step in steps_of(records) if step.seq > parted and step.kind in TOLD]
    cost = state.cost_usd if state.is_priced else None
    return Side(state.id, state.uid, state.seq, tuple(told), state.usage, cost)


def _rows(left: Sequence[Step], right: Sequence[Step]) -> list[Row]:
    matcher = SequenceMatcher(None, [_key(step) for step in left], [_key(step) for step in right], autojunk=False)
    rows: list[Row] = []
    for what, a, b, c, d in matcher.get_opcodes():
        ours, theirs = [show_step(step) for step in left[a:b]], [show_step(step) for step in right[c:d]]
        for at in range(max(len(ours), len(theirs))):
            one = ours[at] if at < len(ours) else ""
            other = theirs[at] if at < len(theirs) else ""
            rows.append(Row(one, other, what == "equal"))
    return rows


def _key(step: Step) -> tuple[str, str, bytes]:
    value = step.value
    if step.kind in ("input", "stop"):
        # Numbers of inputs and runs differ where one side had more of them before.
        value = {name: field for name, field in value.items() if name not in ("input", "run", "type")}
    return step.kind, step.tool, encode_json(value)
