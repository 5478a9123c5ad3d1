"""Inputs on their way: they wait, change while they wait, and are taken by a run exactly once.

Rule: what was taken is past changing, and nothing of an input that a guardrail blocked reaches the history.
"""

from __future__ import annotations

from msgspec.structs import replace

from perdure.core.events import InputAccepted, InputChanged, TriggerSet
from perdure.core.history import heard
from perdure.core.messages import UserMessage
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
    """Other words, a verdict or its time for an input that waits."""
    if not [queued for queued in state.queue if queued.input == event.input]:
        return state
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
    return replace(state, queue=tuple(changed), vetted=vetted)


def set_trigger(state: SessionState, event: TriggerSet) -> SessionState:
    triggers = {**state.triggers, event.name: event}
    if event.trigger is None:
        del triggers[event.name]
    return replace(state, triggers=triggers)


def take_inputs(state: SessionState, inputs: tuple[int, ...], run: int) -> SessionState:
    """Moves queued inputs into the history, in the order they are named."""
    taken, vetted = state.taken, state.vetted
    for number in inputs:
        taken = taken.add(number, run)
        for queued in state.queue:
            if queued.input == number and queued.parts and not vetted.get(number):
                state = heard(state, UserMessage(queued.parts), is_input=True)
    queue = tuple(queued for queued in state.queue if queued.input not in inputs)
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
