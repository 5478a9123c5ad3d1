"""What sessions have for each other: the ends of inputs that somebody waits for, and messages; kept until delivered.

Rule 1: what goes to one address goes one after the other, in the order in which it was said. Rule 2: whatever comes
twice counts once: an end by its call, a message by its number.
"""

from __future__ import annotations

from msgspec.structs import replace

from perdure.core.actions import Action, DeliverMessage, ReportEnd
from perdure.core.commands import EndChild, SendAgain, SendMessage
from perdure.core.errors import NotFound, Refused, UsageError
from perdure.core.events import Address, Event, MessageSent, MessageSettled
from perdure.core.messages import Text
from perdure.core.state import DeadLetter, Owed, RunState, SessionState, find_call

MAX_HOPS = 100
"""So many sessions in a row may answer each other before somebody has to look."""


def owed_for(state: SessionState, inputs: tuple[int, ...]) -> tuple[Owed, ...]:
    """The inputs among these, which still wait, whose end somebody wants to hear of."""
    wanted = [queued for queued in state.queue if queued.input in inputs]
    made = [(queued, queued.reply) for queued in wanted if queued.reply is not None]
    return tuple(Owed(queued.input, reply, hops=queued.hops, after=state.messages) for queued, reply in made)


def errands(state: SessionState) -> tuple[Action, ...]:
    """Everything that can be brought now. Ends and what was said before or after them keep their order, too."""
    said = [sent.message for sent in state.outbox if sent.to.kind == "parent"]
    ready = [owed for owed in state.owed if not any(number <= owed.after for number in said)]
    news = [owed for owed in ready if not owed.reply.call][:1]
    reports = [ReportEnd(owed.input) for owed in (*(owed for owed in ready if owed.reply.call), *news)]
    first: dict[Address, int] = {}
    for sent in state.outbox:
        if sent.to.kind != "parent" or not any(owed.after < sent.message for owed in state.owed):
            first.setdefault(sent.to, sent.message)
    return (*reports, *(DeliverMessage(number) for number in first.values()))


def send_message(state: SessionState, event: MessageSent) -> SessionState:
    dead = tuple(letter for letter in state.dead if letter.sent.message != event.message)
    known = [sent for sent in state.outbox if sent.message == event.message]
    outbox = state.outbox if known else (*state.outbox, event)
    run = state.run
    if run is not None and event.agent and event.message > state.messages:
        given = (*run.given, event.limits) if event.limits else run.given
        state = replace(state, run=replace(run, children=run.children + 1, given=given))
    return replace(state, messages=max(state.messages, event.message), outbox=outbox, dead=dead)


def settle_message(state: SessionState, event: MessageSettled) -> SessionState:
    if event.input:
        return replace(state, owed=tuple(owed for owed in state.owed if owed.input != event.input))
    settled = [sent for sent in state.outbox if sent.message == event.message]
    dead = (*state.dead, *(DeadLetter(sent, event.dead) for sent in settled)) if event.dead else state.dead
    return replace(state, outbox=tuple(sent for sent in state.outbox if sent not in settled), dead=dead)


def childless(run: RunState, born: int) -> str:
    """Why the run, which has started so many, may start no sub-agent more."""
    limits = run.limits
    if limits.depth is not None and limits.depth < 1:
        return "Sub-agents may not be nested deeper than this; do it yourself."
    if limits.children is not None and born >= limits.children:
        return f"This run may start no more than {limits.children} sub-agents; do it yourself."
    return ""


def accept_end(state: SessionState, command: EndChild) -> tuple[Event, ...]:
    """The end of a call's child; one that was cancelled because its time was up did not finish in time."""
    call, ended = find_call(state.run, command.ended.call), command.ended
    if call is None or call.status == "ended" or call.child != command.child:
        return ()
    if call.status == "recalled" and ended.outcome == "cancelled":
        ended = replace(ended, outcome="timeout", parts=(Text(f"{call.name} did not finish in time."),))
    most = call.granted.calls if call.granted else None
    if ended.spent is not None and most is not None and ended.spent.calls > most:
        # What a child asked for beyond its limit was never started.
        ended = replace(ended, spent=replace(ended.spent, calls=most))
    return (ended,)


def accept_message(state: SessionState, command: SendMessage) -> tuple[Event, ...]:
    is_child = state.origin is not None and bool(state.origin.agents)
    if command.to.kind == "parent" and not is_child:
        raise Refused(f"Session {state.id!r} has no parent; send the message to a session by its id.")
    if not command.parts and command.to.kind != "child":
        raise UsageError("The message is empty; say something.")
    hops = state.run.hops + 1 if state.run else 1
    if hops > MAX_HOPS:
        raise Refused(f"The message would be number {hops} in a row of sessions that answer each other; ask a person.")
    if command.agent and state.run and (why := childless(state.run, state.run.children)):
        raise Refused(why)
    return (
        MessageSent(
            state.messages + 1,
            command.to,
            command.parts,
            agent=command.agent,
            limits=command.limits,
            by=command.by,
            hops=hops,
        ),
    )


def accept_again(state: SessionState, command: SendAgain) -> tuple[Event, ...]:
    letter = next((letter for letter in state.dead if letter.sent.message == command.message), None)
    if letter is None:
        raise NotFound(f"Session {state.id!r} has no dead letter {command.message}; list them with dead_letters().")
    return (letter.sent,)
