"""RunTool: the intent, the tool itself and its outcome; whatever user code does becomes one event."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import Any

from msgspec.structs import replace

from perdure.core.actions import EndOperation, RunTool
from perdure.core.calls import Call
from perdure.core.codec import digest_of
from perdure.core.errors import PerdureError, StoreError, ToolError
from perdure.core.events import CallAdvanced, CallChecked, CallEnded, CallStarted, Event
from perdure.core.messages import Part, Text
from perdure.core.specs import CERTAIN
from perdure.core.state import SessionState, find_call
from perdure.ports import Transacts
from perdure.runtime.clock import sleep
from perdure.runtime.context import ToolContext
from perdure.runtime.desk import Desk, describe
from perdure.runtime.directives import Result
from perdure.runtime.flight import Flight
from perdure.runtime.hook_phases import after_tool, before_tool
from perdure.runtime.limits import grant
from perdure.runtime.media import Artifacts, clean_text, result_parts
from perdure.runtime.moments import CallMoment
from perdure.runtime.perform_check import check_again, is_stale, prepared_of
from perdure.runtime.perform_family import start_child
from perdure.runtime.plain import to_json
from perdure.runtime.settling import settle_wishes
from perdure.runtime.spill import spill
from perdure.runtime.tools import Tool

MAX_BACKOFF = 10.0


def start_of(
    desk: Desk, action: RunTool, state: SessionState, call: Call | None
) -> CallStarted | CallEnded | CallChecked:
    """The intent to commit before the tool starts; a tool that is gone from the code ends the call instead.

    What was approved and is not what would run now is taken back: it is judged and asked about again.
    """
    tool = desk.binding.tools.get(action.name)
    if tool is None:
        return _not_started(action, tool, "the tool no longer exists.")
    if is_stale(desk, call, tool.spec):
        return take_back(action.call)
    try:
        key = tool.business_key(tool.parse(action.arguments)) if tool.key is not None else None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - key functions are user code
        return _not_started(action, tool, describe(error))
    key = key or digest_of(desk.log.uid, str(action.call), action.digest)
    intent = CallStarted(action.call, tool.spec.effect, action.attempt, key, tool.on_unknown)
    if tool.sub_agent is None or state.run is None:
        return intent
    if call is not None and call.child:
        return replace(intent, child=call.child, granted=call.granted)
    named = tool.parse(action.arguments).get("child", "")
    child = tool.sub_agent.uid(desk.log.uid, action.name, action.call, named)
    wanted = (tool.sub_agent.agent.limits, tool.sub_agent.limits)
    granted = grant(state.run, *wanted, beside=tool.background)
    return replace(intent, child=child, granted=granted)


def take_back(call: int) -> CallChecked:
    """What was approved is not what would run now."""
    return CallChecked(call, "stale", "changed", "What was approved has changed since.")


async def end_operation(desk: Desk, action: EndOperation) -> CallEnded:
    """Tells an operation that nobody followed to end; whether it took effect until then, nobody knows."""
    tool = desk.binding.tools.get(action.name)
    cancel = tool.attached("cancel") if tool else None
    said = "It was told to end" if cancel is not None else "It cannot be told to end"
    if cancel is not None:
        await cancel(action.operation, ToolContext(deps=desk.world.deps, session=desk.log.state.id, call=action.call))
    text = f"{said}; it is not known what the operation {action.operation} had done until then."
    return CallEnded(action.call, "unknown", (Text(text),), in_doubt=True)


async def run_tool(desk: Desk, flight: Flight, action: RunTool) -> Event:
    """Runs the tool, with the hooks around it, and reports its outcome; only the driver's cancellation gets out."""
    call = find_call(desk.log.state.run, action.call)
    if call is not None and call.name != action.name:
        tool = desk.binding.tools.get(call.name)
        return _not_started(action, tool, f"the call is one of {call.name}, and nobody may make it another one's.")
    tool = desk.binding.tools[action.name]
    prepared = prepared_of(call)
    if prepared is not None and prepared.valid_until is not None and prepared.valid_until < desk.world.clock.now():
        return _not_started(action, tool, "what was prepared has expired; prepare it again.")
    try:
        values = tool.parse(action.arguments)
        context = _context(desk, action, call, flight)
    except ValueError as error:
        return _not_started(action, tool, error)
    # What was checked, and perhaps approved, are other arguments than those that middleware put in their place.
    is_changed = call is not None and action.arguments != call.arguments
    if is_changed and (wrong := await check_again(desk, flight, action.call, action.name, action.arguments)):
        return _denied(action, tool, wrong)
    own: Result | None = None
    if desk.hooks.before_tool and not action.operation:
        came = await _ask_before(desk, flight, action, values)
        if isinstance(came, CallEnded):
            return came
        own, values = (came, values) if isinstance(came, Result) else (None, came)
    if tool.sub_agent is not None and own is None:
        return await _start_child(desk, flight, action, values)
    ended = await _run(desk, flight, action, values, context, _edited(call), own)
    return await after_tool(desk, flight, action, values, ended) if desk.hooks.after_tool else ended


