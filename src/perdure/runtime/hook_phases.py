"""The gates and the changers: what the hooks of each phase make of an input, a request, an answer, a call, an end.

Rule 1: a gate that fails says no: the input is blocked, the model call fails, the call is denied. Rule 2: arguments
that a hook changes are checked as if the model had written them: an approval is for what the person saw.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, cast, get_args

from msgspec.structs import replace

from perdure.core.actions import CallModel, CompactHistory, RunTool
from perdure.core.commands import SendInput
from perdure.core.errors import UsageError
from perdure.core.events import CallEnded, Event, HistoryCompacted, InputChanged, ModelFailed, Noted, RunEnded
from perdure.core.inputs import NATURAL_END
from perdure.core.messages import Media, Part, Text, Usage
from perdure.core.rules import exhausted
from perdure.core.specs import Limits, Overrides
from perdure.core.state import SessionState
from perdure.core.window import find_range, ledger_of
from perdure.ports import ModelRequest, ModelResponse
from perdure.runtime.consult import Consultation, HookFailed, refuse
from perdure.runtime.desk import Desk
from perdure.runtime.directives import Block, Result, accepted
from perdure.runtime.flight import Flight
from perdure.runtime.gating import hold_until_committed
from perdure.runtime.hooks import Hook
from perdure.runtime.media import Artifacts, clean_text, result_parts
from perdure.runtime.moments import (
    CallMoment,
    CompactionMoment,
    EndMoment,
    InputMoment,
    RequestMoment,
    ResponseMoment,
    ResultMoment,
)
from perdure.runtime.policy import Judgement

MAX_PUSHES = 3
"""How often a run may be pushed on at its end."""

Severity = Literal["allow", "ask", "deny"]
GRADES: tuple[Severity, ...] = get_args(Severity)


async def vet_input(desk: Desk, flight: Flight, number: int) -> InputChanged:
    """The input as its hooks want it; what pushes a run on comes from a hook, and is not put before them."""
    state = desk.log.state
    queued = next((item for item in state.queue if item.input == number), None)
    vetted = InputChanged(number, vetted=True)
    if queued is None or not queued.parts or queued.by == NATURAL_END or not desk.hooks.input:
        return vetted
    moment = InputMoment(desk.here(), number, queued.parts, queued.by, queued.overrides)
    words: dict[str, list[Part]] = {}
    blocked: list[Block] = []

    def take(hook: Hook, item: Any) -> bool:
        match item:
            case Block():
                blocked.append(item)
                return True
            case Limits():
                moment.overrides = replace(moment.overrides, limits=item)
            case Overrides():
                moment.overrides = item
            case str() | Text() | Media():
                # What one hook returns, in one piece or in several, takes the place of what was there.
                words.setdefault(hook.name, []).append(Text(clean_text(item)) if isinstance(item, str) else item)
                moment.parts = tuple(words[hook.name])
            case _:
                return refuse(hook, item)
        return False

    try:
        stop = await Consultation(desk, moment, take, flight.after).ask(desk.hooks.input)
    except HookFailed as failed:
        return InputChanged(number, blocked=str(failed), by=failed.hook.name)
    if blocked:
        return InputChanged(number, blocked=clean_text(blocked[0].why) or "a hook refused it")
    if stop is not None and state.run is not None:
        return InputChanged(number, blocked=clean_text(stop.why) or "a hook stopped the run")
    changed = moment.parts if words else None
    overrides = moment.overrides if moment.overrides != queued.overrides else None
    return replace(vetted, parts=changed, overrides=overrides, by=next(reversed(words), ""))


async def before_model(
    desk: Desk, flight: Flight, action: CallModel, request: ModelRequest
) -> ModelRequest | ModelResponse | ModelFailed:
    """The request as the hooks want it, an answer of their own, or the reason why nothing is asked."""
    moment = RequestMoment(desk.here(), request, action.attempt)
    own: list[ModelResponse] = []

    def take(hook: Hook, item: Any) -> bool:
        match item:
            case ModelRequest():
                moment.request = item
                return False
            case ModelResponse():
                own.append(item)
            case str():
                own.append(ModelResponse((Text(clean_text(item)),), usage=Usage()))
            case _:
                return refuse(hook, item)
        return True

    try:
        stop = await Consultation(desk, moment, take, flight.after).ask(desk.hooks.before_model)
    except HookFailed as failed:
        return ModelFailed("internal", str(failed))
    if stop is not None:
        return ModelFailed("stopped", clean_text(stop.why))
    return own[0] if own else moment.request


async def after_model(desk: Desk, flight: Flight, request: ModelRequest, response: ModelResponse) -> ModelResponse:
    """The answer as the hooks want it."""
    moment = ResponseMoment(desk.here(), request, response)

    def take(hook: Hook, item: Any) -> bool:
        match item:
            case ModelResponse():
                moment.response = item
            case str():
                moment.response = replace(moment.response, parts=(Text(clean_text(item)),), stop="end")
            case _:
                return refuse(hook, item)
        return False

    asked = Consultation(desk, moment, take, flight.after, fails_open=True)
    await asked.ask(desk.hooks.after_model)
    return moment.response


class Gate:
    """What the gates say about one call, beside the policy: the strictest of all counts."""

    __slots__ = ("moment", "said")

    def __init__(self, moment: CallMoment, said: Judgement) -> None:
        self.moment = moment
        self.said = said

    def take(self, hook: Hook, item: Any) -> bool:
        said: tuple[Any, ...] = cast("tuple[Any, ...]", item) if isinstance(item, tuple) else (item,)
        if not 1 <= len(said) <= 2 or said[0] not in GRADES:
            raise UsageError(f"it returned {item!r}; a tool_gate says 'allow', 'ask' or 'deny', or one with a reason")
        verdict: Severity = said[0]
        if GRADES.index(verdict) > GRADES.index(self.said.verdict):
            why = clean_text(str(said[1])) if len(said) > 1 else f"The hook {hook.name} says {verdict}."
            self.said = Judgement(verdict, f"hook: {hook.name}", why)
            self.moment.verdict = verdict
        return self.said.verdict == "deny"

    def deny(self, hook: Hook, reason: str) -> None:
        self.said = Judgement("deny", f"hook: {hook.name}", reason)


async def judge_gates(desk: Desk, flight: Flight, moment: CallMoment, said: Judgement) -> Judgement:
    """The verdict with the gates asked; deny beats ask beats allow."""
    if said.verdict == "deny":
        return said
    gate = Gate(moment, said)
    try:
        asked = Consultation(desk, moment, gate.take, flight.after)
        stop = await asked.ask(desk.hooks.tool_gate)
    except HookFailed as failed:
        gate.deny(failed.hook, str(failed))
    else:
        if stop is not None:
            return Judgement("deny", "hook", stop.why or "A hook stopped the run.")
        hold_until_committed(desk, flight, asked.kept)
    return gate.said


def judge_gates_now(desk: Desk, moment: CallMoment, said: Judgement, after: list[Any]) -> Judgement | None:
    """The same without waiting; None where a gate has to be awaited."""
    if said.verdict == "deny":
        return said
    if "tool_gate" in desk.hooks.awaited:
        return None
    gate = Gate(moment, said)
    try:
        stop = Consultation(desk, moment, gate.take, after).ask_now(desk.hooks.tool_gate)
    except HookFailed as failed:
        gate.deny(failed.hook, str(failed))
    else:
        if stop is False:
            after.clear()
            return None
        if stop is not True:
            return Judgement("deny", "hook", stop.why or "A hook stopped the run.")
    return gate.said


async def before_tool(desk: Desk, flight: Flight, moment: CallMoment) -> dict[str, Any] | Result | CallEnded:
    """The arguments as the hooks want them, a result of their own, or the end of a call that they do not let pass."""
    own: list[Result] = []

    def take(hook: Hook, item: Any) -> bool:
        match item:
            case dict():
                moment.arguments = cast("dict[str, Any]", item)
                return False
            case Result():
                own.append(item)
            case str():
                own.append(Result(item))
            case _:
                return refuse(hook, item)
        return True

    try:
        stop = await Consultation(desk, moment, take, flight.after).ask(desk.hooks.before_tool)
    except HookFailed as failed:
        return CallEnded(moment.call, "denied", (Text(f"{failed} The call was not carried out."),))
    if stop is not None:
        why = f": {stop.why.rstrip('.')}." if stop.why else "."
        return CallEnded(moment.call, "cancelled", (Text(f"The run was stopped before this call started{why}"),))
    return own[0] if own else moment.arguments


async def after_tool(
    desk: Desk, flight: Flight, action: RunTool, values: dict[str, Any], ended: CallEnded
) -> CallEnded:
    """The result as the hooks want it; what they change is the model's to read, never whether it happened."""
    moment = ResultMoment(desk.here(), action.call, action.name, values, ended.outcome, ended.parts)
    artifacts: list[Artifacts] = []

    def take(hook: Hook, item: Any) -> bool:
        match item:
            case Result(value=value):
                artifacts.append(Artifacts(desk.world.store, desk.log.uid))
                moment.parts = result_parts(value, artifacts[-1])
            case str():
                moment.parts = (Text(clean_text(item)),)
            case Text() | Media():
                moment.parts = (item,)
            case _:
                return refuse(hook, item)
        return False

    asked = Consultation(desk, moment, take, flight.after, fails_open=True)
    await asked.ask(desk.hooks.after_tool)
    for kept in artifacts:
        await kept.flush()
    return ended if moment.parts is ended.parts else replace(ended, parts=moment.parts)


