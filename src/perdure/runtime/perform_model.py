"""CallModel: build the request, climb the ladder, and say what came of it."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from perdure.core.actions import CallModel
from perdure.core.codec import decode_json
from perdure.core.errors import UsageError
from perdure.core.events import Event, ModelFailed, ModelResponded, Noted
from perdure.core.messages import AnswerPart, AssistantMessage, ToolCall, Usage, estimate_tokens
from perdure.core.specs import NextTurn, ToolSpec
from perdure.core.state import RunState, SessionState
from perdure.core.transcript import transcript
from perdure.ports import Model, ModelRequest, ModelResponse
from perdure.runtime.conditions import is_shown
from perdure.runtime.context import ToolContext
from perdure.runtime.desk import Desk, describe
from perdure.runtime.flight import Flight
from perdure.runtime.gates import traits_of
from perdure.runtime.hook_phases import after_model, before_model
from perdure.runtime.ladder import Answered, GaveUp, Ladder
from perdure.runtime.plugins import Words
from perdure.runtime.spill import READ_OUTPUT
from perdure.runtime.surroundings import Surroundings, behind, gather
from perdure.runtime.waste import Waste, price_of
from perdure.runtime.world import schema_key

PLAIN_TEXT = {"type": "string"}
"""The schema of `output=str`, by which a run asks for words although its agent has a type."""


async def call_model(desk: Desk, flight: Flight, action: CallModel) -> Event:
    """One turn's answer, or the reason why there is none."""
    state = desk.log.state
    run = state.run
    if run is None:
        return ModelFailed("internal", "the run is over")
    try:
        models = turn_models(desk, run, action.model)
        request = await _build_request(desk, state, run, action, flight.max_tokens)
        if desk.hooks.before_model:
            came = await before_model(desk, flight, action, request)
            if isinstance(came, ModelFailed):
                return came
            if isinstance(came, ModelResponse):
                return await _answered_here(desk, flight, request, came)
            if came.model != request.model:
                models = turn_models(desk, run, came.model)
            request = _within_room(came, flight.max_tokens)
    except Exception as error:  # noqa: BLE001 - instructions and resolvers are user code
        return ModelFailed("internal", describe(error))
    recourse = desk.binding.agent.on_model_error
    if recourses := desk.log.recourses:
        given = (recourses.get(number) for number in reversed(run.inputs))
        recourse = next(filter(None, given), recourse)
    came = await Ladder(desk, action, models, request, recourse).climb()
    if isinstance(came, GaveUp):
        wasted = came.waste.usage
        return ModelFailed(
            came.kind, came.detail, wasted=wasted, cost_usd=came.waste.cost_usd if wasted.total else None
        )
    if desk.hooks.after_model:
        usage = _settle(run, state, came.response.usage, AssistantMessage(came.response.parts))
        desk.waste = Waste(usage + came.waste.usage, _cost(came, usage))
        came = replace(came, response=await after_model(desk, flight, request, came.response))
    event = _responded(desk, state, run, came)
    desk.waste = Waste(event.usage + event.wasted if event.wasted.total else event.usage, event.cost_usd)
    return event


def _within_room(request: ModelRequest, max_tokens: int | None) -> ModelRequest:
    """What was reserved for the answer holds, whatever a hook wants of it."""
    wanted = request.settings.max_tokens
    if max_tokens is None or (wanted is not None and wanted <= max_tokens):
        return request
    return replace(request, settings=replace(request.settings, max_tokens=max_tokens))


async def _answered_here(desk: Desk, flight: Flight, request: ModelRequest, own: ModelResponse) -> Event:
    """A hook's own answer: no model was asked, so nothing was paid."""
    state = desk.log.state
    assert state.run is not None
    own = own if own.usage is not None else replace(own, usage=Usage())
    if desk.hooks.after_model:
        own = await after_model(desk, flight, request, own)
    waste = desk.waste = Waste()
    model = turn_models(desk, state.run)[0]
    event = _responded(desk, state, state.run, Answered(model, own, waste))
    return replace(event, cost_usd=0.0) if not event.usage.total else event


def turn_models(desk: Desk, run: RunState, override: str = "") -> tuple[Model, ...]:
    """The turn's or the run's own model where it has one, else the agent's and its fallbacks."""
    name = override or run.model
    if name and name != desk.binding.models[0].name:
        return (desk.world.model(name),)
    return desk.binding.models


async def _build_request(
    desk: Desk, state: SessionState, run: RunState, action: CallModel, max_tokens: int | None
) -> ModelRequest:
    parts = desk.binding.parts
    if parts.is_worded or parts.context or desk.binding.agent.context:
        around = await _surround(desk, state, run, action)
    else:
        around = Surroundings(_words_of(desk, state), suffix=behind(state, action.turn))
    tools = () if action.final else _tools_of(desk, state, run, action.next)
    if desk.binding.conditional and not action.final:
        tools = await _shown(desk, state, run, tools)
    wished = action.next.settings if action.next else None
    settings = run.settings.merged(wished).merged(action.settings)
    if max_tokens is not None and max_tokens != settings.max_tokens:
        settings = replace(settings, max_tokens=max_tokens)
    return ModelRequest(
        run.model or desk.binding.spec.model,
        around.instructions,
        transcript(state),
        tools,
        settings,
        None if run.output == PLAIN_TEXT else run.output,
        preface=around.preface,
        suffix=around.suffix,
        cache_key=state.uid,
        load=partial(desk.world.store.load_artifact, state.uid),
    )