async def _start_child(desk: Desk, flight: Flight, action: RunTool, values: dict[str, Any]) -> Event:
    """A child that cannot be started is an error like any other; one that a store did not take may be there."""
    try:
        return await start_child(desk, flight, action, values)
    except PerdureError as error:
        tool = desk.binding.tools[action.name]
        return CallEnded(action.call, "error", _failure(tool, error), in_doubt=isinstance(error, StoreError))


async def _run(
    desk: Desk,
    flight: Flight,
    action: RunTool,
    values: dict[str, Any],
    context: ToolContext[Any, Any],
    edited: tuple[Part, ...],
    own: Result | None,
) -> CallEnded:
    """What comes of the tool, or of the result that a hook gave in its place."""
    tool = desk.binding.tools[action.name]
    desk.contexts[action.call] = context
    try:
        value = await _carry_out(desk, flight, action, values, context) if own is None else own.value
        made = result_parts(value, context.artifacts)
        parts = spill(made, context.artifacts)
        await context.artifacts.flush()
        ended = CallEnded(action.call, "ok", (*edited, *parts), spilled=parts != tuple(made))
        if context.life.wishes is not None:
            return await settle_wishes(desk, flight, action, ended, context.life.wishes)
        return ended
    except ToolError as error:
        return CallEnded(action.call, "error", (*edited, Text(clean_text(str(error)) or "The tool failed.")))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a tool is user code: its failure is a fact
        return CallEnded(
            action.call, "error", (*edited, *_failure(tool, error)), in_doubt=tool.spec.effect not in CERTAIN
        )
    finally:
        context.close()
        del desk.contexts[action.call]


async def _ask_before(
    desk: Desk, flight: Flight, action: RunTool, values: dict[str, Any]
) -> dict[str, Any] | Result | CallEnded:
    """What the hooks before a tool say; other arguments have to fit, and to be allowed, like the first ones."""
    tool = desk.binding.tools[action.name]
    moment = CallMoment(
        desk.here(),
        action.call,
        action.name,
        # Values of its own, down to the last list: what a hook changes in place is noticed too.
        tool.parse(action.arguments),
        tool.spec.effect,
        action.attempt,
        flight.key,
    )
    came = await before_tool(desk, flight, moment)
    if isinstance(came, CallEnded):
        return replace(came, in_doubt=action.attempt > 1 and tool.spec.effect not in CERTAIN)
    if isinstance(came, Result) or came == values:
        return came
    try:
        arguments = to_json(came)
        changed = tool.parse(arguments)
    except ValueError as error:
        return _not_started(action, tool, f"a hook gave it arguments that do not fit: {error}")
    if wrong := await check_again(desk, flight, action.call, action.name, arguments):
        return _denied(action, tool, wrong)
    return changed


def _denied(action: RunTool, tool: Tool[..., Any], wrong: str) -> CallEnded:
    text = f"The arguments of {action.name} were changed. {wrong} The call was not carried out."
    return CallEnded(
        action.call, "denied", (Text(text),), in_doubt=action.attempt > 1 and tool.spec.effect not in CERTAIN
    )