async def before_compaction(desk: Desk, flight: Flight, action: CompactHistory) -> HistoryCompacted | None:
    """A summary of the hooks' own, or None; one that fails leaves it to the agent's way."""
    state, window = desk.log.state, desk.binding.spec.window
    found = find_range(state.history, window.keep_first, window.keep_last)
    if found is None:
        return None
    messages = state.history[found.start : found.stop]
    moment = CompactionMoment(desk.here(), action, tuple(messages))
    own: list[HistoryCompacted] = []

    def take(hook: Hook, item: Any) -> bool:
        match item:
            case HistoryCompacted(view=view) if view == action.view:
                own.append(item)
            case str() if item.strip():
                ledger = ledger_of(state, messages)
                parts = (Text(clean_text(item)),)
                own.append(
                    HistoryCompacted(
                        state.view, action.cause, found.start, found.stop, parts, ledger=ledger, by=hook.name
                    )
                )
            case _:
                return refuse(hook, item)
        return True

    asked = Consultation(desk, moment, take, flight.after, fails_open=True)
    stop = await asked.ask(desk.hooks.compaction)
    if stop is not None:
        return HistoryCompacted(state.view, action.cause, error=clean_text(stop.why) or "a hook stopped the run")
    return own[0] if own else None


def is_watched_end(desk: Desk, end: RunEnded, state: SessionState) -> bool:
    """Whether somebody may have a say about an end; not about one that a person asks for."""
    if desk.layers:
        return end.reason not in ("stopped", "cancelled")
    return bool(desk.hooks.natural_end) and may_push(state, end)