async def _surround(desk: Desk, state: SessionState, run: RunState, action: CallModel) -> Surroundings:
    """The instructions, and what else the request carries beside the conversation."""
    parts = desk.binding.parts
    instructions = _words_of(desk, state)
    sources = (*desk.binding.agent.context, *parts.context)
    context: ToolContext[Any, Any] = ToolContext(
        deps=desk.world.deps,
        data=state.data,
        session=state.id,
        tenant=state.tenant,
        run=run.run,
        state=state,
        shelf=desk.shelf,
    )
    if parts.is_worded:
        instructions = "\n\n".join(await _words(context, parts.instructions))
    return await gather(sources, instructions, state, action.turn, context)


def _words_of(desk: Desk, state: SessionState) -> str:
    """A run keeps the words that it began with."""
    return state.spec.instructions if state.spec else desk.binding.spec.instructions


async def _words(context: ToolContext[Any, Any], given: Sequence[Words]) -> list[str]:
    """Prompt parts as text; those that say nothing are left out."""
    texts: list[str] = []
    for words in given:
        text = words if isinstance(words, str) else words(context)
        text = await text if inspect.isawaitable(text) else text
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - user code
            raise UsageError(f"The instructions returned {type(text).__name__}; they have to return text.")
        texts += [text] if text else []
    return texts


def _tools_of(desk: Desk, state: SessionState, run: RunState, next: NextTurn | None) -> tuple[ToolSpec, ...]:
    """The tools that the run began with, those that a client declared for it, and one for long results if needed.

    What the policy denies in any case the model does not see. What was revealed comes last, so that the beginning
    stays the same.
    """
    binding, policy = desk.binding, desk.binding.agent.policy
    tools = binding.offered
    if desk.above:
        tools = tuple(tool for tool in tools if not any(above.policy.forbids(tool.name) for above in desk.above))
    is_plain = next is None and not (run.tools or state.has_spilled or binding.hides)
    if is_plain and state.spec_digest == binding.digest:
        return tools
    if state.spec is not None and state.spec_digest != binding.digest:
        kept = [tool for tool in state.spec.tools if tool.name in binding.tools]
        tools = tuple(tool for tool in kept if not policy.forbids(tool.name))
    if run.tools:
        there = [tool for tool in run.tools if tool.kind != "function" or tool.name in binding.tools]
        tools = (*tools, *(tool for tool in there if not policy.forbids(tool.name)))
    if state.has_spilled and all(tool.name != READ_OUTPUT for tool in tools):
        tools = (*tools, desk.binding.tools[READ_OUTPUT].spec)
    if next is None and not [tool for tool in tools if tool.hidden or tool.deferred]:
        return tools
    wanted = next or NextTurn()
    shown = {tool.name: tool for tool in tools if wanted.shows(tool)}
    if state.revealed:
        known = {tool.name: tool for tool in tools}
        revealed = replace(wanted, show=state.revealed)
        found = [known[name] for name in state.revealed if name in known and revealed.shows(known[name])]
        shown |= {tool.name: tool for tool in found if tool.name not in shown}
    return tuple(shown.values())


async def _shown(desk: Desk, state: SessionState, run: RunState, tools: tuple[ToolSpec, ...]) -> tuple[ToolSpec, ...]:
    """Those of the tools whose condition holds now; a call of another one is refused in this turn."""
    desk.shown = (run.turn, {})
    return tuple([tool for tool in tools if await is_shown(desk, state, tool.name)])


def _responded(desk: Desk, state: SessionState, run: RunState, came: Answered) -> ModelResponded:
    model, response = came.model, came.response
    message = AssistantMessage(number_calls(response.parts, state.calls), traits_of(model).provider)
    usage = _settle(run, state, response.usage, message)
    calls = bool(message.calls)
    output, invalid = (None, "") if calls else _check_output(desk, run, message.text)
    stop = "calls" if calls and response.stop == "end" else response.stop
    if run.limits.cost_usd is not None and run.is_priced and price_of(model, usage) is None:
        # Money does not limit what has no price: once in a run, somebody has to be told.
        desk.note(Noted("price_unknown", {"model": model.name, "limit": run.limits.cost_usd}))
    return ModelResponded(
        message,
        model="" if model.name == run.model else model.name,
        stop=stop,
        usage=usage,
        cost_usd=_cost(came, usage),
        output=output,
        invalid=invalid,
        wasted=came.waste.usage,
    )


def _cost(came: Answered, usage: Usage) -> float | None:
    """Of the answer, and of the attempts before it."""
    cost = price_of(came.model, usage)
    return None if cost is None or came.waste.cost_usd is None else cost + came.waste.cost_usd


def number_calls(parts: Iterable[AnswerPart], last: int) -> tuple[AnswerPart, ...]:
    """The parts with our ordinals on their calls, which go on from the last one of the session."""
    numbered: list[AnswerPart] = []
    for part in parts:
        if isinstance(part, ToolCall):
            last += 1
            part = ToolCall(last, part.name, part.arguments, part.id, part.extras)
        numbered.append(part)
    return tuple(numbered)


def _settle(run: RunState, state: SessionState, usage: Usage | None, message: AssistantMessage) -> Usage:
    """What the provider counted, or the reservation where it did not say or talks nonsense."""
    if usage is not None and 0 <= usage.input < 10**9 and 0 <= usage.output < 10**9:
        return usage
    output = estimate_tokens(message.parts)
    return Usage(state.context_tokens, max(output, run.reserved.tokens - state.context_tokens), estimated=True)


def _check_output(desk: Desk, run: RunState, text: str) -> tuple[object, str]:
    """The answer against the run's output type: the value, or what is wrong with it."""
    if run.output is None:
        return None, ""
    binding, world = desk.binding, desk.world
    codec = binding.output if run.output == binding.spec.output else world.outputs.get(schema_key(run.output))
    try:
        value = text if run.output == PLAIN_TEXT else decode_json(text)
        return (value if codec is None else codec.encode(codec.decode(value))), ""
    except ValueError as error:
        return None, str(error)