async def _carry_out(
    desk: Desk, flight: Flight, action: RunTool, values: dict[str, Any], context: ToolContext[Any, Any]
) -> Any:
    """The tool's value: at once, after retries, or at the end of the operation that it started."""
    tool = desk.binding.tools[action.name]
    if tool.attached("check") is not None:
        return await _operate(desk, tool, action, values, context)
    if tool.spec.effect == "transactional":
        return await _transact(desk, flight, tool, values, context)
    failures: list[str] = []
    while True:
        try:
            return await _invoke(desk, tool, values, context)
        except Exception as error:
            if len(failures) >= tool.retries:
                if failures:
                    tried = "; ".join([*failures, _say(error)])
                    raise ToolError(f"{tool.name} failed {len(failures) + 1} times: {tried}") from error
                raise
            failures.append(_say(error))
            context.progress(f"failed ({_say(error)}), trying again")
        await sleep(desk.world.clock, min(MAX_BACKOFF, 0.5 * 2 ** len(failures)))


async def _transact(
    desk: Desk, flight: Flight, tool: Tool[..., Any], values: dict[str, Any], context: ToolContext[Any, Any]
) -> Any:
    """The tool's value; what it wrote waits in the flight for the commit of its outcome."""
    store = desk.world.store
    assert isinstance(store, Transacts)
    flight.transaction = store.begin()
    body = partial(tool.invoke, values, context)
    if tool.is_async:
        return await flight.transaction.run(body)
    return await flight.transaction.run_in_thread(body, desk.world.threads.submit)


def _say(error: Exception) -> str:
    return str(error) if isinstance(error, ToolError) else describe(error)


async def _operate(
    desk: Desk, tool: Tool[..., Any], action: RunTool, values: dict[str, Any], context: ToolContext[Any, Any]
) -> Any:
    """Starts an operation, or finds it again, and follows it; its id is durable before anybody waits for it."""
    operation = action.operation
    check, cancel = tool.attached("check"), tool.attached("cancel")
    assert check is not None
    if not operation:
        started = await _invoke(desk, tool, values, context)
        if not isinstance(started, str) or not started:
            raise TypeError(f"it has a check function, so it has to return the id of its operation, not {started!r}")
        operation = started
        desk.note(CallAdvanced(action.call, operation, context.deadline))
    try:
        await desk.log.until(lambda state: _is_advanced(state, action.call))
        return await check(operation, context)
    except asyncio.CancelledError:
        # A process that only leaves does not end what goes on elsewhere.
        if cancel is not None and action.call in desk.broken_off:
            await asyncio.shield(asyncio.ensure_future(cancel(operation, context)))
        raise


def _is_advanced(state: SessionState, ordinal: int) -> bool:
    call = find_call(state.run, ordinal)
    return call is None or bool(call.operation)


def _context(desk: Desk, action: RunTool, call: Call | None, flight: Flight) -> ToolContext[Any, Any]:
    state = desk.log.state
    decision = call.decision if call else None
    return ToolContext(
        deps=desk.world.deps,
        data=desk.data(action.name),
        idempotency_key=flight.key,
        session=state.id,
        tenant=state.tenant,
        call=action.call,
        run=state.run.run if state.run else 0,
        attempt=action.attempt,
        state=state,
        deadline=flight.deadline,
        decision=decision.value if decision else None,
        prepared=prepared_of(call),
        artifacts=Artifacts(desk.world.store, desk.log.uid),
        publish=desk.publish,
        loop=asyncio.get_running_loop(),
        shelf=desk.shelf,
    )


def _invoke(desk: Desk, tool: Tool[..., Any], values: dict[str, Any], context: ToolContext[Any, Any]) -> Awaitable[Any]:
    if tool.is_async:
        return tool.invoke(values, context)
    return desk.world.threads.submit(partial(tool.invoke, values, context))


def _edited(call: Call | None) -> tuple[Part, ...]:
    """The model wrote other arguments than those that a person put in their place: it has to know."""
    if call is None or not call.approved:
        return ()
    return (Text(f"A person changed the arguments to {call.arguments}."),)


def _failure(tool: Tool[..., Any], error: BaseException) -> tuple[Part, ...]:
    doubt = "" if tool.spec.effect in CERTAIN else " It may have taken effect."
    return (Text(f"{tool.name} failed: {describe(error)}.{doubt}"),)


def _not_started(action: RunTool, tool: Tool[..., Any] | None, why: object) -> CallEnded:
    """This attempt did nothing; what an attempt before a crash did, nobody knows."""
    in_doubt = action.attempt > 1 and (tool is None or tool.spec.effect not in CERTAIN)
    return CallEnded(action.call, "error", (Text(f"{action.name} was not started: {why}"),), in_doubt=in_doubt)
