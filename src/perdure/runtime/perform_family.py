"""The work between sessions: a child is started, ended and reported; a message is brought.

Rule: what became of a call is decided by whoever commits first; the other one finds it ended and says nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

from msgspec.structs import replace

from perdure.core.actions import DeliverMessage, RecallChild, ReportEnd, RunTool
from perdure.core.codec import digest_of, encode_json
from perdure.core.commands import EndChild, SendInput, StopRun
from perdure.core.errors import Conflict, NotFound, PerdureError, Refused, StoreError, TooNew
from perdure.core.events import (
    CallEnded,
    CallSuspended,
    EndReason,
    Event,
    MessageSent,
    MessageSettled,
    Noted,
    Origin,
    Reply,
    Spent,
)
from perdure.core.messages import Outcome, Part, Text
from perdure.core.specs import Overrides
from perdure.core.state import Owed, RunSummary, SessionState, find_call
from perdure.runtime.clock import sleep, within
from perdure.runtime.desk import Desk
from perdure.runtime.flight import Flight
from perdure.runtime.limits import narrowed
from perdure.runtime.mail import Birth, Mail
from perdure.runtime.media import Artifacts
from perdure.runtime.spill import spill
from perdure.runtime.subagents import child_uid, end_deleted

CHILD_GRACE = 4.0
"""A child that is cancelled gives its own tools two seconds."""
MAX_PATIENCE = 5.0

_OUTCOMES: dict[EndReason, Outcome] = {
    "completed": "ok",
    "limit": "error",
    "failed": "error",
    "refusal": "error",
    "stopped": "cancelled",
    "cancelled": "cancelled",
}


async def start_child(desk: Desk, flight: Flight, action: RunTool, values: dict[str, Any]) -> Event:
    """Opens the child's session with its task; from then on the call waits for that session alone."""
    state, tool = desk.log.state, desk.binding.tools[action.name]
    call = find_call(state.run, action.call)
    assert call is not None
    assert state.run is not None
    assert tool.sub_agent is not None
    agent = desk.binding.sub_agents[action.name].name
    above = state.origin.agents if state.origin else ()
    origin = Origin(state.uid, 0, action.call, (*above, state.agent), tool.sub_agent.orphan)
    parts = (Text(values["input"]),)
    kept = values.get("child") or action.name
    label = f"{action.name}-{action.call}" if call.child != child_uid(state.uid, kept) else kept
    await _post(desk).start(
        state,
        Birth(call.child, agent, origin, label),
        SendInput(
            parts,
            key=f"call {state.uid} {action.call}",
            digest=digest_of(encode_json(parts)),
            overrides=Overrides(limits=call.granted),
            by=f"session {state.id}",
            reply=Reply(state.uid, action.call),
            hops=state.run.hops,
        ),
    )
    flight.settle = unless_ended
    expires_at = None if tool.timeout is None else desk.world.clock.now() + tool.timeout
    prompt = f"{agent} works on it in session {state.id}.{label}"
    return CallSuspended(action.call, call.pauses + 1, "child", prompt, expires_at)


def unless_ended(event: Event, state: SessionState) -> Iterable[Event]:
    """The fact about a call, unless its child was faster to say how it ended."""
    assert isinstance(event, CallSuspended | CallEnded)
    return () if is_over(state, event.call) else (event,)


