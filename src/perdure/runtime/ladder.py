"""The ladder of one model call: same model with back-off, circuit, fallbacks once each, failure.

Rule 1: attempts and time are bounded, whoever decides about the next step. Rule 2: every attempt, wait, switch and
recovery is a fact. Rule 3: what was shown and does not count is announced as discarded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import random

import msgspec
from msgspec.structs import replace

from perdure.core.actions import CallModel
from perdure.core.deltas import AttemptDiscarded, ModelDelta
from perdure.core.errors import ModelError
from perdure.core.events import Noted
from perdure.core.messages import JSON, Usage, estimate_tokens
from perdure.core.specs import Limits
from perdure.core.window import estimate_view
from perdure.ports import Model, ModelRequest, ModelResponse
from perdure.runtime.clock import sleep, within
from perdure.runtime.desk import Desk, describe
from perdure.runtime.drafts import Draft, DraftWriter, read_draft
from perdure.runtime.gates import Entry, traits_of
from perdure.runtime.recourse import ModelTrouble, OnModelError, Step, ask
from perdure.runtime.recovery import (
    Continue,
    Keep,
    Received,
    as_items,
    join_answer,
    plan_after,
    receive,
    translate,
)
from perdure.runtime.waste import Waste

ATTEMPTS_OF_FIRST = 4
"""A fallback is tried once."""
ATTEMPTS_OF_ALL = 12
"""Also where a function of the user's says retry."""
LONGEST_WAIT = 60.0
LONGEST_SHUT = 3600.0
LONGEST_CLIMB = 900.0
"""In seconds."""
YIELD_EVERY = 256
"""Deltas after which consumers get a turn, however many come in one read."""


class Answered(msgspec.Struct, frozen=True):
    """An answer, and what was paid for attempts that came to nothing."""

    model: Model
    response: ModelResponse
    waste: Waste


class GaveUp(msgspec.Struct, frozen=True):
    kind: str
    detail: str
    waste: Waste


