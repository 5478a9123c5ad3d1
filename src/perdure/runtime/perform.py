"""perform: the performer of each action in flight, inside the middleware around it."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial

from msgspec.structs import replace

from perdure.core.actions import (
    Action,
    CallModel,
    CheckCall,
    CompactHistory,
    DeliverMessage,
    EndOperation,
    EndRun,
    MakeTools,
    RecallChild,
    ReportEnd,
    RunTool,
    SwitchAgent,
    VetInput,
)
from perdure.core.errors import UsageError
from perdure.core.events import (
    AgentPinned,
    CallChecked,
    CallEnded,
    CallSuspended,
    Event,
    HistoryCompacted,
    InputChanged,
    ModelFailed,
    ModelResponded,
    Noted,
    RunEnded,
    Switched,
)
from perdure.core.fold import evolve
from perdure.runtime.desk import Desk, describe
from perdure.runtime.directives import Fact
from perdure.runtime.flight import Flight
from perdure.runtime.hook_phases import before_compaction, natural_end, vet_input
from perdure.runtime.log import as_kept
from perdure.runtime.making import make_tools
from perdure.runtime.middleware import compose
from perdure.runtime.perform_call import end_operation, run_tool
from perdure.runtime.perform_check import check_call
from perdure.runtime.perform_compaction import NO_PROGRESS, compact_history
from perdure.runtime.perform_family import deliver_message, recall_child, report_end, unless_ended
from perdure.runtime.perform_model import call_model, number_calls
from perdure.runtime.perform_switch import switch_agent
from perdure.runtime.vetting import vet_answer, vet_words
from perdure.runtime.waste import Waste


async def perform(desk: Desk, flight: Flight) -> Event:
    """The one event that an action comes to."""
    action, stand_in = flight.action, desk.world.stand_in
    match action:
        case CallModel():
            desk.waste = Waste()
        case RunTool():
            pass
        case RecallChild() | ReportEnd() | DeliverMessage():
            if isinstance(action, RecallChild):
                flight.settle = unless_ended
            event = await stand_in(desk, action) if stand_in is not None else None
            return as_kept(await _run_errand(desk, action) if event is None else event)
        case MakeTools():
            return await make_tools(desk, flight, action)
        case CompactHistory():
            desk.aside = Waste()
        case VetInput():
            flight.state = desk.log.state
        case _:
            pass
    event = await stand_in(desk, action) if stand_in is not None else None
    if event is None and desk.layers:
        innermost = partial(_perform, desk, flight)
        event = _fitting(desk, flight, await compose(desk.layers, innermost)(action))
    elif event is None:
        event = await _perform(desk, flight, action)
    if desk.binding.parts.guardrails:
        if isinstance(action, CallModel) and isinstance(event, ModelResponded):
            event = await vet_answer(desk, flight, action, event)
        elif isinstance(event, InputChanged):
            event = await vet_words(desk, flight, event)
    if isinstance(event, HistoryCompacted) and not event.tokens_before:
        event = _counted(desk, event)
    return as_kept(event)


async def _run_errand(desk: Desk, action: RecallChild | ReportEnd | DeliverMessage) -> Event:
    match action:
        case RecallChild():
            return await recall_child(desk, action)
        case ReportEnd():
            return await report_end(desk, action)
        case DeliverMessage():
            return await deliver_message(desk, action)


async def compact_aside(desk: Desk) -> tuple[HistoryCompacted, list[Fact]]:
    """A compaction that no run asks for: as in a run, whatever goes wrong is its event; and the facts that follow."""
    flight = Flight(CompactHistory("request", desk.log.state.view))
    try:
        event = await perform(desk, flight)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - middleware is user code
        event = paid(desk, flight.failed(describe(error)))
    assert isinstance(event, HistoryCompacted)
    return event if event.tokens_before else _counted(desk, event), flight.after


def paid(desk: Desk, event: Event) -> Event:
    """What a model had said until work came to nothing is paid for, if a log can hold what it says it cost."""
    waste, aside = desk.waste, desk.aside
    try:
        if isinstance(event, HistoryCompacted) and aside.usage.total:
            return as_kept(replace(event, usage=aside.usage, cost_usd=aside.cost_usd))
        if isinstance(event, ModelFailed) and waste.usage.total:
            return as_kept(replace(event, wasted=waste.usage, cost_usd=waste.cost_usd))
    except Exception:  # noqa: BLE001 - models say what they want
        return event
    return event


def _counted(desk: Desk, event: HistoryCompacted) -> HistoryCompacted:
    """A compaction that a hook, middleware or a failure made says how long the view was and is, as any other."""
    state = desk.log.state
    before, after = state.context_tokens, evolve(state, event).context_tokens
    if event.error or after < before:
        return replace(event, tokens_before=before, tokens_after=after)
    return HistoryCompacted(event.view, event.cause, tokens_before=before, error=NO_PROGRESS, by=event.by)


def _perform(desk: Desk, flight: Flight, action: Action) -> Awaitable[Event]:
    match action:
        case CallModel():
            return call_model(desk, flight, action)
        case RunTool():
            return run_tool(desk, flight, action)
        case CheckCall():
            return check_call(desk, flight, action)
        case EndOperation():
            return end_operation(desk, action)
        case CompactHistory():
            return _compact(desk, flight, action)
        case VetInput(input=input):
            return vet_input(desk, flight, input)
        case EndRun(end=end):
            return natural_end(desk, flight, end)
        case SwitchAgent():
            return switch_agent(desk, flight, action)
        case _:
            raise UsageError(f"Middleware passed on {type(action).__name__}; pass on the action it was given.")


async def _compact(desk: Desk, flight: Flight, action: CompactHistory) -> Event:
    own = await before_compaction(desk, flight, action) if desk.hooks.compaction else None
    return await compact_history(desk, action) if own is None else own


def _fitting(desk: Desk, flight: Flight, event: object) -> Event:
    """Middleware may answer by itself, but only with what the action comes to: the rules would ask for it for ever."""
    action = flight.action
    match action, event:
        case (CallModel(), ModelResponded(message=message)):
            parts = number_calls(message.parts, desk.log.state.calls)
            return replace(event, message=replace(message, parts=parts))
        case (CallModel(), ModelFailed()):
            return event
        case (EndRun(end=end), RunEnded(run=run)) if run == end.run:
            return event
        case (EndRun(), Noted()) if flight.after:
            return event
        case (CompactHistory(view=view), HistoryCompacted(view=about)) if view == about:
            return event
        case (SwitchAgent(), AgentPinned(switched=Switched())):
            return event
        case (VetInput(input=input), InputChanged(input=about)) if input == about:
            return event if event.blocked else replace(event, vetted=True)
        case (CheckCall(), CallChecked(verdict="stale")):
            pass
        case (
            (CheckCall(call=call), CallChecked(call=about))
            | (RunTool(call=call) | EndOperation(call=call), CallEnded(call=about))
            | (RunTool(call=call), CallSuspended(call=about, kind="child"))
        ):
            if call == about:
                return event
        case _:
            pass
    raise UsageError(f"Middleware answered {action} with {type(event).__name__}, which does not fit.")
