"""Inputs that wait: listed in the order in which they will be taken, edited and retracted until then.

Rule: of an edit, a retraction and the driver that takes the input, exactly one is first; the others are told.
"""

from __future__ import annotations

import msgspec

from perdure.core.commands import ChangeInput
from perdure.core.errors import UsageError
from perdure.core.events import InputAccepted
from perdure.core.inputs import starting
from perdure.core.messages import Part, Text
from perdure.core.specs import Busy
from perdure.core.state import SessionState
from perdure.runtime.given import given_text
from perdure.runtime.host import Host
from perdure.runtime.log import SessionLog
from perdure.runtime.media import Input, to_parts


class Waiting(msgspec.Struct, frozen=True):
    """An input that no run has taken yet. `at`: not before that time. `blocked`: why a guardrail refuses it.

    `continues` is the run that goes on with it; such an input has no words.
    """

    number: int
    parts: tuple[Part, ...]
    busy: Busy
    key: str | None = None
    at: float | None = None
    by: str = ""
    blocked: str = ""
    continues: int | None = None

    @property
    def text(self) -> str:
        return "\n".join(part.text for part in self.parts if isinstance(part, Text))


def waiting_in(state: SessionState) -> tuple[Waiting, ...]:
    return tuple(
        Waiting(
            item.input,
            item.parts,
            item.busy,
            item.key,
            item.at,
            item.by,
            state.vetted.get(item.input, ""),
            item.continues,
        )
        for item in _in_order(state)
    )


def _in_order(state: SessionState) -> list[InputAccepted]:
    """As things stand: what starts the next run if none is open, then what joins it, then the rest; by time at last."""
    due = [item for item in state.queue if item.at is None]
    run = state.run
    is_over = run is None or (run.stop is not None and run.stop.cause != "seconds")
    first = starting(state, state.spec) if is_over else ()

    def rank(item: InputAccepted) -> int:
        joins = item.busy == "join" and not state.vetted.get(item.input)
        return 0 if item.input in first else 1 if joins else 2

    later = [item for item in state.queue if item.at is not None]
    return [*sorted(due, key=rank), *sorted(later, key=lambda item: (item.at or 0.0, item.input))]


async def edit_input(host: Host, log: SessionLog, number: int, input: Input, by: str) -> None:
    parts, artifacts = to_parts(input)
    for digest, data in artifacts.items():
        await host.world.store.save_artifact(log.uid, digest, data)
    await host.request(log, ChangeInput(_given(number), parts, given_text(by, "Who edits")))


async def retract_input(host: Host, log: SessionLog, number: int, by: str) -> None:
    await host.request(log, ChangeInput(_given(number), by=given_text(by, "Who retracts")))


def _given(number: object) -> int:
    if not isinstance(number, int) or isinstance(number, bool):
        raise UsageError(f"An input has a number, not {number!r}; take one that inputs() shows.")
    return number