async def recall_child(desk: Desk, action: RecallChild) -> Event:
    """Ends the child's session and waits for its word; of a child that does not answer in time nobody knows."""
    tool = desk.binding.tools.get(action.name)
    sub = tool.sub_agent if tool is not None else None
    reply = Reply(desk.log.uid, action.call)
    if sub is not None and sub.orphan == "finish" and action.cause != "seconds":
        text = f"The run was ended; {action.name} goes on by itself."
        spent = await _post(desk).spent_by(action.child, reply)
        return CallEnded(action.call, "cancelled", (Text(text),), spent=spent)
    cause = "stop" if action.cause == "stop" else "cancel"
    by = f"session {desk.log.state.id}"
    if not await _post(desk).stop(action.child, StopRun(cause, by, reply)):
        return _never_began(desk, action)
    if cause == "stop":
        await desk.log.until(lambda state: is_over(state, action.call) or _is_forced(state))
        if _is_forced(desk.log.state):
            # Who has asked kindly may lose patience; a child that has ended meanwhile refuses it.
            await _post(desk).stop(action.child, StopRun("cancel", by, reply))
    with suppress(TimeoutError):
        await within(desk.world.clock, CHILD_GRACE, _until_ended(desk, action.call))
    spent = await _post(desk).spent_by(action.child, reply)
    if action.cause == "seconds":
        text = f"{action.name} did not finish in time; it is not known what it has done until then."
        return CallEnded(action.call, "timeout", (Text(text),), in_doubt=True, spent=spent)
    text = f"{action.name} did not say in time that it ended; it is not known what it has done until then."
    return CallEnded(action.call, "unknown", (Text(text),), in_doubt=True, spent=spent)


def _never_began(desk: Desk, action: RecallChild) -> CallEnded:
    """There is no child: it was not started yet, or it is gone."""
    call = find_call(desk.log.state.run, action.call)
    if call is not None and call.asked_as == "child":
        return end_deleted(action.call, action.name)
    return CallEnded(action.call, "cancelled", (Text(f"{action.name} was ended before it began."),))


def is_over(state: SessionState, ordinal: int) -> bool:
    """Whether nobody waits for the call any more."""
    call = find_call(state.run, ordinal)
    return call is None or call.status == "ended"


async def _until_ended(desk: Desk, ordinal: int) -> None:
    await desk.log.until(lambda state: is_over(state, ordinal))


def _is_forced(state: SessionState) -> bool:
    return state.run is not None and state.run.stop is not None and state.run.stop.cause != "stop"


async def report_end(desk: Desk, action: ReportEnd) -> MessageSettled:
    """Tells who waits for it what came of an input."""
    state = desk.log.state
    owed = next((owed for owed in state.owed if owed.input == action.input), None)
    if owed is None:
        return MessageSettled(input=action.input)
    try:
        await _persistently(desk, partial(_report, desk, state, owed))
    except NotFound:
        return MessageSettled(input=action.input, dead="Who waited for it is gone.")
    except (Refused, Conflict) as error:
        return MessageSettled(input=action.input, dead=str(error))
    return MessageSettled(input=action.input)


async def _report(desk: Desk, state: SessionState, owed: Owed) -> None:
    if owed.reply.call:
        ended = await _outcome(desk, state, owed)
        await _post(desk).end(owed.reply.session, EndChild(state.uid, ended))
    else:
        await _post(desk).send(owed.reply.session, _news(state, owed), state.uid)


async def _persistently(desk: Desk, bring: Callable[[], Awaitable[None]]) -> None:
    """A store that is out of order loses nothing: as long as this session is driven, somebody tries again."""
    patience = 0.1
    while True:
        try:
            return await bring()
        except TooNew as error:
            # Whoever can read the other session has to bring it: this driver gives up, and takes us with it.
            desk.too_new = error
            desk.note(Noted("left_to_newer", {"detail": str(error)}))
            await asyncio.get_running_loop().create_future()
        except StoreError:
            await sleep(desk.world.clock, patience)
            patience = min(MAX_PATIENCE, 2 * patience)


