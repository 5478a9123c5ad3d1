"""CheckCall and RunTool: arguments, policy and the tool itself; whatever user code does becomes one event."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from perdure.core.actions import CheckCall, RunTool
from perdure.core.calls import Call
from perdure.core.codec import digest_of
from perdure.core.errors import ToolError
from perdure.core.events import CallChecked, CallEnded, CallStarted
from perdure.core.messages import Part, Text
from perdure.core.state import find_call
from perdure.runtime.context import ToolContext
from perdure.runtime.desk import Desk, describe
from perdure.runtime.media import Artifacts, clean_text, result_parts
from perdure.runtime.policy import CallView, Judgement, judge, judge_now
from perdure.runtime.tools import Tool


def check_now(desk: Desk, action: CheckCall) -> CallChecked | None:
    """The verdict where no user code has to be awaited; None where it has."""
    prepared = _prepare(desk, action)
    if isinstance(prepared, CallChecked):
        return prepared
    tool, view, digest = prepared
    remembered = desk.log.state.remembered
    try:
        judgement = judge_now(desk.binding.agent.policy, tool, view, remembered, digest, approved=action.approved)
    except SystemExit as error:
        # Raised by a predicate here, in the driver, it would end the program and all its sessions.
        return CallChecked(action.call, "deny", "check", describe(error))
    return None if judgement is None else _checked(action, tool, digest, judgement)


async def check_call(desk: Desk, action: CheckCall) -> CallChecked:
    """The verdict, with the policy's predicates awaited."""
    prepared = _prepare(desk, action)
    if isinstance(prepared, CallChecked):
        return prepared
    tool, view, digest = prepared
    remembered = desk.log.state.remembered
    judgement = await judge(desk.binding.agent.policy, tool, view, remembered, digest, approved=action.approved)
    return _checked(action, tool, digest, judgement)


def _prepare(desk: Desk, action: CheckCall) -> CallChecked | tuple[Tool[..., Any], CallView, str]:
    tool = desk.binding.tools.get(action.name)
    if tool is None:
        known = ", ".join(desk.binding.tools) or "none"
        return _invalid(action, f"There is no tool {action.name!r}; the tools are: {known}.")
    state = desk.log.state
    try:
        values = tool.parse(action.arguments)
    except ValueError as error:
        return _invalid(action, f"The arguments do not fit {action.name}: {error}")
    view = CallView(action.name, values, tool.effect, state.id, state.tenant, state.data)
    return tool, view, digest_of(action.name, tool.canonical(action.arguments))


def _invalid(action: CheckCall, reason: str) -> CallChecked:
    return CallChecked(action.call, "invalid", "schema", reason)


def _checked(action: CheckCall, tool: Tool[..., Any], digest: str, judgement: Judgement) -> CallChecked:
    return CallChecked(
        action.call,
        judgement.verdict,
        judgement.rule,
        judgement.reason,
        digest,
        sequential=tool.sequential,
    )


def start_of(desk: Desk, action: RunTool) -> CallStarted | CallEnded:
    """The intent to commit before the tool starts; a tool that is gone from the code ends the call instead."""
    tool = desk.binding.tools.get(action.name)
    if tool is None:
        return _not_started(action, tool, "the tool no longer exists.")
    try:
        key = tool.business_key(tool.parse(action.arguments)) if tool.key is not None else None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - key functions are user code
        return _not_started(action, tool, describe(error))
    key = key or digest_of(desk.log.uid, str(action.call), action.digest)
    return CallStarted(action.call, tool.effect, action.attempt, key, tool.on_unknown)


async def run_tool(desk: Desk, action: RunTool, key: str, deadline: float | None) -> CallEnded:
    """Runs the tool and reports its outcome; only the driver's cancellation gets out."""
    tool = desk.binding.tools[action.name]
    edited = _edited(find_call(desk.log.state.run, action.call))
    try:
        values = tool.parse(action.arguments)
        context = _context(desk, action, key, deadline)
    except ValueError as error:
        return _not_started(action, tool, error)
    desk.contexts[action.call] = context
    try:
        value = await _invoke(desk, tool, values, context)
        parts = result_parts(value, context.artifacts)
        await context.artifacts.flush()
    except ToolError as error:
        return CallEnded(action.call, "error", (*edited, Text(clean_text(str(error)) or "The tool failed.")))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a tool is user code: its failure is a fact
        return CallEnded(action.call, "error", (*edited, *_failure(tool, error)), in_doubt=tool.effect != "read")
    finally:
        context.close()
        del desk.contexts[action.call]
    return CallEnded(action.call, "ok", (*edited, *parts))


def _context(desk: Desk, action: RunTool, key: str, deadline: float | None) -> ToolContext[Any, Any]:
    state = desk.log.state
    return ToolContext(
        deps=desk.world.deps,
        data=desk.data(action.name),
        idempotency_key=key,
        session=state.id,
        tenant=state.tenant,
        call=action.call,
        run=state.run.run if state.run else 0,
        attempt=action.attempt,
        state=state,
        deadline=deadline,
        artifacts=Artifacts(desk.world.store, desk.log.uid),
        publish=desk.publish,
        loop=asyncio.get_running_loop(),
    )


async def _invoke(desk: Desk, tool: Tool[..., Any], values: dict[str, Any], context: ToolContext[Any, Any]) -> Any:
    if tool.context_name is not None:
        values[tool.context_name] = context
    if tool.is_async:
        return await tool.function(**values)
    return await desk.world.threads.submit(partial(tool.function, **values))


def _edited(call: Call | None) -> tuple[Part, ...]:
    """The model wrote other arguments than those that a person put in their place: it has to know."""
    if call is None or not call.approved:
        return ()
    return (Text(f"A person changed the arguments to {call.arguments}."),)


def _failure(tool: Tool[..., Any], error: BaseException) -> tuple[Part, ...]:
    doubt = "" if tool.effect == "read" else " It may have taken effect."
    return (Text(f"{tool.name} failed: {describe(error)}.{doubt}"),)


def _not_started(action: RunTool, tool: Tool[..., Any] | None, why: object) -> CallEnded:
    """This attempt did nothing; what an attempt before a crash did, nobody knows."""
    in_doubt = action.attempt > 1 and (tool is None or tool.effect != "read")
    return CallEnded(action.call, "error", (Text(f"{action.name} was not started: {why}"),), in_doubt=in_doubt)
