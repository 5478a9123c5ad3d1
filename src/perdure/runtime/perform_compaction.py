"""CompactHistory: the older part of the view gives way to a summary, and nothing that matters is lost or paid twice.

Rule 1: what pruning alone can do is not paid for. Rule 2: whatever goes wrong is an event with its cost, never the end
of a turn. Rule 3: it ends in time, whoever's code it asks.
"""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

from msgspec.structs import replace

from perdure.core.actions import CallModel, CompactHistory
from perdure.core.events import HistoryCompacted
from perdure.core.messages import AssistantMessage, Message, Plain, Text, Usage, UserMessage, estimate_tokens
from perdure.core.specs import ModelSettings, Window
from perdure.core.state import SessionState
from perdure.core.window import Range, calls_of, estimate_view, find_range, is_summary, ledger_of, superseded
from perdure.ports import Model, ModelRequest
from perdure.runtime.agent import Binding
from perdure.runtime.clock import within
from perdure.runtime.compaction import Compaction, ToCompact, written
from perdure.runtime.desk import Desk, describe
from perdure.runtime.gates import traits_of
from perdure.runtime.ladder import Answered, Ladder
from perdure.runtime.limits import has_room_for
from perdure.runtime.tokens import Meter
from perdure.runtime.waste import Waste, price_of

LONGEST_COMPACTION = 300.0
"""In seconds; nobody waits for ever for a summary."""
NOTHING = "there is nothing to leave out"
OVERTAKEN = "the view of the conversation has changed meanwhile"
NO_ROOM = "the limits of the run leave no room for a summary"
NO_PROGRESS = "the summary would not be shorter than what it stands for"
WORTH_A_SUMMARY = 200
"""In tokens: fewer are not worth a model's answer."""
SHORTEST_SUMMARY = 100
ROOMY = 1.5
"""Times the goal: a view of that size is short enough to keep as many of the last messages as the agent asks for."""
SHORTEST_TAIL = 2
MOST_CHARACTERS = 400_000
CHARACTERS_A_TOKEN = 3
"""Few, so that a prompt that was measured in characters fits."""
FRAME_TOKENS = 300
TRIES = 4
"""To find out what a model can read, where nobody says."""


class Plan(Plain, frozen=True):
    """What a compaction takes out: nothing if pruning is enough."""

    pruned: tuple[int, ...] = ()
    range: Range | None = None
    tokens_before: int = 0


class Summary(Plain, frozen=True):
    text: str = ""
    model: str = ""
    usage: Usage = Usage()
    cost_usd: float | None = 0.0
    error: str = ""


async def compact_history(desk: Desk, action: CompactHistory) -> HistoryCompacted:
    """The event that makes the view shorter, or says why it could not be done."""
    state = desk.log.state
    desk.aside = Waste()
    try:
        return await within(desk.world.clock, LONGEST_COMPACTION, _compact(desk, state, action))
    except TimeoutError:
        error = f"it took longer than {LONGEST_COMPACTION:.0f} s"
    except Exception as wrong:  # noqa: BLE001 - compactors, counters and models are user code
        error = describe(wrong)
    spent = desk.aside
    return HistoryCompacted(state.view, action.cause, error=error, usage=spent.usage, cost_usd=spent.cost_usd)


async def _compact(desk: Desk, state: SessionState, action: CompactHistory) -> HistoryCompacted:
    options = desk.binding.agent.compaction
    meter = Meter(options.count)
    plan = await _measured(desk, meter, partial(_plan, state, desk.binding, action, meter))
    event = HistoryCompacted(state.view, action.cause, pruned=plan.pruned, tokens_before=plan.tokens_before)
    if plan.range is None and not plan.pruned:
        return replace(event, error=NOTHING)
    if plan.range is not None:
        start, stop = plan.range.start, plan.range.stop
        gone = state.history[start:stop]
        event = replace(event, start=start, stop=stop, ledger=ledger_of(state, gone))
        summary = await _summarise(desk, state, gone, event)
        paid = replace(event, model=summary.model, usage=summary.usage, cost_usd=summary.cost_usd)
        if summary.error:
            return failed(paid, summary.error)
        event = replace(paid, parts=(Text(summary.text),) if summary.text else ())
    after = await _measured(desk, meter, partial(meter.view, state, event))
    event = replace(event, tokens_after=after)
    return event if after < event.tokens_before else failed(event, NO_PROGRESS)


def failed(event: HistoryCompacted, error: str) -> HistoryCompacted:
    """It changes nothing, so it says nothing of what it would have changed."""
    return replace(event, start=0, stop=0, parts=(), ledger=(), pruned=(), error=error)


async def _measured(desk: Desk, meter: Meter, work: partial[Any]) -> Any:
    """Whoever counts with a tokenizer takes his time: not in the loop."""
    return await desk.world.threads.submit(work) if meter.is_exact else work()


