"""accept: what a request from outside becomes: events, or a refusal with a typed error.

Rule: it reads the state alone, and what it refuses has changed nothing.
"""

from __future__ import annotations

from typing import assert_never

from msgspec.structs import replace

from perdure.core.calls import Call
from perdure.core.commands import (
    CancelBackground,
    ChangeInput,
    ChangeSettings,
    ChangeState,
    Command,
    CompactView,
    ContinueRun,
    CutHistory,
    Decide,
    DecideAll,
    EndChild,
    ExpireCalls,
    ImportHistory,
    SendAgain,
    SendInput,
    SendMessage,
    StopRun,
)
from perdure.core.errands import accept_again, accept_end, accept_message
from perdure.core.errors import Conflict, NotFound, Refused, UsageError
from perdure.core.events import (
    CallDecided,
    DecisionKind,
    Event,
    HistoryCut,
    HistoryImported,
    InputAccepted,
    InputChanged,
    PauseKind,
    SettingsChanged,
    StateChanged,
    StopRequested,
)
from perdure.core.fits import misfit, misfit_arguments
from perdure.core.inputs import NATURAL_END, accept_change
from perdure.core.outcomes import EXPIRY
from perdure.core.specs import ToolSpec
from perdure.core.state import RunState, SessionState, find_call, has_due_input
from perdure.core.window import calls_of

DECISIONS: dict[PauseKind, tuple[DecisionKind, ...]] = {
    "approval": ("approve", "deny", "edit", "answer"),
    "unknown": ("answer", "deny", "retry"),
    "question": ("answer", "deny"),
    "frontend": ("answer", "deny"),
    "external": ("answer", "deny"),
    "listen": ("approve", "deny"),
    "child": (),
}


def accept(state: SessionState, command: Command) -> tuple[Event, ...]:
    """The events that a request becomes; none if the log already says so."""
    match command:
        case SendInput():
            return _accept_input(state, command)
        case ChangeInput(input=number, parts=parts, by=by):
            return accept_change(state, number, parts, by)
        case ContinueRun():
            return _accept_continue(state, command)
        case Decide():
            return _accept_decision(state, command)
        case DecideAll(decisions=decisions):
            return tuple(event for decision in decisions for event in _accept_decision(state, decision))
        case StopRun():
            return _accept_stop(state, command)
        case CancelBackground():
            return _accept_cancel_background(state, command)
        case EndChild():
            return accept_end(state, command)
        case SendMessage():
            return accept_message(state, command)
        case SendAgain():
            return accept_again(state, command)
        case ChangeSettings(model=model, settings=settings, title=title, agent=agent, priority=priority):
            is_known = model == state.model and settings == state.settings and title in (None, state.title)
            is_known = is_known and agent in ("", state.agent) and priority in (None, state.priority)
            return () if is_known else (SettingsChanged(model, settings, title, agent, priority),)
        case ChangeState(changes=changes, by=by, origin=origin):
            is_known = bool(origin) and state.origins.get(origin) is not None
            return () if is_known or not changes else (StateChanged(changes, by, origin),)
        case CompactView(compacted=event):
            if event.view != state.view:
                raise Conflict("The view of the conversation has changed meanwhile; compact it again.")
            return (event,)
        case CutHistory(cut=event, head=head):
            return _accept_cut(state, event, head)
        case ImportHistory(imported=event):
            return _accept_import(state, event)
        case ExpireCalls(now=now):
            return _expire(state, now)
        case _:
            assert_never(command)


def _accept_input(state: SessionState, command: SendInput) -> tuple[Event, ...]:
    if not command.parts:
        raise UsageError("The input is empty; say what the agent shall do.")
    if command.by == NATURAL_END and state.run is None:
        raise Refused("There is no run to push on; it has ended meanwhile.")
    known = state.keys.get(command.key) if command.key is not None else None
    if known is not None:
        if known.digest == command.digest:
            return ()
        raise Conflict(f"The key {command.key!r} was used for another input; take a new key for new work.")
    if command.busy == "refuse" and (state.run or has_due_input(state)):
        raise Refused("The session is busy; wait for its run to end, or send with busy='queue'.")
    accepted = InputAccepted(
        state.inputs + 1,
        command.parts,
        busy=command.busy,
        key=command.key,
        digest=command.digest,
        overrides=command.overrides,
        at=command.at,
        by=command.by,
        reply=command.reply,
        hops=command.hops,
    )
    if command.busy == "interrupt" and command.at is None and state.run and not _is_forced(state.run):
        return (accepted, StopRequested(state.run.run, "interrupt"))
    return (accepted,)


def _accept_continue(state: SessionState, command: ContinueRun) -> tuple[Event, ...]:
    if state.run or has_due_input(state):
        raise Refused("The session has a run under way; decide what it waits for, or stop it first.")
    if not len(state.ended):
        raise Refused("The session has no run yet; send an input.")
    if not state.history:
        raise Refused("The conversation is empty; send an input.")
    last = state.ended[-1]
    if last.reason in ("completed", "refusal"):
        raise Refused(f"The last run is {last.reason}; send an input to go on.")
    overrides = command.overrides
    if last.is_chosen and overrides.agent is None:
        overrides = replace(overrides, agent=last.agent)
    return (InputAccepted(state.inputs + 1, overrides=overrides, continues=last.run),)


