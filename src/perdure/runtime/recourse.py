"""A function of the user's that sees a failed attempt and says what follows."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Literal, TypeAlias, cast, get_args

import msgspec

from perdure.core.errors import ModelError, UsageError
from perdure.ports import Model

Step: TypeAlias = Literal["retry", "continue", "abort", "switch"]


class ModelTrouble(msgspec.Struct, frozen=True):
    """A failed attempt: `attempt` counts this model's, `step` is what happens if the function says None."""

    error: ModelError
    model: str
    turn: int
    attempt: int
    received: str
    fallbacks: tuple[str, ...]
    step: Step


Recourse: TypeAlias = Step | str | Model | None
OnModelError: TypeAlias = Callable[[ModelTrouble], Recourse | Awaitable[Recourse]]
"""retry, continue (with what has come), abort, switch (to the next fallback), a model to switch to, or None."""


async def ask(function: OnModelError, trouble: ModelTrouble, resolve: Callable[[str], Model]) -> Step | Model:
    answer = function(trouble)
    if inspect.isawaitable(answer):
        answer = await answer
    if answer is None:
        return trouble.step
    if not isinstance(answer, str):
        if not callable(getattr(answer, "stream", None)):
            raise UsageError(f"{answer!r} is no step after a model error; take {', '.join(get_args(Step))} or a model.")
        return answer
    if answer in get_args(Step):
        return cast(Step, answer)
    if ":" not in answer:
        raise UsageError(f"{answer!r} is no step after a model error; take {', '.join(get_args(Step))} or a model.")
    return resolve(answer)
