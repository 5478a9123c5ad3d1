"""Inputs on their way: they wait, change while they wait, and are taken by a run exactly once, or retracted before.

Rule: what was taken is past changing, and nothing of an input that a guardrail blocked reaches the history.
"""

from __future__ import annotations

from itertools import takewhile

from msgspec.structs import replace

from perdure.core.errands import owed_for
from perdure.core.errors import Conflict, NotFound, Refused, UsageError
from perdure.core.events import Event, InputAccepted, InputChanged, TriggerSet
from perdure.core.history import heard
from perdure.core.messages import Part, UserMessage
from perdure.core.specs import AgentSpec
from perdure.core.state import KeyedInput, SessionState

NATURAL_END = "natural_end"
"""The hook that may push a run on, as its inputs name it."""


def queue_input(state: SessionState, event: InputAccepted) -> SessionState:
    if event.busy == "interrupt":
        ahead = sum(1 for queued in state.queue if queued.busy == "interrupt")
        queue = (*state.queue[:ahead], event, *state.queue[ahead:])
    else:
        queue = (*state.queue, event)
    keys = state.keys
    if event.key is not None:
        keys = keys.add(event.key, KeyedInput(event.input, event.digest))
    run = state.run
    if event.by == NATURAL_END and run is not None:
        run = replace(run, pushes=run.pushes + 1)
    return replace(state, inputs=event.input, queue=queue, keys=keys, run=run)


def change_input(state: SessionState, event: InputChanged) -> SessionState:
    """Other words, a verdict, its time or the end for an input that waits; words without a verdict have none yet."""
    waiting = next((queued for queued in state.queue if queued.input == event.input), None)
    if waiting is None:
        return state
    if event.retracted:
        return retract_input(state, waiting)
    changed: list[InputAccepted] = []
    for queued in state.queue:
        if queued.input == event.input:
            parts = queued.parts if event.parts is None else event.parts
            overrides = queued.overrides if event.overrides is None else event.overrides
            queued = replace(queued, parts=parts, at=None if event.due else queued.at, overrides=overrides)
        changed.append(queued)
    vetted = state.vetted
    if event.vetted or event.blocked:
        vetted = {**vetted, event.input: event.blocked}
    elif event.parts is not None and event.input in vetted:
        vetted = {number: reason for number, reason in vetted.items() if number != event.input}
    return replace(state, queue=tuple(changed), vetted=vetted)


def retract_input(state: SessionState, queued: InputAccepted) -> SessionState:
    """No run takes the input any more: nobody hears it, its key is free again, and who waits for its end is told.

    A stop that was meant for the run that it would have started has nothing left to stop.
    """
    was_next = queued.input == next((other.input for other in state.queue if other.at is None), 0)
    return replace(
        state,
        queue=tuple(other for other in state.queue if other is not queued),
        keys=state.keys if queued.key is None else state.keys.without((queued.key,)),
        taken=state.taken.add(queued.input, 0),
        vetted={number: reason for number, reason in state.vetted.items() if number != queued.input},
        early_stop=None if was_next else state.early_stop,
        owed=(*state.owed, *owed_for(state, (queued.input,))),
    )


def starting(state: SessionState, spec: AgentSpec | None) -> tuple[int, ...]:
    """The inputs that the next run starts with: the first that is due, and if the agent wants it those behind it.

    They keep their order: the row ends before one with other overrides, and before one that a guardrail blocked, whose
    own run refuses it.
    """
    first = next((queued for queued in state.queue if queued.at is None), None)
    if first is None:
        return ()
    if spec is None or spec.inputs.queued == "one" or not _fits(state, first, first):
        return (first.input,)
    due = (queued for queued in state.queue if queued.at is None)
    return tuple(queued.input for queued in takewhile(lambda queued: _fits(state, queued, first), due))


def _fits(state: SessionState, queued: InputAccepted, first: InputAccepted) -> bool:
    is_alone = queued.continues is not None or state.vetted.get(queued.input)
    return not is_alone and queued.overrides == first.overrides


def accept_change(state: SessionState, number: int, parts: tuple[Part, ...] | None, by: str) -> tuple[Event, ...]:
    """An edit, or a retraction, of an input that waits; its key stays bound to the words that it was sent with."""
    queued = next((item for item in state.queue if item.input == number), None)
    if queued is None:
        run = state.taken.get(number)
        if run is None:
            raise NotFound(f"In session {state.id!r} no input {number} waits; list those that do with inputs().")
        if run == 0:
            raise Conflict(f"Input {number} was retracted already; send it again if it is wanted.")
        raise Conflict(f"Input {number} was taken by run {run} already; stop that run, or send another input.")
    if queued.by == NATURAL_END:
        raise Refused(f"Input {number} is a hook's, for the run that is under way; stop the run instead.")
    if parts is None:
        return (InputChanged(number, by=by, retracted=True),)
    if not parts:
        raise UsageError(f"The edit of input {number} is empty; give it other words, or retract it.")
    if not queued.parts:
        raise Refused(f"Input {number} has no words, it only lets run {queued.continues} go on; retract it instead.")
    return () if parts == queued.parts else (InputChanged(number, parts, by=by),)


def set_trigger(state: SessionState, event: TriggerSet) -> SessionState:
    triggers = {**state.triggers, event.name: event}
    if event.trigger is None:
        del triggers[event.name]
    return replace(state, triggers=triggers)


def take_inputs(state: SessionState, inputs: tuple[int, ...], run: int) -> SessionState:
    """Moves queued inputs into the history, in the order they are named."""
    taken, vetted = state.taken, state.vetted
    waiting = {queued.input: queued for queued in state.queue}
    for number in inputs:
        taken = taken.add(number, run)
        queued = waiting.pop(number, None)
        if queued is not None and queued.parts and not vetted.get(number):
            state = heard(state, UserMessage(queued.parts), is_input=True)
    queue = tuple(waiting.values())
    if vetted:
        vetted = {number: reason for number, reason in vetted.items() if number not in inputs}
    return replace(state, queue=queue, taken=taken, vetted=vetted)


def drop_pushes(state: SessionState, run: int) -> SessionState:
    """A push that could not keep its run from ending is over with it: a hook's words never start a run."""
    pushes = [queued.input for queued in state.queue if queued.by == NATURAL_END]
    if not pushes:
        return state
    taken = state.taken
    for number in pushes:
        taken = taken.add(number, run)
    vetted = {number: reason for number, reason in state.vetted.items() if number not in pushes}
    queue = tuple(queued for queued in state.queue if queued.input not in pushes)
    return replace(state, queue=queue, taken=taken, vetted=vetted)
