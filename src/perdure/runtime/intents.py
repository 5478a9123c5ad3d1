"""The facts with which a run starts, and with which a call is put before a person."""

from __future__ import annotations

from perdure.core.actions import StartRun, SuspendCall
from perdure.core.events import AgentPinned, CallSuspended, Event, RunStarted
from perdure.core.state import SessionState, find_call
from perdure.runtime.desk import Desk
from perdure.runtime.gates import traits_of
from perdure.runtime.perform_call import take_back
from perdure.runtime.perform_check import is_stale


def start_run(desk: Desk, state: SessionState, action: StartRun) -> list[Event]:
    """Agent, session and input each have a say: the later one wins."""
    first = next(queued for queued in state.queue if queued.input == action.inputs[0])
    binding, overrides = desk.binding, first.overrides
    spec = binding.spec
    events: list[Event] = []
    if state.spec_digest != binding.digest:
        events.append(AgentPinned(binding.digest, spec))
    events.append(
        RunStarted(
            state.runs + 1,
            action.inputs,
            limits=overrides.limits or spec.limits,
            model=overrides.model or state.model or spec.model,
            settings=spec.settings.merged(state.settings).merged(overrides.settings),
            output=spec.output if overrides.output is None else overrides.output,
            continues=first.continues,
            tools=overrides.tools,
            window=_window(desk, overrides.model or state.model),
        )
    )
    return events


def _window(desk: Desk, model: str) -> int | None:
    """How many tokens of the past the run's model reads, as far as anybody knows."""
    binding = desk.binding
    try:
        chosen = desk.world.model(model) if model and model != binding.spec.model else binding.models[0]
        return binding.spec.window.tokens or traits_of(chosen).window
    except Exception:  # noqa: BLE001 - resolvers are user code; the call itself will say what is wrong
        return binding.spec.window.tokens


def suspend(desk: Desk, action: SuspendCall, state: SessionState) -> Event:
    """The pause, with the expiry that its tool asks for; what changed under an approval is taken back instead."""
    call = find_call(state.run, action.call)
    tool = desk.binding.tools.get(call.name) if call else None
    if tool is not None and action.kind == tool.kind and is_stale(desk, call, tool.spec):
        return take_back(action.call)
    if tool is None or tool.expires is None or action.kind == "unknown":
        return CallSuspended(action.call, action.pause, action.kind, action.prompt, response=action.response)
    default, value = (tool.on_expiry, None) if isinstance(tool.on_expiry, str) else tool.on_expiry
    return CallSuspended(
        action.call,
        action.pause,
        action.kind,
        action.prompt,
        desk.world.clock.now() + tool.expires,
        action.response,
        default,
        value,
    )
