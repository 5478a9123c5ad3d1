"""MakeTools: the tools of one run, made by its agent's functions, as a binding in which they are tools like others.

Rule: what a run was started with is in its RunStarted; whoever picks it up makes the functions of these again and of no
others, and one that is not made again no longer exists.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Sequence
from functools import partial
from typing import Any, cast

from perdure.core.actions import MakeTools
from perdure.core.errors import UsageError
from perdure.core.events import Event, Noted
from perdure.core.specs import Overrides
from perdure.core.state import SessionState
from perdure.runtime.agent import Binding
from perdure.runtime.context import ToolContext
from perdure.runtime.desk import Desk, describe
from perdure.runtime.flight import MAKING, Flight
from perdure.runtime.patience import Unanswered, answered
from perdure.runtime.per_run import Made, PerRun
from perdure.runtime.tools import Tool, as_tool


def next_run(state: SessionState) -> tuple[int, Overrides]:
    """The run that is open or about to start, and what was given with it; run 0 if there is none."""
    if state.run is not None:
        return state.run.run, state.run.overrides
    due = next((queued.overrides for queued in state.queue if queued.at is None), None)
    return (0, Overrides()) if due is None else (state.runs + 1, due)


def tools_to_make(desk: Desk, state: SessionState, flights: Container[int]) -> MakeTools | None:
    """What has to be made before anything else of the run is done; a run that is to be stopped needs no tools."""
    if not desk.bound.parts.makers or state.early_stop:
        return None
    run, _ = next_run(state)
    return MakeTools(run) if run and (desk.made.run != run or MAKING in flights) else None


async def make_tools(desk: Desk, flight: Flight, action: MakeTools) -> Event:
    """Puts the tools into the desk's binding; there is nothing to commit but a failure in an open run."""
    state = desk.log.state
    desk.binding, desk.made = desk.bound, Made(action.run)
    known = {spec.name for spec in state.run.tools} if state.run else None
    event = Noted("tools_failed", {"run": action.run})
    flight.settle = _nothing
    try:
        tools = await tools_for(desk, desk.bound, state)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - user code
        reason = str(error) if isinstance(error, UsageError | Unanswered) else describe(error)
        desk.made = Made(action.run, error=reason)
        event = Noted("tools_failed", {"run": action.run, "detail": reason})
        flight.settle = None if state.run else _nothing
        return event
    tools = [tool for tool in tools if known is None or tool.name in known]
    desk.binding = with_tools(desk.bound, tools)
    desk.made = Made(action.run, tuple(tool.spec for tool in tools))
    return event


def _nothing(event: Event, state: SessionState) -> tuple[Event, ...]:
    return ()


async def tools_for(desk: Desk, binding: Binding, state: SessionState) -> list[Tool[..., Any]]:
    """What the functions of this agent make for the run; a UsageError where names are not their own."""
    number, overrides = next_run(state)
    taken = {*binding.tools, *(spec.name for spec in overrides.tools)}
    made: list[Tool[..., Any]] = []
    for maker in binding.parts.makers:
        context: ToolContext[Any, Any] = ToolContext(
            deps=desk.world.deps,
            data=state.data,
            session=state.id,
            tenant=state.tenant,
            run=number,
            state=state,
            shelf=desk.shelf,
        )
        for tool in _checked(maker, await answered(desk.world.clock, partial(maker.function, context))):
            if tool.name in taken:
                raise UsageError(f"per_run({maker.name}) makes a second tool {tool.name!r}; give it another name=.")
            taken.add(tool.name)
            made.append(tool)
    return made


def _checked(maker: PerRun, given: object) -> list[Tool[..., Any]]:
    if not isinstance(given, list | tuple):
        raise UsageError(f"per_run({maker.name}) returned {type(given).__name__}; it has to return a list of tools.")
    tools = [as_tool(item) for item in cast(Sequence[Any], given)]
    for tool in tools:
        # Compiled here, so that a wrong signature is told now.
        _ = tool.spec
        if tool.sub_agent is not None:
            # A process that finds the child's session must know its agent before any run of the parent is open.
            raise UsageError(f"per_run({maker.name}) makes the sub-agent {tool.name!r}; give sub-agents in tools=[…].")
    return tools


def with_tools(binding: Binding, tools: Sequence[Tool[..., Any]]) -> Binding:
    codecs = {tool.name: tool.data_codec for tool in tools if tool.data_codec is not None}
    named = {tool.name: tool for tool in tools}
    return dataclasses.replace(binding, tools={**binding.tools, **named}, data={**binding.data, **codecs})