async def _outcome(desk: Desk, state: SessionState, owed: Owed) -> CallEnded:
    """The end of the parent's call: the child's answer, or truthfully why there is none."""
    name = state.agent
    if not owed.run:
        text = f"The task was taken back before {name} began."
        return CallEnded(owed.reply.call, "cancelled", (Text(text),))
    ended = state.ended[owed.run - 1]
    artifacts = Artifacts(desk.world.store, owed.reply.session)
    parts = spill(_parts(name, ended), artifacts)
    await artifacts.flush()
    acts = state.spec is not None and any(tool.effect != "read" for tool in state.spec.tools)
    spent = Spent(ended.usage, ended.cost_usd if ended.is_priced else None, ended.called)
    return CallEnded(
        owed.reply.call,
        _OUTCOMES[ended.reason],
        parts,
        in_doubt=ended.reason != "completed" and acts and ended.called > 0,
        seconds=ended.seconds,
        spilled=parts != _parts(name, ended),
        # A run that answers several calls is paid for once.
        spent=spent if owed.pays else Spent(),
    )


def _parts(name: str, ended: RunSummary) -> tuple[Part, ...]:
    output = ended.output if isinstance(ended.output, str) else encode_json(ended.output).decode()
    if ended.reason == "completed":
        return (Text(output),)
    detail = f": {ended.detail.rstrip('.')}" if ended.detail else ""
    last = f" Its last words: {output}" if ended.output is not None else ""
    return (Text(f"{name} did not finish ({ended.reason}{detail}).{last}"),)


def _news(state: SessionState, owed: Owed) -> SendInput:
    """The end of a child that nobody waits for, as news for its parent."""
    ended = state.ended[owed.run - 1] if owed.run else None
    said = _parts(state.agent, ended) if ended else (Text("It was taken back before it began."),)
    parts = (Text(f"[{state.agent} in session {state.id} has ended]"), *said)
    key, by = f"end {state.uid} {owed.input}", f"session {state.id}"
    return SendInput(parts, "join", key, digest_of(encode_json(parts)), by=by, hops=owed.hops + 1)


async def deliver_message(desk: Desk, action: DeliverMessage) -> MessageSettled:
    """Brings a message to its session, or says why that cannot be."""
    state = desk.log.state
    sent = next((sent for sent in state.outbox if sent.message == action.message), None)
    if sent is None:
        return MessageSettled(action.message)
    try:
        await _persistently(desk, partial(_bring, desk, state, sent))
    except PerdureError as error:
        return MessageSettled(action.message, dead=str(error))
    return MessageSettled(action.message)


async def _bring(desk: Desk, state: SessionState, sent: MessageSent) -> None:
    post = _post(desk)
    named = child_uid(state.uid, sent.to.name)
    if not sent.parts:
        if not await post.stop(named, StopRun("cancel", f"session {state.id}")):
            raise NotFound(f"Session {state.id!r} has no child {sent.to.name!r}; there is nothing to stop.")
        return
    if sent.agent:
        above = state.origin.agents if state.origin else ()
        origin = Origin(state.uid, 0, 0, (*above, state.agent))
        sent = replace(sent, limits=narrowed(post.limits_of(sent.agent), sent.limits))
        command = _input(state, sent, sent.parts, Reply(state.uid))
        await post.start(state, Birth(named, sent.agent, origin, sent.to.name), command)
        return
    head = Text(f"[message of {state.agent}, session {state.id}]")
    command = _input(state, sent, (head, *sent.parts), None)
    match sent.to.kind:
        case "parent":
            target, gone = state.origin.session if state.origin else "", f"The parent of session {state.id!r} is gone."
        case "child":
            target, gone = named, f"Session {state.id!r} has no child {sent.to.name!r}; start it first."
        case "session":
            target, gone = await post.find(sent.to.name, state.tenant), f"Session {sent.to.name!r} is gone."
    try:
        await post.send(target, command, state.uid)
    except NotFound:
        raise NotFound(gone) from None


def _input(state: SessionState, sent: MessageSent, parts: tuple[Part, ...], reply: Reply | None) -> SendInput:
    return SendInput(
        parts,
        "join",
        f"message {state.uid} {sent.message}",
        digest_of(encode_json(parts)),
        overrides=Overrides(limits=sent.limits),
        by=f"session {state.id}",
        reply=reply,
        hops=sent.hops,
    )


def _post(desk: Desk) -> Mail:
    assert desk.world.post is not None
    return desk.world.post