def may_push(state: SessionState, end: RunEnded) -> bool:
    """Whether the run ends because the model has said all it had to say; then it may be pushed on, so many times."""
    run = state.run
    if run is None or end.reason != "completed" or run.pushes >= MAX_PUSHES:
        return False
    return run.response is not None and not run.calls and not run.final and not exhausted(run)


async def natural_end(desk: Desk, flight: Flight, end: RunEnded) -> Event:
    """The end, or the words that push the run on."""
    state = desk.log.state
    run = state.run
    if run is None or not desk.hooks.natural_end or not may_push(state, end):
        return end
    text = run.response.message.text if run.response else ""
    moment = EndMoment(desk.here(), end.output, text, run.pushes)
    pushed: list[tuple[str, str]] = []

    def take(hook: Hook, item: Any) -> bool:
        if not isinstance(item, str):
            return refuse(hook, item)
        if item.strip():
            pushed.append((hook.name, clean_text(item)))
        return bool(pushed)

    try:
        asked = Consultation(desk, moment, take, flight.after)
        stop = await asked.ask(desk.hooks.natural_end)
    except HookFailed:
        return end
    if stop is not None:
        return Noted("stopped_at_end", {"run": run.run})
    if not pushed:
        return end
    name, words = pushed[0]
    push = SendInput((Text(words),), busy="join", by=NATURAL_END)

    def late(state: SessionState) -> Iterable[Event]:
        # Somebody may have stopped it meanwhile: words for a run that is over would open another one.
        is_open = state.run is not None and state.run.run == run.run and state.run.stop is None
        return accepted(state, push) if is_open else ()

    flight.after.append(late)
    return Noted("pushed_on", {"hook": name, "run": run.run, "push": run.pushes + 1})
