"""What a replay puts in the place of models and of time: their names, prices and traits, and the seconds of then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from perdure.core.deltas import ModelDelta
from perdure.core.errors import ModelError
from perdure.core.messages import Usage
from perdure.ports import Model, ModelRequest, ModelResponse, ModelTraits, Timer
from perdure.runtime.gates import traits_of


class PlayedModel:
    """A model's name, price and traits; whoever asks it gets an error."""

    def __init__(self, model: Model | None, name: str = "") -> None:
        self._model = model
        self.name = model.name if model is not None else name
        self.traits = traits_of(model) if model is not None else ModelTraits()

    def cost(self, usage: Usage) -> float | None:
        return self._model.cost(usage) if self._model is not None else None

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta | ModelResponse]:
        raise ModelError("A replay asks no model; its answers are recorded.", kind="invalid_request")
        yield ModelResponse(())


class RecordedClock:
    """Time as the record has it: it moves on by the seconds that work took then. Timers are real."""

    def __init__(self, now: float) -> None:
        self._now = now
        self._passed = 0.0

    def now(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._passed

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(seconds, callback)

    def turn(self, seconds: float) -> None:
        self._passed += seconds
