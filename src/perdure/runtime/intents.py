"""The facts that are committed before work starts: of a driver, a run, a model call, a tool, a call before a person."""

from __future__ import annotations

from perdure.core.actions import CallModel, RunTool, StartRun, SuspendCall
from perdure.core.events import (
    AgentPinned,
    CallAdvanced,
    CallStarted,
    CallSuspended,
    Event,
    ModelCalled,
    ModelFailed,
    Noted,
    RunEnded,
    RunResumed,
    RunStarted,
    Switched,
)
from perdure.core.specs import Overrides, ToolSpec
from perdure.core.state import SessionState, find_call, in_flight
from perdure.core.versions import changes_between
from perdure.runtime.agent import Binding
from perdure.runtime.desk import Desk, describe
from perdure.runtime.flight import Flight
from perdure.runtime.gates import traits_of
from perdure.runtime.limits import find_room
from perdure.runtime.per_run import Made
from perdure.runtime.perform_call import start_of, take_back
from perdure.runtime.perform_check import is_stale
from perdure.runtime.perform_model import turn_models
from perdure.runtime.world import World


def pick_up(desk: Desk, state: SessionState) -> list[Event]:
    """A crash is an ordinary fact, and so is that the agent was changed: an open run keeps what it began with."""
    facts: list[Event] = []
    if in_flight(state):
        facts.append(RunResumed(desk.epoch))
    if state.run and state.spec and state.spec_digest != desk.binding.digest:
        changes = changes_between(state.spec, desk.binding.spec)
        facts.append(Noted("agent_changed", {"run": state.run.run, "changes": changes}))
    return facts


def start_run(desk: Desk, state: SessionState, action: StartRun) -> list[Event]:
    """Agent, session and input each have a say: the later one wins."""
    first = next(queued for queued in state.queue if queued.input == action.inputs[0])
    binding, run = desk.binding, state.runs + 1
    made = desk.made if desk.made.run == run else Made()
    terms = terms_of(desk.world, binding, state, first.overrides, made.tools)
    events: list[Event] = []
    if state.spec_digest != binding.digest:
        events.append(AgentPinned(binding.digest, binding.spec))
    events.append(
        RunStarted(
            run,
            action.inputs,
            limits=first.overrides.limits or binding.spec.limits,
            model=terms.model,
            settings=terms.settings,
            output=terms.output,
            continues=first.continues,
            tools=terms.tools,
            window=terms.window,
        )
    )
    if made.error:
        events.append(RunEnded(run, "failed", f"tools: {made.error}"))
    return events


def terms_of(
    world: World, binding: Binding, state: SessionState, given: Overrides, made: tuple[ToolSpec, ...]
) -> Switched:
    """What a run has of an agent's, of its session's and of its own: the later one wins."""
    spec = binding.spec
    return Switched(
        given.model or state.model or spec.model,
        spec.settings.merged(state.settings).merged(given.settings),
        spec.output if given.output is None else given.output,
        (*given.tools, *made),
        _window(world, binding, given.model or state.model),
    )


def _window(world: World, binding: Binding, model: str) -> int | None:
    """How many tokens of the past the run's model reads, as far as anybody knows."""
    wanted = binding.spec.window.tokens
    try:
        chosen = world.model(model) if model and model != binding.spec.model else binding.models[0]
        own = traits_of(chosen).window
    except Exception:  # noqa: BLE001 - resolvers are user code; the call itself will say what is wrong
        own = None
    return min(wanted, own) if wanted and own else wanted or own


def intend_model(desk: Desk, action: CallModel, state: SessionState) -> tuple[Event, Flight | None]:
    """The intent with its reservation, and the flight; or why there is no room for it."""
    assert state.run is not None
    try:
        model = turn_models(desk, state.run)[0]
        room = find_room(state, state.run, model, final=action.final)
    except Exception as error:  # noqa: BLE001 - resolvers and prices are user code
        return ModelFailed("internal", describe(error)), None
    if room.limit:
        return ModelFailed("limit", room.limit), None
    intent = ModelCalled(
        action.turn,
        action.attempt,
        inputs=action.inputs,
        reserved=room.reserved,
        final=action.final,
    )
    return intent, Flight(action, max_tokens=room.max_tokens)


def intend_tool(desk: Desk, action: RunTool, state: SessionState) -> tuple[list[Event], Flight | None]:
    """The intent and the flight; or what becomes of a call that cannot start."""
    call = find_call(state.run, action.call)
    intent = start_of(desk, action, state, call)
    if not isinstance(intent, CallStarted):
        return [intent], None
    expires_at = call.expires_at if call else None
    flight = Flight(action, key=intent.key, effect=intent.effect, deadline=expires_at)
    if desk.binding.tools[action.name].background:
        return [intent, CallAdvanced(action.call, f"{action.name}-{action.call}", background=True)], flight
    return [intent], flight


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
