"""The judge of the sweep, judged: an undisturbed life is without fault, and damage to its evidence is named."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from perdure.events import (
    CallDecided,
    CallEnded,
    CallStarted,
    Event,
    InputAccepted,
    ModelResponded,
    RunEnded,
    RunResumed,
    RunStarted,
    StopRequested,
)
from perdure.ports import Record
from perdure.testing.sweep import Trial
from tests.crash.check import CHECKS, Evidence, gather
from tests.crash.ledger import Deed
from tests.crash.scenario import scenario

Damage = Callable[[Evidence], Evidence]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    trial = Trial(scenario, tmp_path_factory.mktemp("whole") / "life")
    asyncio.run(trial.finish())
    evidence = gather(trial.folder)
    assert evidence is not None
    return evidence


def _first(evidence: Evidence, kind: type[Event]) -> Record:
    return next(record for record in evidence.records if isinstance(record.event, kind))


def lose(kind: type[Event]) -> Damage:
    return lambda evidence: replace(
        evidence, records=[record for record in evidence.records if record is not _first(evidence, kind)]
    )


def repeat(kind: type[Event]) -> Damage:
    return lambda evidence: replace(evidence, records=[*evidence.records, _first(evidence, kind)])


def append(event: Event, run: int = 0) -> Damage:
    def appended(evidence: Evidence) -> Evidence:
        return replace(evidence, records=[*evidence.records, Record(evidence.row.uid, 0, 0.0, run, event)])

    return appended


def start_after_cancel(evidence: Evidence) -> Evidence:
    stopped = _first(evidence, StopRequested).run
    return append(CallStarted(1), run=stopped)(evidence)


def redo(what: str, tool: str, **changed: object) -> Damage:
    def redone(evidence: Evidence) -> Evidence:
        # Of calls in threads, which wrote first is chance.
        deeds = [deed for deed in evidence.deeds if (deed.what, deed.tool) == (what, tool)]
        deed = min(deeds, key=lambda deed: deed.call)
        return replace(evidence, deeds=[*evidence.deeds, replace(deed, **changed)])

    return redone


def undo(what: str, tool: str) -> Damage:
    def undone(evidence: Evidence) -> Evidence:
        deeds: list[Deed] = [deed for deed in evidence.deeds if (deed.what, deed.tool) != (what, tool)]
        return replace(evidence, deeds=deeds)

    return undone


DAMAGES: dict[str, tuple[Damage, str]] = {
    "a record is missing": (lose(ModelResponded), "the log has a gap"),
    "an input is lost": (lose(InputAccepted), "the acknowledged input job-a  is lost"),
    "an input comes twice": (repeat(InputAccepted), "input job-a is in the log 2 times"),
    "an input is taken twice": (repeat(RunStarted), "input job-a was taken 2 times"),
    "a decision is lost": (lose(CallDecided), "the acknowledged decision "),
    "a decision comes twice": (repeat(CallDecided), "the pause "),
    "a decision is not obeyed": (undo("effect", "refund"), "the refunds came to {}"),
    "a cancel is lost": (lose(StopRequested), "the acknowledged cancel 5  is lost"),
    "a cancel does not hold": (start_after_cancel, "record 0 starts something in run 5"),
    "a run does not end": (lose(RunEnded), "run 1 starts 1 times and ends 0 times"),
    "a run ends twice": (repeat(RunEnded), "run 1 starts 1 times and ends 2 times"),
    "a turn is repeated": (repeat(ModelResponded), "there are 51 turns"),
    "a call has no result": (lose(CallEnded), "call "),
    "a call has two results": (repeat(CallEnded), "call "),
    "an unknown call ends": (append(CallEnded(999, "ok")), "call 999 ended but was never made"),
    "epochs go back": (lambda e: append(RunResumed(1))(append(RunResumed(2))(e)), "epochs go back"),
    "a tool starts without intent": (redo("start", "look", attempt=7), "call 1 attempt 7 started 1 times on 0"),
    "a once tool starts twice": (redo("start", "mail", attempt=2), "the once call 3 started 2 times"),
    "a key changes": (redo("effect", "charge", key="other"), "('charge', 'a0.1') took effect under the keys"),
    "a key is shared": (redo("effect", "charge", item="other"), "the key "),
    "done is not done": (undo("end", "ship"), "call 8 is called done, but was not"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_named(name: str, whole: Evidence) -> None:
    damage, expected = DAMAGES[name]
    damaged = damage(whole)
    damaged = replace(damaged, state=whole.state)
    broken = [line for check in CHECKS for line in check(damaged)]
    assert any(line.startswith(expected) for line in broken), broken


def test_an_undisturbed_life_is_without_fault(whole: Evidence) -> None:
    assert [line for check in CHECKS for line in check(whole)] == []


def test_a_logged_error_is_named(whole: Evidence, tmp_path: Path) -> None:
    (tmp_path / "state.txt").write_text("another state")
    (tmp_path / "errors.log").write_text("driving failed")
    broken = [line for check in CHECKS for line in check(replace(whole, folder=tmp_path))]
    assert broken == [
        "the fold of the log is not the state that the last process saw",
        "errors were logged: driving failed",
    ]
