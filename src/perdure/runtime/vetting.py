"""The guardrails' last word about inputs and answers: nothing of what they refuse is kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from perdure.core.actions import CallModel
from perdure.core.deltas import AttemptDiscarded
from perdure.core.events import Event, InputChanged, ModelFailed, ModelResponded, Noted
from perdure.core.inputs import NATURAL_END
from perdure.runtime.desk import Desk, describe
from perdure.runtime.directives import Block, Retry
from perdure.runtime.flight import Flight
from perdure.runtime.guardrails import Guardrail
from perdure.runtime.media import clean_text
from perdure.runtime.moments import AnswerMoment, InputMoment, Moment
from perdure.runtime.patience import Rest, Unanswered, begun, finished
from perdure.runtime.waste import Waste


async def vet_words(desk: Desk, flight: Flight, event: InputChanged) -> InputChanged:
    """An input, as hooks and middleware left it, before the guardrails."""
    state = desk.log.state
    queued = next((item for item in state.queue if item.input == event.input), None)
    if queued is None or event.blocked or queued.by == NATURAL_END:
        return event
    parts = queued.parts if event.parts is None else event.parts
    if not parts:
        return event
    moment = InputMoment(desk.here(), event.input, parts, queued.by, queued.overrides)
    verdict = await _ask(desk, flight, moment, [(guard, guard.input) for guard in desk.binding.parts.guardrails])
    if verdict is None:
        return event
    # Not even the words that a hook put in their place: nothing of a refused input is kept but that it was refused.
    return InputChanged(event.input, blocked=verdict.why if isinstance(verdict, Block) else verdict.feedback)


async def vet_answer(desk: Desk, flight: Flight, action: CallModel, event: ModelResponded) -> Event:
    """An answer, as hooks and middleware left it; one that does not count is paid for, and discarded where shown."""
    moment = AnswerMoment(desk.here(), event.message, event.output)
    desk.waste = Waste(event.usage + event.wasted, event.cost_usd)
    verdict = await _ask(desk, flight, moment, [(guard, guard.output) for guard in desk.binding.parts.guardrails])
    if verdict is None:
        return event
    kind, detail = ("rejected", verdict.feedback) if isinstance(verdict, Retry) else ("blocked", verdict.why)
    desk.publish(AttemptDiscarded(action.turn, action.attempt, f"a guardrail {kind} it"))
    return ModelFailed(kind, detail, wasted=event.usage + event.wasted, cost_usd=event.cost_usd)


async def _ask(
    desk: Desk, flight: Flight, moment: Moment, guards: Sequence[tuple[Guardrail, Callable[[Any], Any] | None]]
) -> Block | Retry | None:
    for guard, function in guards:
        if function is None:
            continue
        name = guard.called(function)
        try:
            verdict = function(moment)
            if isinstance(verdict := begun(verdict), Rest):
                verdict = await finished(desk.world.clock, guard.timeout, verdict)
            if verdict is None or verdict is True:
                continue
            if verdict is False:
                return Block(f"{name} refused it")
            if isinstance(verdict, Block):
                return replace(verdict, why=clean_text(verdict.why) or f"{name} refused it")
            if isinstance(verdict, Retry) and isinstance(moment, AnswerMoment):
                return replace(verdict, feedback=clean_text(verdict.feedback) or f"{name} rejected the answer.")
            detail = f"it returned {type(verdict).__name__}, which is no verdict"
        except Unanswered as failed:
            detail = str(failed)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a guardrail is user code
            detail = describe(error)
        flight.after.append(Noted("hook_failed", {"hook": name, "phase": "guardrail", "detail": detail}))
        return Block(f"the guardrail {name} failed: {detail}")
    return None