def _plan(state: SessionState, binding: Binding, action: CompactHistory, meter: Meter) -> Plan:
    window, options = binding.spec.window, binding.agent.compaction
    before = meter.view(state)
    goal = _goal(state, window, action, before)
    pruned = superseded(state, window.keep_first, window.keep_last)
    if pruned and meter.view(state, HistoryCompacted(state.view, action.cause, pruned=pruned)) <= goal:
        return Plan(pruned, tokens_before=before)
    plan = Plan(pruned, tokens_before=before)
    summary = 0 if options.compactor == "drop" else min(options.max_tokens, goal // 4)
    # Who asks for it by hand gets what the window says; there is no room that has to be made.
    for keep in [window.keep_last] if action.cause == "request" else _tails(window.keep_last):
        found = find_range(state.history, window.keep_first, keep)
        if found is None or not _is_worth_it(state, found, options):
            continue
        old = superseded(state, window.keep_first, keep)
        gone = {call.call for message in state.history[found.start : found.stop] for call in calls_of(message)}
        plan = Plan(tuple(call for call in old if call not in gone), found, before)
        trial = HistoryCompacted(state.view, action.cause, found.start, found.stop, pruned=plan.pruned)
        if meter.view(state, trial) + summary <= ROOMY * goal:
            break
    return plan


def _goal(state: SessionState, window: Window, action: CompactHistory, now: int) -> int:
    """Half of what made it due, so that the next one is far away."""
    run = state.run
    if action.cause == "threshold" and run and run.window:
        return int(window.at * run.window / 2)
    return now // 2


def _tails(keep_last: int) -> list[int]:
    """How many of the last messages to keep: as asked for, and fewer where those alone are too long."""
    tails = [keep_last]
    while tails[-1] > SHORTEST_TAIL:
        tails.append(max(SHORTEST_TAIL, tails[-1] // 2))
    return tails


def _is_worth_it(state: SessionState, found: Range, options: Compaction) -> bool:
    fresh = _fresh(state, found)
    least = 0 if options.compactor == "drop" else WORTH_A_SUMMARY
    return bool(fresh) and estimate_view(fresh) * state.token_ratio > least


def _fresh(state: SessionState, found: Range) -> list[Message]:
    """The messages of the range that would go, and that no summary stands for yet."""
    places = (at for at in range(found.start, found.stop) if at != state.asked)
    return [message for at in places if not is_summary(message := state.history[at])]


async def _summarise(desk: Desk, state: SessionState, gone: list[Message], event: HistoryCompacted) -> Summary:
    options = desk.binding.agent.compaction
    if options.compactor == "drop":
        return Summary()
    size = int(estimate_view(gone) * state.token_ratio)
    target = min(options.max_tokens, max(SHORTEST_SUMMARY, size // 2))
    given = ToCompact(tuple(gone), event.ledger, options.prompt, target)
    if options.compactor == "model":
        return await _ask_models(desk, state, given)
    # A function that is written with `def` may take its time too: it gets a thread of its own.
    function = options.compactor
    if inspect.iscoroutinefunction(function):
        said = await function(given)
    else:
        said = await desk.world.threads.submit(partial(function, given))
        said = await said if inspect.isawaitable(said) else said
    if not isinstance(said, str):  # pyright: ignore[reportUnnecessaryIsInstance] - user code
        return Summary(error=f"the compactor returned {type(said).__name__}; it has to return text")
    return Summary(said.strip())


async def _ask_models(desk: Desk, state: SessionState, given: ToCompact) -> Summary:
    models = desk.binding.summarisers or _models_of(desk, state)
    room = _room(models[0], state, given)
    waste, reason = Waste(), ""
    for _ in range(TRIES):
        words = UserMessage((Text(written(given, room)),))
        settings = ModelSettings(max_tokens=given.target)
        request = ModelRequest(models[0].name, given.instructions, [words], settings=settings)
        prompt = estimate_view([words]) + len(given.instructions) // 4
        if state.run is not None and not has_room_for(state.run, models[0], Usage(prompt, given.target)):
            return Summary(error=NO_ROOM, usage=waste.usage, cost_usd=waste.cost_usd)
        turn = CallModel(state.run.turn if state.run else 0)
        came = await Ladder(desk, turn, models, request, None, aside="compaction").climb()
        waste.join(came.waste)
        if isinstance(came, Answered):
            summary = _summary_of(came, prompt, waste)
            desk.aside = Waste(summary.usage, summary.cost_usd)
            return summary
        reason = f"{came.kind}: {came.detail}"
        if came.kind != "context_too_long":
            break
        room //= 2
    return Summary(error=reason, usage=waste.usage, cost_usd=waste.cost_usd)


def _summary_of(came: Answered, prompt: int, waste: Waste) -> Summary:
    response, model = came.response, came.model
    message = AssistantMessage(response.parts)
    usage = response.usage or Usage(prompt, estimate_tokens(response.parts), estimated=True)
    cost = price_of(model, usage)
    paid = Summary(
        message.text.strip(),
        model.name,
        usage + waste.usage,
        None if cost is None or waste.cost_usd is None else cost + waste.cost_usd,
    )
    if message.calls:
        return replace(paid, error="the model called a tool instead of writing a summary")
    if response.stop == "refusal":
        return replace(paid, error="the model refused to write a summary")
    return paid if paid.text else replace(paid, error="the summary is empty")


def _models_of(desk: Desk, state: SessionState) -> tuple[Model, ...]:
    """Whom the next turn would ask."""
    name = state.run.model if state.run else state.model
    if name and name != desk.binding.models[0].name:
        return (desk.world.model(name),)
    return desk.binding.models


def _room(model: Model, state: SessionState, given: ToCompact) -> int:
    """How many characters of the conversation the model can read, as far as anybody knows."""
    window = traits_of(model).window or (state.run.window if state.run else None)
    if window is None:
        return MOST_CHARACTERS
    tokens = window - given.target - len(given.instructions) // 4 - FRAME_TOKENS
    return max(1_000, min(MOST_CHARACTERS, tokens * CHARACTERS_A_TOKEN))
