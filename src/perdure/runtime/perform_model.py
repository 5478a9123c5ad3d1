"""CallModel: build the request, stream the answer, try again where that helps, and say what came of it."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Iterable
from random import random
from typing import Any

from msgspec.structs import replace

from perdure.core.actions import CallModel
from perdure.core.codec import decode_json
from perdure.core.deltas import AttemptDiscarded
from perdure.core.errors import ModelError, UsageError
from perdure.core.events import Event, ModelFailed, ModelResponded, Noted
from perdure.core.messages import AnswerPart, AssistantMessage, ToolCall, Usage, estimate_tokens
from perdure.core.specs import ModelSettings
from perdure.core.state import RunState, SessionState
from perdure.core.transcript import transcript
from perdure.ports import Model, ModelRequest, ModelResponse
from perdure.runtime.clock import sleep
from perdure.runtime.context import ToolContext
from perdure.runtime.desk import Desk, describe
from perdure.runtime.world import schema_key

MAX_ATTEMPTS = 4
LONGEST_WAIT = 60.0
PLAIN_TEXT = {"type": "string"}
"""The schema of `output=str`, by which a run asks for words although its agent has a type."""


async def call_model(desk: Desk, action: CallModel, max_tokens: int | None) -> Event:
    """One turn's answer, or the reason why there is none."""
    state = desk.log.state
    run = state.run
    if run is None:
        return ModelFailed("internal", "the run is over")
    try:
        models = run_models(desk, run)
        request = await _build_request(desk, state, run, action, max_tokens)
    except Exception as error:  # noqa: BLE001 - instructions and resolvers are user code
        return ModelFailed("internal", describe(error))
    failure: Event = ModelFailed("internal", "there is no model")
    for model in models:
        if request.model != model.name:
            request = replace(request, model=model.name)
        answer = await _ask(desk, model, request, action)
        if not isinstance(answer, ModelError):
            return answer if isinstance(answer, ModelFailed) else _responded(desk, state, run, model, answer)
        failure = ModelFailed(answer.kind, str(answer))
        if not answer.retryable:
            return failure
    return failure


def run_models(desk: Desk, run: RunState) -> tuple[Model, ...]:
    """The run's own model where it has one, else the agent's and its fallbacks."""
    if run.model and run.model != desk.binding.models[0].name:
        return (desk.world.model(run.model),)
    return desk.binding.models


async def _build_request(
    desk: Desk, state: SessionState, run: RunState, action: CallModel, max_tokens: int | None
) -> ModelRequest:
    instructions = desk.binding.agent.instructions
    if not isinstance(instructions, str):
        context: ToolContext[Any, Any] = ToolContext(
            deps=desk.world.deps,
            data=state.data,
            session=state.id,
            tenant=state.tenant,
            run=run.run,
            state=state,
        )
        text = instructions(context)
        instructions = await text if inspect.isawaitable(text) else text
        if not isinstance(instructions, str):  # pyright: ignore[reportUnnecessaryIsInstance] - user code
            raise UsageError(f"The instructions returned {type(instructions).__name__}; they have to return text.")
    settings = run.settings
    if max_tokens is not None and max_tokens != settings.max_tokens:
        settings = ModelSettings(settings.temperature, settings.top_p, max_tokens, settings.seed, settings.stop)
    return ModelRequest(
        run.model or desk.binding.spec.model,
        instructions,
        transcript(state),
        () if action.final else desk.binding.spec.tools,
        settings,
        None if run.output == PLAIN_TEXT else run.output,
    )


async def _ask(
    desk: Desk, model: Model, request: ModelRequest, action: CallModel
) -> ModelResponse | ModelError | ModelFailed:
    """Tries one model a few times; what was shown of a failed attempt is announced as discarded."""
    for attempt in range(1, MAX_ATTEMPTS + 1):
        try:
            return await _stream(desk, model, request)
        except ModelError as error:
            if not error.retryable:
                return error
            wait = _wait_after(error, attempt)
            desk.publish(AttemptDiscarded(action.turn, attempt, str(error)))
            what = {"turn": action.turn, "model": model.name, "attempt": attempt, "kind": error.kind, "wait": wait}
            desk.note(Noted("model_attempt", what))
            if wait is None:
                return error
        except Exception as error:  # noqa: BLE001 - a model may be anybody's code
            return ModelFailed("internal", describe(error))
        await sleep(desk.world.clock, wait)
    return ModelFailed("internal", "no attempt was made")


def _wait_after(error: ModelError, attempt: int) -> float | None:
    """Seconds until the next attempt; None if there shall be none."""
    if attempt == MAX_ATTEMPTS:
        return None
    if error.retry_after is None:
        return round(random() * min(LONGEST_WAIT, 0.5 * 2**attempt), 3)
    return max(0.0, error.retry_after) if error.retry_after <= LONGEST_WAIT else None


async def _stream(desk: Desk, model: Model, request: ModelRequest) -> ModelResponse:
    log = desk.log
    feed = log.feed
    stream = model.stream(request)
    try:
        async for item in stream:
            if isinstance(item, ModelResponse):
                return item
            if feed.watched:
                feed.show(log.state.seq, item)
    finally:
        if isinstance(stream, AsyncGenerator):
            await stream.aclose()
    raise ModelError("the stream ended without an answer", kind="cut")


def _responded(desk: Desk, state: SessionState, run: RunState, model: Model, response: ModelResponse) -> Event:
    message = AssistantMessage(number_calls(response.parts, state.calls))
    usage = _settle(run, state, response.usage, message)
    calls = bool(message.calls)
    output, invalid = (None, "") if calls else _check_output(desk, run, message.text)
    stop = "calls" if calls and response.stop == "end" else response.stop
    return ModelResponded(
        message,
        model="" if model.name == run.model else model.name,
        stop=stop,
        usage=usage,
        cost_usd=model.cost(usage),
        output=output,
        invalid=invalid,
    )


def number_calls(parts: Iterable[AnswerPart], last: int) -> tuple[AnswerPart, ...]:
    """The parts with our ordinals on their calls, which go on from the last one of the session."""
    numbered: list[AnswerPart] = []
    for part in parts:
        if isinstance(part, ToolCall):
            last += 1
            part = ToolCall(last, part.name, part.arguments, part.id)
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
