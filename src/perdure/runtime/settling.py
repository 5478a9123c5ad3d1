"""What becomes of a call's wishes: with its outcome, in one append, or not at all."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from msgspec.structs import replace

from perdure.core.actions import RunTool
from perdure.core.events import CallEnded, Event, Noted
from perdure.core.messages import Text
from perdure.core.state import SessionState
from perdure.runtime.desk import Desk, describe
from perdure.runtime.directives import Fact, Scheduled, Sending, Stop, dispatched, in_turn, sent, stopped
from perdure.runtime.flight import Flight
from perdure.runtime.wishes import Wishes


async def settle_wishes(desk: Desk, flight: Flight, action: RunTool, ended: CallEnded, wishes: Wishes) -> CallEnded:
    """The outcome with the wishes in it; what depends on the state is worked out once more when it is committed."""
    state = desk.log.state
    if wrong := wishes.conflict(action.call, state):
        return _conflict(action, wrong)
    if wishes.shares and desk.shared is not None:
        origin = f"{desk.log.uid}/{action.call}"
        try:
            await desk.shared.change(wishes, by=f"{action.name} (call {action.call})", origin=origin)
        except ValueError as error:
            return _conflict(action, str(error))
    if (agent := wishes.successor) and await desk.world.agents(agent) is None:
        return _ended(desk, action, f"The agent {agent!r} is not known here{_others(desk, agent)}.")
    for digest, data in wishes.artifacts.items():
        await desk.world.store.save_artifact(desk.log.uid, digest, data)
    settled = replace(ended, ends=wishes.ends, output=wishes.output, changes=wishes.settled(state), next=wishes.next)
    wishes.keep(state)
    if wishes.changes or wishes.directives or agent:
        flight.settle = partial(_settle, desk, action, wishes)
    return settled


def _settle(desk: Desk, action: RunTool, wishes: Wishes, event: Event, state: SessionState) -> Iterable[Event]:
    """Two calls that end in the same moment see each other here: the one behind is settled behind the other."""
    if not isinstance(event, CallEnded) or event.outcome != "ok":
        return (event,)
    try:
        if wrong := wishes.conflict(action.call, state):
            return (replace(_conflict(action, wrong), seconds=event.seconds),)
        if wishes.successor and state.run and state.run.wanted:
            taken = _ended(desk, action, f"{state.run.wanted} takes over already; only one agent can.")
            return (replace(taken, seconds=event.seconds),)
        if event.changes:
            changes = {name: value for name, value in wishes.settled(state).items() if name in event.changes}
            event = replace(event, changes=changes)
    except Exception as error:  # noqa: BLE001 - reducers are user code
        text = f"{action.name} failed: {describe(error)}. It may have taken effect."
        return (CallEnded(action.call, "error", (Text(text),), in_doubt=True, seconds=event.seconds),)
    if not wishes.directives:
        return (event,)
    by = f"{action.name} (call {action.call})"
    run = state.run.run if state.run else 0
    return in_turn(state, [event, *(_fact(desk, wish, by, run) for wish in wishes.directives)])


def _fact(desk: Desk, wish: Noted | Scheduled | Sending | Stop, by: str, run: int) -> Fact:
    match wish:
        case Sending():
            return dispatched(wish, by)
        case Noted():
            return wish
        case Scheduled():
            return sent(wish, by, desk.world.clock.now())
        case Stop(why=why):
            return stopped(run, by, why)


def _ended(desk: Desk, action: RunTool, text: str) -> CallEnded:
    tool = desk.binding.tools.get(action.name)
    return CallEnded(action.call, "error", (Text(text),), in_doubt=tool is None or tool.effect != "read")


def _others(desk: Desk, agent: str) -> str:
    others = ", ".join(name for name in desk.binding.handoffs if name != agent)
    return f"; take one of: {others}" if others else ""


def _conflict(action: RunTool, wrong: str) -> CallEnded:
    text = f"{action.name} (call {action.call}) and somebody else used the same state: {wrong}."
    return CallEnded(action.call, "error", (Text(text),), in_doubt=True)