class Ladder:
    """One climb; made for one CallModel.

    `aside` names a question that no turn asks: nothing of its answer is shown, drafted or counted as the turn's waste.
    """

    def __init__(
        self,
        desk: Desk,
        action: CallModel,
        models: Sequence[Model],
        request: ModelRequest,
        on_error: OnModelError | None,
        *,
        aside: str = "",
    ) -> None:
        self._desk = desk
        self._aside = aside
        self._clock = desk.world.clock
        self._gates = desk.world.gates
        self._turn = action.turn
        run = desk.log.state.run
        self._place = (run.run if run else 0, action.turn)
        self._picks_up = action.attempt > 1
        self._models = list(models)
        self._request = request
        self._on_error = on_error
        self._items: list[ModelDelta] = []
        self._attempts = 0
        self._entry: Entry | None = None
        self._before = 0
        self._began = self._clock.monotonic()
        self._waste = Waste()
        self._draft: DraftWriter | None = None
        if aside:
            desk.aside = self._waste
        else:
            desk.waste = self._waste
            self._draft = DraftWriter(desk.world.store, desk.world.drafts, desk.log.uid, desk.epoch, self._place)

    async def climb(self) -> Answered | GaveUp:
        """One turn's answer, or the reason why there is none."""
        try:
            if self._picks_up and (kept := await self._pick_up()):
                return kept
            return await self._climb()
        finally:
            if self._draft is not None and self._draft.end():
                await self._draft.settle()

    async def _climb(self) -> Answered | GaveUp:
        at, number = 0, 1
        while True:
            model = self._models[at]
            try:
                return self._answered(model, await self._attempt(model, has_next=at + 1 < len(self._models)))
            except ModelError as error:
                step = await self._after(error, at, number)
                if isinstance(step, ModelResponse):
                    return self._answered(model, step)
                if step == "abort":
                    return GaveUp(error.kind, str(error), self._waste)
            except Exception as error:  # noqa: BLE001 - a model may be anybody's code
                return GaveUp("internal", describe(error), self._waste)
            at, number = (at + 1, 1) if step == "switch" else (at, number + 1)

    async def _attempt(self, model: Model, *, has_next: bool) -> ModelResponse:
        self._attempts += 1
        self._before = len(self._items)
        self._entry = None
        entry = self._gates.approach(model)
        if not (entry.circuit.is_open and entry.quota.is_open):
            entry = await self._enter(model, entry, has_next=has_next)
        request = self._request
        if request.model != model.name:
            request = self._request = replace(request, model=model.name)
        try:
            response = await self._stream(model, request)
        except ModelError:
            self._entry = entry
            raise
        except BaseException:
            self._gates.step_back(entry)
            self._count_waste(model)
            raise
        self._gates.succeed(entry)
        if response.notes:
            self._note("model_notes", model=model.name, notes=response.notes)
        return replace(response, parts=join_answer(request.prefix, response.parts)) if request.prefix else response

    async def _enter(self, model: Model, entry: Entry, *, has_next: bool) -> Entry:
        """Through gates that are shut; a ModelError where waiting would not help, or another model will do."""
        circuit, quota = entry.circuit, entry.quota
        wait = max(circuit.opens_in, quota.opens_in)
        is_tripped = not circuit.is_open and (circuit.opens_in or circuit.is_probed)
        if wait > LONGEST_WAIT or (has_next and is_tripped):
            kind = "overloaded" if is_tripped else "rate_limited"
            raise ModelError(
                f"{model.name} is not asked for another {wait:.0f} s; try later, or give the agent a fallback.",
                kind=kind,
                retry_after=wait,
            )
        if wait and self._attempts == 1:
            self._note("model_wait", model=model.name, wait=round(wait, 3), circuit=not circuit.is_open)
        try:
            entering = self._gates.enter(entry)
            return await within(self._clock, self._time_left, entering, self._gates.step_back)
        except TimeoutError:
            late = f"{model.name} did not get free in time; try later, or give the agent a fallback."
            raise ModelError(late, kind="rate_limited") from None

    async def _stream(self, model: Model, request: ModelRequest) -> ModelResponse:
        feed, items, head = self._desk.log.feed, self._items, self._desk.log.state.seq
        is_shown = self._draft is not None
        run = self._desk.log.state.run
        is_timed = run is not None and run.limits.silence is not None
        if self._draft is not None:
            self._draft.begin(items, model.name, traits_of(model).provider, self._clock.monotonic())
        stream = model.stream(request)
        try:
            async for item in stream:
                if isinstance(item, ModelResponse):
                    return item
                items.append(item)
                if is_timed:
                    self._desk.sign_at = self._clock.monotonic()
                if is_shown and feed.watched:
                    feed.show(head, item)
                if not len(items) % YIELD_EVERY:
                    await asyncio.sleep(0)
        finally:
            close = getattr(stream, "aclose", None)
            if close is not None:
                await close()
        raise ModelError("The stream ended without an answer.", kind="cut")

    async def _after(self, error: ModelError, at: int, number: int) -> Step | ModelResponse:
        """What follows a failed attempt; waits where there is something to wait for."""
        model = self._models[at]
        wait = _wait_after(error, number)
        if self._entry is not None:
            self._gates.fail(self._entry, error, max(_clip(wait), min(LONGEST_SHUT, error.retry_after or 0.0)))
        received = receive(self._items)
        if error.retryable and isinstance(kept := plan_after(received, continues=False), Keep):
            self._note("model_recovery", model=model.name, kind=error.kind, plan="kept")
            return ModelResponse(kept.parts, "calls", self._estimate(received))
        # Perhaps it is only the beginning of an answer that it does not take: then it is asked from the start.
        is_refused = error.kind == "invalid_request" and bool(self._request.prefix)
        step = "retry" if is_refused else self._own_step(error, at, number, wait)
        if self._on_error is not None:
            step = await self._ask_user(error, at, number, received, step)
            if step == "continue":
                self._note("model_recovery", model=model.name, kind=error.kind, plan="continued without the rest")
                return ModelResponse(received.parts, usage=self._estimate(received))
        self._count_waste(model)
        wait = _clip(wait) if step == "retry" else None
        what: dict[str, JSON] = {"model": model.name, "attempt": self._attempts, "kind": error.kind, "wait": wait}
        self._note("model_attempt", **what, detail=str(error))
        if step == "switch":
            self._note("model_switch", model=self._models[at + 1].name, instead_of=model.name)
        if step != "abort":
            usable = Received() if is_refused else received
            self._recover(usable, model, self._models[at + (step == "switch")], str(error))
        else:
            self._discard(str(error))
        if wait and error.kind != "rate_limited":
            await sleep(self._clock, wait)
        return step

    def _own_step(self, error: ModelError, at: int, number: int, wait: float | None) -> Step:
        tries = ATTEMPTS_OF_FIRST if at == 0 else 1
        if error.kind == "rate_limited":
            # Whoever waits in line with many others is told so more than once.
            tries = ATTEMPTS_OF_ALL if at == 0 else 1
        if not error.switchable or self._attempts >= ATTEMPTS_OF_ALL:
            return "abort"
        is_shut_out = self._entry is None
        if error.retryable and number < tries and wait is not None and wait < self._time_left and not is_shut_out:
            return "retry"
        return "switch" if at + 1 < len(self._models) else "abort"

    async def _ask_user(self, error: ModelError, at: int, number: int, received: Received, step: Step) -> Step:
        assert self._on_error is not None
        later = tuple(model.name for model in self._models[at + 1 :])
        trouble = ModelTrouble(
            error, self._models[at].name, self._turn, number, received=received.text, fallbacks=later, step=step
        )
        try:
            answer = await ask(self._on_error, trouble, self._desk.world.model)
        except Exception as failed:  # noqa: BLE001 - user code
            self._note("hook_failed", hook="on_model_error", detail=describe(failed))
            return step
        if not isinstance(answer, str):
            self._models.insert(at + 1, self._desk.world.ready(answer))
            answer = "switch"
        if answer == "switch" and at + 1 == len(self._models):
            answer = "abort"
        is_over = self._attempts >= ATTEMPTS_OF_ALL or self._time_left <= 0
        return "abort" if is_over and answer != "continue" else answer

    def _recover(self, received: Received, model: Model, successor: Model, reason: str) -> None:
        """Prepares the next attempt: from the prefix where its model goes on from one, else from the beginning."""
        traits = traits_of(successor)
        if traits.provider != traits_of(model).provider:
            received = translate(received)
        plan = plan_after(received, continues=traits.continues)
        if not isinstance(plan, Continue):
            self._request = replace(self._request, prefix=())
            self._discard(reason)
            return
        self._request = replace(self._request, prefix=plan.prefix)
        self._note("model_recovery", model=successor.name, plan="continued")
        if not plan.is_clean:
            self._discard(reason)
            self._items = as_items(plan.prefix)
            self._show(self._items)

    def _discard(self, reason: str) -> None:
        if self._items:
            if not self._aside:
                self._desk.publish(AttemptDiscarded(self._turn, self._attempts, reason))
            self._items = []

    def _show(self, items: Sequence[ModelDelta]) -> None:
        for item in items if not self._aside else ():
            self._desk.publish(item)

    async def _pick_up(self) -> Answered | None:
        """Goes on from what a dead predecessor had received of this turn."""
        draft = await read_draft(self._desk.world.store, self._desk.log.uid, self._place)
        if not draft.items:
            return None
        asked = next((model for model in self._models if model.name == draft.model), self._models[0])
        received = receive(draft.items)
        self._count_lost(asked, draft)
        if isinstance(plan := plan_after(received, continues=False), Keep):
            self._note("model_recovery", model=asked.name, kind="crash", plan="kept")
            parts = plan.parts if traits_of(asked).provider == draft.provider else translate(received).parts
            return self._answered(asked, ModelResponse(parts, "calls", Usage(estimated=True)))
        first = traits_of(self._models[0])
        received = received if first.provider == draft.provider else translate(received)
        plan = plan_after(received, continues=first.continues)
        name = "continued" if isinstance(plan, Continue) else "restarted"
        self._note("model_recovery", model=self._models[0].name, kind="crash", plan=name)
        if isinstance(plan, Continue):
            self._request = replace(self._request, prefix=plan.prefix)
            self._items = as_items(plan.prefix)
            self._show(self._items)
        return None

    def _count_lost(self, model: Model, draft: Draft) -> None:
        """What a dead process was paying for; where it had a reservation, that was counted when the run was resumed."""
        run = self._desk.log.state.run
        limits = run.limits if run else Limits()
        if limits.tokens is None and limits.cost_usd is None:
            self._waste.add(model, self._desk.log.state.context_tokens, draft.items)

    def _count_waste(self, model: Model) -> None:
        self._waste.add(model, self._prompt_tokens, self._items[self._before :])

    def _estimate(self, received: Received) -> Usage:
        """Of an answer whose provider did not get to say what it used."""
        return Usage(self._prompt_tokens, estimate_tokens(received.parts), estimated=True)

    def _answered(self, model: Model, response: ModelResponse) -> Answered:
        return Answered(model, response, self._waste)

    def _note(self, fact: str, **data: JSON) -> None:
        self._desk.note(Noted(fact, {"turn": self._turn, **({"for": self._aside} if self._aside else {}), **data}))

    @property
    def _prompt_tokens(self) -> int:
        return estimate_view(self._request.messages) if self._aside else self._desk.log.state.context_tokens

    @property
    def _time_left(self) -> float:
        return LONGEST_CLIMB - (self._clock.monotonic() - self._began)


def _wait_after(error: ModelError, number: int) -> float | None:
    """Seconds until the next attempt: back-off with full jitter, or what the provider asks for and a little more.

    None where it asks for more than anybody should wait here.
    """
    backoff = random() * min(LONGEST_WAIT, 0.5 * 2**number)
    asked = error.retry_after
    if asked is None:
        return round(backoff, 3)
    if asked > LONGEST_WAIT:
        return None
    # Who asks for nothing, or next to it, is not to be asked four times in a moment.
    return round(max(asked + random() * min(1.0, asked * 0.1), backoff if asked < 1.0 else 0.0), 3)


def _clip(wait: float | None) -> float:
    return LONGEST_WAIT if wait is None else wait