def _accept_decision(state: SessionState, command: Decide) -> tuple[Event, ...]:
    ordinal, number = _read_pending_id(state, command.pending)
    earlier = state.decided.get(f"id {command.id}") if command.id else None
    if earlier is not None:
        if earlier == f"{ordinal}-{number}":
            return ()
        raise Conflict(f"The decision {command.id!r} was made about another call; give each decision its own id.")
    call = find_call(state.run, ordinal)
    pause = call.pause if call else None
    if pause is None or pause.pause != number:
        settled = state.decided.get(f"{ordinal}-{number}")
        if settled is not None:
            decision, _, by = settled.partition("|")
            raise Conflict(f"{command.pending} was already decided{f' by {by}' if by else ''}: {decision}.")
        raise Conflict(f"{command.pending} no longer waits for a decision.")
    allowed = DECISIONS[pause.kind]
    if not allowed:
        raise Refused(f"{command.pending} waits for its own session; decide what that one waits for.")
    if command.decision not in allowed:
        raise Refused(f"{pause.kind} takes {' or '.join(allowed)}, not {command.decision}.")
    if command.arguments is None and command.decision == "edit":
        raise UsageError("An edit needs arguments={…}.")
    if (
        call
        and command.arguments is not None
        and (wrong := misfit_arguments(_tools(state), call.name, command.arguments))
    ):
        raise Refused(f"The arguments do not fit {call.name} ({wrong}); edit them again.")
    schema = pause.response if command.decision == "answer" else None
    if schema is not None and (wrong := misfit(schema, command.value)):
        raise Refused(f"The answer does not fit ({wrong}); answer again.")
    return (
        CallDecided(
            ordinal,
            number,
            command.decision,
            by=command.by,
            reason=command.reason,
            value=command.value,
            arguments=command.arguments,
            remember=command.remember,
            id=command.id,
        ),
    )


def _tools(state: SessionState) -> tuple[ToolSpec, ...]:
    return (*(state.spec.tools if state.spec else ()), *(state.run.tools if state.run else ()))


def pending_id(state: SessionState, call: Call) -> str:
    return f"{state.uid}-{call.ordinal}-{call.pauses}"


def _read_pending_id(state: SessionState, pending: str) -> tuple[int, int]:
    rest, _, number = pending.rpartition("-")
    uid, _, ordinal = rest.rpartition("-")
    # Python refuses to read numbers of thousands of digits with an error that is not ours.
    is_short = len(ordinal) < 20 and len(number) < 20
    is_numbered = is_short and ordinal.isdecimal() and number.isdecimal()
    if uid != state.uid or not is_numbered or not 0 < int(ordinal) <= state.calls:
        raise NotFound(f"Session {state.id!r} has no pending decision {pending!r}; list them with pending().")
    return int(ordinal), int(number)


def _accept_cut(state: SessionState, event: HistoryCut, head: int) -> tuple[Event, ...]:
    if state.run is not None or has_due_input(state):
        raise Refused("A session goes back while it has no work; wait for its run, or stop it.")
    if state.seq != head:
        raise Conflict("The session has moved on meanwhile; look again where to go back to.")
    return (event,)


def _accept_import(state: SessionState, event: HistoryImported) -> tuple[Event, ...]:
    if state.run is not None or has_due_input(state):
        raise Refused("A history is imported while the session has no work; wait for its run, or stop it.")
    if [call for message in event.messages for call in calls_of(message) if call.call <= state.calls]:
        raise Conflict("The session has made calls meanwhile, which have these numbers; import the history again.")
    return (event,)


def _is_forced(run: RunState) -> bool:
    return run.stop is not None and run.stop.cause in ("cancel", "interrupt")


def _accept_cancel_background(state: SessionState, command: CancelBackground) -> tuple[Event, ...]:
    running = {call.background: call for call in (state.run.background if state.run else ())}
    unknown = [name for name in command.names if name not in running]
    if unknown:
        raise NotFound(f"Nothing called {unknown[0]!r} is under way in the background; look at background().")
    wanted = [running[name] for name in command.names] or list(running.values())
    return tuple(CallDecided(call.ordinal, 0, "deny", by=command.by) for call in wanted if call.decision is None)


def _accept_stop(state: SessionState, command: StopRun) -> tuple[Event, ...]:
    run = state.run
    if command.reply is not None:
        waiting = next((queued.input for queued in state.queue if queued.reply == command.reply), None)
        if waiting is not None:
            return (InputChanged(waiting, by=command.by, retracted=True),)
        if run is None or command.reply not in [owed.reply for owed in run.replies]:
            raise Refused("The session does not work on it any more.")
    if run is None and not has_due_input(state):
        raise Refused("The session has no open run.")
    # An input that was accepted is a run to be: it can be stopped before anybody has started it.
    stop = run.stop if run else state.early_stop
    if stop and (stop.cause in ("cancel", "interrupt") or command.cause != "cancel"):
        return ()
    return (StopRequested(run.run if run else state.runs + 1, command.cause, command.by),)


def _expire(state: SessionState, now: float) -> tuple[Event, ...]:
    due = [queued for queued in state.queue if queued.at is not None and queued.at <= now]
    changed = [InputChanged(queued.input, due=True) for queued in due]
    if state.run and "interrupt" in [queued.busy for queued in due] and not _is_forced(state.run):
        return (*changed, StopRequested(state.run.run, "interrupt"))
    return (*changed, *_expired_calls(state, now))


def _expired_calls(state: SessionState, now: float) -> tuple[Event, ...]:
    return tuple(
        CallDecided(
            call.ordinal,
            call.pauses,
            call.pause.default,
            by=EXPIRY,
            reason="nobody decided in time",
            value=call.pause.default_value,
        )
        for call in ((*state.run.calls, *state.run.background) if state.run else ())
        if call.pause and call.pause.expires_at is not None and call.pause.expires_at <= now
    )
